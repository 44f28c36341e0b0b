# Two clusters, one lock: what a transaction in cluster A does to its locks, as
# seen from cluster B.  The table of scopes and transactions, row by row; counts
# across nested savepoints; and that the next owner sees what the last one
# committed.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

use ZkProxy;
use Zklock;
use ZooKeeper;

my $zk = ZooKeeper->new->start;
my $node_a = zk_cluster('a', $zk, max_prepared_transactions => 2, restart_after_crash => 'on');
my $node_b = zk_cluster('b', $zk);
my $proxy = ZkProxy->new($zk);

# gate(n) waits until the test opens it, so that cluster B can look meanwhile.
# settle() returns when ZooKeeper has done everything that this session has
# requested.
$node_a->safe_psql(
	'postgres', q{
	CREATE TABLE done (n int);
	CREATE FUNCTION gate(n int) RETURNS void LANGUAGE sql AS
		'SELECT pg_advisory_lock(n); SELECT pg_advisory_unlock(n)';
	CREATE FUNCTION settle() RETURNS boolean LANGUAGE plpgsql AS
		$$ BEGIN PERFORM zk_lock('/settle'); RETURN zk_unlock('/settle'); END $$;
});

sub look
{
	my ($who, $path) = @_;
	return 'held' if $who->value("SELECT zk_try_lock('$path')") eq 'f';
	$who->value("SELECT zk_unlock('$path')");
	return 'free';
}

#
# Every session excludes every other, whatever its cluster and database.
#
{
	$_->safe_psql('postgres', 'CREATE DATABASE other') for $node_a, $node_b;
	$_->safe_psql('other', 'CREATE EXTENSION zklock') for $node_a, $node_b;
	my %at = (
		'A' => zk_session($node_a),
		'A, another database' => zk_session($node_a, dbname => 'other'),
		'B' => zk_session($node_b),
		'B, another database' => zk_session($node_b, dbname => 'other'));

	foreach my $owner (sort keys %at)
	{
		$at{$owner}->value(q{SELECT zk_lock('/everywhere')});
		my @refused = grep { look($at{$_}, '/everywhere') eq 'held' } sort keys %at;
		is_deeply(\@refused, [ grep { $_ ne $owner } sort keys %at ],
			"a lock held in $owner excludes all others");
		is(look($at{A}, '/elsewhere'), 'free', 'and from no other path');
		$at{$owner}->value(q{SELECT zk_unlock('/everywhere')});
	}
	$_->quit for values %at;
	zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
}

#
# The table.
#
# Before the event the lock is held.  'free': a waiter in cluster B gets it, far
# sooner than ZooKeeper could have timed the session out.  'held': cluster B
# cannot get it.  'later': it is still held after the event, and free when
# ZooKeeper has timed the session out.  '-': impossible.
#
# {lock} is zk_lock or zk_xact_lock.  A statement that stops at gate(1) does the
# event when that is opened; B looks when it has ended or reached gate(2).
#
my $in_block = q{BEGIN; DO $$ BEGIN BEGIN PERFORM {lock}; PERFORM gate(1); %s
	EXCEPTION WHEN division_by_zero THEN NULL; END; END $$};
my $in_procedure = q{DO $$ BEGIN PERFORM {lock}; PERFORM gate(1); %s;
	PERFORM settle(); PERFORM gate(2); END $$};

