# zklock_advisory: pg_locks shows what a session holds by its functions, since it
# holds PostgreSQL's own lock of that key beside the one in ZooKeeper.  When that
# is given back, where it cannot be had, and who waits for it.  That the rows are
# PostgreSQL's own, whatever a program does, is in t/060 and t/101.

use strict;
use warnings;
use FindBin;
use lib "$FindBin::RealBin/lib";

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use Zklock;
use ZooKeeper;

my $HANDOVERS = 200;    # of each of three kinds
my $EXITS = 25;    # each needs a session of its own

my $zk = ZooKeeper->new(max_session_timeout => 3_600_000)->start;
my $node = zk_cluster(
	'main', $zk,
	# a statement that looks at a lost lock is not to be canceled: that is t/034's
	'zklock.cancel_on_loss' => 'off',
	'zklock.session_timeout' => '1min',
	'zklock.max_locks' => 10_000,
	deadlock_timeout => '100ms',
	autovacuum => 'off',    # its locks would come and go in a full table
	max_connections => 15,
	max_locks_per_transaction => 10,
	max_prepared_transactions => 1);
my $admin = zk_session($node);
my $hand = $zk->client(session_timeout => 3_600_000);    # it sends no heartbeats
$node->safe_psql('postgres', 'CREATE EXTENSION zklock_advisory');

sub switched
{
	my (%opt) = @_;
	my $space = $opt{space} // '';
	return zk_session($node, options => "-c search_path=zklock_advisory,pg_catalog,public -c zklock.advisory_space=$space");
}

# What pg_locks shows of a session's advisory locks, as somebody else sees it: "key mode, ..."
sub rows
{
	my ($s) = @_;
	return $admin->value(
		q{SELECT string_agg(concat_ws(' ', CASE objsubid WHEN 2 THEN classid || ',' || objid ELSE objid::text END, mode), ', ' ORDER BY objid, objsubid, mode)
			FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = } . $s->pid);
}

# The server log since this was last asked
my $told = 0;
sub told
{
	my $log = slurp_file($node->logfile);
	my $new = substr $log, $told;
	$told = length $log;
	return $new;
}

sub is_queued { my ($n) = @_; zk_until(sub { $admin->value(q{SELECT count(*) FROM zk_lock_queue('/advisory/postgres/1')}) >= $n }, "$n in the queue"); return; }

#
# Which locks have one, and until when
#
{
	my $s = switched();
	$s->value(q{SELECT zk_lock('/advisory/postgres/1'), zk_lock_shared('/advisory/postgres/2')});
	is(rows($s), '', "zk_lock's of the same path is not shown");
	$s->value(q{SELECT pg_advisory_lock(1); BEGIN; SELECT zk_xact_lock('/advisory/postgres/3'), pg_advisory_xact_lock(1)});
	is(rows($s), '1 ExclusiveLock', "- pg_advisory_lock's beside it is");
	is($s->value('SELECT pg_advisory_unlock(1)'), 't', 'the last one of the session is given back');
	is(rows($s), '1 ExclusiveLock', "- the transaction's is shown");
	$s->value('SAVEPOINT a; SELECT pg_advisory_xact_lock_shared(1), pg_advisory_xact_lock(4), pg_advisory_xact_lock(1); ROLLBACK TO a');
	is(rows($s), '1 ExclusiveLock', '- a savepoint takes back its own');
	$s->value('COMMIT');
	is(rows($s), '', '- and the end of the transaction the rest');
	is(zk_holds($s), 'exclusive session 1 held, shared session 1 held', "- though the session still has zk_lock's");
	$s->value('SELECT pg_advisory_lock(1), zk_unlock_all()');
	is(rows($s), '', 'zk_unlock_all gives it back');

	$s->value('SELECT pg_advisory_lock(1)');
	$s->value(q{BEGIN; CREATE TABLE prepared (); PREPARE TRANSACTION 'p'});
	is(rows($s), '1 ExclusiveLock', 'PREPARE TRANSACTION leaves what an earlier transaction has taken');
	$s->value(q{ROLLBACK PREPARED 'p'});

	# PostgreSQL's own functions, and what else has taken it before we do
	is($s->value('SELECT pg_catalog.pg_advisory_unlock(1)'), 't', "PostgreSQL's own unlock takes it");
	is(rows($s), '', '- and it is not shown');
	my $unlocked = $s->query('SELECT pg_advisory_unlock(1)');
	is("$unlocked->{out} @{ $unlocked->{warnings} }", 't ', '- nothing is said of that by ours');
	$s->value('SELECT pg_advisory_lock(1), pg_catalog.pg_advisory_unlock_all(), pg_advisory_lock(1)');
	is(rows($s), '1 ExclusiveLock', '- which takes it again with the next call');
	$s->value('SELECT pg_advisory_lock(2); BEGIN; SELECT pg_catalog.pg_advisory_xact_lock(2), pg_catalog.pg_advisory_unlock(2)');
	is($s->query('SELECT pg_cancel_backend(pg_backend_pid()), pg_advisory_unlock(2)')->{state}, '57014', "- where PostgreSQL's warning lets a cancel in");
	$s->value('ROLLBACK');
	is(zk_holds($s), 'exclusive session 2 held', '- the hold is gone');
	zk_until(sub { zk_locks_left($zk) == 1 }, '- and its node');
	my $discarded = $s->query('DISCARD ALL');
	is("$discarded->{state} @{ $discarded->{warnings} }", ' ', 'DISCARD ALL says nothing either');
	is(rows($s) . zk_holds($s), '', '- and leaves neither lock');
	$s->quit;
	zk_nothing_left($zk, 'nothing is left');
}

