# What the server log tells of sessions and locks that were lost, of outages, of
# refused sessions and of rights that were withdrawn: one line each, with the cause;
# and the hints of a connection that failed.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use IO::Socket::INET;
use POSIX ();
use Test::More;
use Time::HiRes qw(time);

use Auth;
use Child;
use ZkProxy;
use Zklock;
use ZooKeeper;

my $zk = ZooKeeper->new(max_session_timeout => 60_000)->start;    # less than some ask for
my $node = zk_cluster('main', $zk, 'zklock.session_timeout' => '10s', log_error_verbosity => 'default', shared_preload_libraries => 'zklock');
my $proxy = ZkProxy->new($zk);
my $bare = zk_session($node);

# The lines of that backend since a place of the log, with their details and hints;
# not its errors
sub told
{
	my ($s, $from) = @_;
	my $pid = $s->pid;
	my ($log, $is_error) = (slurp_file($node->logfile, $from), 0);
	my @lines;
	while ($log =~ /\[$pid\][^\n]*? (LOG|WARNING|ERROR|FATAL|DETAIL|HINT):  ([^\n]*)/g)
	{
		$is_error = $1 eq 'ERROR' || $1 eq 'FATAL' if $1 ne 'DETAIL' && $1 ne 'HINT';
		push @lines, $2 unless $is_error;
	}
	return @lines;
}

sub told_only
{
	my ($s, $from, $name, @expected) = @_;
	# nothing is said again, whatever the backend does
	foreach (1 .. 3)
	{
		$s->query($_) foreach 'SELECT 1', 'SELECT state FROM zk_session', 'SELECT count(*) FROM zk_locks', "SELECT zk_lock_token('/none')", 'BEGIN; ROLLBACK';
	}
	my @lines = told($s, $from);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(scalar @lines, scalar @expected, "$name: said once") or diag join "\n", @lines;
	# which of two comes first depends on who has noticed it
	foreach my $line (@expected)
	{
		my ($i) = grep { $lines[$_] =~ $line } 0 .. $#lines;
		ok(defined $i, "$name: $line") or diag join "\n", @lines;
		splice @lines, $i, 1 if defined $i;
	}
	return;
}

sub log_end { return -s $node->logfile; }

subtest 'a lock whose node is deleted' => sub {
	my $s = zk_session($node);
	$s->value(q{SELECT zk_lock('/deleted')});
	my $from = log_end();
	$zk->with_client(sub { $_[0]->delete_contenders('/zklock/deleted') });
	zk_until(sub { $s->value('SELECT state FROM zk_locks') eq 'lost' }, 'the loss');
	told_only($s, $from, 'a lock', qr{^the lock on "/deleted" was lost$}, qr/^Its node in ZooKeeper was deleted\.$/);
	$s->quit;
};

# Its backend learns of it by itself, and tells it at its next statement, whatever that is
subtest 'locks that are lost while nothing is done with them' => sub {
	my $s = zk_session($node);
	$s->value(q{SELECT zk_lock('/idle/a'), zk_lock('/idle/b'), zk_lock_shared('/idle/b'), zk_lock('/idle/c')});
	my $lost = sub { return $bare->value(qq{SELECT count(*) FROM zk_server_locks WHERE state = 'lost' AND pid = } . $s->pid); };
	my $from = log_end();
	$zk->with_client(sub { $_[0]->delete_contenders('/zklock/idle/b') });
	zk_until(sub { $lost->() == 2 }, 'the loss to be known');
	is(scalar told($s, $from), 0, 'nothing is told while the backend does nothing');
	$s->value('SELECT 1');
	my @told = (qr{^the lock on "/idle/b" was lost$}, qr/^Its node in ZooKeeper was deleted\.$/);
	is(scalar told($s, $from), 2, 'at the next statement it is');
	told_only($s, $from, 'one of three', @told);

	$from = log_end();
	my $id = $s->value('SELECT session_id FROM zk_session');
	$zk->end_session($id, $s->pid);
	zk_until(sub { $lost->() == 4 }, 'the loss to be known');
	$s->value('SELECT 1');
	my @ended = (qr/^ZooKeeper ended the session that held it\.$/);
	told_only($s, $from, 'the session', qr/^ZooKeeper session $id was lost$/, qr/^ZooKeeper ended the session, or/,
		qr{^the lock on "/idle/a" was lost$}, @ended, qr{^the lock on "/idle/c" was lost$}, @ended);
	$s->quit;
};

