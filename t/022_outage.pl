
# ZooKeeper cannot be reached, or is something else, or comes and goes: at the
# first call, while a lock is held, while one waits, at COMMIT.  Also what it
# takes away: sessions that expire, nodes that somebody deletes.
#
# A lock that may be lost is never shown as held; a transaction that relied on a
# lost one does not commit; and the backend continues with a new ZooKeeper
# session.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use IO::Socket::INET;
use POSIX ();
use Time::HiRes qw(sleep time);
use Test::More;

use Child;
use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

# How much longer than promised a busy machine may take, in seconds
my $SLACK = 1.5;

my $zk = ZooKeeper->new->start;
my $proxy = ZkProxy->new($zk);
# A statement that looks at a lost lock is not to be canceled: that is t/034's
my $node = zk_cluster(
	'main', $proxy,
	'zklock.cancel_on_loss' => 'off',
	'zklock.session_timeout' => '6s',
	max_prepared_transactions => 5);
my $admin = zk_session($node);
$admin->value('CREATE TABLE t (i int)');

# Other contenders in the queues, which bypass the proxy, and send no heartbeats
my $other = $zk->client;

sub other_locks { return $other->contend("/zklock$_[0]"); }

sub own_nodes { return grep { !/other/ } $zk->children("/zklock$_[0]"); }

sub state_of
{
	my ($session, $path) = @_;
	return $session->value("SELECT state FROM zk_locks WHERE path = '$path'");
}

# An address where no server listens
sub closed_port { return '127.0.0.1:' . ZooKeeper::free_port(); }

# Servers that are not ZooKeeper: a process each that passes each connection to
# $code and keeps it open if that returns true.  They end with this process.
my @fakes;

sub fake_server
{
	my ($code) = @_;
	my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 20)
	  or die "could not listen: $@";
	my $pid = fork // die "could not fork: $!";
	if ($pid == 0)
	{
		my @open;
		$SIG{$_} = 'DEFAULT' for qw(INT TERM HUP);
		$SIG{PIPE} = 'IGNORE';
		while (my $sock = $listener->accept)
		{
			$sock->autoflush(1);
			push @open, $sock if $code->($sock);
		}
		POSIX::_exit(0);
	}
	push @fakes, $pid;
	return '127.0.0.1:' . $listener->sockport;
}

END
{
	local ($?, $!, $@);
	kill 'KILL', @fakes;
	waitpid $_, 0 for @fakes;
}

# An address that does not even answer to a SYN, since its listener's queue is
# full.
my @full;

sub black_hole
{
	my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 1)
	  or die "could not listen: $@";
	push @full, $listener;
	while (@full < 50)
	{
		my $address = '127.0.0.1:' . $listener->sockport;
		my $client = IO::Socket::INET->new(PeerAddr => $address, Timeout => 0.2)
		  or return $address;
		push @full, $client;
	}
	die 'the queue of the listener does not get full';
}

# --------------------------------------------------------- at the first call

subtest 'down at the first call' => sub {
	my $session = zk_session_with($node, connect_timeout => '500ms');
	$proxy->cut_off;
	my $result = $session->query("SELECT zk_lock('/a')");
	is($result->{state}, '58000', 'is 58000');
	is($result->{message}, 'could not connect to ZooKeeper', 'says so');
	is($result->{detail}, 'The last attempt failed: Connection refused.', 'why');
	like($result->{hint}, qr/zklock\.hosts/, 'and what to look at');
	in_time($result->{seconds}, 0.5 + $SLACK, 'within connect_timeout');

	$session->value("SET zklock.connect_timeout = '1min'");
	$session->send("SELECT zk_lock('/a')");
	zk_wait_waiting($admin, $session);
	my $began = time;
	is($session->cancel($admin)->{state}, '57014', 'it can be canceled meanwhile');
	in_time(time - $began, 0.1 + $SLACK, 'at once');

	$session->send("SELECT zk_lock('/a')");
	zk_wait_waiting($admin, $session);
	$proxy->pass;
	is($session->wait->{out}, 't', 'a call that waits goes on when ZooKeeper is there');
	is($session->value("SELECT zk_unlock('/a')"), 't', 'and all is well');
};

subtest 'a timeout of the call that ends first is an error, not false' => sub {
	my $session = zk_session_with($node);
	$proxy->cut_off;
	my $result = $session->query("SELECT zk_lock('/a', '200ms')");
	is($result->{state}, '58000', 'is 58000');
	in_time($result->{seconds}, 0.2 + $SLACK, 'in time');
	$proxy->pass;
	zk_locks_again($session, 'then it works');
};

# Answers to a client that connects.  A good handshake: the session's timeout,
# id and password, and not read-only.
sub handshake
{
	my ($timeout, $id) = @_;
	return pack('N/a*', pack('N N q> N/a* C', 0, $timeout, $id, 'x' x 16, 0));
}

sub heard { return sysread $_[0], my $request, 4096; }

# Send something at once, or after the client has; then stay, or close.
sub says
{
	my (@what) = @_;
	return sub { print { $_[0] } @what; return 1; };
}

sub answers
{
	my (@what) = @_;
	return sub { heard($_[0]); print { $_[0] } @what; return 1; };
}

