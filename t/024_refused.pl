# What ZooKeeper itself refuses: a path closed by its ACL, a path under an
# ephemeral node, a node that may not be read, a session without authentication.
# Each is a clear error, leaves nothing behind, and the session remains usable.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Utils;
use Test::More;

use Child;
use Claims;
use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

use constant { READ => 1, WRITE => 2, CREATE => 4, DELETE => 8, ADMIN => 16, ALL => 31 };
use constant { EXPIRED => -112, THROTTLED => -127 };

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '20s');
my $session = zk_session($node);
my $client = $zk->client;

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
	my $s = zk_session($node, options => '-c zklock.commit_guard=strict');
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
	my $s = zk_session($node);    # it has as long again to come back
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
# ------------------------------------------------------------------ "not now"

# Whichever request is refused so, it is sent again, and nobody notices.
claims_are_read_by($session);
my %throttled = (
	'a lock' => [ [ 'SELECT zk_lock(:p)', 't' ], [ 'SELECT zk_lock(:p), zk_unlock(:p), zk_unlock(:p)', 't|t|t' ] ],
	'one that is free' => [ [ 'SELECT zk_try_lock(:p), zk_unlock(:p)', 't|t' ] ],
	'a writer becomes a reader' =>
	  [ [ 'SELECT zk_lock(:p), zk_lock_shared(:p), zk_unlock(:p), zk_unlock_shared(:p)', 't|t|t|t' ] ],
	'the same by name' => [ [ 'SELECT zk_lock(:p), zk_lock_shared(:p), zk_unlock(:p), zk_unlock_shared(:p)', 't|t|t|t' ], 'curator_rw' ],
	'several' => [ [ q{SELECT zk_lock_many(ARRAY[:p, :p || '/b']), zk_unlock(:p), zk_unlock(:p || '/b')}, 't|t|t' ] ],
	'a semaphore' => [ [ 'SELECT zk_semaphore_acquire(:p, 2), zk_semaphore_release(:p)', 't|t' ] ],
	'a single node' => [ [ 'SELECT zk_lock(:p), zk_unlock(:p)', 't|t' ], 'single' ],
	'a transaction' => [ [ 'BEGIN; SELECT zk_xact_lock(:p); COMMIT', 't' ], [ 'SELECT zk_try_lock(:p), zk_unlock(:p)', 't|t' ] ],
	'a claim' => [ [ 'SELECT zk_claim(:p, to_timestamp(60))', 't' ], [ 'SELECT state FROM zk_last_claim(:p)', 'done' ] ],
	'a claim that is forgotten' => [ [ 'SELECT zk_claim(:p, to_timestamp(60))', 't' ], [ 'SELECT zk_claim_forget(:p)', 't' ] ],
	'the views' => [
		[ 'SELECT zk_lock(:p)', 't' ],
		[ 'SELECT count(*) FROM zk_lock_queue(:p)', '1' ],
		[ 'SELECT count(*) FROM zk_lock_paths(:p)', '1' ],
		[ 'SELECT zk_unlock(:p)', 't' ] ],
	'a break' => [ [ 'SELECT zk_lock(:p)', 't' ], [ 'SELECT zk_lock_break(:p, node) FROM zk_locks', 't' ], [ 'SELECT zk_unlock(:p)', 'f' ] ],
);

foreach my $what (sort keys %throttled)
{
	subtest "throttled: $what" => sub {
		my @steps = @{ $throttled{$what} };
		my $style = ref $steps[-1] ? 'curator' : pop @steps;
		my ($s, $proxy) = zk_counted_session($node, $zk, 0, session_timeout => '60s', operation_timeout => '20s',
			node_style => $style, commit_guard => 'strict');
		my $n = 0;
		for (my $hit = 1; $hit; )
		{
			my $path = sprintf q{'/%s/%d'}, $what =~ tr/ /_/r, ++$n;
			my @wrong;
			$proxy->clear_log;
			$proxy->count_frames;
			$proxy->nth('request', $n, 'throttle');
			foreach my $step (@steps)
			{
				my ($call, $expected) = @$step;
				my $result = $s->query($call =~ s/:p/$path/gr);
				push @wrong, $call, $result->{err}, $result->{out}
				  if $result->{state} ne '' || $result->{out} ne $expected || (@{ $result->{warnings} } && $expected ne 'f');
			}
			zk_until(sub { !zk_locks_left($zk) }, 'what was taken to be gone', $MOMENT);
			$hit = grep { $_->[1] eq 'x' } $proxy->log;
			ok(!@wrong, "request $n: as if nothing had been") or diag join "\n", @wrong, zk_short($proxy->requests);
		}
		cmp_ok($n, '>', @steps, 'each request was throttled');
		$s->value('SELECT zk_unlock_all()');
		$s->quit;
	};
}

