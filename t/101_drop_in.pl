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

# What zk_locks shows of it: "key mode scope count, ..."
sub holds
{
	my ($s) = @_;
	return $s->value(
		q{SELECT string_agg(concat_ws(' ', regexp_replace(path, '^/advisory/postgres/', ''), mode, scope, count), ', '
			ORDER BY path COLLATE "C", mode, scope) FROM zk_locks});
}

# What pg_locks shows of its advisory locks, as somebody else sees it: "key mode, ..."
sub rows
{
	my ($s) = @_;
	return $admin->value(
		q{SELECT string_agg(concat_ws(' ', CASE objsubid WHEN 2 THEN classid || ',' || objid ELSE objid::text END, mode), ', ' ORDER BY objid, objsubid, mode)
			FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = } . $s->pid);
}

# What comes of a statement: its SQLSTATE, if it fails, what it prints, and how many warnings
sub comes_to
{
	my ($s, $sql) = @_;
	my $result = $s->query($sql);
	return join ' ', grep { length } $result->{state}, $result->{out}, ('W') x @{ $result->{warnings} };
}

# Delete the node of a key's lock, as an administrator might by hand
sub lose
{
	my ($key, $db) = (@_, 'postgres');
	$zk->with_client(sub { $_[0]->delete_contenders("/zklock/advisory/$db/$key") });
	return;
}