sub and_closes
{
	my ($code) = @_;
	return sub { $code->($_[0]); return 0; };
}

my $nonsense = join '', map { chr rand 256 } 1 .. 5000;
my $session = handshake(4000, 1);
my $http = "HTTP/1.1 400 Bad Request\r\nContent-Length: 15\r\n\r\n400 Bad Request";

my %not_zookeeper = (
	'speaks HTTP' => and_closes(answers($http)),
	'speaks HTTP, and waits' => answers($http),
	'greets like SSH' => says("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"),
	'greets like SMTP, and closes' => and_closes(says("220 localhost ESMTP\r\n")),
	'says one byte' => says('x'),
	'talks nonsense' => says($nonsense),
	'talks zeros' => says("\0" x 5000),
	'talks of a negative length' => answers("\xff" x 100),
	'says nothing' => says(''),
	'closes at once' => and_closes(says('')),
	'closes when it has heard' => and_closes(answers('')),
	'gives a session for days' => answers(handshake(540_291_120, 1)),
	'gives a session for no time' => answers(handshake(0, 0)),
	# from here on it looks like ZooKeeper for a moment
	'gives a session, and closes' => and_closes(answers($session)),
	'gives a session, then nothing' => answers($session),
	'gives a session, then nonsense' => answers($session, $nonsense),
	'gives a session, then a negative length' => answers($session, "\xff" x 100),
	'gives a session, then an answer to nothing' =>
	  answers($session, pack('N/a*', pack('N q> N', 4711, 1, 0) . 'x' x 50)),
	'gives a session, then an event' =>
	  answers($session, pack('N/a*', pack('l> q> N N N N/a*', -1, -1, 0, 2, 3, '/x'))),
	'gives a session, then an event that is too short' =>
	  answers($session, pack('N/a*', pack('l> q> N', -1, -1, 0))),
	'gives a session, then an answer to an auth' =>
	  answers($session, pack('N/a*', pack('l> q> l>', -4, 1, -115))));

# All of them at the same time, which is faster.
subtest 'a server that is not ZooKeeper' => sub {
	my $seconds = 3;
	my %session;
	my $log_before = -s $node->logfile;
	foreach my $what ('refuses', 'is a black hole', sort keys %not_zookeeper)
	{
		my $hosts =
			$not_zookeeper{$what} ? fake_server($not_zookeeper{$what})
		  : $what eq 'refuses' ? closed_port()
		  : black_hole();
		$session{$what} = zk_session_with(
			$node,
			hosts => $hosts,
			session_timeout => '4s',
			connect_timeout => "${seconds}s",
			operation_timeout => "${seconds}s");
	}
	my %cpu = map { $_ => zk_cpu_seconds($session{$_}->pid) } keys %session;
	$_->send("SELECT zk_lock('/a')") for values %session;
	my %result;
	zk_until(
		sub {
			$result{$_} = $session{$_}->wait
			  for grep { !$result{$_} && $session{$_}->is_done } keys %session;
			return keys %result == keys %session;
		},
		'the end of all calls');
	foreach my $what (sort keys %session)
	{
		my $session = $session{$what};
		my $result = $result{$what};
		# a session that was established is lost
		my $limit = $what =~ /^gives a session, / ? 2 * $seconds : $seconds;
		like($result->{state}, $limit > $seconds ? qr/^(?:58000|58030)$/ : qr/^58000$/, "$what: 58000");
		isnt($result->{hint}, '', "$what: with a hint");
		in_time($result->{seconds}, $limit + $SLACK, "$what: in time");
		cmp_ok(zk_cpu_seconds($session->pid) - $cpu{$what}, '<', 0.2 * $result->{seconds} + 0.05,
			"$what: does not spin");
	}
	cmp_ok((-s $node->logfile) - $log_before, '<', 1000 * keys %session, 'does not flood the log');

	foreach my $what (sort keys %session)
	{
		my $session = $session{$what};
		$session->value("SET zklock.hosts = '" . $zk->hosts . "'");
		zk_locks_again($session, "$what: works with ZooKeeper afterwards");
		$session->quit;
	}
	zk_no_crash($node);
	kill 'KILL', @fakes;
	waitpid $_, 0 for splice @fakes;
};

subtest 'a server with too many connections from here' => sub {
	my $small = ZooKeeper->new(max_client_cnxns => 1)->start;
	my $session = zk_session_with($node, hosts => $small->hosts, connect_timeout => '3s');
	my $first;
	# the connection of the readiness check may still count
	zk_until(sub { $first = eval { $small->client } }, 'the first connection');
	my $result = $session->query("SELECT zk_lock('/a')");
	is($result->{state}, '58000', 'is 58000');
	like($result->{hint}, qr/maxClientCnxns/, 'the hint names maxClientCnxns');
	in_time($result->{seconds}, 3 + $SLACK, 'within connect_timeout');
	$first->close;
	$session->value(q{SET zklock.connect_timeout = '20s'});
	zk_locks_again($session, 'works when there is room');
};

