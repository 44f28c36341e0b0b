
# The end of a transaction, of a backend, and of a server: what must not wait
# does not, whatever ZooKeeper does, and locks are released at once, by the process that
# is left to do that.  (Where none is left, and loops in a transaction: t/010; the postmaster is
# killed: t/034)

use FindBin;
use lib "$FindBin::RealBin/lib";

use Tests;

# How much longer than promised a busy machine may take, in seconds
my $SLACK = 1.5;

# How long a backend may try to close a session whose ZooKeeper does not answer
my $EXIT_BOUND = 2;

my $zk = ZooKeeper->new->start;
my $proxy = ZkProxy->new($zk);
my $node = zk_cluster(
	'main', $proxy,
	shared_preload_libraries => 'zklock',    # which shows other backends' losses
	'zklock.session_timeout' => '6s');
my $admin = zk_session($node);

sub nodes { return scalar $zk->children("/zklock$_[0]"); }

# ---------------------------------------------------------- subtransactions

# if it waited for each of them, a few would do
foreach ([ 'down', 300 ], [ 'silent', 100 ])
{
	my ($outage, $many) = @$_;
	subtest "$many subtransactions with a lock each, ZooKeeper $outage" => sub {
		# it must not notice the silence before release_timeout has passed, which would no
		# longer be in force when it matters if it were set in a subtransaction
		my $session = zk_session_with($node, session_timeout => '20s', release_timeout => '1s');
		$session->value('BEGIN; ' . join('; ', map { "SAVEPOINT s$_; SELECT zk_xact_lock('/s/$_')" } 1 .. $many), 120);
		is($session->value('SELECT count(*) FROM zk_locks'), $many, 'as many locks');
		is($zk->ephemerals_count, $many, 'as many nodes');
		if ($outage eq 'silent') { $proxy->blackhole; }
		else
		{
			$proxy->cut_off;
			zk_wait_session($session, 'suspended');
		}
		my $half = $many / 2;
		in_time($session->query("ROLLBACK TO SAVEPOINT s$half")->{seconds}, $SLACK, 'ROLLBACK TO SAVEPOINT never waits');
		is($session->value('SELECT count(*) FROM zk_locks'), $half - 1, 'half of them are left');
		my $took = $session->query('ROLLBACK')->{seconds};
		in_time($took, $outage eq 'silent' ? 1 + $SLACK : 1, 'ROLLBACK waits once, and not while it is disconnected');
		cmp_ok($took, '>', 0.95, 'for what its subtransactions took, too') if $outage eq 'silent';
		is($session->value('SELECT count(*) FROM zk_locks'), 0, 'no hold is left');
		$proxy->pass;
		zk_nothing_left($zk, 'no node is left when ZooKeeper is back');
		is($session->value("SELECT zk_lock('/s/1'), zk_unlock('/s/1')"), 't|t', 'locks and unlocks');
	};
}

# Interrupts are held there; a process that emits a barrier waits for all
# backends.  Nor is a cancel lost, at whatever moment it arrives.
subtest 'what another session asks of it ends the waiting' => sub {
	my $session = zk_session_with($node, session_timeout => '20s', release_timeout => '1s');
	my %asks = (
		'DROP DATABASE is not held up' => [ 'CREATE DATABASE doomed', 'DROP DATABASE doomed' ],
		'a cancel ends it' => [ 'SELECT 1', 'SELECT pg_cancel_backend(' . $session->pid . ')' ]);
	foreach my $name (sort keys %asks)
	{
		my ($before, $asks) = @{ $asks{$name} };
		my $took;
		foreach my $try (1 .. 10)
		{
			$admin->value($before);
			$session->value(q{BEGIN; SELECT zk_xact_lock('/barrier')});
			$proxy->blackhole;
			my $began = time;
			$session->send('COMMIT');
			zk_until(sub { zk_waits($admin, $session->pid) || $session->is_done }, 'it waits for its release');
			$admin->value($asks);
			$session->wait if $asks =~ /cancel/;
			$took = time - $began;
			$proxy->pass;
			is($session->wait->{state}, '', 'COMMIT') if $session->{mark};
			zk_until(sub { nodes('/barrier') == 0 }, 'the release');
			last if $took < 0.95;
		}
		in_time($took, 0.95, $name);
	}
};

