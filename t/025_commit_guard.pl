# The commit guard: the requests of a COMMIT to ZooKeeper, counted, and what it
# does when the lock is gone, or when ZooKeeper cannot be asked.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use Child;
use Cost;
use Deadline;
use ZkProxy;
use Zklock;
use ZooKeeper;

# How much longer than promised a busy machine may take, in seconds
my $SLACK = 1.5;

my $zk = ZooKeeper->new->start;
# A statement that looks at a lost lock is not to be canceled: that is t/034's
my $node = zk_cluster(
	'main', $zk,
	'zklock.cancel_on_loss' => 'off',
	# heartbeats, which come every quarter of this, do not disturb the counting
	'zklock.session_timeout' => '60s',
	wal_level => 'replica',
	max_wal_senders => 1,    # without one there is no synchronous replication
	synchronous_commit => 'local',
	max_prepared_transactions => 5);
my $admin = zk_session($node);
$admin->value('CREATE TABLE t (who text); CREATE TABLE remote (who text)');

# All threads of a session's backend sleep.
sub await_sleep
{
	my ($session) = @_;
	zk_until(sub { !grep { slurp_file($_) !~ /\) S / } glob '/proc/' . $session->pid . '/task/*/stat' }, 'all threads to sleep');
	return;
}

zk_foreign_server($node, loopback => $node);
$admin->value(q{CREATE FOREIGN TABLE there (who text) SERVER loopback OPTIONS (table_name 'remote')});

my @proxies;    # kept until the end, so that sessions can close properly

sub new_proxy
{
	push @proxies, ZkProxy->new($zk);
	return $proxies[-1];
}

# Delete the nodes of a lock, as an administrator may do by hand.  One client
# does it all, so that the deletes are the only transactions.
my $hand = $zk->client;

sub delete_by_hand { $hand->delete_contenders("/zklock$_") for @_; return; }