subtest 'a name that cannot be resolved' => sub {
	my $session = zk_session_with($node, hosts => 'no-such-host.invalid:2181', connect_timeout => '2s');
	my $result = $session->query("SELECT zk_lock('/a')");
	is($result->{state}, '58000', 'is 58000');
	like($result->{detail}, qr/no-such-host\.invalid/, 'the detail names it');
	in_time($result->{seconds}, 2 + $SLACK, 'within connect_timeout');

	$session->value("SET zklock.hosts = 'no-such-host.invalid:2181," . $zk->hosts . "'");
	zk_locks_again($session, 'one of two that cannot does no harm');
};

subtest 'two of three servers dead' => sub {
	foreach my $dead (
		[ closed_port(), closed_port() ],
		[ closed_port(), black_hole() ],
		[ black_hole(), black_hole() ])
	{
		# each session tries them in a random order
		my $hosts = join ',', @$dead, $zk->hosts;
		my @sessions = map { zk_session_with($node, session_timeout => '3s', hosts => $hosts, connect_timeout => '1min') } 1 .. 4;
		$_->send("SELECT zk_lock('/3/' || pg_backend_pid())") for @sessions;
		is($_->wait->{out}, 't', 'finds the one that lives') for @sessions;
	}
};

subtest 'the server in use dies, another one takes over' => sub {
	my @proxies = map { ZkProxy->new($zk) } 1 .. 3;
	my $hosts = join ',', map { $_->hosts } @proxies;
	my $session = zk_session_with($node, session_timeout => '20s', hosts => $hosts);
	$session->value("SELECT zk_lock('/o')");
	my ($used) = grep { $_->connections } @proxies;
	my ($stuck) = grep { !$_->connections } @proxies;
	$stuck->blackhole;
	$used->cut_off;
	zk_until(sub { $session->value('SELECT reconnections FROM zk_session') > 0 }, 'it is back');
	zk_wait_hold($session, 'held', '/o');
	pass('the lock is still held');
	is($session->value('SELECT losses FROM zk_session'), 0, 'by the same session');
	is($session->value("SELECT zk_unlock('/o')"), 't', 'and can be unlocked');
	$session->quit;
};

# ZOOKEEPER-2466: the client library sticks to the dead one of two servers.
subtest 'two servers that die in turn' => sub {
	my @proxies = map { ZkProxy->new($zk) } 1 .. 2;
	my $session = zk_session_with($node, session_timeout => '20s', hosts => join(',', map { $_->hosts } @proxies));
	$session->value("SELECT zk_lock('/o')");
	foreach my $time (1 .. 4)
	{
		my ($used) = grep { $_->connections } @proxies;
		my ($other_one) = grep { $_ != $used } @proxies;
		my $reconnections = $session->value('SELECT reconnections FROM zk_session');
		$other_one->pass;
		$used->cut_off;
		zk_until(sub { $session->value('SELECT reconnections FROM zk_session') > $reconnections }, 'it is back');
		zk_wait_hold($session, 'held', '/o');
		pass("held, time $time");
	}
	is($session->value("SELECT zk_unlock('/o')"), 't', 'unlocked');
	$session->quit;
};

# -------------------------------------------------------------- while holding

subtest 'down while a lock is held, and back within the session timeout' => sub {
	my $session = zk_session_with($node, session_timeout => '60s');
	$session->value("SELECT zk_lock('/h')");
	my ($mine) = own_nodes('/h');
	my $token = $session->value("SELECT zk_lock_token('/h')");
	is(state_of($session, '/h'), 'held', 'held');

	$proxy->cut_off;
	zk_wait_hold($session, 'suspect', '/h');
	is(state_of($session, '/h'), 'suspect', 'suspect while it is down');
	is($session->value('SELECT state FROM zk_session'), 'suspended', 'as is the session');
	is($session->value("SELECT zk_lock_token('/h')"), $token, 'with its token');

	$session->value("SET zklock.operation_timeout = '300ms'");
	my $result = $session->query("SELECT zk_lock('/h')");
	is($result->{state}, '58030', 're-entry is refused after operation_timeout');
	is($result->{message}, 'lost connection to ZooKeeper', 'says why');
	isnt($result->{hint}, '', 'with a hint');
	cmp_ok($result->{seconds}, '>', 0.25, 'not before');
	in_time($result->{seconds}, 0.3 + $SLACK, 'nor later');
	$result = $session->query("SELECT zk_lock('/h', '100ms')");
	is($result->{state}, '58030', 'nor is it false when its time is over');
	$session->value('RESET zklock.operation_timeout');

	$session->send("SELECT zk_lock('/h')");
	zk_wait_waiting($admin, $session);
	is($session->cancel($admin)->{state}, '57014', 're-entry can be canceled');
	is($session->value("SELECT count FROM zk_locks"), 1, 'and does not count then');
	$result = $session->query("SET lock_timeout = '100ms'; SELECT zk_lock('/h')");
	is($result->{state}, '55P03', 'lock_timeout ends it');
	$session->value('RESET lock_timeout');

	$session->send("SELECT zk_lock('/h')");
	zk_wait_waiting($admin, $session);
	$proxy->pass;
	is($session->wait->{out}, 't', 're-entry is granted when ZooKeeper is back');
	is(state_of($session, '/h'), 'held', 'still held');
	is($session->value('SELECT count FROM zk_locks'), 2, 'twice');
	is("@{[ own_nodes('/h') ]}", $mine, 'by the same node');
	is($session->value("SELECT zk_lock_token('/h')"), $token, 'with the same token');
	is($session->value("SELECT zk_unlock('/h'), zk_unlock('/h')"), 't|t', 'unlocked');
};