# Each ZooKeeper session numbers its releases from 1
subtest 'COMMIT waits for what it releases, whatever was released in an earlier session' => sub {
	my $session = zk_session_with($node, commit_guard => 'off', release_timeout => '1s');
	$session->value(q{BEGIN; SELECT zk_xact_lock('/two'); COMMIT; BEGIN; SAVEPOINT s; SELECT zk_xact_lock('/two'); ROLLBACK TO s});
	my $earlier = $session->value('SELECT session_id FROM zk_session');
	$session->value(q{SET zklock.session_timeout = '20s'; SELECT zk_xact_lock('/two')});
	isnt($session->value('SELECT session_id FROM zk_session'), $earlier, 'another session');
	$proxy->hold([ 'delete', 'multi' ]);
	cmp_ok($session->query('COMMIT')->{seconds}, '>', 0.95, 'COMMIT waits');
	$proxy->release;
	zk_until(sub { nodes('/two') == 0 }, 'the release');
	$session->quit;
};

# --------------------------------------------------------- end of a backend

# (By pg_terminate_backend: specs/session_end)
my %ending = (
	'the client is killed' => sub { $_[0]->kill9 },
	'idle_in_transaction_session_timeout' =>
	  sub { $_[0]->query("SET idle_in_transaction_session_timeout = '100ms'; SELECT 1") },    # may be ended before that
	'idle_session_timeout' => sub { $_[0]->value("COMMIT; SET idle_session_timeout = '100ms'") });

foreach my $ending (sort keys %ending)
{
	subtest "end of a backend: $ending" => sub {
		my ($session, $waiter) = map { zk_session($node) } 1, 2;
		$session->value("SELECT zk_lock('/b'); BEGIN; SELECT zk_xact_lock('/b2')");
		$waiter->send("SELECT zk_lock('/b')");
		zk_wait_queued($zk, $waiter);
		my $began = time;
		$ending{$ending}->($session);
		is($waiter->wait->{out}, 't', 'the waiter gets the lock');
		in_time(time - $began, 0.1 + $SLACK, 'at once');
		is($waiter->value("SELECT zk_lock('/b2', '1min'), zk_unlock('/b2'), zk_unlock('/b')"), 't|t|t', 'and the other one');
		$waiter->quit;
		zk_nothing_left($zk, 'nothing is left', sessions => 0);
	};
}

subtest 'end of a backend: the client is killed while it waits for a lock' => sub {
	my $holder = zk_session($node);
	my $waiter = zk_session($node);
	$holder->value("SELECT zk_lock('/b')");
	$waiter->value("SET client_connection_check_interval = '100ms'");
	$waiter->send("SELECT zk_lock('/b')");
	zk_until(sub { nodes('/b') == 2 }, 'the waiter in the queue');
	$waiter->kill9;
	ok(zk_until(sub { nodes('/b') == 1 }, 'its node is gone'), 'client_connection_check_interval takes it out of the queue');
	$holder->quit;
	zk_nothing_left($zk, 'nothing is left', sessions => 0);
};

# psql reports a FATAL error when the connection has ended
subtest 'end of a backend: what its client hears, ZooKeeper silent' => sub {
	my %ending = ('57P01' => '', $node->pg_version >= 17 ? ('25P04' => q{SET transaction_timeout = '1s'}) : ());
	foreach my $state (sort keys %ending)
	{
		my $session = zk_session($node);
		$session->value("BEGIN; SELECT zk_xact_lock('/told')");
		my $pid = $session->pid;
		$proxy->blackhole;
		my $began = time;
		$session->send("$ending{$state}; SELECT pg_sleep(180)");
		$admin->value("SELECT pg_terminate_backend($pid)") if $ending{$state} eq '';
		my $result = $session->wait;
		is($result->{state}, $state, "the client hears $state");
		in_time(time - $began, $EXIT_BOUND + ($ending{$state} eq '' ? 0 : 1), '- before its backend has given up');
		zk_until(sub { !kill 0, $pid }, 'the end of the backend');
		$proxy->pass;
		ok(zk_until(sub { nodes('/told') == 0 }, 'its node to be gone'), '- and the lock is free');
	}
};