# A waiter, and those behind it
subtest 'throttled: waits' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, session_timeout => '60s', operation_timeout => '3s');
	foreach my $op (qw(create2 getChildren getData multi sync))
	{
		$session->value(q{SELECT zk_lock('/throttled/wait')});
		$proxy->deny($op, THROTTLED, 5);
		$s->send(q{SELECT zk_lock('/throttled/wait', '1min')});
		zk_wait_queued($zk, $s);
		$session->value(q{SELECT zk_unlock('/throttled/wait')});
		is($s->wait->{out}, 't', "$op: it gets the lock");
		is($s->value(q{SELECT zk_unlock('/throttled/wait')}), 't', '- and gives it back');
		$proxy->reset;
	}

	$proxy->deny('create2', THROTTLED, 1_000_000);
	my $result = $s->query(q{SELECT zk_lock('/throttled', '1s')});
	is($result->{state}, '58030', 'until the time is over: 58030');
	like($result->{err}, qr/timeout expired.*\n.*ZooKeeper reported: request throttled\./, '- with what ZooKeeper said');
	$result = $s->query(q{SELECT zk_try_lock('/throttled')});
	is($result->{state}, '58030', 'a call that may not wait ends, too');
	like($result->{err}, qr/no usable answer within 3000 ms.*\n.*request throttled/, '- with the same');
	$s->send(q{SELECT zk_lock('/throttled')});
	$proxy->clear_log;
	$proxy->wait_for('create2', 10);
	is($s->cancel($session)->{state}, '57014', 'one without a limit can be canceled');
	$proxy->reset;
	is($s->value(q{SELECT zk_lock('/throttled'), zk_unlock('/throttled')}), 't|t', 'and the session goes on');
	$s->quit;
};

# As ZooKeeper does it, which somebody else keeps busy: what arrives while that is worked
# on has to wait, and is refused if it took a millisecond.  The server is left time for
# others, and remembers no more than it has memory for: 500 transactions.
subtest 'a server that throttles' => sub {
	my $busy = ZooKeeper->new(
		java_options => [ map { "-Dzookeeper.$_" } qw(throttled_op_wait_time=1 request_throttle_max_requests=1 request_throttle_stall_time=5) ])
	  ->start;
	my $load = q{my ($client) = ZkClient->new($ARGV[0]); while (1) { eval { $client->multi(map { [ check => '/' ] } 1 .. 100) }; sleep 0.005 }};
	my ($pid) = Child::spawn([ $^X, "-I$FindBin::RealBin/lib", qw(-MTime::HiRes=sleep -MZkClient -e), $load, $busy->hosts ]);
	my ($s, $proxy) = zk_counted_session($node, $busy, 0, session_timeout => '60s', operation_timeout => '150s', connect_timeout => '60s');
	my ($rounds, @bad) = (0);
	zk_until(
		sub {
			my $result = $s->query(q{BEGIN; SELECT zk_lock('/busy'), zk_xact_lock_shared('/busy/b'); COMMIT; SELECT zk_unlock('/busy')});
			push @bad, $result->{err} if $result->{state} ne '' || $result->{out} ne "t|t\nt";
			$rounds++;
			return @bad || ($rounds >= 5 && 3 <= grep { $_->[1] eq '<' && $_->[5] eq THROTTLED } $proxy->log);
		},
		'it to be throttled');
	ok(!@bad, 'each lock is taken and given back, however often that is refused') or diag @bad;
	note "$rounds rounds";
	kill 'KILL', $pid;
	waitpid $pid, 0;
	$s->quit;
	zk_until(sub { !$busy->ephemerals }, 'nothing to be left there');
	$busy->stop;
};

# ------------------------------------------------- answers that leave all open

subtest 'doubt without end' => sub {
	my ($s, $proxy) = zk_counted_session($node, $zk, 0, session_timeout => '60s');
	my %calls = (create2 => 'zk_lock(%s)', getChildren => 'zk_lock(%s)', multi => q{zk_lock_many(ARRAY[%s, '/doubt/z'])});
	foreach my $op (sort keys %calls)
	{
		$proxy->deny($op, EXPIRED, 1_000_000);
		$s->value(q{SET zklock.operation_timeout = '1s'});
		my $result = $s->query('SELECT ' . sprintf $calls{$op}, "'/doubt/$op'");
		is($result->{state}, '58030', "$op: 58030") or diag $result->{err};
		like($result->{err}, qr/no usable answer within 1000 ms.*\n.*ZooKeeper reported: session expired\.\n.*localSessionsUpgradingEnabled/, '- with what ZooKeeper said');
		$proxy->reset;
		$s->value('RESET zklock.operation_timeout');
		is($s->query(sprintf "SELECT $calls{$op}, zk_unlock_all() > 0", "'/doubt/$op'")->{out}, 't|t', 'and the session goes on');
	}
	$s->quit;
};

# To a multi a follower gives the leader's answer, which is another one.
subtest 'local sessions' => sub {
	my $ensemble = ZooKeeper->ensemble(2, config => { localSessionsEnabled => 'true' });
	my ($local) = $ensemble->followers;
	my $s = zk_session_with($node, hosts => $local, session_timeout => '20s');
	$s->value(q{SET zklock.operation_timeout = '2s'});
	$local->create('/zklock');
	$local->create("/zklock/$_") for qw(a b);
	my %says = (
		q{zk_lock('/a')} => qr/local/,
		q{zk_try_lock('/a')} => qr/local/,
		q{zk_semaphore_acquire('/a', 2)} => qr/local/,
		q{zk_lock_many(ARRAY['/a', '/b'])} => qr/ZooKeeper reported: session expired/);
	foreach my $call (sort keys %says)
	{
		my $result = $s->query("SELECT $call");
		is($result->{state}, '58030', "without upgrading, $call: 58030");
		like($result->{err}, $says{$call}, '- with what ZooKeeper said') or diag $result->{err};
		like($result->{err}, qr/localSessionsUpgradingEnabled/, '- and what is missing');
	}
	$ensemble->stop;
	foreach ($ensemble->nodes) { $_->{config}{localSessionsUpgradingEnabled} = 'true'; $_->_configure; }
	$ensemble->start;
	$s->value('RESET zklock.operation_timeout');
	is($s->query("SELECT $_, zk_unlock_all() > 0")->{out}, 't|t', "with upgrading, $_") for sort keys %says;
	$s->quit;
	$ensemble->stop;
};
$session->quit;
$node->stop;

done_testing();