sub rows
{
	my ($who, $table) = @_;
	return $admin->value(sprintf q{SELECT count(*) FROM %s WHERE who LIKE '%s'}, $table // 't', $who);
}

# -------------------------------------------------------------------- the costs

sub await_answer
{
	my ($proxy, $operation) = @_;
	zk_until(sub { grep { $_->[1] eq '<' && $_->[2] eq $operation } $proxy->log }, "the answer to a $operation");
	return;
}

sub cost_of
{
	my %cost = cost($zk, @_);
	return { %cost{qw(requests transactions)} };
}

subtest 'what a COMMIT costs' => sub {
	my $proxy = new_proxy();
	foreach my $guard (qw(off on strict))
	{
		# releases are confirmed when COMMIT returns, so that they are counted
		my $session = zk_session_with($node, hosts => $proxy, commit_guard => $guard, release_timeout => '1s', session_timeout => '1h');
		my $asks = $guard eq 'strict' ? 1 : 0;

		foreach my $k (1, 5, 50)
		{
			$session->value(
				qq{BEGIN; INSERT INTO t VALUES ('cost'); SELECT bool_and(zk_xact_lock('/k/' || i)) FROM generate_series(1, $k) i});
			is_deeply(
				cost_of($session, $proxy, 'COMMIT'),
				{
					requests => ($asks ? 'multi ' : '') . ($k == 1 ? 'delete' : "delete*$k"),
					transactions => $k + $asks
				},
				"$guard: $k locks of the transaction");
			if ($asks)
			{
				my ($multi) = grep { $_->[2] eq 'multi' && $_->[1] eq '>' } $proxy->log;
				is(() = ($multi ? $multi->[7] : '') =~ /check \/zklock\/k\//g, $k, "$guard: the one request checks $k nodes");
				is(join(' ', map { "$_->[1]$_->[2]" } (grep { $_->[1] =~ /[<>]/ && $_->[2] =~ /multi|delete/ } $proxy->log)[ 0 .. 2 ]),
					'>multi <multi >delete', "$guard: and nothing is given back before its answer");
			}
		}

		is_deeply(
			cost_of($session, $proxy, q{BEGIN; INSERT INTO t VALUES ('cost'); COMMIT}),
			{ requests => '', transactions => 0 },
			"$guard: no locks, no holds: nothing");

		$session->value(q{SELECT zk_lock('/session/1'), zk_lock('/session/2')});
		is_deeply(
			cost_of($session, $proxy, q{INSERT INTO t VALUES ('cost')}),
			{ requests => $asks ? 'multi' : '', transactions => $asks },
			"$guard: who writes while the session holds two locks");
		is_deeply(
			cost_of($session, $proxy, 'BEGIN; SELECT count(*) FROM t; COMMIT'),
			{ requests => '', transactions => 0 },
			"$guard: who only reads meanwhile: nothing");
		is_deeply(
			cost_of($session, $proxy, q{BEGIN; INSERT INTO t VALUES ('cost'); ROLLBACK}),
			{ requests => '', transactions => 0 },
			"$guard: nor does a ROLLBACK");
		$session->value(q{BEGIN; INSERT INTO t VALUES ('cost')});
		is_deeply(
			cost_of($session, $proxy, qq{PREPARE TRANSACTION 'cost_$guard'}),
			{ requests => $asks ? 'multi' : '', transactions => $asks },
			"$guard: PREPARE TRANSACTION as COMMIT");
		is_deeply(
			cost_of($session, $proxy, qq{COMMIT PREPARED 'cost_$guard'}),
			{ requests => '', transactions => 0 },
			"$guard: COMMIT PREPARED relies on nothing");
		$session->value('SELECT zk_unlock_all()');
		is_deeply(
			cost_of($session, $proxy, q{INSERT INTO t VALUES ('cost')}),
			{ requests => '', transactions => 0 },
			"$guard: after zk_unlock_all: nothing");

		# nothing relies on what was rolled back to a savepoint
		$session->value(q{BEGIN; INSERT INTO t VALUES ('cost'); SAVEPOINT s; SELECT zk_lock('/savepoint'); ROLLBACK TO s});
		await_answer($proxy, 'delete');
		is_deeply(
			cost_of($session, $proxy, 'COMMIT'),
			{ requests => '', transactions => 0 },
			"$guard: what was rolled back to a savepoint: nothing");
		$session->quit;
	}
};

# An older lock
my $aging_proxy = new_proxy();
my $aging = zk_session_with($node, hosts => $aging_proxy, session_timeout => '20s');
$aging->value(q{BEGIN; INSERT INTO t VALUES ('aging'); SELECT zk_lock('/aging')});
my $doubting_proxy = new_proxy();
my $doubting = zk_session_with($node, hosts => $doubting_proxy, session_timeout => '20s', cancel_on_loss => 'doubt');
$doubting->value(q{BEGIN; INSERT INTO t VALUES ('doubting'); SELECT zk_lock('/doubting')});
my $aging_since = time;

# For a process that is stopped for a while, see the last of the next three subtests
my $paused_proxy = new_proxy();
my $paused = zk_session_with($node, hosts => $paused_proxy, session_timeout => '60s');
$paused->value(q{BEGIN; INSERT INTO t VALUES ('paused'); SELECT zk_lock('/paused')});
Child::suspend($paused->pid);
my $paused_since = time;

# And a network that becomes slower, until each answer comes after more than two thirds
my $slow_proxy = new_proxy();
my $slow = zk_session_with($node, hosts => $slow_proxy, session_timeout => '12s', operation_timeout => '10s');
$slow->value(q{BEGIN; INSERT INTO t VALUES ('slow'); SELECT zk_lock('/slow')});
$slow_proxy->delay_ms(2100);
$slow_proxy->clear_log;

# And for one that is stopped until its session nearly ends, while the answer to a
# heartbeat is on its way, and all its threads wait: otherwise the library would take
# the time for a silence of the server, and connect anew
my $asleep_proxy = new_proxy();
my $asleep = zk_session_with($node, hosts => $asleep_proxy, session_timeout => '24s');
$asleep->value(q{BEGIN; INSERT INTO t VALUES ('asleep'); SELECT zk_lock('/asleep')});
quiet($asleep_proxy);
$asleep_proxy->clear_log;
$asleep_proxy->hold('sync');
zk_until(sub { grep { $_->[1] eq '>' && $_->[2] eq 'sync' } $asleep_proxy->log }, 'a heartbeat');
await_sleep($asleep);
Child::suspend($asleep->pid);
my $asleep_since = time;
$asleep_proxy->release;

await_answer($slow_proxy, 'sync');
$slow_proxy->delay_ms(4200);
$slow->send('COMMIT');
my $slow_since = time;

# The leader may learn only with its follower's next report that the session is active
# again, and must not end it before that.
subtest 'on: a process that was stopped for most of the session timeout' => sub {
	zk_until(sub { time - $asleep_since > 16.1 }, 'more than two thirds of 24 s');
	my $awake_since = time;
	kill 'CONT', $asleep->pid;
	$asleep->value('COMMIT');
	cmp_ok(time - $awake_since, '>', 8, 'COMMIT asks again, a third of the timeout after the first answer');
	is(rows('asleep'), 1, 'and is done');
	my $next_since = time;
	$asleep->value(q{BEGIN; INSERT INTO t VALUES ('asleep 2'); COMMIT});
	in_time(time - $next_since, 2, 'the next one need not wait');
	is(rows('asleep 2'), 1, 'and is done, too');
	is($asleep->value('SELECT reconnections FROM zk_session'), 0, '(all on the same connection)');
	$asleep->quit;
};

# The leader would have to be told after each of them
subtest 'on: answers that all come after a silence' => sub {
	my $result = $slow->wait;
	isnt($result->{state}, '', 'COMMIT fails');
	note $result->{message};
	in_time(time - $slow_since, 2 * 10 + 4 + $SLACK, 'after twice operation_timeout, and a third of the session timeout');
	is(rows('slow'), 0, 'the row is not there');
	$slow_proxy->delay_ms(0);
	$slow->quit;
};

# Heartbeats do not go through the quorum, except where a cancel waits for its word.
subtest 'on: a lock that is older than a third of the session timeout' => sub {
	my $age = sub { time - $aging_since };
	is(rows('aging'), 0, 'not yet committed');
	zk_until(sub { $age->() > 6.8 }, 'a third of 20 s');
	# right after the heartbeats, so that the next are not counted
	$_->clear_log for $aging_proxy, $doubting_proxy;
	await_answer($aging_proxy, 'sync');
	await_answer($doubting_proxy, 'multi');
	is_deeply(
		cost_of($aging, $aging_proxy, 'COMMIT'),
		{ requests => 'multi', transactions => 1 },
		'one round trip, since no quorum was asked meanwhile');
	is(rows('aging'), 1, 'committed');
	is_deeply(
		cost_of($aging, $aging_proxy, q{INSERT INTO t VALUES ('aging')}),
		{ requests => '', transactions => 0 },
		'the next one need not ask');

	is_deeply(
		cost_of($doubting, $doubting_proxy, 'COMMIT'),
		{ requests => '', transactions => 0 },
		'cancel_on_loss = doubt: nothing, since a heartbeat has asked the quorum');
	is(rows('doubting'), 1, '- committed');
	$_->quit for $aging, $doubting;
};

# A silence of less than two thirds takes nothing from the next answer.
subtest 'on: a process that was stopped, for less than two thirds of the session timeout' => sub {
	zk_until(sub { time - $paused_since > 20.2 }, 'more than a third of 60 s');
	kill 'CONT', $paused->pid;
	my $awake_since = time;
	is($paused->query('COMMIT')->{state}, '', 'COMMIT asks once');
	in_time(time - $awake_since, 15, 'and need not wait for the leader to be told') if $awake_since - $paused_since < 40;
	is(rows('paused'), 1, 'committed');
	$paused->quit;
};

# ---------------------------------------------------------- deleted by hand

# A moment before COMMIT: no event has arrived yet.  PREPARE TRANSACTION, savepoints, and
# who writes nothing: t/057.
subtest 'a node deleted by hand, a moment before COMMIT' => sub {
	my $session = zk_session_with($node, commit_guard => 'strict');
	my $sessions = sub { $session->value('SELECT session_id FROM zk_session') };

	$session->value(q{BEGIN; INSERT INTO t VALUES ('hand'); SELECT zk_xact_lock('/hand')});
	my $id = $sessions->();
	delete_by_hand('/hand');
	zk_is_lost($session->query('COMMIT'), '/hand', 'strict, transaction scope');
	is($session->value('SELECT count(*) FROM zk_locks'), 0, 'strict: no hold is left');
	zk_works($session, 'strict: the next transaction works');
	is($sessions->(), $id, 'strict: in the same ZooKeeper session');

	$session->value(q{BEGIN; INSERT INTO t VALUES ('hand'); SELECT zk_lock('/hand/1'), zk_lock('/hand/2'), zk_lock('/hand/3')});
	delete_by_hand('/hand/2');
	zk_is_lost($session->query('COMMIT'), '/hand/2', 'strict, the second of three of session scope');
	is($session->value('SELECT count(*) FROM zk_locks'), 0, 'strict: taken in this transaction, they are given back');

	$session->value(q{SELECT zk_lock('/hand/1'), zk_lock('/hand/2')});
	delete_by_hand('/hand/1');
	zk_is_lost($session->query(q{INSERT INTO t VALUES ('hand')}),
		'/hand/1', 'strict, a lock of an earlier transaction, and a write');
	is($session->value(q{SELECT string_agg(path || ' ' || state, ', ' ORDER BY path) FROM zk_locks}),
		'/hand/1 lost, /hand/2 held', 'strict: it stays, lost');
	zk_is_lost($session->query(q{INSERT INTO t VALUES ('hand')}), '/hand/1', 'strict, and the next write');
	is(rows('hand'), 0, 'strict: nothing was committed');
	$session->query(q{SELECT zk_unlock('/hand/1')});
	is($session->query(q{INSERT INTO t VALUES ('hand')})->{state}, '', 'strict: after zk_unlock a write commits');
	is($session->value(q{SELECT zk_lock('/hand/1'), zk_unlock_all()}), 't|2', 'strict: and the lock can be had again');
	$session->quit;

	# "on" has a fresh answer and does not ask: this is the purpose of "strict".
	my $proxy = new_proxy();
	$session = zk_session_with($node, hosts => $proxy);
	$session->value(q{BEGIN; INSERT INTO t VALUES ('on'); SELECT zk_xact_lock('/hand/7')});
	delete_by_hand('/hand/7');
	is($session->query('COMMIT')->{state}, '', 'on: not noticed within a third of the session timeout');
	is(rows('on'), 1, 'on: commits');
	$session->quit;
};

# The answer about one of a session's nodes proves nothing about another: so
# each is watched before its own create is too old to count. The check is
# answered, and in the next packet the session learns that the node is gone
subtest 'a node deleted by hand, while COMMIT asks' => sub {
	foreach my $time (1 .. 3)
	{
		my $proxy = new_proxy();
		my $session = zk_session_with($node, hosts => $proxy, commit_guard => 'strict', session_timeout => '12s');
		$session->value(q{BEGIN; INSERT INTO t VALUES ('overtaken'); SELECT zk_xact_lock('/overtaken')});
		await_answer($proxy, 'getData');    # with the first heartbeat it is watched
		$proxy->clear_log;
		$proxy->hold('multi');
		$session->send('COMMIT');
		zk_wait_waiting($admin, $session);
		$proxy->wait_held;
		delete_by_hand('/overtaken');
		Child::suspend($session->pid);
		$proxy->release;
		await_answer($proxy, 'event');
		kill 'CONT', $session->pid;
		zk_is_lost($session->wait, '/overtaken', "time $time: COMMIT");
		$session->quit;
	}
	is(rows('overtaken'), 0, 'nothing was written');
};

subtest 'several locks, one of them deleted by hand' => sub {
	my $proxy = new_proxy();
	my $session = zk_session_with($node, hosts => $proxy, session_timeout => '30s');
	$session->value(q{SELECT zk_lock('/several/1')});
	$session->value(q{SELECT zk_lock('/several/2'), zk_lock_shared('/several/3'), zk_semaphore_acquire('/several/4', 2)});
	$proxy->clear_log;
	await_answer($proxy, 'sync');
	zk_until(sub { $proxy->requests == 4 }, 'a watch on each, with the first heartbeat');
	is($proxy->count('sync'), 1, 'one heartbeat has set all watches');
	foreach my $n (1 .. 3)
	{
		$session->value(q{BEGIN; INSERT INTO t VALUES ('several')});
		$hand->delete("/zklock/several/$n/$_") for $hand->children("/zklock/several/$n");
		zk_wait_hold($session, 'lost', "/several/$n");
		is($proxy->count('sync'), 1, "lock $n: before the next heartbeat") if $n == 1;
		my $result = $session->query('COMMIT');
		zk_is_lost($result, "/several/$n", "lock $n");
		is($result->{detail}, 'Its node in ZooKeeper was deleted.', '- and says how');
		$session->query($n == 3 ? "SELECT zk_unlock_shared('/several/3')" : "SELECT zk_unlock('/several/$n')");
	}
	is(rows('several'), 0, 'nothing was committed');
	$session->quit;
};

# Nor does another node's answer prove that this one exists.
subtest 'several locks, and no watch can tell' => sub {
	my $proxy = new_proxy();
	# with this, heartbeats ask the quorum
	my $session = zk_session_with($node, hosts => $proxy, session_timeout => '12s', cancel_on_loss => 'doubt');
	$session->value(q{SELECT zk_lock('/unseen/1'), zk_lock('/unseen/2')});
	zk_until(sub { $proxy->count('multi') >= 2 }, 'their creates to be too old to count');

	# on the next connection the session is proven alive at once, by one of the
	# nodes, while the watches are not armed yet
	$proxy->hold('getData');
	$proxy->drop;
	$proxy->wait_held;
	delete_by_hand('/unseen/1');
	my $asked = $proxy->count('multi');
	$session->send(q{INSERT INTO t VALUES ('unseen')});
	zk_until(sub { $session->is_done || $proxy->count('multi') > $asked }, 'COMMIT to ask');
	ok(!$session->is_done, 'COMMIT asks');
	$proxy->release;
	zk_is_lost($session->wait, '/unseen/1', 'and is told');
	is(rows('unseen'), 0, 'nothing was committed');
	$session->quit;
};

# PostgreSQL is then in the middle of its list of callbacks at COMMIT.
subtest 'another extension that writes elsewhere, or locks, while COMMIT is under way' => sub {
	my $library = zk_library('late');
	$admin->value("CREATE FUNCTION late(text) RETURNS void LANGUAGE c AS '$library'");

	my $session = zk_session_with($node, commit_guard => 'strict');
	$session->value(q{INSERT INTO there VALUES ('first')});
	$session->value(q{SELECT zk_lock('/late')});
	foreach my $time (1 .. 3)
	{
		$session->value(q{BEGIN; INSERT INTO t VALUES ('nested'); SELECT late($$INSERT INTO there VALUES ('nested')$$)});
		is($session->query('COMMIT')->{state}, '', "commits ($time)");
	}
	is(rows('nested'), 3, 'each is there');
	$session->value(q{BEGIN; INSERT INTO t VALUES ('too late'); SELECT late($$INSERT INTO there VALUES ('too late')$$)});
	delete_by_hand('/late');
	zk_is_lost($session->query('COMMIT'), '/late', 'with a lost lock');
	is(rows('too late') + rows('too late', 'remote'), 0, 'nothing was written');
	$session->value(q{SELECT zk_unlock_all()});
	my $result = $session->query(q{BEGIN; INSERT INTO t VALUES ('locks'); SELECT late($$SELECT zk_xact_lock('/late/own'); NOTIFY late$$); COMMIT});
	is($result->{state}, '', 'a lock that is taken then') or diag $result->{err};
	is($session->value('SELECT count(*) FROM zk_locks'), 0, '- goes with the transaction');
	$session->quit;
};

# zk_unlock learns of the loss from its own delete.
subtest 'given back' => sub {
	foreach my $guard (qw(on strict))
	{
		my $session = zk_session_with($node, commit_guard => $guard);
		$session->value(q{BEGIN; INSERT INTO t VALUES ('back'); SELECT zk_lock('/back/1')});
		delete_by_hand('/back/1');
		my $result = $session->query(q{SELECT zk_unlock('/back/1')});
		is("$result->{out} @{ $result->{warnings} }",
			'f the lock on "/back/1" had been lost', "$guard: zk_unlock: deleted a moment before it");
		zk_is_lost($session->query('COMMIT'), '/back/1', "$guard: the transaction relied on it");

		$session->value(q{BEGIN; SELECT zk_lock('/back/' || i) FROM generate_series(1, 4) i; NOTIFY back});
		delete_by_hand('/back/2', '/back/3');
		$result = $session->query('SELECT zk_unlock_all()');
		is($result->{out}, 2, "$guard: zk_unlock_all does not count what was lost");
		is(join(', ', sort @{ $result->{warnings} }),
			'the lock on "/back/2" had been lost, the lock on "/back/3" had been lost', "$guard: and warns of it");
		is($session->query('COMMIT')->{state}, '40001', "$guard: COMMIT fails, without an xid");

		$session->value(q{BEGIN; INSERT INTO t VALUES ('back in time'); SELECT zk_lock('/back/5'), zk_unlock('/back/5')});
		is($session->query('COMMIT')->{state}, '', "$guard: held until it was given back: commits");
		$session->quit;
	}

	# One of two holds is released while the lock is certainly held.  What
	# happens to the other one does not concern this transaction.
	my $session = zk_session_with($node, session_timeout => '10s');
	$session->value(q{SELECT zk_lock('/back/6')});
	$session->value(q{BEGIN; SELECT zk_lock('/back/6'), zk_unlock('/back/6')});
	delete_by_hand('/back/6');
	zk_wait_hold($session, 'lost');
	is($session->query(q{SELECT pg_notify($$back$$, $$$$); COMMIT})->{state}, '', 'on: a hold that was given back in time');
	is($session->query(q{INSERT INTO t VALUES ('back')})->{state}, '40001', 'on: but who writes relies on the other');
	is(rows('back'), 0, 'nothing of this was committed');
	$session->quit;
};

# These have removed or copied files before they commit.
subtest 'what cannot be undone is not begun' => sub {
	my $session = zk_session_with($node, commit_guard => 'strict');
	$session->value('CREATE DATABASE doomed');
	$session->value('SET allow_in_place_tablespaces = on');
	$session->value(q{CREATE TABLESPACE doomed LOCATION ''});
	$session->value(q{SELECT zk_lock('/undone')});
	delete_by_hand('/undone');
	foreach my $statement (
		'DROP DATABASE doomed',
		'CREATE DATABASE other',
		'ALTER DATABASE doomed SET TABLESPACE doomed',
		'DROP TABLESPACE doomed',
		q{CREATE TABLESPACE other LOCATION ''})
	{
		zk_is_lost($session->query($statement), '/undone', $statement);
	}
	is($admin->value(q{SELECT string_agg(datname || ' ' || datconnlimit, ' ') FROM pg_database WHERE datname IN ('doomed', 'other')}),
		'doomed -1', 'the database is as it was');
	is($admin->value(q{SELECT string_agg(spcname, ' ') FROM pg_tablespace WHERE spcname IN ('doomed', 'other')}),
		'doomed', 'and the tablespace');
	$session->value('SELECT zk_unlock_all()');
	is($session->query($_)->{state}, '', "then: $_")
	  for 'ALTER DATABASE doomed SET TABLESPACE doomed', 'DROP DATABASE doomed', 'DROP TABLESPACE doomed';
	$session->quit;
};

# Nor is it refused when it is done
subtest 'what cannot be undone, and loses its lock meanwhile' => sub {
	my $session = zk_session_with($node, commit_guard => 'strict');
	$session->value(q{CREATE DATABASE doomed});
	$session->value(q{SELECT zk_lock('/undone')});
	my $inside = zk_session($node, dbname => 'doomed');
	$session->send('DROP DATABASE doomed');
	zk_until(sub { $admin->value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND mode = 'AccessExclusiveLock' AND granted}) },
		'it waits for those who are in there');
	delete_by_hand('/undone');
	$inside->quit;
	is($session->wait->{state}, '', 'DROP DATABASE commits');
	is($admin->value(q{SELECT count(*) FROM pg_database WHERE datname = 'doomed'}), 0, 'the database is gone');
	zk_is_lost($session->query(q{INSERT INTO t VALUES ('doomed')}), '/undone', 'the next transaction does not');
	$session->value('SELECT zk_unlock_all(); SELECT zk_lock($$/undone$$)');

	$session->value(q{BEGIN; INSERT INTO t VALUES ('undone'); ALTER DATABASE postgres CONNECTION LIMIT 17});
	delete_by_hand('/undone');
	zk_is_lost($session->query('COMMIT'), '/undone', 'what runs in a transaction block is judged at its COMMIT, too');
	is($admin->value(q{SELECT datconnlimit FROM pg_database WHERE datname = 'postgres'}), -1, 'and taken back');
	$session->value('SELECT zk_unlock_all()');
	$session->quit;
};

