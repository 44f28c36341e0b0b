# zklock_advisory: PostgreSQL's own functions of advisory locks, which give the
# same answers on locks in ZooKeeper.  What differs, since such a lock can be
# lost; which calls reach it, and which do not; whose keys are the same.  pg_locks shows
# what a session holds by them, since it holds PostgreSQL's own lock of that key beside
# the one in ZooKeeper: when that is given back, where it cannot be had, and who waits
# for it.
#
# PostgreSQL's own regression test is part of it where dev/test could fetch it.

use FindBin;
use lib "$FindBin::RealBin/lib";

use IPC::Run ();

use Tests;

my $PATH = 'zklock_advisory, pg_catalog, "$user", public';

my $zk = ZooKeeper->new->start;
# A statement that looks at a lost lock is not to be canceled: that is t/034's.
# A loss is known at COMMIT, and not when its event has arrived.
my %setting = ('zklock.cancel_on_loss' => 'off', 'zklock.commit_guard' => 'strict', deadlock_timeout => '100ms');
my $node = zk_cluster(
	'main', $zk, %setting,
	'zklock.session_timeout' => '30s',
	'zklock.max_locks' => 10_000,
	autovacuum => 'off',    # its locks would come and go in a full table
	max_connections => 15,
	max_locks_per_transaction => 10,
	max_prepared_transactions => 1);
my $other = zk_cluster('other', $zk, %setting);
my $admin = zk_session($node);
foreach my $cluster ($node, $other)
{
	$cluster->safe_psql('postgres', 'CREATE EXTENSION zklock_advisory; CREATE TABLE t (a text)');
}

# The space in which the only lock is
sub space { return join ' ', map { m{^/zklock/advisory/(.*)/1/} } zk_locks_left($zk); }