subtest 'a session that ZooKeeper ends' => sub {
	my $s = zk_session($node);
	$s->value(q{SELECT zk_lock('/ended')});
	my $id = $s->value('SELECT session_id FROM zk_session');
	my $from = log_end();
	$zk->end_session($id, $s->pid);
	zk_until(sub { $s->value('SELECT state FROM zk_locks') eq 'lost' }, 'the loss');
	told_only($s, $from, 'a session', qr/^ZooKeeper session $id was lost$/, qr/^ZooKeeper ended the session, or/,
		qr{^the lock on "/ended" was lost$}, qr/^ZooKeeper ended the session that held it\.$/);
	$s->quit;
};

# The loss is a reason to cancel what tells it
subtest 'a session that ends while the backend looks at it' => sub {
	my $s = zk_session($node);
	foreach my $n (1 .. 10)
	{
		$s->value("BEGIN; SELECT zk_xact_lock('/looked/$n')");
		my $id = $s->value('SELECT session_id FROM zk_session');
		my $from = log_end();
		$s->send('DO $$BEGIN LOOP PERFORM FROM zk_locks; PERFORM FROM zk_session; END LOOP; END$$');
		$zk->end_session($id, $s->pid);
		is($s->wait->{state}, '40001', 'it is canceled');
		$s->query('ROLLBACK');
		$s->query('SELECT state FROM zk_session');
		my @lines = told($s, $from);
		is(scalar(grep { $_ eq "ZooKeeper session $id was lost" } @lines), 1, 'the loss of the session is told once') or diag join "\n", @lines;
		cmp_ok(scalar(grep { /^the lock on/ } @lines), '<=', 1, 'and that of the lock at most once');
	}
	$s->quit;
};

# An outage is told of if it lasted for a third of the timeout
subtest 'outages' => sub {
	my $s = zk_session_with($node, hosts => $proxy, session_timeout => '20s');
	$s->value(q{SELECT zk_lock('/outage')});
	my $id = $s->value('SELECT session_id FROM zk_session');
	my $from = log_end();
	$proxy->drop;
	zk_until(sub { $s->value('SELECT reconnections FROM zk_session') >= 1 }, 'the session to be back');
	told_only($s, $from, 'a short one');

	$from = log_end();
	my $began = time;
	$proxy->cut_off;
	zk_until(sub { time - $began > 7 }, 'a third of the timeout');
	$proxy->pass;
	zk_until(sub { $s->value('SELECT state FROM zk_session') eq 'connected' }, 'the session to be back');
	told_only($s, $from, 'a longer one', qr/^ZooKeeper session $id reconnected after \d{4,5} ms$/, qr/^The last connection error was: .+\. The session's locks would have been lost after 20000 ms\.$/,
		qr/^Check that ZooKeeper is running/);
	is($s->value('SELECT state FROM zk_locks'), 'held', '- and the lock is held');

	$from = log_end();
	$proxy->cut_off;
	zk_until(sub { $s->value('SELECT state FROM zk_locks') eq 'lost' }, 'the loss');
	$proxy->pass;
	zk_until(sub { $s->value('SELECT state FROM zk_session') =~ /none|^connected/ }, 'the session to be over, or back');
	told_only($s, $from, 'one that is too long', qr{^the lock on "/outage" was lost$}, qr/^Nothing was heard/,
		qr/^ZooKeeper session $id was lost$/, qr/^Nothing was heard from ZooKeeper for the whole session timeout of 20000 ms\./,
		qr/^Check that ZooKeeper is running/);
	$s->quit;
};

subtest 'a server that refuses' => sub {
	my $s = zk_session_with($node, hosts => $proxy, session_timeout => '4s');
	$s->value(q{SELECT zk_lock('/refused')});
	my $id = $s->value('SELECT session_id FROM zk_session');
	my $from = log_end();
	$proxy->refuse;
	$proxy->drop;
	zk_until(sub { $s->value('SELECT state FROM zk_locks') eq 'lost' }, 'the loss');
	my $refused = $s->query(q{SET zklock.operation_timeout = '300ms'; SET zklock.connect_timeout = '300ms'; SELECT zk_lock('/other')});
	is($refused->{state}, '58000', 'a call fails');
	told_only($s, $from, 'nobody listens', qr{^the lock on "/refused" was lost$}, qr/^Nothing was heard/, qr/^ZooKeeper session $id was lost$/,
		qr/^Nothing was heard .* of 4000 ms\. The last connection error was: Connection refused\.$/,
		qr/^Check that ZooKeeper is running on the hosts and ports/);
	$proxy->pass;
	$s->quit;
};