subtest 'ZooKeeper is killed and started again while a lock is held and one waited for' => sub {
	my ($holder, $waiter) = map { zk_session_with($node, session_timeout => '60s', operation_timeout => '60s') } 1, 2;
	$holder->value("SELECT zk_lock('/k')");
	$waiter->send("SELECT zk_lock('/k')");
	zk_wait_queued($zk, $waiter);
	$other->close;
	$zk->kill9;
	zk_wait_hold($holder, 'suspect', '/k');
	$zk->start;
	$other = $zk->client;
	zk_wait_hold($holder, 'held', '/k');
	is(state_of($holder, '/k'), 'held', 'still held');
	ok(!$waiter->is_done, 'still waited for');
	is($holder->value("SELECT zk_unlock('/k')"), 't', 'unlocked');
	is($waiter->wait->{out}, 't', 'and handed over');
	$waiter->value("SELECT zk_unlock('/k')");
};

subtest 'down while a lock is waited for' => sub {
	my $before = other_locks('/w');
	my $patient = zk_session_with($node, session_timeout => '60s', operation_timeout => '60s');
	my $impatient = zk_session_with($node, session_timeout => '60s', operation_timeout => '2s');
	$_->send("SELECT zk_lock('/w')") for $patient, $impatient;
	zk_wait_queued($zk, $patient, $impatient);
	$proxy->cut_off;
	my $result = $impatient->wait;
	is($result->{state}, '58030', 'is 58030 after operation_timeout');
	in_time($result->{seconds}, 10, 'in time');
	ok(!$patient->is_done, 'who has more time goes on waiting');
	$other->delete($before);
	sleep 0.1;
	ok(!$patient->is_done, 'and does not have it before it knows');
	$proxy->pass;
	is($patient->wait->{out}, 't', 'and has it when ZooKeeper is back');
	$patient->value("SELECT zk_unlock('/w')");
	zk_until(sub { own_nodes('/w') == 0 }, 'no node is left');
	zk_locks_again($impatient, 'the other one goes on, too');
};

# ------------------------------------------------------------------ at COMMIT

my %outage = (
	'known to be down' => sub {
		my ($session) = @_;
		$proxy->cut_off;
		zk_wait_session($session, 'suspended');
	},
	'just gone down' => sub { $proxy->cut_off },
	'silent' => sub { $proxy->blackhole });

foreach my $outage (sort keys %outage)
{
	foreach my $release_timeout (0, 1000)
	{
		my $name = "COMMIT, ZooKeeper $outage, release_timeout = $release_timeout";
		subtest $name => sub {
			# it must not notice a silence before that
			my $session = zk_session_with($node, release_timeout => $release_timeout, session_timeout => '60s');
			$session->value("BEGIN; INSERT INTO t VALUES (1)");
			$session->value("SELECT zk_xact_lock('/c')");
			$outage{$outage}->($session);
			my $result = $session->query('COMMIT');
			is($result->{state}, '', 'commits');
			is_deeply($result->{warnings}, [], 'without a warning');
			# never while it is known to be disconnected
			my $limit = $outage =~ /known/ ? 0.95 : $release_timeout / 1000 + $SLACK;
			in_time($result->{seconds}, $limit, 'waits no longer than that');
			note(sprintf '%s: %.0f ms', $name, 1000 * $result->{seconds});
			is($admin->value('SELECT count(*) FROM t'), 1, 'it is there');
			$admin->value('TRUNCATE t');
			is($session->value('SELECT count(*) FROM zk_locks'), 0, 'no hold');
			is(own_nodes('/c'), 1, 'the node still is');
			$proxy->pass;
			zk_until(sub { own_nodes('/c') == 0 }, 'the node goes');
			zk_locks_again($session, 'the node goes when ZooKeeper is back');
		};
	}
}

# --------------------------------------------------------------------- expiry