subtest 'subscriptions, whose slots are on another server' => sub {
	my $publisher = PostgreSQL::Test::Cluster->new('publisher');
	zk_init($publisher, allows_streaming => 'logical');
	$publisher->start;
	$publisher->safe_psql('postgres', 'CREATE TABLE t (who text); CREATE PUBLICATION p FOR TABLE t');
	my $slots = sub { $publisher->safe_psql('postgres', q{SELECT string_agg(slot_name, ' ') FROM pg_replication_slots WHERE slot_name !~ 'sync'}) };
	my $source = sprintf q{CONNECTION '%s' PUBLICATION p}, $publisher->connstr('postgres') =~ s/'/''/gr;
	my $session = zk_session_with($node, commit_guard => 'strict');

	$session->value(q{SELECT zk_lock('/slot')});
	is($session->query("CREATE SUBSCRIPTION s $source WITH (copy_data = false)")->{state}, '', 'CREATE SUBSCRIPTION');
	is($session->query('ALTER SUBSCRIPTION s DISABLE')->{state}, '', 'ALTER SUBSCRIPTION');
	is($slots->(), 's', 'its slot is there');
	delete_by_hand('/slot');
	zk_is_lost($session->query($_), '/slot', $_ =~ /^(\w+ \w+)/)
	  for 'DROP SUBSCRIPTION s', 'ALTER SUBSCRIPTION s ENABLE', "CREATE SUBSCRIPTION other $source WITH (copy_data = false)";
	is($slots->(), 's', 'the slots are as they were');
	is($admin->value('SELECT string_agg(subname, $$ $$) FROM pg_subscription'), 's', 'and the subscription');
	$session->value('SELECT zk_unlock_all()');
	is($session->query('DROP SUBSCRIPTION s')->{state}, '', 'then: DROP SUBSCRIPTION');
	is($slots->(), '', 'no slot');
	$session->quit;
	$publisher->stop;
};

