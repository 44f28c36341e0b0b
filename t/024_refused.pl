# What ZooKeeper itself refuses: a path closed by its ACL, a path under an
# ephemeral node, a node that may not be read, a session without authentication.
# Each is a clear error, leaves nothing behind, and the session remains usable.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Utils;
use Test::More;

use Zklock;
use ZooKeeper;

use constant { READ => 1, WRITE => 2, CREATE => 4, DELETE => 8, ADMIN => 16, ALL => 31 };

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '2s');
my $session = zk_session($node);
my $client = $zk->client(session_timeout => 60_000);

sub open_to_world { return [ [ $_[0], 'world', 'anyone' ] ] }

$client->create('/zklock', mode => 'persistent');
$client->create('/zklock/closed', mode => 'persistent', acl => open_to_world(READ));
$client->create('/zklock/unlisted', mode => 'persistent', acl => open_to_world(CREATE | DELETE));
$client->create('/zklock/ephemeral', mode => 'ephemeral');
$client->create('/zklock/shy', mode => 'persistent');
my $shy = $client->create('/zklock/shy/_c_other-lock-', mode => 'ephemeral_sequential',
	acl => open_to_world(DELETE));

my @cases = (
	[ "zk_lock('/closed')", '42501', qr/permission denied by ZooKeeper for lock path "\/closed"/ ],
	[ "zk_lock('/closed/below/it')", '42501', qr/permission denied/ ],
	[ "zk_lock('/unlisted')", '42501', qr/permission denied/ ],
	[ "zk_try_lock('/unlisted')", '42501', qr/permission denied/ ],
	[ "zk_lock('/shy')", '42501', qr/permission denied/ ],
	[ "zk_lock('/ephemeral')", '55000', qr/ephemeral node/ ],
	[ "zk_lock('/ephemeral/below')", '55000', qr/ephemeral node/ ],);

for my $case (@cases)
{
	my ($call, $state, $message) = @$case;
	my $result = $session->query("SELECT $call");

	is($result->{state}, $state, "$call: $state");
	like($result->{err}, $message, "$call: says so");
	is($session->value("SELECT zk_lock('/fine'), zk_unlock('/fine')"), 't|t', "$call: the session goes on");
}

is_deeply(
	[ sort grep { !/fine/ } $zk->tree('/zklock') ],
	[ sort qw(/zklock/closed /zklock/ephemeral /zklock/shy /zklock/unlisted), $shy ],
	'no node and no directory is left of the refused calls');

$client->delete($shy);
is($session->value("SELECT zk_lock('/shy'), zk_unlock('/shy')"), 't|t', 'what was in the way is gone');

# ------------------------------------------- authentication that is withdrawn

# One node: an ACL denies us access while we hold the lock.  We may still delete
# it, since that depends on the directory.
{
	my $s = zk_session($node, options => '-c zklock.commit_guard=strict -c zklock.session_timeout=20s');
	$s->value(q{BEGIN; SELECT zk_xact_lock('/closing'), zk_xact_lock('/closing/b')});
	my ($mine) = grep { /-lock-/ } $client->children('/zklock/closing/b');
	$client->set_acl("/zklock/closing/b/$mine", open_to_world(WRITE));
	my $commit = $s->query('COMMIT');
	is($commit->{state}, '40001', 'a node that an ACL closes to us is lost');
	like($commit->{message}, qr{lock on "/closing/b" was lost}, '- and named');
	zk_until(sub { !grep { /-lock-/ } $client->children('/zklock/closing/b') }, 'the node goes');
	pass('- and does not stay');
	$s->quit;
}

$client->close;