# Each session does something before and something after; "lost" is true in
# between.
subtest 'expired' => sub {
	my $before = other_locks('/e/waiter');
	my %session;
	my %setup = (
		holder => "SELECT zk_lock('/e/holder')",
		twice => "SELECT zk_lock('/e/twice'), zk_lock('/e/twice')",
		all => "SELECT zk_lock('/e/all'), zk_lock('/e/all'), zk_lock('/e/all2')",
		xact => "BEGIN; INSERT INTO t VALUES (2); SELECT zk_xact_lock('/e/xact')",
		reader => "BEGIN; SELECT zk_xact_lock('/e/reader')",
		unlocker => "BEGIN; SELECT zk_lock('/e/unlocker')",
		savepoint => "BEGIN; SAVEPOINT s; SELECT zk_xact_lock('/e/savepoint')",
		writer => "SELECT zk_lock('/e/writer'); BEGIN; INSERT INTO t VALUES (2)",
		looker => "SELECT zk_lock('/e/looker'); BEGIN; SELECT 1",
		prepared => "SELECT zk_lock('/e/prepared'); BEGIN; INSERT INTO t VALUES (2)",
		rollback => "BEGIN; SELECT zk_xact_lock('/e/rollback')",
		later => "SELECT zk_lock('/e/later')");
	foreach my $name (sort keys %setup)
	{
		$session{$name} = zk_session_with($node, session_timeout => '60s');
		$session{$name}->value($setup{$name});
	}
	my $waiter = zk_session_with($node, session_timeout => '60s', operation_timeout => '60s');
	$waiter->send("SELECT zk_lock('/e/waiter')");
	zk_until(sub { own_nodes('/e/waiter') == 1 }, 'the waiter in the queue');
	my ($first_node) = own_nodes('/e/waiter');

	$proxy->cut_off;
	zk_wait_hold($session{$_}, 'suspect', "/e/$_") for sort keys %setup;
	$zk->end_sessions_of(grep { !/other/ } zk_locks_left($zk));
	is(scalar(grep { !/other/ } zk_locks_left($zk)), 0, 'all sessions have expired');
	isnt(state_of($session{$_}, "/e/$_"), 'held', "$_: not held") for sort keys %setup;
	my $behind = other_locks('/e/waiter');
	my $new_owner = other_locks('/e/holder');
	$proxy->pass;
	foreach my $name (sort keys %setup)
	{
		my $path = "/e/$name";
		zk_wait_hold($session{$name}, 'lost', $path);
		is($session{$name}->value("SELECT zk_lock_token('$path') IS NULL"), 't', "$name: no token");
		is($session{$name}->value("SELECT token IS NULL FROM zk_locks WHERE path = '$path'"),
			't', "$name: nor in zk_locks");
	}

	my $s = $session{holder};
	my $result = $s->query("SELECT zk_lock('/e/holder')");
	is($result->{state}, '55000', 'holder: locking again is refused');
	like($result->{hint}, qr/zk_unlock/, 'holder: with a hint');
	is($s->query("SELECT zk_xact_lock('/e/holder')")->{state}, '55000', 'holder: in the other scope, too');
	is($s->query("SELECT zk_try_lock('/e/holder')")->{state}, '55000', 'holder: as is a try');
	is($s->value("SELECT zk_lock('/e/another'), zk_unlock('/e/another')"), 't|t', 'holder: another path works');
	is(state_of($s, '/e/holder'), 'lost', 'holder: with that, it stays lost');
	is($s->value('SELECT losses FROM zk_session'), 1, 'holder: zk_session counts it');
	$result = $s->query("SELECT zk_unlock('/e/holder')");
	is($result->{out}, 'f', 'holder: zk_unlock is false');
	is("@{ $result->{warnings} }", 'the lock on "/e/holder" had been lost', 'holder: with a warning');
	is($s->value('SELECT count(*) FROM zk_locks'), 0, 'holder: no hold is left');
	is($s->value("SELECT zk_try_lock('/e/holder')"), 'f', 'holder: somebody else has the lock');
	ok($other->exists($new_owner), 'holder: whose node is still there');
	$other->delete($new_owner);
	is($s->value("SELECT zk_lock('/e/holder')"), 't', 'holder: then it can be had again');
	is(state_of($s, '/e/holder'), 'held', 'holder: held');

	$result = $session{twice}->query("SELECT zk_unlock('/e/twice')");
	is($result->{out}, 'f', 'twice: one zk_unlock ...');
	is($session{twice}->value('SELECT count(*) FROM zk_locks'), 0, 'twice: ... drops both holds');

	$s = $session{all};
	$s->value("SELECT zk_lock('/e/all3')");
	$result = $s->query('SELECT zk_unlock_all()');
	is($result->{out}, 1, 'all: zk_unlock_all counts what was still held');
	is(join(', ', sort @{ $result->{warnings} }),
		'the lock on "/e/all" had been lost, the lock on "/e/all2" had been lost', 'all: and warns of the others');
	is($s->value('SELECT count(*) FROM zk_locks'), 0, 'all: nothing is left');

	foreach my $name (qw(xact reader writer))
	{
		$result = $session{$name}->query('COMMIT');
		is($result->{state}, '40001', "$name: COMMIT fails");
		like($result->{message}, qr{/e/$name}, "$name: names the path");
		like($result->{hint}, qr/zk_unlock/, "$name: with a hint");
	}
	is($admin->value('SELECT count(*) FROM t'), 0, 'xact, writer: nothing is committed');
	is($session{xact}->value("BEGIN; SELECT zk_xact_lock('/e/xact'); COMMIT"),
		't', 'xact: the next transaction works');
	is($session{writer}->query('INSERT INTO t VALUES (2)')->{state},
		'40001', 'writer: nor does the next one that writes commit');
	is($session{writer}->query("SELECT zk_unlock('/e/writer'); INSERT INTO t VALUES (2)")->{state},
		'', 'writer: until zk_unlock');
	is($admin->value('SELECT count(*) FROM t'), 1, 'writer: then it commits');

	$result = $session{unlocker}->query("SELECT zk_unlock('/e/unlocker')");
	is($result->{out}, 'f', 'unlocker: zk_unlock is false');
	is($session{unlocker}->query('COMMIT')->{state}, '40001', 'unlocker: which does not help the transaction');

	is($session{savepoint}->query('ROLLBACK TO SAVEPOINT s; COMMIT')->{state},
		'', 'savepoint: what was rolled back does not count');
	is($session{looker}->query('COMMIT')->{state}, '', 'looker: who wrote nothing commits');
	is($session{prepared}->query("PREPARE TRANSACTION 'p'")->{state}, '40001', 'prepared: PREPARE fails');
	is($session{rollback}->query('ROLLBACK')->{state}, '', 'rollback: does no harm');
	is($session{rollback}->value('SELECT count(*) FROM zk_locks'), 0, 'rollback: no hold is left');
	zk_locks_again($session{rollback}, 'rollback: works');
	$result = $session{later}->query("BEGIN; SELECT zk_xact_lock('/e/later2'); COMMIT");
	is($result->{state}, '', 'later: a later transaction that only takes another lock commits');

	# at the end of the queue
	ok(!$waiter->is_done, 'waiter: still waits');
	zk_until(sub { own_nodes('/e/waiter') == 1 }, 'the waiter in the queue again');
	isnt((own_nodes('/e/waiter'))[0], $first_node, 'waiter: queues again');
	$other->delete($before);
	zk_until(sub { $waiter->is_done || $zk->watch_count > 0 }, 'the waiter looks');
	ok(!$waiter->is_done, 'waiter: behind who came meanwhile');
	$other->delete($behind);
	is($waiter->wait->{out}, 't', 'waiter: gets the lock');
	$admin->value('TRUNCATE t');
};