# Each value once, however often the session connects, or another one begins
subtest 'a timeout that is not granted' => sub {
	my $s = zk_session_with($node, hosts => $proxy, session_timeout => '90s');
	my $from = log_end();
	my $hint = qr/^The server's minSessionTimeout and maxSessionTimeout/;
	$s->value(q{SELECT zk_lock('/granted')});
	foreach my $n (1, 2)
	{
		$proxy->drop;
		zk_until(sub { $s->value('SELECT reconnections FROM zk_session') == $n }, 'the session to be back');
	}
	$s->value(q{SELECT zk_unlock('/granted'); SET zklock.session_timeout = '80s'; SELECT zk_lock('/granted'), zk_unlock('/granted')});
	is($s->value('SELECT session_timeout FROM zk_session'), '00:01:00', 'a second session, with as much');
	told_only($s, $from, 'less', qr/^ZooKeeper granted a session timeout of 60000 ms, but zklock\.session_timeout is 90000 ms$/, $hint);
	$from = log_end();
	$s->value(q{SET zklock.session_timeout = '30s'; SELECT zk_lock('/granted')});
	told_only($s, $from, 'what was asked');
	$s->quit;
};

subtest 'rights that are withdrawn' => sub {
	my $s = zk_session($node);
	my $other = $zk->client;
	$other->add_auth('digest', 'somebody:else');
	my $acl = creator_acl('somebody:else');
	$s->value(q{SELECT zk_lock('/acl/kept')});

	# of the node
	$s->value(q{CREATE TEMP TABLE t (); BEGIN; SELECT zk_xact_lock('/acl/node'); INSERT INTO t DEFAULT VALUES; SET LOCAL zklock.commit_guard = strict});
	my ($name) = grep { /-lock-/ } $other->children('/zklock/acl/node');
	$other->set_acl("/zklock/acl/node/$name", $acl);
	my $from = log_end();
	is($s->query('COMMIT')->{state}, '40001', 'a transaction that relied on it does not commit');
	told_only($s, $from, 'the node', qr{^the lock on "/acl/node" was lost$}, qr/^ZooKeeper no longer lets this session see the lock's node\.$/);

	# of the directory: the release is refused
	$s->value(q{BEGIN; SELECT zk_xact_lock('/acl/dir')});
	$other->set_acl('/zklock/acl/dir', $acl);
	$from = log_end();
	is($s->query('COMMIT')->{state}, '', 'one whose release is refused does');
	zk_until(sub { $s->value('SELECT unreleased FROM zk_session') == 1 }, 'the refusal');
	$s->value(q{SELECT zk_try_lock('/acl/free'), zk_unlock('/acl/free')}) for 1 .. 3;
	told_only($s, $from, 'the directory', qr/^ZooKeeper refused the release of a lock: permission denied$/, qr{^Node "/zklock/acl/dir/_c_[^"]+" could not be deleted}, qr/./);
	$other->set_acl('/zklock/acl/dir', world_acl());
	$s->quit;
	$other->close;
};

subtest 'a session that is no longer accepted' => sub {
	# the server is back before it has ended by itself
	my $s = zk_session_with($node, session_timeout => '60s');
	$s->value(q{SELECT zk_lock('/withdrawn')});
	my $id = $s->value('SELECT session_id FROM zk_session');
	my $from = log_end();
	$zk->stop;
	$zk->{config} = { 'enforce.auth.enabled' => 'true', 'enforce.auth.schemes' => 'digest' };
	$zk->_configure;
	$zk->start;
	zk_until(sub { $s->value('SELECT state FROM zk_locks') eq 'lost' }, 'the loss');
	# whether the session or its lock is looked at first
	my $said = sub { scalar grep { /^ZooKeeper no longer accepts session $id$/ } told($s, $from) };
	zk_until($said, 'it to be said');
	is($said->(), 1, 'said, once');
	$s->quit;
	$zk->stop;
	delete $zk->{config};
	$zk->_configure;
	$zk->start;
};

# What answers there greets its clients, as SSH does
sub other_program
{
	my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 5) or die $!;
	my $pid = fork // die "fork: $!";
	return ($listener->sockport, $pid) if $pid;
	while (my $client = $listener->accept)
	{
		$client->syswrite("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n");
		sysread $client, my $ignored, 1000;
	}
	POSIX::_exit(0);
}

my $full = ZooKeeper->new(max_client_cnxns => 1)->start;

sub hint_for { return zk_session_with($node, hosts => $_[0], connect_timeout => '4s')->query(q{SELECT zk_lock('/a')})->{hint}; }

subtest 'why there is no connection' => sub {
	like(hint_for('no.such.host.invalid:2181'), qr/host names in zklock\.hosts/, 'a name that does not resolve');
	like(hint_for('127.0.0.1:1'), qr/ZooKeeper is running/, 'a port where nobody listens');
	like(hint_for('127.0.0.1:1,no.such.host.invalid:2181'), qr/host names in zklock\.hosts/, '- beside a name that does not resolve');
	my $many = zk_session_with($node, hosts => join(',', map { "127.0.0.$_:1" } 1 .. 40), connect_timeout => '4s')->query(q{SELECT zk_lock('/a')});
	like($many->{detail}, qr/^The last attempts failed: (?:127\.0\.0\.\d+:1: Connection refused; ){3}/, 'forty: each');
	cmp_ok(length $many->{detail}, '<', 450, '- as far as there is room');
	$proxy->blackhole;
	like(hint_for($proxy->hosts), qr/firewall/, 'no answer');
	$proxy->pass;
	my ($port, $other) = other_program();
	like(hint_for("127.0.0.1:$port"), qr/another program answers there/, 'something else');
	like(hint_for("127.0.0.1:1,127.0.0.1:$port,127.0.0.2:1"), qr/another program answers there/, '- beside two that refuse');
	kill 'KILL', $other;    # PostgreSQL's library would stop the cluster at TERM
	waitpid $other, 0;

	my $only;
	zk_until(sub { $only = eval { $full->client } }, 'the first connection');
	like(hint_for('127.0.0.1:1,' . $full->hosts), qr/more connections than its maxClientCnxns/, '- beside one that refuses');
	like(hint_for($full->hosts), qr/does this when one host opens more connections than its maxClientCnxns\..* zklock\.idle_timeout: /, 'one with too many connections');
	$only->close;
};

# The same for a session that is cut off
subtest 'why there is none any longer' => sub {
	my $s = zk_session_with($node, hosts => $proxy, session_timeout => '40s');
	my $fails = sub {
		my ($hint, $name, $end) = @_;
		my $result;
		zk_until(sub { $result = $s->query(q{SELECT zk_lock('/b')}); $result->{hint} =~ $hint }, $name);
		is($result->{state}, '58030', "$name: 58030");
		like($result->{hint}, qr/\. Locks of this session are suspect until the connection is restored; see zk_locks\.$/, '- and what it means');
		$end ? $end->() : $proxy->pass;
		zk_until(sub { $s->value('SELECT state FROM zk_session') eq 'connected' }, 'the session to be back');
		return;
	};
	$s->value(q{SELECT zk_lock('/a'); SET zklock.operation_timeout = '500ms'});
	$proxy->refuse;
	$proxy->drop;
	$fails->(qr/^Check that ZooKeeper is running/, 'nobody listens');
	$proxy->blackhole;
	$fails->(qr/^Check the network, and whether /, 'silence');
	$s->quit;

	my $three = ZooKeeper->ensemble(3);
	$s = zk_session_with($node, hosts => $three->node(1), session_timeout => '40s');
	$s->value(q{SELECT zk_lock('/a'); SET zklock.operation_timeout = '2s'});
	$three->node($_)->stop for 2, 3;
	$fails->(
		qr/no quorum/,
		'no quorum',
		sub {
			like(hint_for($three->node(1)->hosts), qr/no quorum/, '- nor does one begin');
			$three->node($_)->start for 2, 3;
		});
	$s->quit;
	$three->stop;

	zk_until(sub { $s = zk_session_with($node, hosts => $full, session_timeout => '40s', operation_timeout => '2s'); $s->query(q{SELECT zk_lock('/a')})->{out} eq 't' },
		'the only place');
	# somebody takes it while the session cannot
	Child::suspend($s->pid);
	$full->restart;
	my $other = $full->client;
	kill 'CONT', $s->pid;
	$fails->(qr/maxClientCnxns\..* zklock\.idle_timeout: .* Locks/, 'too many connections', sub { $other->close; });
	$s->quit;
};

is_deeply([ told($bare, 0) ], [], 'a backend without a session says nothing');
$bare->quit;
$proxy->stop;
zk_no_crash($node);
done_testing();