#
# Where it cannot be had
#
{
	my ($s, $by) = (switched(), zk_session($node));
	$by->value('SELECT pg_advisory_lock(1)');
	told();
	my $taken = $s->query('SELECT pg_try_advisory_lock(1)');
	is("$taken->{out} @{ $taken->{warnings} }", 't ', "somebody has PostgreSQL's own: it grants nothing");
	$s->value('SELECT pg_advisory_lock(1), pg_try_advisory_lock(2)');
	is(rows($s), '2 ExclusiveLock', '- and the row is missing');
	my $log = told();
	is(scalar(() = $log =~ /LOG:  could not take PostgreSQL's own ExclusiveLock on advisory lock \[\d+,0,1,1\]$/mg), 1, '- of which the server log tells, once')
	  or diag($log);
	$by->value('SELECT pg_advisory_unlock(1)');
	is($s->value('SELECT pg_try_advisory_lock(2)'), 't', 'once it can be had, a call for another key');
	is(rows($s), '1 ExclusiveLock, 2 ExclusiveLock', '- brings it');
	is($by->value('SELECT pg_try_advisory_lock(1)'), 'f', "PostgreSQL's own call is refused then");
	$by->send('SELECT pg_advisory_lock(1)');
	zk_until(sub { $admin->value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}) == 1 }, 'the wait for it');
	$s->value('SELECT pg_advisory_unlock(1)');
	ok(!$by->is_done, '- or waits, as long as one is held');
	$s->value('SELECT pg_advisory_unlock(1)');
	is($by->wait->{state}, '', '- and has it when the last is given back');
	$_->quit for $s, $by;

	# two spaces in one database
	my ($one, $two) = map { switched(space => $_) } qw(one two);
	$_->value('SELECT pg_advisory_lock(1)') for $one, $two;
	is(join(' / ', map { rows($_) } $one, $two), '1 ExclusiveLock / ', 'two spaces: the second row is missing');
	$one->value('SELECT pg_advisory_unlock(1)');
	$two->value('SELECT pg_advisory_lock(2)');
	is(rows($two), '1 ExclusiveLock, 2 ExclusiveLock', '- until there is room');
	$two->value('SET zklock.advisory_space = three; SELECT pg_advisory_lock(1), pg_advisory_unlock(1)');
	is(rows($two), '1 ExclusiveLock, 2 ExclusiveLock', '- and in one session each has its own');
	$_->quit for $one, $two;
	zk_nothing_left($zk, 'nothing is left');
}