my @table = (
	# event                        done before                                    the event        session  transaction  SQLSTATE
	[ 'COMMIT',                    'BEGIN; SELECT {lock}',                        'COMMIT',        'held',  'free' ],
	[ 'COMMIT, taken before',      'SELECT {lock}; BEGIN',                        'COMMIT',        'held',  '-' ],
	[ 'ROLLBACK',                  'BEGIN; SELECT {lock}',                        'ROLLBACK',      'free',  'free' ],
	[ 'ROLLBACK, taken before',    'SELECT {lock}; BEGIN',                        'ROLLBACK',      'held',  '-' ],
	[ 'error',                     'BEGIN; SELECT {lock}',                        'SELECT 1/0',    'free',  'free',  '22012' ],
	[ 'error, taken before',       'SELECT {lock}; BEGIN',                        'SELECT 1/0',    'held',  '-',     '22012' ],
	[ 'ROLLBACK TO SAVEPOINT',     'BEGIN; SAVEPOINT s; SELECT {lock}',           'ROLLBACK TO s', 'free',  'free' ],
	[ 'ROLLBACK TO, taken before', 'BEGIN; SELECT {lock}; SAVEPOINT s',           'ROLLBACK TO s', 'held',  'held' ],
	[ 'ROLLBACK TO an outer one',  'BEGIN; SAVEPOINT s; SAVEPOINT t; SELECT {lock}; RELEASE t',
	                                                                              'ROLLBACK TO s', 'free',  'free' ],
	[ 'RELEASE SAVEPOINT',         'BEGIN; SAVEPOINT s; SELECT {lock}',           'RELEASE s',     'held',  'held' ],
	[ 'EXCEPTION',                 sprintf($in_block, 'PERFORM 1/0;'),            'gate 1',        'free',  'free' ],
	[ 'EXCEPTION, not raised',     sprintf($in_block, ''),                        'gate 1',        'held',  'held' ],
	[ 'COMMIT in a procedure',     sprintf($in_procedure, 'COMMIT'),              'gate 1',        'held',  'free' ],
	[ 'ROLLBACK in a procedure',   sprintf($in_procedure, 'ROLLBACK'),            'gate 1',        'free',  'free' ],
	[ 'PREPARE TRANSACTION',       'BEGIN; SELECT {lock}',                        q{PREPARE TRANSACTION 'p'},
	                                                                                               'free',  'free',  '0A000' ],
	[ 'PREPARE, taken before',     'SELECT {lock}; BEGIN; INSERT INTO done VALUES (0)',
	                                                                              q{PREPARE TRANSACTION 'p'},
	                                                                                               'held',  '-' ],
	[ 'DISCARD ALL',               'SELECT {lock}',                               'DISCARD ALL',   'free',  '-' ],
	[ 'DISCARD ALL, not allowed',  'BEGIN; SELECT {lock}',                        'DISCARD ALL',   'free',  'free',  '25001' ],
	[ 'DISCARD TEMP',              'SELECT {lock}',                               'DISCARD TEMP',  'held',  '-' ],
	[ 'disconnect',                'BEGIN; SELECT {lock}',                        'disconnect',    'free',  'free' ],
	[ 'disconnect when idle',      'SELECT {lock}',                               'disconnect',    'free',  '-' ],
	[ 'pg_terminate_backend',      'BEGIN; SELECT {lock}',                        'terminate',     'free',  'free' ],
	[ 'terminate when idle',       'SELECT {lock}',                               'terminate',     'free',  '-' ],
	[ 'lost network',              'BEGIN; SELECT {lock}',                        'cut',           'later', 'later' ],
	[ 'kill -9, crash',            'BEGIN; SELECT {lock}',                        'kill -9',       'later', 'later' ],
);

# zklock.session_timeout in s, and that of the sessions that must time out
my $TIMEOUT = 60;
my $SHORT_TIMEOUT = 6;

my $gate = zk_session($node_a);
my ($watcher, $waiter) = (zk_session($node_b), zk_session($node_b));

sub holder
{
	my ($event) = @_;
	my $s = zk_session($node_a);
	$s->value('SET zklock.session_timeout = ' . 1000 * ($event =~ /cut|kill/ ? $SHORT_TIMEOUT : $TIMEOUT));
	$s->value("SET zklock.hosts = '" . $proxy->hosts . "'") if $event eq 'cut';
	return $s;
}