# Lost locks are checked for at the COMMIT inside the procedure, not at the end
# of the CALL.
subtest 'COMMIT in a procedure' => sub {
	$admin->value(
		q{CREATE PROCEDURE in_parts(path text, gate integer) LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO t VALUES ('part 1');
			COMMIT;
			PERFORM zk_xact_lock(path);
			INSERT INTO t VALUES ('part 2');
			PERFORM pg_advisory_xact_lock(gate);
			COMMIT;
			INSERT INTO t VALUES ('part 3');
		END $$});
	my $session = zk_session_with($node, commit_guard => 'strict');
	$admin->value('SELECT pg_advisory_lock(1)');
	$session->send(q{CALL in_parts('/procedure', 1)});
	zk_until(sub { $admin->value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}) == 1 },
		'it stands before its second COMMIT');
	delete_by_hand('/procedure');
	$admin->value('SELECT pg_advisory_unlock(1)');
	zk_is_lost($session->wait, '/procedure', 'the COMMIT after the loss');
	is($admin->value(q{SELECT string_agg(who, ', ') FROM t WHERE who LIKE 'part%'}),
		'part 1', 'the one before it stands, the rest is not there');
	is($session->query(q{CALL in_parts('/procedure', 2)})->{state}, '', 'called again, it comes to its end');
	is($admin->value(q{SELECT string_agg(who, ', ') FROM t WHERE who LIKE 'part%'}),
		'part 1, part 1, part 2, part 3', 'with all its parts');
	$session->quit;
};