# A session that was switched over
sub switched
{
	my ($cluster, %opt) = @_;
	my $s = zk_session($cluster // $node, %opt);
	$s->value("SET search_path = $PATH");
	return $s;
}

# What it holds: "key mode scope count, ..."
sub holds
{
	my ($s) = @_;
	return $s->value(
		q{SELECT string_agg(concat_ws(' ', regexp_replace(path, '^/advisory/postgres/', ''), mode, scope, count), ', '
			ORDER BY path COLLATE "C", mode, scope) FROM zk_locks});
}

# Delete the node of a key's lock, as an administrator might by hand
sub lose
{
	my ($key, $db) = (@_, 'postgres');
	$zk->with_client(sub { $_[0]->delete_contenders("/zklock/advisory/$db/$key") });
	return;
}

# The same, and have its session notice it
sub lose_known
{
	my ($s, $key) = @_;
	lose($key);
	zk_is_lost($s->query(q{BEGIN; INSERT INTO t VALUES ('b'); COMMIT}), "/advisory/postgres/$key", 'a later transaction that writes');
	return;
}

#
# What PostgreSQL has, in all that can be told from a catalog
#
{
	my $of = sub {
		return $admin->value(
			qq{SELECT proname, pg_get_function_arguments(oid), pg_get_function_result(oid), provolatile, proisstrict,
				proparallel, prosecdef FROM pg_proc WHERE pronamespace = '$_[0]'::regnamespace
				AND proname ~ '^pg_(try_)?advisory_' ORDER BY 1, 2});
	};
	my @theirs = split /\n/, $of->('pg_catalog');
	is(scalar @theirs, 21, 'PostgreSQL has 21 functions');
	is_deeply([ split /\n/, $of->('zklock_advisory') ], \@theirs, '- and we the same');
	is($admin->value(q{SELECT count(*) FROM pg_proc p WHERE pronamespace = 'zklock_advisory'::regnamespace
		AND (obj_description(oid, 'pg_proc') IS NULL OR procost <> 1
			OR has_function_privilege('public', oid, 'EXECUTE'))}), 0,
		'each has a comment, its cost, and no right for PUBLIC');
}

#
# The same answers
#

# What psql says to a script, in a database of this name
sub said
{
	my ($file, $search_path) = @_;
	my $said;
	$node->safe_psql('postgres', 'CREATE DATABASE answers');
	$node->safe_psql('answers', 'CREATE EXTENSION zklock; CREATE EXTENSION zklock_advisory');
	local $ENV{PGOPTIONS} = "-c search_path=" . $search_path =~ s/ //gr;
	IPC::Run::run([ 'psql', '-X', '-a', '-q', '-d', $node->connstr('answers'), '-f', $file ], '<', \undef, '>&', \$said);
	$node->safe_psql('postgres', 'DROP DATABASE answers');
	return $said;
}

sub same_answers
{
	my ($file, $name) = @_;
	my ($theirs, $ours) = map { said($file, $_) } 'pg_catalog', $PATH;
	is($ours, $theirs, $name);
	# or nothing was compared
	like($theirs, qr/WARNING:  you don't own a lock of type ShareLock/, "- $name: which are some");
	return;
}

my $dir = PostgreSQL::Test::Utils::tempdir();
append_to_file("$dir/script.sql", <<'END');
\set VERBOSITY verbose
\set SHOW_CONTEXT never
\pset format unaligned
-- the function's place in the source, which differs
\o /dev/null
SELECT 1 \gset
\o
\set VERBOSITY default
\set locks 'SELECT classid, objid, objsubid, mode, granted FROM pg_locks WHERE locktype = ''advisory'' AND pid = pg_backend_pid() ORDER BY 1, 2, 3, 4;'

-- keys
SELECT pg_advisory_lock(1), pg_advisory_lock(1, 1), pg_advisory_lock(0, 1), pg_advisory_lock(-1), pg_advisory_lock(-1, -1);
SELECT pg_advisory_lock(9223372036854775807), pg_advisory_lock(-9223372036854775808);
SELECT pg_advisory_lock(2147483647, -2147483648), pg_advisory_lock(4294967297), pg_advisory_lock('77'), pg_advisory_lock(8::smallint);
SELECT pg_advisory_lock(hashtext('report')), pg_advisory_lock(hashtextextended('report', 0)), pg_advisory_lock(1234567890);
:locks
SELECT pg_advisory_lock(9223372036854775808);
SELECT pg_advisory_lock(2147483648, 1);
SELECT pg_advisory_lock(1.5);
SELECT pg_advisory_lock('a');
SELECT pg_advisory_lock(1, 2, 3);
SELECT pg_advisory_lock();
SELECT pg_advisory_lock(NULL) IS NULL, pg_try_advisory_lock(NULL) IS NULL, pg_advisory_unlock(NULL, 1) IS NULL;
SELECT pg_advisory_unlock(1), pg_advisory_unlock(1), pg_advisory_unlock(1, 1), pg_advisory_unlock_shared(0, 1);
SELECT pg_advisory_unlock_all();
:locks

-- counts, modes
SELECT pg_advisory_lock(1), pg_advisory_lock(1), pg_advisory_lock_shared(1), pg_try_advisory_lock(1), pg_try_advisory_lock_shared(1);
:locks
SELECT pg_advisory_unlock(1), pg_advisory_unlock(1), pg_advisory_unlock(1);
:locks
SELECT pg_advisory_unlock(1), pg_advisory_unlock_shared(1), pg_advisory_unlock_shared(1), pg_advisory_unlock_shared(1);
:locks
-- up and down
SELECT pg_advisory_lock_shared(2), pg_advisory_lock(2), pg_advisory_unlock_shared(2);
:locks
SELECT pg_advisory_lock_shared(2), pg_advisory_unlock(2);
:locks
SELECT pg_try_advisory_lock(2), pg_advisory_unlock(2), pg_advisory_unlock_shared(2);
:locks

-- scopes
BEGIN;
SELECT pg_advisory_xact_lock(1), pg_advisory_xact_lock(1), pg_advisory_lock(1), pg_try_advisory_xact_lock_shared(1, 2);
SELECT pg_advisory_unlock(1), pg_advisory_unlock(1), pg_advisory_unlock_shared(1, 2);
:locks
SELECT pg_advisory_lock(1);
SELECT pg_advisory_unlock_all();
:locks
COMMIT;
:locks

-- aborts
BEGIN;
SELECT pg_advisory_lock(1), pg_advisory_lock_shared(2), pg_advisory_xact_lock(3), pg_try_advisory_lock(4);
ROLLBACK;
:locks
BEGIN;
SELECT pg_advisory_unlock(4);
SELECT 1 / 0;
ROLLBACK;
:locks
SELECT pg_advisory_lock(5), 1 / (SELECT 0);
SELECT 1 / length(pg_advisory_lock(5)::text) FROM generate_series(1, 3);
:locks
BEGIN;
SAVEPOINT a;
SELECT pg_advisory_lock(6), pg_advisory_xact_lock(7);
SAVEPOINT b;
SELECT pg_advisory_lock(6), pg_advisory_lock(8), pg_advisory_unlock(1);
RELEASE b;
ROLLBACK TO a;
:locks
SELECT pg_advisory_unlock(6), pg_advisory_unlock(6), pg_advisory_unlock(6);
ROLLBACK;
:locks
DO $$
BEGIN
	FOR i IN 1 .. 3 LOOP
		BEGIN
			PERFORM pg_advisory_lock(9), pg_advisory_xact_lock(10);
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN
			PERFORM pg_advisory_lock(11);
		END;
	END LOOP;
END $$;
:locks
SELECT pg_advisory_unlock(9), pg_advisory_unlock(9), pg_advisory_unlock(9), pg_advisory_unlock(9);
CREATE PROCEDURE p() LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_lock(12), pg_advisory_xact_lock(13);
	ROLLBACK;
	PERFORM pg_advisory_lock(14), pg_advisory_xact_lock(15);
	COMMIT;
	PERFORM pg_advisory_unlock(12);
	ROLLBACK;
END $$;
CALL p();
:locks
SELECT pg_advisory_lock(g) FROM generate_series(100, 120) AS g;
BEGIN READ ONLY;
SELECT pg_advisory_lock(16), pg_advisory_xact_lock(17);
COMMIT;
:locks
DISCARD ALL;
END
same_answers("$dir/script.sql", 'a script of ours: the same answers');

SKIP:
{
	my $theirs = ($ENV{ZKLOCK_TMP} // '') . '/drop_in/advisory_lock.sql';
	skip "PostgreSQL's own regression test could not be fetched", 2 if !-e $theirs;
	same_answers($theirs, "PostgreSQL's own regression test: the same answers");
}
zk_nothing_left($zk, 'nothing is left');

#
# Between sessions and clusters
#
{
	my ($here, $there) = (switched($node), switched($other));
	$here->value('SELECT pg_advisory_lock(42)');
	is($there->value('SELECT pg_try_advisory_lock(42)'), 'f', 'another cluster is excluded');
	is($there->value('SELECT pg_try_advisory_lock(0, 42), pg_advisory_unlock(0, 42)'), 't|t', '- not from the pair of such numbers');
	is($there->value('SELECT pg_catalog.pg_try_advisory_lock(42), pg_catalog.pg_advisory_unlock(42)'), 't|t',
		"- not from PostgreSQL's own lock");
	is($there->value(q{SELECT zk_try_lock('/advisory/postgres/42')}), 'f', '- and zk_try_lock means the same lock');
	$there->send('SELECT pg_advisory_lock_shared(42)');
	zk_wait_queued($zk, $there);
	$here->value('SELECT pg_advisory_unlock(42)');
	is($there->wait->{state}, '', 'it waits, and is next');

	is($here->query(q{SET lock_timeout = '50ms'; SELECT pg_advisory_lock(42)})->{state}, '55P03', 'lock_timeout');
	is($here->query(q{RESET lock_timeout; SET statement_timeout = '50ms'; SELECT pg_advisory_lock(42)})->{state}, '57014', 'statement_timeout');
	$here->value('RESET statement_timeout');
	$here->send('SELECT pg_advisory_lock(42)');
	zk_wait_queued($zk, $here);
	is($here->cancel($admin)->{state}, '57014', 'a cancel');
	is(holds($here), '', '- and nothing of it stays');
	$there->value('SELECT pg_advisory_unlock_shared(42)');

	$_->quit for $here, $there;
	zk_nothing_left($zk, 'nothing is left');
}

#
# A hold of zk_lock's and one of pg_advisory_lock's: one lock, and each has its
# own function that releases it
#
{
	my $s = switched();
	$s->value(q{BEGIN; SELECT pg_advisory_lock(1), zk_lock('/advisory/postgres/1'), zk_lock('/advisory/postgres/2')});
	is(holds($s), '1 exclusive session 2, 2 exclusive session 1', 'zk_locks counts both');
	$s->value('ROLLBACK');
	is(holds($s), '1 exclusive session 1', "only zk_lock's end with the transaction");
	my $refused = $s->query(q{SELECT zk_unlock('/advisory/postgres/1')});
	is($refused->{out}, 'f', 'zk_unlock does not release the other one');
	like($refused->{err}, qr/HINT:  .*pg_advisory_unlock/, '- and says what does');
	$s->value(q{SELECT zk_lock('/advisory/postgres/1')});
	is($s->query('SELECT pg_advisory_unlock(1), pg_advisory_unlock(1)')->{out}, 't|f', "pg_advisory_unlock does not release zk_lock's");
	is(holds($s), '1 exclusive session 1', '- which stays');
	$s->value('SELECT pg_advisory_lock_shared(1), pg_advisory_lock(1, 1), pg_advisory_unlock_all()');
	is(holds($s), '1 exclusive session 1', 'pg_advisory_unlock_all releases its own');
	is($s->value('SELECT pg_advisory_lock(1), pg_advisory_lock(3), zk_unlock_all()'), '||3', 'zk_unlock_all releases all');
	$s->value(q{SELECT pg_advisory_lock(1), zk_lock('/x')});
	$s->value('DISCARD ALL');
	is(holds($s), '', 'so does DISCARD ALL');
	is($s->value('SHOW search_path'), '"$user", public', '- which sets search_path back to what the role has');

	# two ways down from the exclusive lock to the shared one
	$s->value("SET search_path = $PATH");
	$s->value('BEGIN; SELECT pg_advisory_lock_shared(1), pg_advisory_xact_lock(1)');
	$s->value('ROLLBACK');
	is(holds($s), '1 shared session 1', 'a shared hold survives the abort of the exclusive one');
	$s->value('SELECT pg_advisory_unlock_shared(1)');
	$s->value('BEGIN; SELECT pg_advisory_xact_lock(1), pg_advisory_lock_shared(1)');
	$s->value('ROLLBACK');
	is(holds($s), '1 shared session 1', '- also where it relied on it');
	my $reader = switched($other);
	is($reader->value('SELECT pg_try_advisory_lock_shared(1), pg_try_advisory_lock(1)'), 't|f', '- and it is shared');
	$_->quit for $s, $reader;
	zk_nothing_left($zk, 'nothing is left');
}

#
# Lost
#
{
	my $s = switched();
	$s->value(q{BEGIN; INSERT INTO t VALUES ('a'); SELECT pg_advisory_lock(1)});
	lose(1);
	my $lost = $s->query('COMMIT');
	zk_is_lost($lost, '/advisory/postgres/1', 'a transaction that relied on it does not commit');
	like($lost->{hint}, qr/^Call pg_advisory_unlock if/, '- and is told what releases it');
	is($s->value('SELECT state FROM zk_locks'), 'lost', 'the hold outlives the abort, and is lost');
	my $again = $s->query('SELECT pg_advisory_lock(1)');
	is($again->{state}, '55000', 'locking it again is refused');
	like($again->{hint}, qr/^Call pg_advisory_unlock,/, '- until it is released');
	zk_is_lost($s->query(q{BEGIN; INSERT INTO t VALUES ('b'); COMMIT}), '/advisory/postgres/1', 'a later transaction that writes');
	is($s->query('ROLLBACK; SELECT 1')->{out}, '1', '- one that does not, does');
	my $released = $s->query('SELECT pg_advisory_unlock(1)');
	is($released->{out}, 'f', 'releasing it is false');
	like($released->{err}, qr{WARNING:  .*the lock on "/advisory/postgres/1" had been lost}, '- with a WARNING');
	is($s->value(q{SELECT pg_advisory_lock(1); INSERT INTO t VALUES ('c'); SELECT pg_advisory_unlock(1)}), "\nt", 'then all is well');

	# zk_lock's hold of the same path and this one are each released by its own
	$s->value(q{SELECT pg_advisory_lock(1), zk_lock('/advisory/postgres/1')});
	lose_known($s, 1);
	is($s->query(q{SELECT zk_unlock('/advisory/postgres/1')})->{out}, 'f', 'zk_unlock of a lost lock');
	is($s->query('SELECT pg_advisory_lock(1)')->{state}, '55000', "- does not release pg_advisory_lock's");
	is($s->query('SELECT pg_advisory_unlock(1)')->{out}, 'f', '- which does that itself');
	is(holds($s), '', '- and nothing is left');

	$s->value('SELECT pg_advisory_lock(1), pg_advisory_lock(2)');
	lose(1);
	like($s->query('SELECT pg_advisory_unlock_all()')->{err}, qr/WARNING:  .*had been lost/, 'pg_advisory_unlock_all tells of a lost one');
	is(holds($s), '', '- and releases it');

	# the subtransaction that took it is gone, and it is not
	$s->value(q{BEGIN; INSERT INTO t VALUES ('d'); SAVEPOINT a; SELECT pg_advisory_lock(1); ROLLBACK TO a});
	lose(1);
	zk_is_lost($s->query('COMMIT'), '/advisory/postgres/1', 'the transaction relies on what a savepoint has left to it');
	$s->query('SELECT pg_advisory_unlock_all()');
	$s->value('BEGIN; SAVEPOINT a; SELECT pg_advisory_lock(1)');
	lose(1);
	is($s->query('SELECT pg_advisory_unlock(1)')->{out}, 'f', 'a subtransaction releases what it has lost');
	$s->value(q{SELECT pg_advisory_lock(1); ROLLBACK TO a; INSERT INTO t VALUES ('e')});
	is($s->query('COMMIT')->{state}, '', '- takes it again and aborts: its transaction does not rely on the first');
	is(holds($s), '1 exclusive session 1', '- and has the second');
	$s->value('SELECT pg_advisory_unlock(1)');
	is($s->value('SELECT string_agg(a, NULL) IS NULL, count(*) FROM t WHERE a IN (\'a\', \'b\', \'d\')'), 't|0', 'nothing was written without a lock');

	# what aborts have left behind is as good as what a commit has
	$s->value('BEGIN; SELECT pg_advisory_lock(1); ROLLBACK; BEGIN; SELECT pg_advisory_lock(1); COMMIT');
	is(holds($s), '1 exclusive session 2', 'holds of an abort and of a commit are one');
	$s->value('SELECT pg_advisory_unlock(1), pg_advisory_unlock(1)');

	is($s->query(q{BEGIN; SELECT pg_advisory_lock(1); PREPARE TRANSACTION 'p'})->{state}, '0A000', 'PREPARE TRANSACTION is refused');
	is(holds($s), '1 exclusive session 1', '- and the session still has its lock');
	$s->quit;
	zk_nothing_left($zk, 'nothing is left');
}

# ... noticed while a statement runs
{
	my $s = zk_session_with($node, cancel_on_loss => 'lost');
	$s->value("SET search_path = $PATH");
	foreach (
		[ 'in the transaction whose savepoint has left it', q{BEGIN; SAVEPOINT a; SELECT pg_advisory_lock(1); ROLLBACK TO a} ],
		[ 'in one that writes, after one that has aborted', q{BEGIN; SELECT pg_advisory_lock(1); ROLLBACK; BEGIN; INSERT INTO t VALUES ('f')} ])
	{
		my ($what, $begin) = @$_;
		$s->value($begin);
		$s->send('SELECT pg_sleep(1000)');
		lose(1);
		zk_is_lost($s->wait, '/advisory/postgres/1', "a statement is canceled $what");
		$s->value('ROLLBACK');
		is($s->query('SELECT pg_advisory_unlock(1)')->{out}, 'f', '- and the lock released');
	}

	# with its ZooKeeper session
	$s->value('BEGIN; SELECT pg_advisory_lock(1), pg_advisory_lock_shared(2); ROLLBACK');
	$zk->end_session($s->value('SELECT session_id FROM zk_session'), $s->pid);
	zk_until(sub { $s->value(q{SELECT count(*) FROM zk_locks WHERE state = 'lost'}) == 2 }, 'both to be lost');
	my $all = $s->query('SELECT pg_advisory_unlock_all()');
	is(scalar @{ $all->{warnings} }, 2, 'a ZooKeeper session that ends: two lost ones are released');
	is($s->value('SELECT pg_try_advisory_lock(1), pg_try_advisory_lock_shared(2)'), 't|t', '- and taken again');
	$s->quit;
	zk_nothing_left($zk, 'nothing is left');
}

# A session that is terminated in its transaction
{
	my $s = switched();
	$s->value('BEGIN; SELECT pg_advisory_lock(1), pg_advisory_xact_lock(2)');
	$admin->value('SELECT pg_terminate_backend(' . $s->pid . ')');
	is($s->query('SELECT 1')->{state}, '57P01', 'a session is terminated');
	zk_nothing_left($zk, 'nothing is left');
}

#
# Whose keys are the same
#
{
	my $s = switched();
	my ($mine, $yours) = map { switched($other) } 1, 2;

	# name, part of the path
	my @names = (
		[ 'shop', 'shop' ], [ 'Shop Ü', "Shop \xc3\x9c" ], [ '..', '%2E%2E' ], [ '.', '%2E' ], [ 'a/b', 'a%2Fb' ], [ '100%', '100%25' ],
		[ 'a%2Fb', 'a%252Fb' ], [ "tab\t", 'tab%09' ], [ "\x{1f512}", '%F0%9F%94%92' ],
		[ 'x-lock-0000000001', join '', map { sprintf '%%%02X', ord } split //, 'x-lock-0000000001' ],
		[ '__zklock_waits__', join '', map { sprintf '%%%02X', ord } split //, '__zklock_waits__' ],
		[ '%%%', '%25%25%25' ], [ '\\', '\\' ], [ ' ', ' ' ], [ '0,0', '0,0' ]);
	utf8::encode($_->[0]) for grep { $_->[0] =~ /[^\0-\xff]/ } @names;
	foreach (@names)
	{
		my ($name, $part) = @$_;
		$name = "Shop \xc3\x9c" if $name =~ /^Shop /;
		my $quoted = $name =~ s/\\/\\\\/gr;
		$s->value("SET zklock.advisory_space = E'$quoted'; SELECT pg_advisory_lock(1)");
		is(space(), $part, "the space $part");
		is($s->value(q{SELECT count(*) FROM zk_locks WHERE state = 'held'}), 1, '- is shown');
		is($s->value('SELECT pg_advisory_unlock(1)'), 't', '- and released');
	}
	my $longest = "\xc3\x9c" x 31;
	is($s->query("SET zklock.advisory_space = '${longest}aa'")->{state}, '22023', 'a space is as long as a name at most');
	$s->value("SET zklock.advisory_space = '" . "\xef\xbf\xbd" x 21 . "'; SELECT pg_advisory_lock(-9223372036854775808)");
	is($s->value(q{SELECT octet_length(path) FROM zk_locks}), 10 + 21 * 9 + 1 + 20, '- however much of it is escaped');
	$s->value('SELECT pg_advisory_unlock_all()');

	# in the middle of a session
	$s->value(q{SET zklock.advisory_space = 'one'; SELECT pg_advisory_lock(1); SET zklock.advisory_space = 'two'; SELECT pg_advisory_lock(1)});
	is($s->value(q{SELECT string_agg(path, ' ' ORDER BY path COLLATE "C") FROM zk_locks}), '/advisory/one/1 /advisory/two/1', 'a space that changes: two locks');
	is($s->query('SELECT pg_advisory_unlock(1), pg_advisory_unlock(1)')->{out}, 't|f', '- of which the function sees that of the setting');
	is($s->value(q{SET zklock.advisory_space = 'one'; SELECT pg_advisory_unlock(1)}), 't', '- one after the other');
	$s->value(q{SELECT pg_advisory_lock(1); SET zklock.advisory_space = 'two'; SELECT pg_advisory_unlock_all()});
	is(holds($s), '', '- and pg_advisory_unlock_all releases those of both');

	$s->value('RESET zklock.advisory_space; SELECT pg_advisory_lock(1)');
	$node->safe_psql('postgres', 'CREATE DATABASE elsewhere');
	$node->safe_psql('elsewhere', 'CREATE EXTENSION zklock; CREATE EXTENSION zklock_advisory');
	my $elsewhere = switched($node, dbname => 'elsewhere');
	is($elsewhere->value('SELECT pg_try_advisory_lock(1)'), 't', 'another database has other keys');
	$elsewhere->value('SELECT pg_advisory_unlock(1)');
	is($elsewhere->value(q{SET zklock.advisory_space = 'postgres'; SELECT pg_try_advisory_lock(1)}), 'f', '- unless the setting says otherwise');
	$elsewhere->quit;
	$node->safe_psql('postgres', 'ALTER DATABASE elsewhere RENAME TO "else/where"');
	my $renamed = switched($node, dbname => 'else/where');
	is($renamed->value('SELECT pg_advisory_lock(1); SELECT path FROM zk_locks'), "\n/advisory/else%2Fwhere/1", 'ALTER DATABASE RENAME changes them');

	$admin->value('CREATE ROLE plain LOGIN');
	my $plain = zk_session($node, user => 'plain');
	is($plain->query(q{SET zklock.advisory_space = 'one'})->{state}, '42501', 'only a superuser may set it');
	is(zk_session($node, user => 'plain', options => '-c zklock.advisory_space=one')->value('SHOW zklock.advisory_space'), '',
		'- not even at the beginning');
	$_->quit for $s, $mine, $yours, $renamed, $plain;
	zk_nothing_left($zk, 'nothing is left');
}

# Names that are no text where they are used
{
	my %part;
	foreach my $encoding (qw(UTF8 SQL_ASCII LATIN1 EUC_JP))
	{
		my $db = "u_\xc3\x9c_" . lc $encoding;
		$node->safe_psql('postgres', qq{CREATE DATABASE "$db" TEMPLATE template0 ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C'});
		$node->safe_psql($db, 'CREATE EXTENSION zklock; CREATE EXTENSION zklock_advisory');
		my $s = switched($node, dbname => $db);
		$s->value('SELECT pg_advisory_lock(1)');
		$part{$encoding} = space();
		is($s->value(q{SELECT count(*) FROM zk_locks WHERE path ~ '/1$'}), 1, "a name of UTF-8 in $encoding is shown");
		is($s->value('SELECT pg_advisory_unlock(1)'), 't', '- and its lock released');
	}
	is($part{UTF8}, "u_\xc3\x9c_utf8", 'UTF8: as it is');
	is($part{SQL_ASCII}, "u_\xc3\x9c_sql_ascii", 'SQL_ASCII: as it is');
	is($part{LATIN1}, "u_\xc3\x83%C2%9C_latin1", 'LATIN1: as it reads there, with a control character');
	like($part{EUC_JP}, qr/^%00%75%5F%C3%9C/, 'EUC_JP: its bytes, behind what no text has');

	$node->append_conf('postgresql.conf', "zklock.advisory_space = 'caf\xe9'");
	$node->reload;
	my $s = switched();
	zk_until(sub { length $s->value('SHOW zklock.advisory_space') }, 'the setting to be read');
	$s->value('SELECT pg_advisory_lock(1)');
	is(space(), '%00%63%61%66%E9', 'a setting that is no text');
	is($s->value(q{SELECT path FROM zk_locks; SELECT pg_advisory_unlock(1)}), "/advisory/%00%63%61%66%E9/1\nt", '- disturbs nobody');
	$node->append_conf('postgresql.conf', "zklock.advisory_space = ''");
	$node->reload;
	$s->quit;
	zk_nothing_left($zk, 'nothing is left');
}

# -- what pg_locks shows

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
	my ($one, $two) = map { switched($node, options => "-c zklock.advisory_space=$_") } qw(one two);
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
	lose(1);
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
	$zk->end_session($s->value('SELECT session_id FROM zk_session'), $s->pid);
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
	my $s = switched($node, dbname => 'latin1', options => '-c client_encoding=LATIN1');
	my ($state, $log) = ('', '');
	$s->value('SELECT pg_advisory_lock(1)');
	$s->value('BEGIN; SAVEPOINT a');
	told();
	lose(1, 'latin1');
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
		$_->send("CALL take_turns(100, '$how')") for @s;
		is(join(' ', map { $_->wait->{state} } @s), '  ', "$how: 100 handovers");
		is($admin->value('SELECT last_value FROM missing'), 0, '- no row is missing');
	}
	$_->quit for @s;

	my $next = sub {
		return switched()->send(q{SELECT pg_advisory_lock(1); SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()});
	};
	my @waiting = map { $next->() } 1 .. 3;
	my $missing = 0;
	for my $n (1 .. 12)
	{
		zk_until(sub { grep { $_->is_done } @waiting }, 'the next one');
		my ($holder) = grep { $_->is_done } @waiting;
		@waiting = grep { $_ != $holder } @waiting;
		$missing++ if $holder->wait->{out} ne "\n1";
		is_queued(2) if @waiting;
		$holder->quit;
		push @waiting, $next->() if $n <= 12 - 3;
	}
	is($missing, 0, "exit: 12 handovers, no row is missing");
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

#
# Which calls reach it
#

# Whether the lock that a statement took is in ZooKeeper: "zk" or "local"
sub where
{
	my ($s, $sql) = @_;
	my $result = $s->query($sql);
	return $result->{state} if $result->{state};
	# that in ZooKeeper has PostgreSQL's beside it, once
	my $where = $s->value(q{SELECT concat_ws(' ', (SELECT 'zk' FROM public.zk_locks LIMIT 1),
		(SELECT 'local' FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()
			HAVING count(*) > (SELECT count(*) FROM public.zk_locks)))});
	$s->query('SELECT public.zk_unlock_all(), pg_catalog.pg_advisory_unlock_all()');
	return $where;
}
my $check = q{SELECT pronamespace::regnamespace FROM pg_proc WHERE oid = 'pg_advisory_lock(bigint)'::regprocedure};

{
	my $s = switched();
	foreach (
		[ $PATH, 'zk' ],
		[ 'zklock_advisory', 'local' ],
		[ 'zklock_advisory, public', 'local' ],
		[ 'pg_catalog, zklock_advisory', 'local' ],
		[ 'public, zklock_advisory, pg_catalog', 'zk' ],
		[ 'pg_temp, zklock_advisory, pg_catalog', 'zk' ],
		[ 'no_such_schema, zklock_advisory, pg_catalog, public', 'zk' ],
		[ '"$user", public', 'local' ])
	{
		my ($path, $where) = @$_;
		$s->value("SET search_path = $path");
		is(where($s, 'SELECT pg_advisory_lock(1)'), $where, "search_path $path: $where");
		is($s->value($check), $where eq 'zk' ? 'zklock_advisory' : 'pg_catalog', '- which the check tells');
	}

	$s->value("SET search_path = $PATH");
	$s->value(<<~'END');
		PREPARE p AS SELECT pg_advisory_lock(1);
		CREATE FUNCTION public.plain() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_lock(1)';
		CREATE FUNCTION public.pl() RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_lock(1); END';
		CREATE FUNCTION public.atomic() RETURNS void LANGUAGE sql BEGIN ATOMIC SELECT pg_advisory_lock(1); END;
		CREATE FUNCTION public.safe() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
			AS 'BEGIN PERFORM pg_advisory_lock(1); END';
		CREATE VIEW public.v AS SELECT pg_advisory_lock(1) IS NULL AS locked;
		CREATE TABLE public.d (a text DEFAULT pg_advisory_lock(1)::text);
		END
	my %call = (
		plain => 'SELECT plain()', pl => 'SELECT pl()', atomic => 'SELECT atomic()', safe => 'SELECT safe()',
		v => 'SELECT * FROM v', d => 'INSERT INTO d DEFAULT VALUES', p => 'EXECUTE p',
		qualified => 'SELECT pg_catalog.pg_advisory_lock(1)');
	my %found = map { $_ => where($s, $call{$_}) } keys %call;
	is_deeply(\%found,
		{ plain => 'zk', pl => 'zk', atomic => 'zk', v => 'zk', d => 'zk', p => 'zk', safe => 'local', qualified => 'local' },
		'made with this search_path: what has none of its own');
	$s->value('SET search_path = "$user", public');
	%found = map { $_ => where($s, $call{$_}) } keys %call;
	is_deeply(\%found,
		{ plain => 'local', pl => 'local', atomic => 'zk', v => 'zk', d => 'zk', p => 'local', safe => 'local', qualified => 'local' },
		'called with another one: texts follow it, also those planned before, and what was parsed does not');
	$s->value("SET search_path = $PATH");
	is(where($s, $call{$_}), 'zk', "- and back: $_") for qw(plain pl p);
	$s->value('DROP FUNCTION plain(), pl(), atomic(), safe(); DROP VIEW v; DROP TABLE d');

	# what else the path does
	is($s->query('CREATE TABLE made (a int)')->{state}, '', 'a superuser creates a table');
	is($s->value(q{SELECT relnamespace::regnamespace FROM pg_class WHERE relname = 'made'}), 'zklock_advisory', '- in the first schema of the path');
	$s->value('DROP TABLE made; SET search_path = public, zklock_advisory, pg_catalog; CREATE TABLE made (a int)');
	is($s->value(q{SELECT relnamespace::regnamespace FROM pg_class WHERE relname = 'made'}), 'public', '- or in the one before ours');
	$s->value('DROP TABLE made');
}

#
# Rights
#
{
	my $s = switched($node, user => 'plain');
	foreach my $call ('pg_advisory_lock(1)', 'pg_try_advisory_xact_lock_shared(1, 2)', 'pg_advisory_unlock(1)', 'pg_advisory_unlock_all()')
	{
		is($s->query("SELECT $call")->{state}, '42501', "without EXECUTE: $call is refused");
	}
	is($admin->value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), 0, '- and nothing was locked');
	is($s->query('CREATE TABLE made (a int)')->{state}, '42501', 'nobody creates anything in its schema');
	is($s->query(q{CREATE FUNCTION zklock_advisory.pg_advisory_lock(int) RETURNS void LANGUAGE sql AS ''})->{state}, '42501', '- no function');
	$admin->value('GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA zklock_advisory TO plain');
	is($s->value('SELECT pg_try_advisory_lock(1), pg_advisory_unlock(1)'), 't|t', 'with EXECUTE: no right on those of zklock is needed');
	is($s->query(q{SELECT zk_try_lock('/a')})->{state}, '42501', '- and none is given');
	$s->quit;

	$admin->value(qq{ALTER ROLE plain IN DATABASE postgres SET search_path = $PATH});
	$s = zk_session($node, user => 'plain');
	is($s->value($check), 'zklock_advisory', 'one ALTER ROLE switches a role over');
	is($s->value('SELECT pg_advisory_lock(1); SELECT path FROM zk_locks'), "\n/advisory/postgres/1", '- without a change of its program');
	$s->value('DISCARD ALL');
	is($s->value($check), 'zklock_advisory', '- and it stays so after DISCARD ALL');
	$s->quit;
	$admin->value('ALTER ROLE plain IN DATABASE postgres RESET search_path');
	zk_nothing_left($zk, 'nothing is left');
}

#
# Created, dropped, dumped and restored
#
{
	my $create = 'CREATE EXTENSION zklock_advisory';
	my $in = sub { my ($db, $sql) = @_; my $s = zk_session($node, dbname => $db); my $r = $s->query($sql); $s->quit; return $r; };

	$admin->value('CREATE DATABASE fresh');
	is($in->('fresh', 'CREATE EXTENSION zklock_advisory')->{state}, '42704', 'it needs zklock');
	is($in->('fresh', 'CREATE EXTENSION zklock; CREATE EXTENSION zklock_advisory SCHEMA public')->{state}, '0A000', 'its schema is fixed');
	$in->('fresh', 'CREATE SCHEMA zklock_advisory AUTHORIZATION plain');
	my $refused = $in->('fresh', $create);
	is($refused->{state}, '42501', 'a schema of somebody else is refused');
	$in->('fresh', q{ALTER SCHEMA zklock_advisory OWNER TO CURRENT_USER;
		CREATE FUNCTION zklock_advisory.pg_advisory_lock(int) RETURNS void LANGUAGE sql AS ''});
	is($in->('fresh', $create)->{state}, '55000', 'so is one with something in it');
	$in->('fresh', 'DROP FUNCTION zklock_advisory.pg_advisory_lock(int); GRANT CREATE ON SCHEMA zklock_advisory TO plain');
	is($in->('fresh', $create)->{state}, '42501', 'so is one in which others may create something');
	# an operator in the schema of zklock, which fits those of the script better
	$in->('fresh', q{REVOKE CREATE ON SCHEMA zklock_advisory FROM plain; GRANT CREATE ON SCHEMA public TO plain; SET ROLE plain;
		CREATE FUNCTION trap(oid, regclass) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS 'BEGIN RAISE ''trapped''; END';
		CREATE OPERATOR = (LEFTARG = oid, RIGHTARG = regclass, FUNCTION = trap);
		CREATE OPERATOR <> (LEFTARG = oid, RIGHTARG = regclass, FUNCTION = trap)});
	is($in->('fresh', $create)->{state}, '', 'an empty one is taken, and nobody else runs anything then');
	$in->('fresh', 'DROP FUNCTION trap CASCADE; REVOKE CREATE ON SCHEMA public FROM plain');
	$in->('fresh', 'GRANT EXECUTE ON FUNCTION zklock_advisory.pg_advisory_lock(bigint) TO plain');

	my $s = switched($node, dbname => 'fresh');
	$s->value(q{SELECT pg_advisory_lock(1), pg_advisory_lock_shared(2), zk_lock('/x'), zk_lock('/advisory/fresh/2')});
	like($s->query('BEGIN; DROP EXTENSION zklock_advisory; ROLLBACK; SELECT count(*) FROM zk_locks')->{out}, qr/^4$/,
		'a DROP EXTENSION that is rolled back releases nothing');
	my $dropped = $s->query('DROP EXTENSION zklock_advisory');
	like($dropped->{err}, qr/NOTICE: .*releasing all advisory locks in ZooKeeper/, 'DROP EXTENSION says what it releases');
	is($s->value(q{SELECT string_agg(concat_ws(' ', path, mode, scope, count), ', ' ORDER BY path COLLATE "C") FROM zk_locks}),
		'/advisory/fresh/2 exclusive session 1, /x exclusive session 1', "- and leaves zk_lock's");
	is($s->value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()}), 0, '- which pg_locks does not show');
	is($s->value($check), 'pg_catalog', "PostgreSQL's own functions are back");
	$s->value('SELECT zk_unlock_all(); DROP SCHEMA zklock_advisory');

	is($s->query($create)->{state}, '', 'it is created again, with its schema');
	$s->value('SELECT pg_advisory_lock(1)');
	is($s->query('DROP EXTENSION zklock')->{state}, '2BP01', 'zklock cannot be dropped without it');
	like($s->query('DROP EXTENSION zklock CASCADE')->{err}, qr/NOTICE: .*releasing all ZooKeeper locks of this session/, '- but with it');
	$s->quit;
	zk_nothing_left($zk, 'nothing is left');

	$in->('fresh', "DROP SCHEMA zklock_advisory; CREATE SCHEMA locks; CREATE EXTENSION zklock SCHEMA locks; CREATE EXTENSION zklock_advisory;
		GRANT EXECUTE ON FUNCTION zklock_advisory.pg_advisory_lock(bigint) TO plain;
		ALTER DATABASE fresh SET search_path = $PATH");
	$admin->value('CREATE DATABASE restored');
	my $file = "$dir/dump.sql";
	$node->command_ok([ 'pg_dump', '--create', '--clean', '-f', $file, '-d', $node->connstr('fresh') ], 'pg_dump');
	$admin->value('DROP DATABASE fresh; CREATE DATABASE fresh; CREATE ROLE root SUPERUSER LOGIN');
	$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres') . ' user=root', '-f', $file ], 'restored by another superuser');
	my $restored = zk_session($node, dbname => 'fresh', user => 'plain');
	is($restored->value($check), 'zklock_advisory', 'the restored database: the search_path');
	is($restored->query('SELECT pg_advisory_lock(1)')->{state}, '', '- the right on one function');
	is($restored->query('SELECT pg_advisory_unlock(1)')->{state}, '42501', '- and none on others');
	$restored->quit;
	zk_nothing_left($zk, 'nothing is left');
}

zk_end($zk, $node, $other);