# The client must conclude that by its own clock.
subtest 'expired in silence' => sub {
	my $session = zk_session_with($node, session_timeout => '15s');
	$session->value("SELECT zk_lock('/n')");
	my ($began, %seen) = (time);
	$proxy->blackhole;
	zk_until(
		sub {
			my $there = own_nodes('/n');
			my $state = state_of($session, '/n');
			$seen{ $there ? "$state" : "$state without node" }++;
			return $state eq 'lost';
		},
		'lost');
	in_time(time - $began, 15 + $SLACK, 'lost after a session timeout without a word');
	ok($seen{suspect}, 'suspect before that');
	ok(!$seen{'held without node'}, 'never held when the node was gone');
	$proxy->pass;
	is($session->query("SELECT zk_unlock('/n')")->{out}, 'f', 'zk_unlock is false');
	zk_locks_again($session, 'works with a new session');
};

# Each handshake makes ZooKeeper begin the session timeout anew, so the client must stop
# making them: two servers accept connections, and requests get no further.
subtest 'servers that accept connections, and answer no request' => sub {
	my @deaf = map { ZkProxy->new($zk) } 1 .. 2;
	my %server = (hosts => join(',', map { $_->hosts } @deaf), session_timeout => '9s');    # a third is for connecting again
	my $holder = zk_session_with($node, %server);
	my $idle = zk_session_with($node, %server);
	my $waiter = zk_session_with($node, hosts => $zk->hosts);
	$holder->value("BEGIN; INSERT INTO t VALUES (4); SELECT zk_xact_lock('/deaf')");
	$idle->value("SELECT zk_lock('/deaf/idle'), zk_unlock('/deaf/idle')");
	my ($id) = $idle->value('SELECT session_id FROM zk_session');
	$waiter->send("SELECT zk_lock('/deaf')");
	zk_wait_queued($zk, $waiter);

	$_->hold_request([qw(setWatches setWatches2 sync getData exists getChildren create2 delete multi)], 1_000_000) for @deaf;
	my $began = time;
	zk_until(sub { state_of($holder, '/deaf') eq 'lost' }, 'lost');
	in_time(time - $began, 9 + $SLACK, 'lost after a session timeout without an answered request');
	cmp_ok($holder->value('SELECT reconnections FROM zk_session'), '>', 0, 'though a server has accepted it again');
	is($holder->value('SELECT losses FROM zk_session'), 1, 'once');
	is($waiter->wait->{out}, 't', 'who waits gets the lock');
	in_time(time - $began, 18 + 2 * $SLACK, 'after another, when ZooKeeper has ended the session');
	is($holder->query('COMMIT')->{state}, '40001', 'COMMIT fails');
	zk_until(sub { $idle->value('SELECT state FROM zk_session') eq 'none' }, 'a session that holds nothing to be given up, too');

	$_->reset for @deaf;
	zk_locks_again($_, 'works with a new session') for $holder, $idle;
	isnt($idle->value('SELECT session_id FROM zk_session'), $id, '- which is another one');
	$_->quit for $holder, $idle, $waiter;
	$_->stop for @deaf;
};