# ------------------------------------------------- without an xid, or elsewhere

subtest 'a transaction that only does NOTIFY, or only writes through postgres_fdw' => sub {
	my $session = zk_session_with($node, commit_guard => 'strict');
	my $listener = zk_session($node);
	$listener->value('LISTEN news');

	$session->value(q{BEGIN; SELECT zk_xact_lock('/notify'); NOTIFY news, 'of a lost lock'});
	is($session->value('SELECT pg_current_xact_id_if_assigned() IS NULL'), 't', 'NOTIFY: has no xid');
	delete_by_hand('/notify');
	zk_is_lost($session->query('COMMIT'), '/notify', 'NOTIFY');
	$session->value(q{BEGIN; SELECT zk_xact_lock('/notify'); NOTIFY news, 'of a lock'; COMMIT});
	my $heard = '';
	zk_until(sub { $heard .= $listener->value('SELECT 1'); $heard =~ /of a lock/ }, 'a notification');
	unlike($heard, qr/lost/, 'NOTIFY: only the one that committed is heard');
	$listener->quit;

	$session->value(q{BEGIN; INSERT INTO there VALUES ('before'); SELECT zk_xact_lock('/fdw')});
	is($session->value('SELECT pg_current_xact_id_if_assigned() IS NULL'), 't', 'postgres_fdw: has no xid here');
	delete_by_hand('/fdw');
	zk_is_lost($session->query('COMMIT'), '/fdw', 'postgres_fdw, used before the lock');
	is(rows('before', 'remote'), 0, 'postgres_fdw: not committed there');

	$session->value(q{BEGIN; SELECT zk_xact_lock('/fdw'); INSERT INTO there VALUES ('in another transaction')});
	delete_by_hand('/fdw');
	zk_is_lost($session->query('COMMIT'), '/fdw', 'postgres_fdw, used by an earlier transaction');
	is(rows('in another transaction', 'remote'), 0, 'postgres_fdw: not committed there');
	$session->value(q{BEGIN; SELECT zk_xact_lock('/fdw'); INSERT INTO there VALUES ('held'); COMMIT});
	is(rows('held', 'remote'), 1, 'postgres_fdw: committed with a lock that is held');
	$session->quit;

	# Its callback was registered later, and would run first
	$session = zk_session_with($node, commit_guard => 'strict');
	$session->value(q{BEGIN; SELECT zk_xact_lock('/fdw'); INSERT INTO t VALUES ('after'); INSERT INTO there VALUES ('after')});
	delete_by_hand('/fdw');
	zk_is_lost($session->query('COMMIT'), '/fdw', 'postgres_fdw, first used after the lock');
	is(rows('after') . rows('after', 'remote'), '00', 'postgres_fdw: not committed there');
	$session->quit;

	# So it is after any number of reasons to be first
	$session = zk_session_with($node, commit_guard => 'strict');
	$session->value(
		q{BEGIN; DO $$ BEGIN
			FOR i IN 1..12 LOOP
				BEGIN
					PERFORM zk_xact_lock('/again/' || i);
					RAISE division_by_zero;
				EXCEPTION WHEN division_by_zero THEN
				END;
			END LOOP;
		END $$;
		SELECT zk_xact_lock('/fdw'); INSERT INTO there VALUES ('after many')});
	delete_by_hand('/fdw');
	zk_is_lost($session->query('COMMIT'), '/fdw', 'postgres_fdw, first used after many locks');
	is(rows('after many', 'remote'), 0, 'postgres_fdw: not committed there');
	$session->value(q{BEGIN; SELECT zk_xact_lock('/fdw'); INSERT INTO there VALUES ('after all'); COMMIT});
	is(rows('after all', 'remote'), 1, 'postgres_fdw: the next transaction is committed');

	# which take no memory
	$session->value(
		q{CREATE FUNCTION say() RETURNS void LANGUAGE plpgsql AS $$ BEGIN NOTIFY said; END $$;
		BEGIN; SELECT zk_xact_lock('/fdw'), say()});
	my $used = sub { $session->value(q{SELECT used_bytes FROM pg_backend_memory_contexts WHERE name = 'TopMemoryContext'}) };
	my $before = $used->();
	$session->value('SELECT count(say()) FROM generate_series(1, 20000)');
	cmp_ok($used->() - $before, '<', 300_000, '20,000 reasons in a statement leave next to nothing');
	$session->value('COMMIT');
	$session->quit;

	# The README warns of this one: its writing cannot be seen from here.
	$admin->value(
		q{CREATE FUNCTION write_there() RETURNS integer LANGUAGE sql AS $$ INSERT INTO public.remote VALUES ($s$reader$s$) RETURNING 1 $$;
		CREATE VIEW writer AS SELECT write_there() AS n;
		CREATE FOREIGN TABLE writer_there (n integer) SERVER loopback OPTIONS (table_name 'writer')});
	$session = zk_session_with($node, commit_guard => 'strict');
	$session->value(q{BEGIN; SELECT zk_xact_lock('/fdw'); SELECT n FROM writer_there});
	delete_by_hand('/fdw');
	zk_is_lost($session->query('COMMIT'), '/fdw', 'postgres_fdw, first used after the lock, to read');
	is(rows('reader', 'remote'), 1, 'postgres_fdw: committed there');
	$session->quit;
};