# ---------------------------------------------------------- end of the server

# What is told where nothing may fail, of a path that cannot be told to this client: its
# encoding has no such character, so that the telling is an error itself.
$admin->value(q{CREATE DATABASE utf8 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0});
zk_session($node, dbname => 'utf8')->value('CREATE EXTENSION zklock; CREATE TABLE t (i integer)');
my $UNREADABLE = q{('/c/' || chr(8364))};
my $IN_TRANSACTION = "SELECT zk_xact_lock($UNREADABLE); INSERT INTO t VALUES (1)";
foreach (
	(map { [ "SELECT zk_lock($UNREADABLE)", $_ ] }
		  "SELECT zk_lock($UNREADABLE)", "SELECT zk_xact_lock_shared($UNREADABLE)", "SELECT zk_lock_many(ARRAY['/c/a', $UNREADABLE])",
		"SELECT zk_lock_held($UNREADABLE)", "SELECT zk_unlock($UNREADABLE)", 'SELECT zk_unlock_all()', 'SELECT count(*) FROM zk_locks', 'DISCARD ALL'),
	(map { [ "BEGIN; $IN_TRANSACTION", $_ ] } 'COMMIT', 'ROLLBACK'),
	[ "BEGIN; SAVEPOINT a; $IN_TRANSACTION", 'ROLLBACK TO a' ])
{
	my ($before, $call) = @$_;
	subtest "a loss that the client cannot be told: $call" => sub {
		my $session = zk_session($node, dbname => 'utf8', options => '-c client_encoding=LATIN1 -c client_min_messages=log -c zklock.cancel_on_loss=off');
		$session->value($before);
		$zk->end_session($session->value('SELECT session_id FROM zk_session'), $session->pid);
		zk_until(sub { $admin->value("SELECT string_agg(DISTINCT state, '') FROM zk_server_locks WHERE pid = " . $session->pid) eq 'lost' }, 'the loss');
		my $r = $session->query($call);
		note "$r->{state} $r->{err}";
		like($r->{state}, qr/^(?:22P05)?$/, 'all that may be wrong is the telling');
		$session->value('ROLLBACK; SET client_min_messages = error');
		is($session->value(q{SELECT count(*) FROM zk_locks WHERE state <> 'lost'}), $call =~ /_lock/ && $r->{state} eq '' ? 1 : 0, 'what is lost is not held');
		$session->value('SELECT zk_unlock_all()');
		zk_locks_again($session, 'and the session goes on');
	};
}

undef $admin;
my @plain = map { zk_session($node) } 1 .. 4;
my $began = time;
$node->stop('fast');
my $plain = time - $began;
@plain = ();

my %outage = (
	'up' => sub { },
	'down' => sub { $proxy->cut_off },
	'silent' => sub { $proxy->blackhole });

foreach my $outage (sort keys %outage)
{
	subtest "pg_ctl stop -m fast, ZooKeeper $outage" => sub {
		$node->start;
		$admin = zk_session($node);
		# one backend in each state in which it owns something in ZooKeeper; what is not given back
		# stays for longer than anybody waits
		my ($idle, $in_transaction, $waiting) = map { zk_session_with($node, $outage eq 'up' ? (session_timeout => '60s') : ()) } 1 .. 3;
		$idle->value("SELECT zk_lock('/f/idle')");
		$in_transaction->value("BEGIN; SELECT zk_xact_lock('/f/transaction')");
		$waiting->send("SELECT zk_lock('/f/idle')");
		zk_until(sub { nodes('/f/idle') == 2 }, 'one waits');
		my $connecting;
		$outage{$outage}->();
		if ($outage ne 'up')
		{
			$connecting = zk_session($node);
			$connecting->send("SELECT zk_lock('/f/connecting')");
			zk_wait_waiting($admin, $connecting);
			zk_wait_session($idle, 'suspended') if $outage eq 'down';
		}
		undef $admin;
		$began = time;
		$node->stop('fast');
		in_time(time - $began, $plain + ($outage eq 'up' ? 0 : $EXIT_BOUND) + $SLACK, 'the server stops in time');
		$proxy->pass;
		zk_nothing_left($zk, 'nothing is left');
	};
}

zk_end($zk, $node);