# What PostgreSQL has, in all that can be told from a catalog
{
	my $of = q{SELECT proname, pg_get_function_arguments(oid), pg_get_function_result(oid), provolatile, proisstrict, proparallel, prosecdef, procost
		FROM pg_proc WHERE pronamespace = '%s'::regnamespace AND proname ~ '^pg_(try_)?advisory_' ORDER BY 1, 2};
	my ($theirs, $ours) = map { $admin->value(sprintf $of, $_) } qw(pg_catalog zklock_advisory);
	is($ours, $theirs, "PostgreSQL's functions, and we the same");
	is($admin->value(q{SELECT count(*), count(obj_description(oid, 'pg_proc')) FROM pg_proc WHERE pronamespace = 'zklock_advisory'::regnamespace}),
		'21|21', '- each with a comment');
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
-- (modes, counts, scopes and savepoints, at random: t/060)
\set locks 'SELECT classid, objid, objsubid, mode, granted FROM pg_locks WHERE locktype = ''advisory'' AND pid = pg_backend_pid() ORDER BY 1, 2, 3, 4;'

-- keys
SELECT pg_advisory_lock(1), pg_advisory_lock(1, 1), pg_advisory_lock(0, 1), pg_advisory_lock(-1), pg_advisory_lock(-1, -1);
SELECT pg_advisory_lock(9223372036854775807), pg_advisory_lock(-9223372036854775808);
SELECT pg_advisory_lock(2147483647, -2147483648), pg_advisory_lock(4294967297), pg_advisory_lock('77'), pg_advisory_lock(8::smallint);
SELECT pg_advisory_lock(hashtext('report')), pg_advisory_lock(hashtextextended('report', 0)), pg_advisory_lock(1234567890);
:locks
SELECT pg_advisory_lock(NULL) IS NULL, pg_try_advisory_lock(NULL) IS NULL, pg_advisory_unlock(NULL, 1) IS NULL;
SELECT pg_advisory_unlock(1), pg_advisory_unlock(1), pg_advisory_unlock(1, 1), pg_advisory_unlock_shared(0, 1);
SELECT pg_advisory_unlock_all();
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

# (Waits: t/060)
zk_leaves_nothing $zk, 'between sessions and clusters' => sub {
	my ($here, $there) = (switched($node), switched($other));
	$here->value('SELECT pg_advisory_lock(42)');
	is($there->value('SELECT pg_try_advisory_lock(42)'), 'f', 'another cluster is excluded');
	is($there->query(q{SET lock_timeout = '50ms'; SELECT pg_advisory_lock(42); RESET lock_timeout})->{state}, '55P03', '- for as long as lock_timeout says, too');
	is($there->value('SELECT pg_try_advisory_lock(0, 42), pg_advisory_unlock(0, 42)'), 't|t', '- not from the pair of such numbers');
	is($there->value('SELECT pg_catalog.pg_try_advisory_lock(42), pg_catalog.pg_advisory_unlock(42)'), 't|t',
		"- not from PostgreSQL's own lock");
	is($there->value(q{SELECT zk_try_lock('/advisory/postgres/42')}), 'f', '- and zk_try_lock means the same lock');
};

# A hold of zk_lock's and one of pg_advisory_lock's: one lock, and each has its own function
# that releases it.  A row of pg_locks is there for the second one, and until its end.
zk_leaves_nothing $zk, 'holds' => sub {
	my $s = switched();
	# a statement, what it comes to, what zk_locks shows then, and what pg_locks
	foreach (
		[ q{BEGIN; SELECT pg_advisory_lock(1), zk_lock('/advisory/postgres/1'), zk_lock('/advisory/postgres/2')}, '|t|t',
			'1 exclusive session 2, 2 exclusive session 1', '1 ExclusiveLock' ],
		[ 'ROLLBACK', '', '1 exclusive session 1', '1 ExclusiveLock' ],
		[ q{SELECT zk_unlock('/advisory/postgres/1')}, 'f W', '1 exclusive session 1', '1 ExclusiveLock' ],
		[ q{SELECT zk_lock('/advisory/postgres/1')}, 't', '1 exclusive session 2', '1 ExclusiveLock' ],
		[ 'SELECT pg_advisory_unlock(1), pg_advisory_unlock(1)', 't|f W', '1 exclusive session 1', '' ],
		[ 'SELECT pg_advisory_lock_shared(1), pg_advisory_lock(1, 1), pg_advisory_unlock_all()', '||', '1 exclusive session 1', '' ],
		[ 'SELECT pg_advisory_lock(1), pg_advisory_lock(3), zk_unlock_all()', '||3', '', '' ],
		# two ways down from the exclusive lock to the shared one
		[ 'BEGIN; SELECT pg_advisory_lock_shared(1), pg_advisory_xact_lock(1)', '|', '1 exclusive transaction 1, 1 shared session 1', '1 ExclusiveLock, 1 ShareLock' ],
		[ 'ROLLBACK', '', '1 shared session 1', '1 ShareLock' ],
		[ 'SELECT pg_advisory_unlock_shared(1); BEGIN; SELECT pg_advisory_xact_lock(1), pg_advisory_lock_shared(1)', "t\n|", '1 exclusive transaction 1, 1 shared session 1', '1 ExclusiveLock, 1 ShareLock' ],
		[ 'ROLLBACK', '', '1 shared session 1', '1 ShareLock' ],
		[ 'SELECT pg_advisory_unlock_shared(1)', 't', '', '' ],
		# scopes
		[ q{SELECT pg_advisory_lock(1); BEGIN; SELECT zk_xact_lock('/advisory/postgres/3'), pg_advisory_xact_lock(1), pg_advisory_unlock(1)}, "\nt||t",
			'1 exclusive transaction 1, 3 exclusive transaction 1', '1 ExclusiveLock' ],
		[ 'SAVEPOINT a; SELECT pg_advisory_xact_lock_shared(1), pg_advisory_xact_lock(4), pg_advisory_xact_lock(1); ROLLBACK TO a', '||',
			'1 exclusive transaction 1, 3 exclusive transaction 1', '1 ExclusiveLock' ],
		[ 'COMMIT', '', '', '' ],
		[ 'SELECT pg_advisory_lock(1)', '', '1 exclusive session 1', '1 ExclusiveLock' ],
		[ q{BEGIN; CREATE TABLE prepared (); PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'}, '', '1 exclusive session 1', '1 ExclusiveLock' ],
		[ q{BEGIN; SELECT pg_advisory_lock(1); PREPARE TRANSACTION 'p'}, '0A000', '1 exclusive session 2', '1 ExclusiveLock' ],
		# PostgreSQL's own functions: nothing is said of what they took, and the next call takes it again
		[ 'SELECT pg_catalog.pg_advisory_unlock(1)', 't', '1 exclusive session 2', '' ],
		[ 'SELECT pg_advisory_unlock(1), pg_advisory_unlock(1)', 't|t', '', '' ],
		[ 'SELECT pg_advisory_lock(1), pg_catalog.pg_advisory_unlock_all(), pg_advisory_lock(1)', '||', '1 exclusive session 2', '1 ExclusiveLock' ],
		[ 'SELECT pg_advisory_lock(2); BEGIN; SELECT pg_catalog.pg_advisory_xact_lock(2), pg_catalog.pg_advisory_unlock(2)', "\n|t",
			'1 exclusive session 2, 2 exclusive session 1', '1 ExclusiveLock, 2 ExclusiveLock' ],
		# where PostgreSQL's warning lets a cancel in
		[ 'SELECT pg_cancel_backend(pg_backend_pid()), pg_advisory_unlock(2); ROLLBACK', '57014 W', '1 exclusive session 2', '1 ExclusiveLock' ],
		[ q{SELECT zk_lock('/x')}, 't', '1 exclusive session 2, /x exclusive session 1', '1 ExclusiveLock' ],
		[ 'DISCARD ALL', '', '', '' ])
	{
		my ($sql, $to, @shown) = @$_;
		is(comes_to($s, $sql), $to, $sql);
		is(join(' / ', holds($s), rows($s)), join(' / ', @shown), '- what is shown then');
	}
	is($s->value('SHOW search_path'), '"$user", public', '- which sets search_path back to what the role has');
	$s->value("SET search_path = $PATH; SELECT pg_advisory_lock(1)");
	like($s->query(q{SELECT zk_unlock('/advisory/postgres/1')})->{err}, qr/HINT:  .*pg_advisory_unlock/, 'zk_unlock says what does');
};

zk_leaves_nothing $zk, 'lost' => sub {
	my $s = switched();
	my $writes = q{BEGIN; INSERT INTO t VALUES ('lost'); };
	# a statement, or whose lock is lost, what it comes to, and the error's hint
	foreach (
		# a transaction that relied on it, and later ones
		[ $writes . 'SELECT pg_advisory_lock(1)', '' ],
		[1],
		[ 'COMMIT', '40001', qr/, release it with pg_advisory_unlock\./ ],
		[ 'SELECT state FROM zk_locks', 'lost' ],
		[ 'SELECT pg_advisory_lock(1)', '55000', qr/^Call pg_advisory_unlock,/ ],
		[ $writes . 'COMMIT', '40001' ],
		[ 'BEGIN; SELECT 1; COMMIT', '1' ],
		[ 'SELECT pg_advisory_unlock(1)', 'f W' ],
		[ q{SELECT pg_advisory_lock(1); INSERT INTO t VALUES ('c'); SELECT pg_advisory_unlock(1)}, "\nt" ],
		# zk_lock's hold of the same path and this one are each released by its own
		[ q{SELECT pg_advisory_lock(1), zk_lock('/advisory/postgres/1')}, '|t' ],
		[1],
		[ $writes . 'COMMIT', '40001' ],
		[ q{SELECT zk_unlock('/advisory/postgres/1')}, 'f W' ],
		[ 'SELECT pg_advisory_lock(1)', '55000' ],
		[ 'SELECT pg_advisory_unlock(1); SELECT count(*) FROM zk_locks', "f\n0 W" ],
		[ 'SELECT pg_advisory_lock(1), pg_advisory_lock(2)', '|' ],
		[1],
		[ 'SELECT pg_advisory_unlock_all()', 'W' ],
		# the transaction relies on what a savepoint has left to it, and not on what that has released
		[ $writes . 'SAVEPOINT a; SELECT pg_advisory_lock(1); ROLLBACK TO a', '' ],
		[1],
		[ 'COMMIT', '40001' ],
		[ 'SELECT pg_advisory_unlock_all()', 'W' ],
		[ 'BEGIN; SAVEPOINT a; SELECT pg_advisory_lock(1)', '' ],
		[1],
		[ 'SELECT pg_advisory_unlock(1)', 'f W' ],
		[ q{SELECT pg_advisory_lock(1); ROLLBACK TO a; INSERT INTO t VALUES ('e'); COMMIT}, '' ],
		[ 'SELECT pg_advisory_unlock(1); SELECT count(*) FROM zk_locks', "t\n0" ],
		[ q{SELECT count(*) FROM t WHERE a = 'lost'}, '0' ],
		# what aborts have left behind is as good as what a commit has
		[ 'BEGIN; SELECT pg_advisory_lock(1); ROLLBACK; BEGIN; SELECT pg_advisory_lock(1); COMMIT; SELECT count FROM zk_locks', "\n\n2" ])
	{
		my ($sql, $to, $hint) = @$_;
		if (!defined $to) { lose($sql); next; }
		my $result = $s->query($sql);
		is(join(' ', grep { length } $result->{state}, $result->{out}, ('W') x @{ $result->{warnings} }), $to, $sql);
		like($result->{message}, qr{"/advisory/postgres/1"}, '- names the path') if $to eq '40001';
		like($result->{hint}, $hint, '- with a hint') if $hint;
	}
};

zk_leaves_nothing $zk, 'lost, noticed while a statement runs' => sub {
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
};

zk_leaves_nothing $zk, 'whose keys are the same' => sub {
	my $s = switched();
	my $bytes = sub { return join '', map { sprintf '%%%02X', ord } split //, $_[0] };

	# name, part of the path
	foreach (
		[ 'shop', 'shop' ], [ "Shop \xc3\x9c", "Shop \xc3\x9c" ], [ '..', '%2E%2E' ], [ '.', '%2E' ], [ 'a/b', 'a%2Fb' ], [ '100%', '100%25' ],
		[ 'a%2Fb', 'a%252Fb' ], [ "tab\t", 'tab%09' ], [ "\xf0\x9f\x94\x92", '%F0%9F%94%92' ], [ '%%%', '%25%25%25' ], [ '\\', '\\' ], [ ' ', ' ' ],
		[ '0,0', '0,0' ], map { [ $_, $bytes->($_) ] } 'x-lock-0000000001', '__zklock_waits__')
	{
		my ($name, $part) = @$_;
		my $quoted = $name =~ s/\\/\\\\/gr;
		$s->value("SET zklock.advisory_space = E'$quoted'; SELECT pg_advisory_lock(1)");
		is(space(), $part, "the space $part");
		is($s->value(q{SELECT state, pg_advisory_unlock(1) FROM zk_locks}), 'held|t', '- is shown, and released');
	}
	# (One that is too long, or changes in a session: sql/advisory)
	$s->value("SET zklock.advisory_space = '" . "\xef\xbf\xbd" x 21 . "'; SELECT pg_advisory_lock(-9223372036854775808)");
	is($s->value(q{SELECT octet_length(path) FROM zk_locks}), 10 + 21 * 9 + 1 + 20, 'a space is as long as a name at most, however much of it is escaped');
	$s->value('SELECT pg_advisory_unlock_all()');

	$s->value('RESET zklock.advisory_space; SELECT pg_advisory_lock(1)');
	$node->safe_psql('postgres', 'CREATE DATABASE elsewhere');
	$node->safe_psql('elsewhere', 'CREATE EXTENSION zklock; CREATE EXTENSION zklock_advisory');
	my $elsewhere = switched($node, dbname => 'elsewhere');
	is($elsewhere->value('SELECT pg_try_advisory_lock(1)'), 't', 'another database has other keys');
	$elsewhere->value('SELECT pg_advisory_unlock(1)');
	is($elsewhere->value(q{SET zklock.advisory_space = 'postgres'; SELECT pg_try_advisory_lock(1)}), 'f', '- unless the setting says otherwise');
	$elsewhere->quit;
	$node->safe_psql('postgres', 'ALTER DATABASE elsewhere RENAME TO "else/where"');
	is(switched($node, dbname => 'else/where')->value('SELECT pg_advisory_lock(1); SELECT path FROM zk_locks'), "\n/advisory/else%2Fwhere/1",
		'ALTER DATABASE RENAME changes them');

	$admin->value('CREATE ROLE plain LOGIN');
	is(zk_session($node, user => 'plain')->query(q{SET zklock.advisory_space = 'one'})->{state}, '42501', 'only a superuser may set it');
	is(zk_session($node, user => 'plain', options => '-c zklock.advisory_space=one')->value('SHOW zklock.advisory_space'), '',
		'- not even at the beginning');
};

zk_leaves_nothing $zk, 'names that are no text where they are used' => sub {
	my %part;
	foreach my $encoding (qw(UTF8 SQL_ASCII LATIN1 EUC_JP))
	{
		my $db = "u_\xc3\x9c_" . lc $encoding;
		$node->safe_psql('postgres', qq{CREATE DATABASE "$db" TEMPLATE template0 ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C'});
		$node->safe_psql($db, 'CREATE EXTENSION zklock; CREATE EXTENSION zklock_advisory');
		my $s = switched($node, dbname => $db);
		$s->value('SELECT pg_advisory_lock(1)');
		$part{$encoding} = space();
		is($s->value(q{SELECT path ~ '/1$', pg_advisory_unlock(1) FROM zk_locks}), 't|t', "a name of UTF-8 in $encoding is shown, and its lock released");
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
};

# -- what pg_locks shows

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

zk_leaves_nothing $zk, 'where it cannot be had' => sub {
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
};

zk_leaves_nothing $zk, 'rows of what is lost' => sub {
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
	is(comes_to($s, 'COMMIT; SELECT pg_advisory_unlock_all(); SELECT pg_try_advisory_lock(1), pg_try_advisory_lock(2)'), "\nf|t W", '- and it is released, and taken again');
};

# No conversion of the path is possible there
zk_leaves_nothing $zk, 'a loss that a failed transaction finds' => sub {
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
};

zk_leaves_nothing $zk, 'cycles through it' => sub {
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
};

# From one to the next on this server: each has its row at once
zk_leaves_nothing $zk, 'handovers' => sub {
	$admin->value(<<~'END');
		CREATE SEQUENCE handovers MINVALUE 0;
		CREATE SEQUENCE last_one;
		CREATE PROCEDURE take_turns(until bigint, how text) LANGUAGE plpgsql AS $$
		BEGIN
			WHILE (SELECT last_value FROM handovers) < until LOOP
				IF how = 'unlock' THEN
					PERFORM pg_advisory_lock(1);
				ELSE
					PERFORM pg_advisory_xact_lock(1);
				END IF;
				IF NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) THEN
					RAISE WARNING 'its row is missing';
				END IF;
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
		$admin->value(q{SELECT setval('handovers', 0), setval('last_one', 1)});
		$_->send("CALL take_turns(100, '$how')") for @s;
		is(join(' ', map { my $result = $_->wait; ($result->{message}, @{ $result->{warnings} }) } @s), '  ', "$how: 100 handovers, no row is missing");
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
};

zk_leaves_nothing $zk, "PostgreSQL's lock table is full" => sub {
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
};

# -- which calls reach it (also: t/106)

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

zk_leaves_nothing $zk, 'search_path' => sub {
	my $s = switched();
	my %where = (
		$PATH => 'zk',
		'zklock_advisory, public' => 'local',
		'pg_catalog, zklock_advisory' => 'local',
		'public, zklock_advisory, pg_catalog' => 'zk',
		'no_such_schema, zklock_advisory, pg_catalog, public' => 'zk',
		'"$user", public' => 'local');
	foreach my $path (sort keys %where)
	{
		$s->value("SET search_path = $path");
		is(where($s, 'SELECT pg_advisory_lock(1)'), $where{$path}, "search_path $path: $where{$path}");
		is($s->value($check), $where{$path} eq 'zk' ? 'zklock_advisory' : 'pg_catalog', '- which the check tells');
	}

	# made with this search_path: where they lock, and where when called with another one
	$s->value("SET search_path = $PATH");
	$s->value(<<~'END');
		PREPARE p AS SELECT pg_advisory_lock(1);
		CREATE FUNCTION public.pl() RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_lock(1); END';
		CREATE FUNCTION public.atomic() RETURNS void LANGUAGE sql BEGIN ATOMIC SELECT pg_advisory_lock(1); END;
		CREATE FUNCTION public.safe() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
			AS 'BEGIN PERFORM pg_advisory_lock(1); END';
		CREATE VIEW public.v AS SELECT pg_advisory_lock(1) IS NULL AS locked;
		END
	my %call = (
		'SELECT pl()' => 'zk local', 'SELECT atomic()' => 'zk zk', 'SELECT safe()' => 'local local', 'SELECT * FROM v' => 'zk zk',
		'EXECUTE p' => 'zk local', 'SELECT pg_catalog.pg_advisory_lock(1)' => 'local local');
	my %found = map { $_ => where($s, $_) } keys %call;
	$s->value('SET search_path = "$user", public');
	$found{$_} .= ' ' . where($s, $_) for keys %call;
	is_deeply(\%found, \%call, 'called with another one: texts follow it, also those planned before, and what was parsed does not');
};

# (Nobody has EXECUTE by default: sql/advisory)
zk_leaves_nothing $zk, 'rights' => sub {
	my $s = switched($node, user => 'plain');
	is($s->query('CREATE TABLE made (a int)')->{state}, '42501', 'nobody creates anything in its schema');
	$admin->value('GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA zklock_advisory TO plain');
	is($s->value('SELECT pg_try_advisory_lock(1), pg_advisory_unlock(1)'), 't|t', 'with EXECUTE: no right on those of zklock is needed');
	is($s->query(q{SELECT zk_try_lock('/a')})->{state}, '42501', '- and none is given');
	$admin->value(qq{ALTER ROLE plain IN DATABASE postgres SET search_path = $PATH});
	$s = zk_session($node, user => 'plain');
	is($s->value("SELECT pg_advisory_lock(1); SELECT path FROM zk_locks; DISCARD ALL; $check"), "\n/advisory/postgres/1\nzklock_advisory",
		'one ALTER ROLE switches a role over, without a change of its program, and it stays so after DISCARD ALL');
	$admin->value('ALTER ROLE plain IN DATABASE postgres RESET search_path');
};

zk_leaves_nothing $zk, 'created, dropped, dumped and restored' => sub {
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
	like($dropped->{err}, qr/NOTICE: .*releasing all advisory locks of this session in ZooKeeper/, 'DROP EXTENSION says what it releases');
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

	# with zklock in another schema
	$in->('fresh', "DROP SCHEMA zklock_advisory; CREATE SCHEMA locks; GRANT USAGE ON SCHEMA locks TO plain; CREATE EXTENSION zklock SCHEMA locks;
		CREATE EXTENSION zklock_advisory; GRANT EXECUTE ON FUNCTION zklock_advisory.pg_advisory_lock(bigint), locks.zk_lock TO plain;
		ALTER DATABASE fresh SET search_path = $PATH");
	my $file = "$dir/dump.sql";
	$node->command_ok([ 'pg_dump', '--create', '--clean', '-f', $file, '-d', $node->connstr('fresh') ], 'pg_dump');
	$admin->value('CREATE ROLE root SUPERUSER LOGIN');
	$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres') . ' user=root', '-f', $file ], 'restored by another superuser');
	my $restored = zk_session($node, dbname => 'fresh', user => 'plain');
	is($restored->value($check), 'zklock_advisory', 'the restored database: the search_path');
	is($restored->value(q{SELECT pg_advisory_lock(1); SELECT locks.zk_lock('/a')}), "\nt", '- the rights on functions');
	is($restored->query("SELECT $_")->{state}, '42501', "- and none on $_") for 'pg_advisory_unlock(1)', q{locks.zk_unlock('/a')};
};

zk_end($zk, $node, $other);