# The lock was held until then, but its node may have been gone before: a delete that is
# sent again does not tell
subtest 'the answer to a release is lost' => sub {
	my $proxy = new_proxy();
	foreach my $guard (qw(on strict))
	{
		my $session = zk_session_with($node, hosts => $proxy, session_timeout => '60s', commit_guard => $guard);
		$session->value(qq{BEGIN; SELECT zk_lock('/answer'); INSERT INTO t VALUES ('answer $guard')});
		$proxy->swallow_and_drop('delete');
		is($session->value(q{SELECT zk_unlock('/answer')}), 't', "$guard: it is released");
		my $result = $session->query('COMMIT');
		is($result->{state}, $guard eq 'on' ? '' : '40001', $guard eq 'on' ? '- and was proven a moment ago' : '- and strict asks of each moment');
		like($result->{err}, qr/DETAIL:  ZooKeeper could not confirm that the lock was still held when it was released\.\nHINT:  Retry the transaction\./, '- which is said')
		  if $guard eq 'strict';
		is(rows("answer $guard"), $guard eq 'on' ? 1 : 0, '- the row');
		$session->quit;
	}
};

# A transaction that took no lock relies on the session's locks if it has
# written.
subtest 'what counts as writing' => sub {
	$admin->value(
		q{CREATE TABLE parts (n integer, who text) PARTITION BY LIST (n);
		CREATE TABLE part_here PARTITION OF parts FOR VALUES IN (1);
		CREATE TABLE remote_part (n integer, who text);
		CREATE FOREIGN TABLE part_there PARTITION OF parts FOR VALUES IN (2) SERVER loopback OPTIONS (table_name 'remote_part');
		CREATE TABLE remote_more (who text);
		INSERT INTO remote_more VALUES ('stays');
		CREATE FOREIGN TABLE more (who text) SERVER loopback OPTIONS (table_name 'remote_more');
		CREATE VIEW view_there AS SELECT * FROM more;
		CREATE RULE tell AS ON UPDATE TO view_there DO ALSO NOTIFY told;
		CREATE FUNCTION write_more() RETURNS void LANGUAGE plpgsql AS $$ BEGIN INSERT INTO more VALUES ('function'); END $$});
	my $listener = zk_session($node);
	$listener->value('LISTEN news');
	foreach my $statement (
		q{INSERT INTO more VALUES ('insert')},
		q{UPDATE more SET who = 'update'},
		q{UPDATE view_there SET who = 'view'},
		q{DELETE FROM more WHERE who > random()::text},
		q{WITH w AS (INSERT INTO more VALUES ('with') RETURNING who) SELECT who FROM w},
		q{EXPLAIN ANALYZE INSERT INTO more VALUES ('analyze')},
		q{SELECT write_more()},
		q{PREPARE p AS INSERT INTO more VALUES ('prepared'); EXECUTE p},
		q{TRUNCATE more},
		q{COPY more FROM PROGRAM 'echo copied'},
		q{INSERT INTO parts VALUES (2, 'routed')},
		q{COPY parts FROM PROGRAM 'echo 2,copied' (FORMAT csv)},
		q{NOTIFY news, 'lost'},
		q{DO $$ BEGIN NOTIFY news, 'lost'; END $$})
	{
		# a new one, which has not used the server before
		my $session = zk_session_with($node, commit_guard => 'strict');
		$session->value(q{SELECT zk_lock('/writes')});
		delete_by_hand('/writes');
		zk_is_lost($session->query($statement), '/writes', $statement);
		$session->value('SELECT zk_unlock_all()');
		is($session->query($statement =~ s/^PREPARE.*?; //r)->{state}, '', '- and without the lock it commits')
		  if $statement =~ /PREPARE|^NOTIFY/;
		$session->quit;
	}
	is($admin->value(q{SELECT string_agg(who, ' ' ORDER BY who) FROM remote_more}), 'prepared stays', 'nothing was written there');
	is($admin->value('SELECT count(*) FROM parts'), 0, 'nor through a partition');

	my $session = zk_session_with($node, commit_guard => 'strict');
	$session->value(q{SELECT zk_lock('/reads')});
	delete_by_hand('/reads');
	foreach my $statement (
		'SELECT count(*) FROM more',
		'SELECT who FROM more FOR UPDATE',
		q{EXPLAIN INSERT INTO more VALUES ('explained')},
		q{INSERT INTO parts SELECT 1, 'none' WHERE false},
		q{UPDATE part_here SET who = 'none'},
		q{COPY (SELECT who FROM more) TO PROGRAM 'cat >/dev/null'},
		q{BEGIN; SELECT pg_notify('news', 'not a write'); COMMIT})
	{
		is($session->query($statement)->{state}, '', "it reads only: $statement");
	}

	# what one transaction did does not matter for the next
	is($session->query(q{BEGIN; NOTIFY news, 'rolled back'; ROLLBACK; SELECT 1})->{state}, '', 'a transaction after one that notified');
	zk_is_lost($session->query(q{BEGIN; SAVEPOINT s; INSERT INTO more VALUES ('savepoint'); ROLLBACK TO s; COMMIT}),
		'/reads', 'what was taken back to a savepoint counts, as an xid would');
	$session->value('SELECT zk_unlock_all()');
	my $heard = '';
	zk_until(sub { $heard .= $listener->value('SELECT 1'); $heard =~ /not a write/ }, 'a notification');
	is(() = $heard =~ /"lost"/g, 1, 'only that which had no lock is heard');
	$_->quit for $session, $listener;
};

# PreCommit_Notify comes after the guard, and waits for other notifiers.
subtest 'COMMIT does not wait for NOTIFY until its lock may be gone' => sub {
	my $timeout = 6;
	my %setting = (session_timeout => "${timeout}s");
	my $hanging = zk_session($node);
	zk_commits_hang($node, $admin);
	$hanging->value('SET synchronous_commit = on');
	my $event = sub { return $admin->value('SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $_[0]->pid) };
	$hanging->send(q{BEGIN; INSERT INTO t VALUES ('hangs'); NOTIFY hangs; COMMIT});
	zk_until(sub { $event->($hanging) eq 'SyncRep' }, 'a notifier that waits for its standby');

	foreach my $guard (qw(on strict))
	{
		my $session = zk_session_with($node, %setting, commit_guard => $guard);
		$session->value(q{SET lock_timeout = '1h'});
		foreach my $notify (q{NOTIFY news}, q{SELECT pg_notify('news', 'x')})
		{
			my $began = time;
			$session->value("BEGIN; SELECT zk_xact_lock('/queued'); INSERT INTO t VALUES ('queued'); $notify");
			my $result = $session->query('COMMIT');
			my $ended = time;
			zk_is_lost($result, '/queued', "$guard, $notify");
			like($result->{message}, qr/^could not commit: .* may have been lost/, '- as a loss');
			in_time($result->{seconds}, $timeout, '- before another can have the lock');
			cmp_ok($ended - $began, '>', $timeout / 4, '- not at once');
		}
		is($session->value('SHOW lock_timeout'), '1h', 'lock_timeout is what it was');
		$session->quit;

		# these are not to wait as long as that
		$session = zk_session_with($node, commit_guard => $guard);
		$session->value(q{BEGIN; SELECT zk_xact_lock('/queued'); SET LOCAL lock_timeout = '100ms'; NOTIFY news});
		is($session->query('COMMIT')->{state}, '55P03', "$guard: lock_timeout ends it sooner");
		$session->value(q{BEGIN; SELECT zk_xact_lock('/queued'); NOTIFY news});
		$session->send('COMMIT');
		zk_until(sub { $event->($session) eq 'object' }, 'it waits');
		$admin->value('SELECT pg_cancel_backend(' . $session->pid . ')');
		is($session->wait->{state}, '57014', "$guard: so does a cancel");
		$session->value(q{BEGIN; SELECT zk_xact_lock('/queued'); INSERT INTO t VALUES ('not queued'); COMMIT});
		is(rows('not queued'), $guard eq 'on' ? 1 : 2, 'who does not notify commits');
		$session->quit;
	}

	# The time that a server of postgres_fdw takes to commit counts.
	$admin->value(
		q{CREATE TABLE remote_slow (who text);
		CREATE FUNCTION be_slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(3.5); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER be_slow AFTER INSERT ON remote_slow DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION be_slow();
		CREATE FOREIGN TABLE slow_there (who text) SERVER loopback OPTIONS (table_name 'remote_slow')});
	my $slow = zk_session_with($node, %setting);
	$slow->value(q{BEGIN; SELECT zk_xact_lock('/queued'); INSERT INTO slow_there VALUES ('slow'); NOTIFY news});
	my $result = $slow->query('COMMIT');
	zk_is_lost($result, '/queued', 'after a server that was slow to commit');
	in_time($result->{seconds}, $timeout, '- before another can have the lock');
	cmp_ok($result->{seconds}, '>', 3.4, '- and that server was waited for');
	$slow->quit;
	is($event->($hanging), 'SyncRep', 'the notifier still waits');
	is(rows('queued'), 0, 'nothing was committed late');

	my $session = zk_session($node);
	$session->value(q{BEGIN; SELECT zk_xact_lock('/queued'); INSERT INTO t VALUES ('at last'); NOTIFY news});
	$session->send('COMMIT');
	zk_until(sub { $event->($session) eq 'object' }, 'it waits');
	$admin->value('ALTER SYSTEM RESET synchronous_standby_names');
	$admin->value('SELECT pg_reload_conf()');
	is($hanging->wait->{state}, '', 'the notifier comes to its end');
	is($session->wait->{state}, '', 'who waited for it commits');
	is(rows('at last'), 1, 'the row is there');
	is($session->value('SHOW lock_timeout'), '0', 'lock_timeout is what it was');
	$_->quit for $session, $hanging;
};

# ---------------------------------------------------------- nobody to be asked

# All at the same time, since each waits.  Each session has a hold, and writes;
# nothing has been heard from ZooKeeper for more than a third of the session
# timeout.
subtest 'cut off at COMMIT' => sub {
	my ($back, $gone, $silent, $later) = map { new_proxy() } 1 .. 4;
	my %short = (operation_timeout => '3s');
	my %long = (operation_timeout => '1min');
	my %session = (
		'back on' => zk_session_with($node, hosts => $back, session_timeout => '24s', %long),
		'back strict' => zk_session_with($node, hosts => $back, %long, commit_guard => 'strict'),
		'back session' => zk_session_with($node, hosts => $back, %long, commit_guard => 'strict'),
		'back off' => zk_session_with($node, hosts => $back, %long, commit_guard => 'off'),
		'gone on' => zk_session_with($node, hosts => $gone, session_timeout => '24s', %short),
		'gone strict' => zk_session_with($node, hosts => $gone, commit_guard => 'strict', %short),
		'gone session' => zk_session_with($node, hosts => $gone, commit_guard => 'strict', %short),
		'gone off' => zk_session_with($node, hosts => $gone, commit_guard => 'off', %short),
		'silent on' => zk_session_with($node, hosts => $silent, session_timeout => '24s', %short),
		'silent strict' => zk_session_with($node, hosts => $silent, commit_guard => 'strict', %short),
		'silent session' => zk_session_with($node, hosts => $silent, commit_guard => 'strict', %short),
		'silent off' => zk_session_with($node, hosts => $silent, commit_guard => 'off', %short),
		# longer than the session lives
		'gone expired' => zk_session_with($node, hosts => $gone, session_timeout => '2s', commit_guard => 'strict', operation_timeout => '1min'),
		'later cancel' => zk_session_with($node, hosts => $later, commit_guard => 'strict', operation_timeout => '1min'),
		'later terminate' => zk_session_with($node, hosts => $later, session_timeout => '30s', commit_guard => 'strict', operation_timeout => '1min'));
	my @names = sort keys %session;

	foreach my $name (@names)
	{
		my $lock = $name =~ /session/ ? 'zk_lock' : 'zk_xact_lock';
		my $path = $name =~ tr{ }{/}r;
		my $write = "INSERT INTO t VALUES ('cut $name')";
		$session{$name}->value($name =~ /session/
			? "SELECT zk_lock('/cut/$path'); BEGIN; $write"
			: "BEGIN; $write; SELECT zk_xact_lock('/cut/$path')");
	}
	$_->cut_off for $back, $gone, $later;
	$silent->blackhole;
	zk_wait_session($session{$_}, 'suspended') for grep { !/^silent|expired/ } @names;
	my $since = time;
	zk_until(sub { time - $since > 8.1 }, 'more than a third of 24 s without an answer');

	$session{$_}->send('COMMIT') for @names;
	foreach my $name (grep { / off$/ } @names)
	{
		my $result = $session{$name}->wait;
		is($result->{state} . "@{ $result->{warnings} }", '', "$name: commits");
		in_time($result->{seconds}, $SLACK, "$name: at once");
		is(rows("cut $name"), 1, "$name: the row is there");
	}
	# still within the session timeouts
	ok(!$session{$_}->is_done, "$_: waits") for grep { /^(?:back|later) (?!off)/ } @names;
	$back->pass;

	foreach my $name (grep { /^back (?!off)/ } @names)
	{
		my $result = $session{$name}->wait;
		is($result->{state}, '', "$name: commits when it is back");
		is(rows("cut $name"), 1, "$name: the row is there");
		is($session{$name}->value('SELECT losses FROM zk_session'), 0, "$name: in the same ZooKeeper session");
	}
	foreach my $name (grep { /^(?:gone|silent) (?!off|expired)/ } @names)
	{
		my $result = $session{$name}->wait;
		zk_is_lost($result, '/cut/' . ($name =~ tr{ }{/}r), $name);
		note(sprintf '%s: %.0f ms', $name, 1000 * $result->{seconds});
		in_time($result->{seconds}, 3 + $SLACK, "$name: after operation_timeout");
		cmp_ok($result->{seconds}, '>', 2.9, "$name: not before");
		is(rows("cut $name"), 0, "$name: the row is not there");
	}

	# canceled, terminated
	my $pid = $session{'later cancel'}->pid;
	my $began = time;
	$admin->value("SELECT pg_cancel_backend($pid)");
	is($session{'later cancel'}->wait->{state}, '57014', 'canceled: 57014');
	in_time(time - $began, $SLACK, 'canceled: at once');
	is($session{'later cancel'}->value('SELECT count(*) FROM zk_locks'), 0, 'canceled: the transaction is over');
	$pid = $session{'later terminate'}->pid;
	$began = time;
	$admin->value("SELECT pg_terminate_backend($pid)");
	$session{'later terminate'}->wait_error;
	in_time(time - $began, $SLACK, 'terminated: at once');
	my $result = $session{'later terminate'}->wait;
	is("$result->{state} $result->{closed}", '57P01 1', 'terminated: 57P01, and the end');
	is(rows("cut later %"), 0, 'neither row is there');

	$result = $session{'gone expired'}->wait;
	zk_is_lost($result, '/cut/gone/expired', 'gone expired');
	in_time($result->{seconds}, 10, 'gone expired: as soon as the session is lost, not after operation_timeout');
	is(rows('cut gone expired'), 0, 'gone expired: the row is not there');

	# all of them continue
	$_->pass for $gone, $silent, $later;
	foreach my $name (qw(gone silent))
	{
		my $session = $session{"$name session"};
		zk_wait_hold($session, 'held');
		is($session->query("INSERT INTO t VALUES ('cut $name again')")->{state}, '',
			"$name session: the lock was in doubt, not lost: the next one commits");
	}
	zk_works($session{$_}, "$_: works") for grep { !/terminate/ } @names;
	is($session{'gone expired'}->value('SELECT losses FROM zk_session'), 1, 'gone expired: in a new ZooKeeper session');
	$_->quit for values %session;
};

subtest 'the answer to the guard is lost' => sub {
	my $proxy = new_proxy();
	my $session = zk_session_with($node, hosts => $proxy, commit_guard => 'strict');
	my $begin = sub {
		$session->value("BEGIN; INSERT INTO t VALUES ('$_[0]'); SELECT zk_xact_lock('/answer')");
		$proxy->clear_log;
	};

	$begin->('swallowed');
	$session->value(q{SET LOCAL zklock.operation_timeout = '1s'});
	$proxy->swallow('multi');
	my $result = $session->query('COMMIT');
	zk_is_lost($result, '/answer', 'swallowed');
	in_time($result->{seconds}, 1 + $SLACK, 'swallowed: after operation_timeout');
	cmp_ok($result->{seconds}, '>', 0.9, 'swallowed: not before');
	is(rows('swallowed'), 0, 'swallowed: the row is not there');
	$session->value(q{SET zklock.operation_timeout = '30s'});
	zk_works($session, 'swallowed: works');

	foreach my $how (qw(swallow_and_drop drop_request))
	{
		$begin->($how);
		$proxy->$how('multi');
		$result = $session->query('COMMIT');
		is($result->{state}, '', "$how: reconnects, asks again, and commits");
		cmp_ok($proxy->count('multi'), '>=', 2, "$how: asked twice");
		is(rows($how), 1, "$how: the row is there");
	}

	# The node is gone when it asks again.
	$begin->('deleted');
	$proxy->hold_request('multi');
	$session->send('COMMIT');
	$proxy->wait_held;
	delete_by_hand('/answer');
	$proxy->cut_off;
	$proxy->release;
	$proxy->pass;
	zk_is_lost($session->wait, '/answer', 'deleted between the two');
	is(rows('deleted'), 0, 'deleted: the row is not there');
	zk_works($session, 'deleted: works');

	$begin->('held');
	$proxy->hold('multi');
	$session->send('COMMIT');
	$proxy->wait_held;
	ok(!$session->is_done, 'nothing commits before the answer is here');
	is(rows('held'), 0, 'nor can anybody see it');
	$proxy->release;
	is($session->wait->{state}, '', 'then it does');
	is(rows('held'), 1, 'and the row is there');
	$session->quit;

	# A good answer that was unread while the process was stopped
	$session = zk_session_with($node, hosts => $proxy, commit_guard => 'strict', session_timeout => '6s');
	my $next = zk_session_with($node);
	$begin->('late');
	$next->send(q{SELECT zk_lock('/answer')});
	zk_wait_queued($zk, $next);
	$proxy->hold('multi');
	$session->send('COMMIT');
	$proxy->wait_held;
	Child::suspend($session->pid);
	$proxy->release;
	is($next->wait->{out}, 't', 'late: the next one has the lock');
	kill 'CONT', $session->pid;
	zk_is_lost($session->wait, '/answer', 'late: what it said is not true any more');
	is(rows('late'), 0, 'late: the row is not there');
	zk_works($session, 'late: works');
	$_->quit for $session, $next;
};

# ------------------------------------------------------------------ the others

# What a lock that is lost does not stop
subtest 'off' => sub {
	my $session = zk_session_with($node, commit_guard => 'off');
	$session->value(q{BEGIN; INSERT INTO t VALUES ('off'); SELECT zk_xact_lock('/off/xact'), zk_lock('/off/session')});
	delete_by_hand('/off/xact', '/off/session');
	is($session->query('COMMIT')->{state}, '', 'deleted a moment ago: commits');
	is(rows('off'), 1, 'the row is there');
	$session->value('SELECT zk_unlock_all()');
	$session->quit;
};

$hand->close;
$admin->quit;
$node->stop;
zk_no_crash($node);
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);

done_testing();