# Wait until a statement has ended (returns true) or has reached a gate.
sub ended
{
	my ($s) = @_;
	my $state;
	zk_until(
		sub {
			$state = $s->is_done ? 'ended' : $gate->value(
				'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $s->pid);
			return $state =~ /ended|advisory/;
		},
		'the statement to end or to stand at a gate');
	return $state eq 'ended';
}

my %event = (
	'gate 1' => sub {
		my ($s) = @_;
		$gate->value('SELECT pg_advisory_unlock(1)');
		zk_until(sub { $gate->value(
			q{SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory' AND objid = 1}) eq 't' },
			'the gate to be passed');
		return;
	},
	'disconnect' => sub { $_[0]->quit; return; },
	'terminate' => sub { $gate->value('SELECT pg_terminate_backend(' . $_[0]->pid . ')'); return; },
	'cut' => sub { $proxy->blackhole; return; },
	'kill -9' => sub { zk_kill($node_a, $_[0]->pid); return; });

sub row
{
	my ($name, $before, $event, $expected, $lock) = @_;
	my $s = holder($event);
	my $gone = $event =~ /disconnect|terminate|cut|kill/;
	my ($then, $state);

	$gate->value('SELECT pg_advisory_lock(1), pg_advisory_lock(2)');
	$s->send($before =~ s/\{lock\}/$lock/gr);
	my $under_way = !ended($s);
	die "$name: " . $s->wait->{message} if !$under_way && $s->wait->{state};
	my $now = look($watcher, '/job');

	if ($expected ne 'held')
	{
		$waiter->send(q{SELECT zk_lock('/job', '40s')});
		zk_wait_queued($zk, $waiter);
	}
	my $start = time;
	if ($event{$event})
	{
		$event{$event}->($s);
		$under_way = !ended($s) if $under_way;
		$s->wait if $event eq 'gate 1' && !$under_way;
	}
	else
	{
		$state = $s->query($event)->{state};
	}

	if ($expected eq 'held')
	{
		$s->query('SELECT settle()') unless $under_way;
		$then = look($watcher, '/job');
	}
	else
	{
		my $got = $waiter->wait->{out};
		my $after = time - $start;
		$then = $got ne 't' ? 'held'
		  : $expected eq 'free' ? 'free'
		  : $expected eq 'later' && $after > $SHORT_TIMEOUT / 2 ? 'later'
		  : sprintf('free after %.1f s', $after);
		$waiter->value('SELECT zk_unlock_all()');
	}

	# clean up
	if ($event eq 'kill -9')
	{
		$gate->query('SELECT 1');    # it was ended with the others
		$gate = zk_session($node_a);
	}
	$gate->value('SELECT pg_advisory_unlock_all()');
	$proxy->reset;
	$s->wait if $under_way;
	$s->query('ROLLBACK') unless $gone;
	$gate->value(q{ROLLBACK PREPARED 'p'}) if $name eq 'PREPARE, taken before';
	$s->quit;
	return "$now, then $then" . ($state ? " ($state)" : '');
}

foreach (@table)
{
	my ($name, $before, $event, $session, $transaction, $sqlstate) = @$_;
	foreach (
		[ 'session', $session, q{zk_lock('/job')} ],
		[ 'transaction', $transaction, q{zk_xact_lock('/job')} ])
	{
		my ($scope, $expected, $lock) = @$_;
		next if $expected eq '-';
		is(row($name, $before, $event, $expected, $lock),
			"held, then $expected" . ($sqlstate ? " ($sqlstate)" : ''), "$name: $scope scope");
	}
}

#
# Counts.  One session in cluster A, step by step: its own counts by scope, and
# whether cluster B can have the lock.
#
{
	my $s = zk_session($node_a);
	my @steps = (
		# statement                     session  transaction  B sees
		[ q{SELECT zk_lock('/n')},            1, 0, 'held' ],
		[ q{BEGIN},                           1, 0, 'held' ],
		[ q{SELECT zk_lock('/n')},            2, 0, 'held' ],
		[ q{SELECT zk_xact_lock('/n')},       2, 1, 'held' ],
		[ q{SAVEPOINT a},                     2, 1, 'held' ],
		[ q{SELECT zk_lock('/n') FROM generate_series(1, 2)}, 4, 1, 'held' ],
		[ q{SAVEPOINT b},                     4, 1, 'held' ],
		[ q{SELECT zk_lock('/n'), zk_xact_lock('/n')}, 5, 2, 'held' ],
		[ q{SELECT zk_unlock('/n')},          4, 2, 'held' ],
		[ q{ROLLBACK TO b},                   4, 1, 'held' ],
		[ q{SELECT zk_lock('/n')},            5, 1, 'held' ],
		[ q{RELEASE b},                       5, 1, 'held' ],
		[ q{ROLLBACK TO a},                   2, 1, 'held' ],
		[ q{SELECT zk_lock('/n')},            3, 1, 'held' ],
		[ q{RELEASE a},                       3, 1, 'held' ],
		[ q{ROLLBACK},                        1, 0, 'held' ],

		# a rollback does not undo an unlock, and a commit keeps the rest
		[ q{BEGIN},                           1, 0, 'held' ],
		[ q{SELECT zk_xact_lock('/n'), zk_lock('/n')}, 2, 1, 'held' ],
		[ q{SELECT zk_unlock('/n')},          1, 1, 'held' ],
		[ q{SAVEPOINT c},                     1, 1, 'held' ],
		[ q{SELECT zk_unlock('/n')},          0, 1, 'held' ],
		[ q{ROLLBACK TO c},                   0, 1, 'held' ],
		[ q{ROLLBACK},                        0, 0, 'free' ],

		# taken only inside the last of several savepoints
		[ q{BEGIN},                           0, 0, 'free' ],
		[ q{SAVEPOINT d},                     0, 0, 'free' ],
		[ q{SAVEPOINT e},                     0, 0, 'free' ],
		[ q{SELECT zk_lock('/n'), zk_xact_lock('/n')}, 1, 1, 'held' ],
		[ q{ROLLBACK TO e},                   0, 0, 'free' ],
		[ q{SELECT zk_lock('/n'), zk_xact_lock('/n')}, 1, 1, 'held' ],
		[ q{COMMIT},                          1, 0, 'held' ],
		[ q{SELECT zk_lock('/n')},            2, 0, 'held' ],
		[ q{SELECT zk_unlock_all()},          0, 0, 'free' ]);

	my $counts = q{SELECT coalesce(sum(count) FILTER (WHERE scope = 'session'), 0),
		coalesce(sum(count) FILTER (WHERE scope = 'transaction'), 0) FROM zk_locks WHERE path = '/n'};
	my (@got, @expected);
	foreach (@steps)
	{
		my ($sql, @expect) = @$_;
		$s->value($sql);
		my $seen = $s->value($counts) =~ tr/|/ /r;
		$s->value('SELECT settle()');
		push @got, "$sql: $seen " . look($watcher, '/n');
		push @expected, "$sql: @expect";
	}
	is_deeply(\@got, \@expected, 'counts of both scopes across nested savepoints');
	$s->quit;
}

#
# A lock is released only when the commit is visible.  Two sessions of cluster
# A, and one of B that accesses A's table through dblink, take turns; each reads
# in a statement of its own and writes that plus one.  If the lock were free a
# moment too early, two would read the same number.
#
{
	my $turns = 200;
	$node_a->safe_psql('postgres', 'CREATE TABLE counter (n int); INSERT INTO counter VALUES (0)');
	$node_a->safe_psql(
		'postgres', q{
		CREATE PROCEDURE turns(turns int) LANGUAGE plpgsql AS $$
		DECLARE v int;
		BEGIN
			FOR i IN 1 .. turns LOOP
				PERFORM zk_xact_lock('/counter');
				SELECT n INTO v FROM counter;
				UPDATE counter SET n = v + 1;
				COMMIT;
			END LOOP;
		END $$});
	$node_b->safe_psql('postgres', 'CREATE EXTENSION dblink');
	$node_b->safe_psql('postgres', sprintf(q{
		CREATE PROCEDURE turns(turns int) LANGUAGE plpgsql AS $$
		DECLARE v int;
		BEGIN
			PERFORM dblink_connect('a', '%s');
			FOR i IN 1 .. turns LOOP
				PERFORM zk_xact_lock('/counter');
				SELECT n INTO v FROM dblink('a', 'SELECT n FROM counter') AS (n int);
				PERFORM dblink_exec('a', 'UPDATE counter SET n = ' || v + 1);
				COMMIT;
			END LOOP;
		END $$}, $node_a->connstr('postgres') =~ s/'/''/gr));

	my @s = (zk_session($node_a), zk_session($node_a), zk_session($node_b));
	my $start = time;
	$_->send("CALL turns($turns)") for @s;
	$_->wait for @s;
	is($node_a->safe_psql('postgres', 'SELECT n FROM counter'), 3 * $turns,
		'the next owner sees what the last one committed');
	note sprintf '%d turns of 3 sessions in 2 clusters: %.0f per second, %d waited', 3 * $turns,
	  3 * $turns / (time - $start), eval { my $n = 0; $n += $_->value('SELECT waits FROM zk_session') for @s; $n };
	$_->quit for @s;
}

# The row of a waiter that exists already, seen from SQL alone
{
	my ($first, $second) = (zk_session($node_a), zk_session($node_a));
	$first->value(q{BEGIN; SELECT zk_xact_lock('/rows'); INSERT INTO done VALUES (1)});
	$second->send(q{SELECT zk_lock('/rows'); SELECT count(*) FROM done WHERE n = 1});
	zk_wait_queued($zk, $second);
	$first->value('COMMIT');
	is($second->wait->{out}, "t\n1", 'a waiter sees the row of the one it waited for, in a new statement');
	$_->quit for $first, $second;
}

$_->quit for $gate, $watcher, $waiter;
zk_nothing_left($zk, 'nothing is left in ZooKeeper', sessions => 0);
$_->stop for $node_a, $node_b;

done_testing();