#
# Lost
#
{
	my ($s, $next) = (switched(), switched());
	$s->value('SELECT pg_advisory_lock(1), pg_advisory_lock_shared(1), pg_advisory_lock(2)');
	$s->value('BEGIN');
	$hand->delete_contenders('/zklock/advisory/postgres/1');
	is($next->value('SELECT pg_try_advisory_lock(1)'), 't', 'a lock that was lost is had by another session');
	is(join(' / ', map { rows($_) } $s, $next), '1 ExclusiveLock, 1 ShareLock, 2 ExclusiveLock / ', '- but the one that is idle has the row');
	zk_until(sub { $s->value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()}) == 1 },
		'a statement of any kind to find it gone');
	$next->value('SELECT pg_advisory_lock(3)');
	is(join(' / ', map { rows($_) } $s, $next), '2 ExclusiveLock / 1 ExclusiveLock, 3 ExclusiveLock', '- until its next statement');
	$s->value('COMMIT');
	my $released = $s->query('SELECT pg_advisory_unlock(1), pg_advisory_unlock_shared(1)');
	is("$released->{out} " . @{ $released->{warnings} }, 'f|f 2', '- and its unlocks tell of the loss only');

	# with its session, and by a statement that is no query
	$zk->end_session($s->value('SELECT session_id FROM zk_session'));
	$s->value('BEGIN');
	zk_until(sub { $s->value('LOCK TABLE pg_description IN ACCESS SHARE MODE'); rows($s) eq '' }, 'LOCK TABLE to find it gone');
	$s->value('COMMIT');
	$_->quit for $s, $next;
	zk_nothing_left($zk, 'nothing is left');
}

#
# A loss that a failed transaction finds, where no conversion of the path is possible
#
{
	$node->safe_psql('postgres', "CREATE DATABASE latin1 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
	$node->safe_psql('latin1', 'CREATE EXTENSION zklock; CREATE EXTENSION zklock_advisory');
	my $s = zk_session($node, dbname => 'latin1', options => '-c search_path=zklock_advisory,pg_catalog,public -c client_encoding=LATIN1 -c zklock.session_timeout=20s');
	my ($state, $log) = ('', '');
	$s->value('SELECT pg_advisory_lock(1)');
	$s->value('BEGIN; SAVEPOINT a');
	told();
	$hand->delete_contenders('/zklock/advisory/latin1/1');
	zk_until(
		sub {
			$s->query('SELECT 1/0');    # is not even executed
			$state = $s->query('ROLLBACK TO a')->{state};
			$log .= told();
			return $state ne '' || $log =~ /was lost/;
		},
		'the loss');
	is($state, '', 'a failed transaction that has lost a lock is rolled back');
	like($log, qr{LOG:  the lock on "/advisory/latin1/1" was lost}, '- and the server log tells so');
	$s->value('ROLLBACK');
	$s->quit;
	$node->safe_psql('postgres', 'DROP DATABASE latin1');
	zk_nothing_left($zk, 'nothing is left');
}

#
# Cycles through it
#
{
	my ($s, $by) = (switched(), zk_session($node));
	$s->value('SELECT pg_advisory_lock(1)');
	$by->value(q{SELECT zk_lock('/b')});
	$by->send('SELECT pg_advisory_lock(1)');
	zk_until(sub { $admin->value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND waitstart IS NOT NULL}) }, 'the wait for it');
	my $victim = $s->query(q{SELECT zk_lock('/b')});
	is($victim->{state}, '40P01', 'who waits for it, with a lock of ZooKeeper that we want: a deadlock');
	like($victim->{detail} . $victim->{err}, qr/advisory lock \[\d+,0,1,1\]/, '- which names it');
	$s->quit;
	is($by->wait->{state}, '', '- and the other one goes on when the session has ended');
	$by->quit;
	zk_nothing_left($zk, 'nothing is left');
}