subtest 'the backend sleeps longer than the session lives' => sub {
	my $holder = zk_session_with($node, session_timeout => '3s', hosts => $zk->hosts);
	my $committer = zk_session_with($node, session_timeout => '3s', hosts => $zk->hosts);
	my $waiter = zk_session_with($node, session_timeout => '3s', hosts => $zk->hosts);
	my $before = other_locks('/s/waiter');
	$holder->value("SELECT zk_lock('/s/holder')");
	$committer->value("BEGIN; INSERT INTO t VALUES (3); SELECT zk_xact_lock('/s/committer')");
	$waiter->send("SELECT zk_lock('/s/waiter')");
	zk_until(sub { own_nodes('/s/waiter') == 1 }, 'the waiter in the queue');
	my @sleepers = map { $_->pid } $holder, $committer, $waiter;
	Child::suspend(@sleepers);
	zk_until(sub { !grep { !/other/ } zk_locks_left($zk) }, 'all sessions have expired');
	my $meanwhile = other_locks('/s/waiter');
	$other->delete($before);

	# what is asked before it wakes up is answered before it has learned
	# anything
	$holder->send("SELECT state FROM zk_locks");
	$committer->send('COMMIT');
	kill 'CONT', @sleepers;
	isnt($holder->wait->{out}, 'held', 'the first look does not show it as held');
	zk_wait_hold($holder, 'lost', '/s/holder');
	is(state_of($holder, '/s/holder'), 'lost', 'then it is lost');
	zk_until(sub { $waiter->is_done || own_nodes('/s/waiter') == 1 }, 'the waiter queues again');
	ok(!$waiter->is_done, 'a waiter does not take what went to another meanwhile');
	$other->delete($meanwhile);
	is($waiter->wait->{out}, 't', 'but gets it when its turn comes');

	is($committer->wait->{state}, '40001', 'COMMIT at the moment of waking up fails');
	$admin->value('TRUNCATE t');
	zk_locks_again($_, 'works') for $holder, $committer, $waiter;
};

# ------------------------------------------------------------ deleted by hand

subtest 'a node deleted by hand: that of a waiter' => sub {
	my $session = zk_session_with($node);
	my @before = map { other_locks('/d') } 1 .. 2;
	$session->send("SELECT zk_lock('/d')");
	zk_until(sub { $zk->watch_count == 3 }, 'it waits');
	my ($first_node) = own_nodes('/d');
	$other->delete("/zklock/d/$first_node");
	zk_until(sub { own_nodes('/d') == 1 }, 'it queues again');
	isnt((own_nodes('/d'))[0], $first_node, 'queues again');
	$other->delete(shift @before);
	zk_until(sub { $zk->watch_count == 2 }, 'it waits');
	ok(!$session->is_done, 'waits');
	$other->delete(shift @before);
	is($session->wait->{out}, 't', 'and gets the lock');
	is($session->value("SELECT zk_unlock('/d')"), 't', 'unlocked');
};

subtest 'a node deleted by hand: the one before' => sub {
	my $holder = zk_session_with($node);
	my $waiter = zk_session_with($node);
	$holder->value("SELECT zk_lock('/d')");
	my ($first_node) = own_nodes('/d');
	$waiter->send("SELECT zk_lock('/d')");
	zk_wait_queued($zk, $waiter);
	$other->delete("/zklock/d/$first_node");
	is($waiter->wait->{out}, 't', 'the waiter gets the lock');
	is(own_nodes('/d'), 1, 'one node');
	$waiter->value("SELECT zk_unlock('/d')");
};

subtest 'a node deleted by hand: that of a holder' => sub {
	my $session = zk_session_with($node);
	$session->value("SELECT zk_lock('/d')");
	$session->value("BEGIN; INSERT INTO t VALUES (4); SELECT zk_xact_lock('/d2')");
	$other->delete("/zklock/d/$_") for own_nodes('/d');
	$other->delete("/zklock/d2/$_") for own_nodes('/d2');
	zk_wait_hold($session, 'lost', $_) for '/d', '/d2';
	is($session->value("SELECT zk_lock_token('/d') IS NULL"), 't', 'the loss is noticed');
	is($session->query('COMMIT')->{state}, '40001', 'COMMIT fails');
	my $result = $session->query("SELECT zk_unlock('/d')");
	is($result->{out}, 'f', 'zk_unlock is false');
	is(@{ $result->{warnings} }, 1, 'with a warning');
	is($session->value("SELECT zk_lock('/d')"), 't', 'then it can be had again');
	is($session->value('SELECT losses FROM zk_session'), 0, 'by the same session');
	$session->value("SELECT zk_unlock('/d')");
	is($admin->value('SELECT count(*) FROM t'), 0, 'nothing was committed');
};

subtest 'the directories of locks are removed' => sub {
	my $session = zk_session_with($node);
	$session->value("SELECT zk_lock('/p/q'), zk_unlock('/p/q')");
	$other->delete_tree('/zklock');
	is($session->value("SELECT zk_lock('/p/q')"), 't', 'while idle: they are made again');
	my $waiter = zk_session_with($node);
	$waiter->send("SELECT zk_lock('/p/q')");
	zk_wait_queued($zk, $waiter);
	$proxy->hold_event;    # otherwise it would be recreated before all are deleted
	# the waiter's first: if the holder's went first, it would get the lock for
	# a moment
	my ($last) = sort { substr($b, -10) cmp substr($a, -10) } $other->children('/zklock/p/q');
	$other->delete("/zklock/p/q/$last");
	$other->delete_tree('/zklock');
	$proxy->release;
	is($waiter->wait->{out}, 't', 'while waiting: a waiter begins anew');
	is(own_nodes('/p/q'), 1, 'with one node');
	$waiter->value("SELECT zk_unlock('/p/q')");
};