# A directory: the lock is lost while ZooKeeper is down, and afterwards its node
# may not be deleted.  Nobody waits for that answer.
{
	my $s = zk_session($node, options => '-c zklock.session_timeout=10s');
	$s->value(q{SELECT zk_lock('/kept')});
	$zk->with_client(sub { $_[0]->set_acl('/zklock/kept', open_to_world(READ | CREATE | ADMIN)) });
	$zk->stop;
	zk_wait_hold($s, 'lost');
	$zk->start;
	zk_until(sub { $s->value('SELECT unreleased FROM zk_session') == 1 }, 'its node to be refused');
	is($s->query(q{SELECT zk_unlock('/kept')})->{out}, 'f', 'a lock that was lost in an outage is given back');
	my $next = $s->query(q{SELECT zk_lock('/fine'), zk_unlock('/fine')});
	is($next->{out}, 't|t', '- the session goes on');
	like("@{ $next->{warnings} }", qr/refused the release of a lock: permission denied/, '- and says that its node is still there');
	zk_until(sub { !grep { /-lock-/ } $zk->children('/zklock/kept') }, 'the node goes');
	pass('- which is gone with the session');
	$s->quit;
}

# From now on the ensemble requires authentication: it closes every session
# without it, and so its locks are released.
{
	my $s = zk_session($node);
	$s->value('CREATE TABLE written (i int)');
	is($s->value("SELECT zk_lock('/withdrawn')"), 't', 'before authentication is demanded: held');
	# it looks at them when they are lost
	$s->value('BEGIN; SET LOCAL zklock.cancel_on_loss = off');
	is($s->value("SELECT zk_xact_lock('/withdrawn/x')"), 't', 'and another in a transaction');
	$s->value('INSERT INTO written VALUES (1)');

	$zk->stop;
	$zk->{config} = { 'enforce.auth.enabled' => 'true', 'enforce.auth.schemes' => 'digest' };
	$zk->_configure;
	$zk->start;
	zk_until(sub { $s->value("SELECT string_agg(DISTINCT state, ' ') FROM zk_locks") eq 'lost' },
		'both locks are lost');
	my $commit = $s->query('COMMIT');
	is($commit->{state}, '40001', 'a session that may not authenticate has lost its locks: COMMIT fails');
	like($commit->{message}, qr{lock on "/withdrawn(?:/x)?" was lost}, '- and says so');
	is($s->value('SELECT count(*) FROM written'), '0', '- and wrote nothing');
	is($s->value("SELECT zk_unlock('/withdrawn')"), 'f', '- zk_unlock says so, too');
	my $new = $s->query("SELECT zk_lock('/withdrawn')");
	is($new->{state}, '28000', 'a new call is refused: 28000') or diag $new->{err};

	$zk->stop;
	delete $zk->{config};
	$zk->_configure;
	$zk->start;
	is($s->value("SELECT zk_lock('/withdrawn'), zk_unlock('/withdrawn')"), 't|t',
		'and is granted when nobody asks for authentication any more');
	$s->quit;
}

zk_nothing_left($zk, 'nothing is left');

# A quota, as set by setquota -N, limits the nodes below the root, including
# directories.  ZooKeeper does not count the node that it is about to create, so
# there is no room left at all.
{
	my $bounded = ZooKeeper->new(config => { enforceQuota => 'true' })->start;
	my $s = zk_session($node, options => '-c zklock.hosts=' . $bounded->hosts);
	$bounded->create($_) for qw(/zklock /zookeeper/quota/zklock);
	$bounded->create("/zookeeper/quota/zklock/$_->[0]", 'persistent', data => $_->[1])
	  for [ zookeeper_limits => 'count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=5' ],
	  [ zookeeper_stats => 'count=1,bytes=0' ];
	is($s->value("SELECT zk_lock('/1'), zk_lock('/2')"), 't|t', 'as much as a quota allows');
	my $result = $s->query("SELECT zk_lock('/1/2/3/4')");
	is($result->{state}, '53400', 'beyond a quota: 53400') or diag $result->{err};
	like($result->{message}, qr{"/1/2/3/4" would exceed a ZooKeeper quota}, '- with the path');
	is($s->value("SELECT zk_unlock('/1'), zk_unlock('/2'), zk_lock('/1')"), 't|t|t', '- and the session goes on');
	$s->quit;
	zk_nothing_left($bounded, 'nothing is left there');
	$bounded->stop;
}
$node->stop;

done_testing();