#
# From one to the next on this server: each has its row at once
#
{
	$admin->value(<<~'END');
		CREATE SEQUENCE handovers MINVALUE 0;
		CREATE SEQUENCE missing MINVALUE 0;
		CREATE SEQUENCE last_one;
		CREATE PROCEDURE take_turns(until bigint, how text) LANGUAGE plpgsql AS $$
		BEGIN
			WHILE (SELECT last_value FROM handovers) < until LOOP
				IF how = 'unlock' THEN
					PERFORM pg_advisory_lock(1);
				ELSE
					PERFORM pg_advisory_xact_lock(1);
				END IF;
				PERFORM nextval('missing')
				WHERE NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid());
				PERFORM nextval('handovers'), setval('last_one', pg_backend_pid())
				WHERE (SELECT last_value FROM last_one) <> pg_backend_pid();
				IF how = 'unlock' THEN
					PERFORM pg_advisory_unlock(1);
				ELSIF how = 'rollback' THEN
					ROLLBACK;
				ELSE
					CREATE TABLE made (a text);
					DROP TABLE made;
					COMMIT;
				END IF;
			END LOOP;
		END $$;
		END
	my @s = map { switched() } 1 .. 3;
	foreach my $how ('commit of DDL', 'rollback', 'unlock')
	{
		$admin->value(q{SELECT setval('handovers', 0), setval('missing', 0), setval('last_one', 1)});
		$_->send("CALL take_turns($HANDOVERS, '$how')") for @s;
		is(join(' ', map { $_->wait->{state} } @s), '  ', "$how: $HANDOVERS handovers");
		is($admin->value('SELECT last_value FROM missing'), 0, '- no row is missing');
	}
	$_->quit for @s;

	my $next = sub {
		return switched()->send(q{SELECT pg_advisory_lock(1); SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()});
	};
	my @waiting = map { $next->() } 1 .. 3;
	my $missing = 0;
	for my $n (1 .. $EXITS)
	{
		zk_until(sub { grep { $_->is_done } @waiting }, 'the next one');
		my ($holder) = grep { $_->is_done } @waiting;
		@waiting = grep { $_ != $holder } @waiting;
		$missing++ if $holder->wait->{out} ne "\n1";
		is_queued(2) if @waiting;
		$holder->quit;
		push @waiting, $next->() if $n <= $EXITS - 3;
	}
	is($missing, 0, "exit: $EXITS handovers, no row is missing");
	zk_nothing_left($zk, 'nothing is left');
}

#
# PostgreSQL's lock table is full
#
{
	my $s = switched();
	my $full = $s->query('SELECT count(pg_advisory_lock(g)::text) FROM generate_series(1, 10000) AS g');
	is($full->{state}, '53200', "PostgreSQL's lock table is full");
	my $n = $s->value('SELECT count(*) FROM zk_locks');
	cmp_ok($n, '>', 100, '- after many keys');
	is($s->value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()}), $n, '- all of which are shown');
	zk_until(sub { zk_locks_left($zk) == $n }, 'the node of the last key to go');
	is($s->query('SELECT pg_try_advisory_lock_shared(' . ($n + 1) . ')')->{state}, '53200', 'the same for another call of the last key');
	is($s->query('SELECT pg_advisory_xact_lock(' . ($n + 1) . ')')->{state}, '53200', '- and in the scope of a transaction');
	is($s->query('SELECT pg_advisory_lock(1)')->{state}, '', 'a key that is held can be had once more');
	is($s->value('SELECT count(*) FROM zk_locks WHERE count = 2'), 1, '- and counts');
	is($s->value('SELECT pg_advisory_unlock(2), pg_try_advisory_lock(' . ($n + 1) . ')'), 't|t', 'with room again, so can the last one');
	is($s->value('SELECT pg_advisory_unlock_all()'), '', 'and all are given back');
	is(rows($s), '', '- and none is shown');
	$s->quit;
	zk_nothing_left($zk, 'nothing is left');
}

$admin->quit;
$hand->close;
zk_nothing_left($zk, 'nothing is left at the end', sessions => 0);
zk_no_crash($node);
done_testing();