# ------------------------------------------------------------------ resources

subtest 'an outage costs nothing' => sub {
	my %outage = (
		refused => sub { $_[0]->cut_off },
		'closed at once' => sub { $_[0]->refuse(at_accept => 1); $_[0]->drop; },
		silent => sub { $_[0]->blackhole });
	my (%proxy, %holder, %waiter);
	my @before;
	foreach my $name (sort keys %outage)
	{
		$proxy{$name} = ZkProxy->new($zk);
		($holder{$name}, $waiter{$name}) = map { zk_session_with($node, hosts => $proxy{$name}->hosts, session_timeout => '60s') } 1, 2;
		$holder{$name}->value("SELECT zk_lock('/r')") unless @before;
		push @before, other_locks('/r');
		$waiter{$name}->send("SELECT zk_lock('/r')");
		zk_wait_queued($zk, $waiter{$name});
	}
	$outage{$_}->($proxy{$_}) for keys %outage;
	my $log_before = -s $node->logfile;
	my %pid = map { ("$_: idle" => $holder{$_}->pid, "$_: waiting" => $waiter{$_}->pid) } keys %outage;
	my %cpu = map { $_ => zk_cpu_seconds($pid{$_}) } keys %pid;
	sleep 2;    # the interval that is measured
	foreach my $name (sort keys %pid)
	{
		my $used = zk_cpu_seconds($pid{$name}) - $cpu{$name};
		note(sprintf '%s: %.0f ms of CPU time in 2 s', $name, 1000 * $used);
		cmp_ok($used, '<', 0.2, "$name: does not spin");
	}
	is(-s $node->logfile, $log_before, 'nothing in the log');
	$_->cancel($admin) for values %waiter;
	$_->pass for values %proxy;
	$other->delete($_) for @before;
	$_->quit for values %holder, values %waiter;
};

subtest 'no descriptor and no thread is left over' => sub {
	my $session = zk_session_with($node, operation_timeout => '5s');
	my $pid = $session->pid;
	is(zk_threads($pid), 1, 'a backend that uses no lock has one thread');
	my $descriptors = zk_descriptors($pid);
	zk_locks_again($session, 'one that does');
	is(zk_threads($pid), 2, 'has two');
	is(zk_descriptors($pid), $descriptors + 4, 'and four descriptors more');

	my $cycle = sub {
		my ($n) = @_;
		# a new session, since its settings differ
		$session->value('SET zklock.session_timeout = ' . (5000 + $n));
		$session->value("SELECT zk_lock('/r'), zk_unlock('/r')");
		# a session that cannot be established
		$session->value("SET zklock.hosts = '" . closed_port() . "'; SET zklock.connect_timeout = '100ms'");
		$session->query("SELECT zk_lock('/r')")->{state} eq '58000' or die 'not refused';
		$session->value('RESET zklock.hosts; RESET zklock.connect_timeout');
		# a connection that is cut
		$session->value("SELECT zk_lock('/r')");
		$proxy->drop;
		$session->value("SELECT zk_unlock('/r')");
		return;
	};
	$cycle->($_) for 1 .. 10;
	zk_until(sub { zk_threads($pid) == 2 }, 'two threads');
	pass('nor do ten sessions, failures and cuts leave threads');
	zk_until(sub { zk_descriptors($pid) == $descriptors + 4 }, 'four descriptors more');
	pass('or descriptors');
	zk_until(sub { $proxy->connections <= 1 }, 'one connection');
	is($proxy->connections, 1, 'or connections');
};

# A server that is slow at first, and then silent: what a quorum has confirmed
# is then too old, and asking again is part of the same try.
subtest 'a try is over in time, whatever it is that ZooKeeper does not answer' => sub {
	my $slow = ZkProxy->new($zk);
	my $session = zk_session_with($node, hosts => $slow->hosts);
	$session->value(q{SELECT zk_lock('/slow'), zk_unlock('/slow'); SET zklock.operation_timeout = '2500ms'});
	$slow->hold('create2');
	$session->send(q{SELECT zk_try_lock('/slow')});
	$slow->wait_held;

	# a third of the session timeout since it was asked; this is not a wait for a state
	my $asked = time;
	sleep 0.05 while time - $asked < 2.2;
	Child::suspend($session->pid);
	$slow->release;
	$slow->hold('multi');
	kill 'CONT', $session->pid;
	my $result = $session->wait;
	is($result->{state}, '58030', 'an error') or diag $result->{out};
	in_time($result->{seconds}, 2.5 + $SLACK, 'when operation_timeout is over');
	$slow->reset;
	$session->value('RESET zklock.operation_timeout');
	zk_locks_again($session, 'it works');
	$session->quit;
	$slow->stop;
};

$other->close;
undef $admin;
$node->stop;
zk_no_crash($node);
zk_nothing_left($zk, 'nothing is left, no session either', sessions => 0, tree => 1);

done_testing();
