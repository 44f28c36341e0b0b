# zklock.advisory: calls of PostgreSQL's own advisory lock functions take the lock in
# ZooKeeper, or fail.  None takes the lock that only this server knows.

use FindBin;
use lib "$FindBin::RealBin/lib";

use IO::Socket::UNIX;

use Tests;

my $zk = ZooKeeper->new->start;
my $node = zk_cluster('main', $zk, session_preload_libraries => '', shared_preload_libraries => 'zklock', max_prepared_transactions => 2);
my $admin = zk_session($node);

$node->safe_psql('postgres', 'CREATE DATABASE without');
$node->safe_psql('without', 'CREATE EXTENSION zklock');
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION zklock_advisory;
CREATE ROLE app LOGIN;
CREATE ROLE strict LOGIN;
CREATE ROLE plain LOGIN;
CREATE ROLE unprivileged LOGIN;
CREATE ROLE root LOGIN SUPERUSER;
GRANT ALL ON SCHEMA public TO app, strict, plain;
GRANT pg_read_server_files TO app, strict;
GRANT app TO strict;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA zklock_advisory TO app, strict, plain;
ALTER ROLE app SET zklock.advisory = redirect;
ALTER ROLE root SET zklock.advisory = redirect;
ALTER ROLE unprivileged SET zklock.advisory = redirect;
ALTER ROLE strict SET zklock.advisory = strict;

CREATE TABLE one (i bigint);
INSERT INTO one VALUES (7);
CREATE TABLE many AS SELECT g AS i FROM generate_series(1, 1000) AS g;
ANALYZE many;
CREATE TABLE into_default (a int, b bool DEFAULT pg_try_advisory_lock(7));
CREATE TABLE checked (a int CHECK (pg_try_advisory_lock(a)));
CREATE DOMAIN locked AS int CHECK (pg_try_advisory_lock(VALUE));
CREATE TABLE traced (a int);
CREATE TABLE conditional (a int);
CREATE TABLE ruled (a int);
CREATE TABLE secured (a int);
CREATE TABLE altered (a int);
CREATE TABLE parted (b bool) PARTITION BY LIST (b);
CREATE RULE r AS ON INSERT TO ruled DO ALSO SELECT pg_try_advisory_lock(7);
INSERT INTO secured VALUES (7);
ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON secured USING (pg_try_advisory_lock(a));
CREATE VIEW viewed AS SELECT pg_try_advisory_lock(i) FROM one;
CREATE VIEW inner_view AS SELECT * FROM viewed;
CREATE MATERIALIZED VIEW stored AS SELECT pg_try_advisory_lock(i) FROM one WITH NO DATA;
ALTER MATERIALIZED VIEW stored OWNER TO app;
ALTER TABLE altered OWNER TO app;
ALTER TABLE parted OWNER TO app;
CREATE FUNCTION in_plpgsql() RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RETURN pg_try_advisory_lock(7); END$$;
CREATE FUNCTION in_query() RETURNS void LANGUAGE plpgsql AS $$BEGIN PERFORM pg_advisory_lock(i) FROM one; END$$;
CREATE FUNCTION in_execute() RETURNS void LANGUAGE plpgsql AS $$BEGIN EXECUTE 'SELECT pg_advisory_lock($1)' USING 7; END$$;
CREATE FUNCTION in_sql(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT pg_try_advisory_lock($1)';
CREATE FUNCTION in_upper() RETURNS boolean LANGUAGE sql AS 'SELECT PG_CATALOG.PG_TRY_ADVISORY_LOCK(7)';
CREATE FUNCTION in_escapes() RETURNS boolean LANGUAGE sql AS $$SELECT U&"pg_try_\0061dvisory_lock"(7)$$;
CREATE FUNCTION in_rows() RETURNS SETOF boolean LANGUAGE sql STABLE AS 'SELECT pg_try_advisory_lock(i) FROM one';
CREATE FUNCTION from_view() RETURNS SETOF boolean LANGUAGE sql STABLE AS 'SELECT * FROM viewed';
CREATE FUNCTION in_atomic() RETURNS boolean BEGIN ATOMIC SELECT pg_try_advisory_lock(7); END;
CREATE FUNCTION with_path() RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$BEGIN RETURN pg_try_advisory_lock(7); END$$;
CREATE FUNCTION off_here() RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET zklock.advisory = off AS $$BEGIN PERFORM in_plpgsql(); RETURN pg_catalog.pg_advisory_unlock(7); END$$;
CREATE FUNCTION takes(boolean) RETURNS void LANGUAGE plpgsql AS $$BEGIN END$$;
CREATE FUNCTION constant() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$BEGIN RETURN pg_try_advisory_lock(7); END$$;
CREATE FUNCTION parallel(int) RETURNS boolean LANGUAGE plpgsql PARALLEL SAFE AS $$BEGIN RETURN pg_try_advisory_lock(7); END$$;
CREATE FUNCTION on_insert() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_advisory_lock(NEW.a); RETURN NEW; END$$;
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NEW; END$$;
CREATE TRIGGER t BEFORE INSERT ON traced FOR EACH ROW EXECUTE FUNCTION on_insert();
CREATE TRIGGER t BEFORE INSERT ON conditional FOR EACH ROW WHEN (pg_try_advisory_lock(NEW.a)) EXECUTE FUNCTION nothing();
CREATE PROCEDURE called(boolean) LANGUAGE plpgsql AS $$BEGIN END$$;
CREATE PROCEDURE calls() LANGUAGE plpgsql AS $$BEGIN PERFORM pg_advisory_lock(7); COMMIT; END$$;
CREATE FUNCTION below(int, int) RETURNS boolean LANGUAGE sql AS 'SELECT $1 < $2';
CREATE AGGREGATE last_locked(bigint) (sfunc = int8larger, stype = bigint, finalfunc = pg_try_advisory_lock);
CREATE FUNCTION alias(bigint) RETURNS boolean LANGUAGE internal STRICT AS 'pg_try_advisory_lock_int8';
CREATE FUNCTION of_alias() RETURNS boolean LANGUAGE sql AS 'SELECT alias(7)';
CREATE OR REPLACE FUNCTION pg_catalog.overlaps(timestamptz, timestamptz, timestamptz, interval) RETURNS boolean LANGUAGE internal STRICT AS 'pg_try_advisory_lock_int8';
CREATE FUNCTION by_default(boolean DEFAULT pg_try_advisory_lock(7)) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RETURN $1; END$$;
CREATE PROCEDURE called_by_default(boolean DEFAULT pg_try_advisory_lock(7)) LANGUAGE plpgsql AS $$BEGIN END$$;
CREATE TYPE two AS (a int, b int);
CREATE DOMAIN locked_row AS two CHECK (pg_try_advisory_lock((VALUE).a));
CREATE CAST (bigint AS boolean) WITH FUNCTION pg_try_advisory_lock(bigint);
CREATE EXTENSION postgres_fdw;
});

# The advisory locks of PostgreSQL's that a session has without ZooKeeper's.  (Beside that
# it has PostgreSQL's own, so that pg_locks tells the truth.)
my $LOCAL = q{SELECT count(*) FROM pg_catalog.pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
	WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND NOT EXISTS
	(SELECT FROM zk_locks WHERE path = format('/advisory/%s/%s', datname,
		CASE objsubid WHEN 1 THEN (classid::bigint << 32 | objid::bigint)::text ELSE classid || ',' || objid END))};
my $HOLDS = q{SELECT coalesce(string_agg(regexp_replace(path, '^/advisory/postgres/', ''), ' ' ORDER BY path COLLATE "C"), '') FROM zk_locks};

my $rows = $node->basedir . '/rows';
append_to_file($rows, "1\n");

# What a statement comes to: what it holds in ZooKeeper afterwards, or its SQLSTATE.  And
# there is never a lock that only this server knows.
sub comes_to
{
	my ($s, $sql) = @_;
	my $result = $s->query($sql);
	$s->query('ROLLBACK');    # which takes back no advisory lock
	my $holds = $s->value($HOLDS);
	my $local = $s->value($LOCAL);
	$s->value('SELECT zklock_advisory.pg_advisory_unlock_all()') if $holds ne '';
	return ($local ? "$local local locks " : '') . ($result->{err} =~ /ERROR:  (\w{5})/ ? $1 : $holds);
}

# Redirected, whoever calls
my %redirected = (
	'SELECT' => 'SELECT pg_advisory_lock(7)',
	'qualified' => 'SELECT pg_catalog.pg_advisory_lock(7)',
	'an empty search_path' => q{SET search_path = ''; SELECT pg_catalog.pg_try_advisory_lock(7); RESET search_path},
	'in FROM' => 'SELECT * FROM pg_advisory_lock(7)',
	'ROWS FROM' => 'SELECT * FROM ROWS FROM (pg_try_advisory_lock(7), generate_series(1, 2)) AS r',
	'all over a query' => q{SELECT CASE WHEN pg_try_advisory_lock(1) THEN coalesce(NULL, pg_try_advisory_lock(2)) END, ARRAY[pg_try_advisory_lock(3)],
			ROW(1, pg_try_advisory_lock(4)), takes(pg_try_advisory_lock(5)), bool_or(pg_try_advisory_lock(6)), (SELECT pg_try_advisory_lock(i) FROM one),
			count(*) FILTER (WHERE pg_try_advisory_lock(8)), count(*) OVER (PARTITION BY pg_try_advisory_lock(9))
		FROM one AS a JOIN one AS b ON pg_try_advisory_lock(a.i + 3), LATERAL pg_try_advisory_lock(a.i + 4)
		WHERE pg_try_advisory_lock(12) AND EXISTS (SELECT FROM one WHERE pg_try_advisory_lock(i + 6))
		GROUP BY pg_try_advisory_lock(14) HAVING pg_try_advisory_lock(15) ORDER BY pg_try_advisory_lock(16) LIMIT CASE WHEN pg_try_advisory_lock(17) THEN 1 END},
	'in VALUES' => 'VALUES (pg_try_advisory_lock(7))',
	'in a CTE' => 'WITH l AS MATERIALIZED (SELECT pg_advisory_lock(i) FROM one) SELECT count(*) FROM l',
	'in UNION' => 'SELECT true UNION ALL SELECT pg_try_advisory_lock(7)',
	'in a cast' => 'SELECT 7::bigint::boolean',
	'in a cast of an array' => 'SELECT ARRAY[7]::bigint[]::boolean[]',
	'in INSERT' => 'BEGIN; INSERT INTO into_default SELECT 1, pg_try_advisory_lock(7); COMMIT',
	'in a default' => 'INSERT INTO into_default (a) VALUES (1)',
	'in ON CONFLICT' => q{CREATE TEMP TABLE c (i int PRIMARY KEY, l bool); INSERT INTO c VALUES (1);
		INSERT INTO c VALUES (1) ON CONFLICT (i) DO UPDATE SET l = pg_try_advisory_lock(7); DROP TABLE c},
	'in UPDATE' => 'UPDATE into_default SET b = pg_try_advisory_lock(7) WHERE a = (SELECT min(a) FROM into_default)',
	'in DELETE' => 'DELETE FROM one WHERE i < 0 OR NOT pg_try_advisory_lock(i)',
	'in RETURNING' => 'INSERT INTO altered VALUES (1) RETURNING pg_try_advisory_lock(7)',
	'in MERGE' => 'MERGE INTO altered AS a USING one ON a.a = 0 WHEN NOT MATCHED AND pg_try_advisory_lock(7) THEN INSERT VALUES (1)',
	'a view' => 'SELECT * FROM viewed',
	'a view in a view' => 'SELECT * FROM inner_view',
	'a rule' => 'INSERT INTO ruled VALUES (1)',
	'a materialized view' => 'REFRESH MATERIALIZED VIEW stored',
	'CREATE TABLE AS' => 'CREATE TEMP TABLE made AS SELECT pg_try_advisory_lock(7); DROP TABLE made',
	'COPY (query)' => 'COPY (SELECT pg_try_advisory_lock(7)) TO STDOUT',
	'a cursor' => 'BEGIN; DECLARE c CURSOR FOR SELECT pg_try_advisory_lock(7); FETCH c; COMMIT',
	'a cursor WITH HOLD' => 'DECLARE h CURSOR WITH HOLD FOR SELECT pg_try_advisory_lock(7); FETCH h; CLOSE h',
	'PREPARE' => 'PREPARE p(int) AS SELECT pg_advisory_lock($1); EXECUTE p(7); DEALLOCATE p',
	'a generic plan' => q{SET plan_cache_mode = force_generic_plan; PREPARE p(int) AS SELECT pg_advisory_lock($1); EXECUTE p(7); DEALLOCATE p; RESET plan_cache_mode},
	'the extended protocol' => "SELECT pg_advisory_lock(7) \\gdesc\nSELECT pg_advisory_lock(7)",
	'EXPLAIN ANALYZE' => 'EXPLAIN ANALYZE SELECT pg_advisory_lock(7)',
	'DO' => 'DO $$BEGIN PERFORM pg_advisory_lock(7); END$$',
	'DO, a simple expression' => 'DO $$DECLARE x bool; BEGIN x := pg_try_advisory_lock(7); IF pg_try_advisory_lock(7) THEN NULL; END IF; END$$',
	'PL/pgSQL, RETURN' => 'SELECT in_plpgsql()',
	'PL/pgSQL, PERFORM' => 'SELECT in_query()',
	'PL/pgSQL, EXECUTE' => 'SELECT in_execute()',
	'PL/pgSQL, SECURITY DEFINER with a search_path' => 'SELECT with_path()',
	'PL/pgSQL, IMMUTABLE' => 'SELECT constant()',
	'a trigger' => 'INSERT INTO traced VALUES (7)',
	'an SQL function' => 'SELECT in_sql(7)',
	'an SQL function, in capitals' => 'SELECT in_upper()',
	'an SQL function that returns rows' => 'SELECT * FROM in_rows()',
	'an SQL function in a WHERE' => 'SELECT i FROM one WHERE in_sql(i)',
	'BEGIN ATOMIC' => 'SELECT in_atomic()',
	'a procedure' => 'CALL calls()',
	'through postgres_fdw' => q{SELECT count(*) FROM distant});

# What they hold then, if it is not 7; there what holds is another session's backend
my %holds = ('all over a query' => join(' ', sort 1 .. 17), 'through postgres_fdw' => '');

# Not redirected, so an error
my %refused = (
	'CHECK' => 'INSERT INTO checked VALUES (7)',
	'CHECK of a domain' => 'SELECT 7::locked',
	'a variable of a domain' => 'DO $$DECLARE x locked; BEGIN x := 7; END$$',
	'input of a domain' => q{SELECT locked '7'},
	'WHEN of a trigger' => 'INSERT INTO conditional VALUES (7)',
	'a default in COPY FROM' => "COPY into_default (a) FROM '$rows'",
	'a default of a new column' => 'ALTER TABLE altered ADD b bool DEFAULT pg_try_advisory_lock(7)',
	'USING' => 'ALTER TABLE altered ALTER a TYPE bool USING pg_try_advisory_lock(7)',
	'an argument of CALL' => 'CALL called(pg_try_advisory_lock(7))',
	'a default of an argument' => 'SELECT by_default()',
	'a default of an argument of CALL' => 'CALL called_by_default()',
	'a bound of a partition' => 'CREATE TABLE part PARTITION OF parted FOR VALUES IN (pg_try_advisory_lock(7))',
	'WHERE of COPY FROM' => "COPY altered FROM '$rows' WHERE pg_try_advisory_lock(a)",
	'a field of a domain' => q{SELECT * FROM json_to_record('{"l": 7}') AS r(l locked)},
	'an argument of EXECUTE' => 'PREPARE p(bool) AS SELECT $1; EXECUTE p(pg_try_advisory_lock(7))',
	'an aggregate' => 'SELECT last_locked(i) FROM one',
	'an aggregate over a window' => 'SELECT last_locked(i) OVER () FROM one',
	'an alias' => 'SELECT alias(7)',
	'an alias that has the OID of a builtin' => q{SELECT pg_catalog.overlaps('epoch'::timestamptz, 'epoch'::timestamptz, 'epoch'::timestamptz, interval '1 s')},
	'an alias in an SQL function' => 'SELECT of_alias()',
	'an SQL function, spelled with escapes' => 'SELECT in_escapes()',
	'an SQL function that reads a view' => 'SELECT * FROM from_view()');

# The planner would call the functions of these, to estimate
my %operators = (
	'an operator' => 'SELECT 7 @@@ 7',
	'an operator that is estimated' => 'EXPLAIN SELECT FROM many WHERE i @@@ 7',
	'its negator, denied' => 'EXPLAIN SELECT FROM many WHERE NOT i !@@ 7',
	'its commutator, turned round' => 'EXPLAIN SELECT FROM many WHERE 7 &&& i',
	'an operator that joins' => 'EXPLAIN SELECT FROM many AS a JOIN many AS b ON a.i @@@ b.i',
	'an operator over an array' => 'SELECT 7 @@@ ANY (ARRAY[7])',
	'an operator in an SQL function' => 'SELECT FROM many WHERE with_operator(i)',
	'an operator in BEGIN ATOMIC' => 'SELECT FROM many WHERE with_atomic_operator(i)');

$node->safe_psql('postgres', sprintf q{
	CREATE SERVER there FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '%s', port '%s', dbname 'postgres');
	GRANT USAGE ON FOREIGN SERVER there TO app, root;
	CREATE USER MAPPING FOR app SERVER there OPTIONS (user 'app', password_required 'false');
	CREATE USER MAPPING FOR root SERVER there OPTIONS (user 'root');
	CREATE FOREIGN TABLE distant (pg_try_advisory_lock bool) SERVER there OPTIONS (table_name 'viewed');
	GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC;
}, $node->host, $node->port);

foreach my $role (qw(app root))
{
	subtest "redirect, $role" => sub {
		my $s = zk_session($node, user => $role);
		foreach my $name (sort keys %redirected)
		{
			is(comes_to($s, $redirected{$name}), $holds{$name} // '7', $name);
		}
		is($admin->value(q{SELECT count(*) FROM zk_lock_paths('/advisory/postgres')}), '1', 'that of postgres_fdw');
		$s->value('SELECT postgres_fdw_disconnect_all()');
		is(comes_to($s, $refused{$_}), '55000', $_) foreach sort keys %refused;
	};
}

subtest 'strict' => sub {
	my $s = zk_session($node, user => 'strict');
	is(comes_to($s, $redirected{$_}), '55000', $_) foreach grep { $_ ne 'through postgres_fdw' } sort keys %redirected;
	is(comes_to($s, $refused{$_}), '55000', $_) foreach sort keys %refused;
	$s->value(q{SET search_path = public, zklock_advisory, pg_catalog});
	is($s->value('SELECT current_schema()'), 'public', 'with the schema in search_path, behind public');
	is(comes_to($s, 'SELECT pg_advisory_lock(7)'), '7', '- ours is called');
	is(comes_to($s, 'SELECT pg_catalog.pg_advisory_lock(7)'), '55000', '- PostgreSQL\'s is not');
	like($s->query('SELECT pg_catalog.pg_advisory_lock(7)')->{err},
		qr/cannot call pg_catalog\.pg_advisory_lock\(bigint\) in this session.*zklock\.advisory is "strict".*search_path/s, 'what it says');
};

subtest 'off' => sub {
	my $s = zk_session($node, user => 'plain');
	is($s->value('SELECT pg_try_advisory_lock(7), in_sql(7), in_atomic(), alias(7)'), 't|t|t|t', 'PostgreSQL\'s');
	is($s->value($LOCAL), '1', '- and only that');
	is($s->value($HOLDS), '', '- nothing in ZooKeeper');
	is($s->query(q{SET zklock.advisory = redirect})->{state}, '42501', 'it is the administrator\'s');
};

subtest 'each of the 21' => sub {
	my $s = zk_session($node, user => 'app');
	my %of = map { split /\|/ } split /\n/, $admin->value(
		q{SELECT oid || '|' || oid::regprocedure FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname ~ '^pg_(try_)?advisory_'});
	is(join(' ', sort keys %of), join(' ', 2880 .. 2892, 3089 .. 3096), 'their OIDs are what they were');
	foreach my $oid (sort keys %of)
	{
		my ($name, $types) = $of{$oid} =~ /^(\w+)\((.*)\)$/;
		my $arguments = join ', ', (1) x split /,/, $types;
		my $plan = $s->value("EXPLAIN VERBOSE SELECT $name($arguments)");
		like($plan, qr/Output: zklock_advisory\.\Q$name\E\(/, "$of{$oid}: EXPLAIN has ours");
		is($s->query("SELECT $name($arguments)")->{state}, '', '- it can be called');
		is($s->value($LOCAL), '0', '- and is ours');
	}
	is($s->value(q{SELECT count(*) FROM zk_locks}), '0', 'all are released');
};

subtest 'operators' => sub {
	my @s = map { zk_session($node, user => $_) } qw(app strict);
	my $inlined = $s[0]->value('EXPLAIN SELECT FROM many WHERE below(i, 7)');
	like($inlined, qr/Filter: \(i < 7\)/, 'an SQL function is inlined');
	$node->safe_psql('postgres', q{
		CREATE OPERATOR @@@ (leftarg = int, rightarg = int, function = pg_try_advisory_lock, restrict = scalarltsel, join = scalarltjoinsel,
			negator = !@@, commutator = &&&);
		CREATE OPERATOR !@@ (leftarg = int, rightarg = int, function = int4ne, restrict = neqsel, negator = @@@);
		CREATE OPERATOR &&& (leftarg = int, rightarg = int, function = int4lt, restrict = scalarltsel, commutator = @@@);
		CREATE FUNCTION with_operator(int) RETURNS boolean LANGUAGE sql AS 'SELECT $1 @@@ 7';
		CREATE FUNCTION with_atomic_operator(i int) RETURNS boolean BEGIN ATOMIC SELECT i @@@ 7; END});
	foreach my $s (@s)
	{
		is(comes_to($s, $operators{$_}), '55000', $_) foreach sort keys %operators;
	}
	unlike($s[0]->value('EXPLAIN SELECT FROM many WHERE below(i, 7)'), qr/Filter: \(i < 7\)/, 'while there is one, no SQL function is inlined');
	$node->safe_psql('postgres', 'DROP FUNCTION with_atomic_operator(int); DROP OPERATOR @@@ (int, int), !@@ (int, int), &&& (int, int)');
	is($s[0]->value('EXPLAIN SELECT FROM many WHERE below(i, 7)'), $inlined, '- until it is dropped');

	my $anybody = zk_session($node, user => 'unprivileged');
	is($anybody->query('CREATE OPERATOR pg_temp.@@@ (rightarg = bigint, function = pg_try_advisory_lock)')->{state}, '', 'any role can make one');
	is($_->query('SELECT count(*) FROM many')->{state}, '', '- which stops nobody') foreach @s;
};

# What a superuser makes of one can be called where no hook is
subtest 'unseen' => sub {
	my @s = map { zk_session($node, user => $_) } qw(app strict);
	my $fails = sub {
		my ($name, @statements) = @_;
		foreach my $s (@s)
		{
			my $locks = sprintf q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %d}, $s->pid;
			is($s->query($_)->{state} . ' ' . $admin->value($locks), '55000 0', "$name: $_") foreach @statements;
		}
	};
	$node->safe_psql('postgres', qq{
		CREATE OPERATOR @@@ (leftarg = int, rightarg = int, function = pg_try_advisory_lock, restrict = scalarltsel, commutator = @@@);
		CREATE OPERATOR CLASS by_hash FOR TYPE int USING hash AS OPERATOR 1 @@@, FUNCTION 1 hashint4(int);
		CREATE TABLE excluding (i int, EXCLUDE USING hash (i by_hash WITH @@@));
		GRANT ALL ON excluding TO PUBLIC;
		SELECT pg_try_advisory_lock(7, 7);
		INSERT INTO excluding VALUES (7)});
	$fails->('in an operator family', 'INSERT INTO excluding VALUES (7)', "COPY excluding FROM '$rows'");
	is($s[0]->query(q{RESET ALL; BEGIN; ROLLBACK})->{state}, '', 'what ends a transaction does not fail');
	$node->safe_psql('postgres', q{DROP TABLE excluding; DROP OPERATOR FAMILY by_hash USING hash;
		ALTER FUNCTION pg_try_advisory_lock(int, int) IMMUTABLE;
		CREATE TABLE partial AS SELECT g AS i, g AS j FROM generate_series(1, 1000) AS g;
		CREATE INDEX ON partial (j) WHERE i @@@ 7 OR i < 900;
		GRANT ALL ON partial TO PUBLIC;
		ANALYZE partial});
	$fails->('in the predicate of an index', 'EXPLAIN SELECT FROM partial WHERE i < 800 AND j = 7');
	$node->safe_psql('postgres', q{DROP TABLE partial; DROP OPERATOR @@@ (int, int);
		ALTER FUNCTION pg_try_advisory_lock(int, int) VOLATILE;
		DROP CAST (bigint AS boolean);
		CREATE CAST (bigint AS boolean) WITH FUNCTION pg_try_advisory_lock(bigint) AS IMPLICIT;
		CREATE TABLE referenced (b bool PRIMARY KEY);
		CREATE TABLE referencing (b bigint REFERENCES referenced);
		INSERT INTO referenced VALUES (true);
		INSERT INTO referencing VALUES (7);
		GRANT ALL ON referencing TO PUBLIC});
	$fails->('in an implicit cast', 'UPDATE referencing SET b = 8');
	$node->safe_psql('postgres', q{DROP TABLE referencing; DROP CAST (bigint AS boolean);
		CREATE CAST (bigint AS boolean) WITH FUNCTION pg_try_advisory_lock(bigint);
		SET client_min_messages = error;
		CREATE DOMAIN big AS bigint;
		CREATE CAST (big AS boolean) WITH FUNCTION pg_try_advisory_lock(bigint) AS IMPLICIT});
	is(comes_to($s[0], 'SELECT pg_try_advisory_lock(7)'), '7', 'when all is dropped; what a domain\'s owner may make does not count');
};

# Message F: no planner sees it
subtest 'the fast path' => sub {
	my $call = sub {
		my ($user) = @_;
		my $socket = IO::Socket::UNIX->new(Peer => $node->host . '/.s.PGSQL.' . $node->port) or die "socket: $!";
		# until it is ready for a query; a function's result cannot look like that
		my $until_ready = sub {
			my $said = '';
			until ($said =~ /Z\0\0\0\x05I\z/) { sysread($socket, $said, 8192, length $said) or die 'closed'; }
			return $said =~ /\0C(\w{5})\0/ ? $1 : '';
		};
		my $startup = pack 'N a*', 196608, "user\0$user\0database\0postgres\0\0";
		syswrite $socket, pack('N', 4 + length $startup) . $startup;
		$until_ready->();
		my $function = pack 'N n n n N q> n', 2880, 1, 1, 1, 8, 7, 1;
		syswrite $socket, 'F' . pack('N', 4 + length $function) . $function;
		return $until_ready->();
	};
	is($call->('plain'), '', 'off: called');
	is($call->('app'), '55000', 'redirect: refused');
	is($call->('strict'), '55000', 'strict: refused');
};

subtest 'switched on, and off' => sub {
	my $s = zk_session($node);
	# plans that were made before have PostgreSQL's
	$s->value(q{PREPARE p AS SELECT pg_try_advisory_lock(7); EXECUTE p; SELECT in_plpgsql(), in_sql(7); SELECT pg_advisory_unlock_all()});
	$s->value(q{SET zklock.advisory = redirect});
	is(comes_to($s, 'EXECUTE p'), '7', 'a prepared statement');
	is(comes_to($s, 'SELECT in_plpgsql()'), '7', 'a simple expression of PL/pgSQL');
	$s->value(q{RESET zklock.advisory});
	is($s->value(q{EXECUTE p; SELECT in_plpgsql()}), "t\nt", 'off: PostgreSQL\'s');
	is($s->value($HOLDS), '', '- for a prepared statement, too');
	$s->value('SELECT pg_advisory_unlock_all()');

	is(comes_to($s, q{BEGIN; SELECT in_plpgsql(), pg_advisory_unlock(7); SET LOCAL zklock.advisory = redirect; SELECT in_plpgsql(); COMMIT}),
		'7', 'in a transaction in which the expression has run');
	is(comes_to($s, q{BEGIN; SELECT 7::locked, pg_advisory_unlock(7); SET LOCAL zklock.advisory = redirect; SELECT 7::locked}),
		'55000', '- the constraint of a domain');
	is(comes_to($s, q{BEGIN; DO $$DECLARE x locked; BEGIN x := 7; END$$; SELECT pg_advisory_unlock(7); SET LOCAL zklock.advisory = redirect; DO $$DECLARE x locked; BEGIN x := 7; END$$}),
		'55000', '- a variable of a domain');

	$s->value(q{CREATE FUNCTION assigns() RETURNS text LANGUAGE plpgsql AS $$DECLARE x locked_row;
		BEGIN x := ROW(7, 1); PERFORM pg_advisory_unlock(7), set_config('zklock.advisory', 'redirect', true); x := ROW(7, 2); RETURN 'silent'; END$$});
	is(comes_to($s, 'SELECT assigns()'), '55000', '- a variable of a domain of rows, within the function');

	$s->value(q{BEGIN; SET LOCAL zklock.advisory = redirect; SAVEPOINT a; SET LOCAL zklock.advisory = off; SELECT in_plpgsql(), pg_advisory_unlock(7); ROLLBACK TO a});
	is(comes_to($s, q{SELECT in_plpgsql(); COMMIT}), '7', 'taken back by a savepoint');

	$s->value(q{CREATE FUNCTION set_here() RETURNS boolean LANGUAGE plpgsql SET zklock.advisory = redirect AS $$BEGIN RETURN in_plpgsql(); END$$});
	$s->value('SELECT in_plpgsql(), pg_advisory_unlock(7)');
	is(comes_to($s, 'SELECT set_here()'), '7', 'a function that sets it');
	is($s->value('SELECT in_plpgsql(), pg_advisory_unlock(7)'), 't|t', '- until it is left');
	is($s->value($HOLDS), '', '- PostgreSQL\'s again');

	# what has begun goes on
	$s->value(q{BEGIN; DECLARE c CURSOR FOR SELECT pg_try_advisory_lock(g) FROM generate_series(1, 2) AS g; FETCH c; SET LOCAL zklock.advisory = redirect; FETCH c});
	is($s->value($HOLDS), '', 'an open cursor goes on as it began');
	$s->value('COMMIT; SELECT pg_advisory_unlock_all()');
	is($s->value($LOCAL), '0', 'nothing is left');
};

subtest 'no extension' => sub {
	my $s = zk_session($node, user => 'app', dbname => 'without');
	my $result = $s->query('SELECT pg_advisory_lock(7)');
	is($result->{state}, '55000', 'an error at the first call');
	like($result->{err}, qr/extension "zklock_advisory" is not installed in this database.*HINT/s, '- with a hint');

	# others may have made a schema of that name
	$node->safe_psql('without', q{CREATE SCHEMA zklock_advisory AUTHORIZATION plain; SET ROLE plain;
		CREATE FUNCTION zklock_advisory.pg_advisory_lock(bigint) RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE 'taken in'; END$$});
	is($s->query('SELECT pg_advisory_lock(7)')->{state}, '55000', 'not what a schema of that name has');
	$node->safe_psql('without', 'DROP SCHEMA zklock_advisory CASCADE; CREATE EXTENSION zklock_advisory');
	is($s->query('SELECT pg_advisory_lock(7)')->{state}, '42501', 'without a right on ours: not PostgreSQL\'s either');
	$node->safe_psql('without', 'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA zklock_advisory TO app');
	is($s->query('PREPARE p AS SELECT pg_advisory_lock(7); EXECUTE p')->{state}, '', 'created, and granted: ours');
	$node->safe_psql('without', 'REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA zklock_advisory FROM app');
	is($s->query('EXECUTE p')->{state}, '42501', 'revoked: a plan that was made before');
	$node->safe_psql(
		'without', q{GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA zklock_advisory TO app;
		ALTER EXTENSION zklock_advisory DROP FUNCTION zklock_advisory.pg_advisory_lock(bigint);
		ALTER EXTENSION zklock_advisory DROP FUNCTION zklock_advisory.pg_try_advisory_lock(bigint);
		CREATE FUNCTION public.pg_advisory_lock(bigint) RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE 'taken in'; END$$;
		CREATE FUNCTION public.pg_try_advisory_lock(bigint) RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN 'no boolean'; END$$;
		ALTER EXTENSION zklock_advisory ADD FUNCTION public.pg_advisory_lock(bigint);
		ALTER EXTENSION zklock_advisory ADD FUNCTION public.pg_try_advisory_lock(bigint)});
	is($s->query("SELECT pg_catalog.$_(7)")->{state}, '55000', "$_: not what the extension's owner has put into it") foreach qw(pg_advisory_lock pg_try_advisory_lock);
	$node->safe_psql(
		'without', q{ALTER EXTENSION zklock_advisory ADD FUNCTION zklock_advisory.pg_advisory_lock(bigint);
		ALTER EXTENSION zklock_advisory ADD FUNCTION zklock_advisory.pg_try_advisory_lock(bigint);
		DROP EXTENSION zklock_advisory});
	is($s->query('EXECUTE p')->{state}, '55000', 'dropped: a plan that was made before');
	is($s->value($LOCAL), '0', 'nothing of PostgreSQL\'s');
};

subtest 'rights' => sub {
	$node->safe_psql('postgres', 'REVOKE EXECUTE ON FUNCTION pg_catalog.pg_advisory_lock(bigint) FROM PUBLIC');
	my $s = zk_session($node, user => 'app');
	is(comes_to($s, 'SELECT pg_advisory_lock(7)'), '7', 'without EXECUTE on PostgreSQL\'s: ours');
	is($s->query('SET ROLE plain; SELECT pg_advisory_lock(7)')->{state}, '42501', 'SET ROLE does not change what is set');
	$node->safe_psql('postgres', 'GRANT EXECUTE ON FUNCTION pg_catalog.pg_advisory_lock(bigint) TO PUBLIC');
};

subtest 'a parallel worker' => sub {
	my $s = zk_session($node, user => 'app');
	$s->value(q{SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; SET parallel_leader_participation = off});
	is($s->query('SELECT count(parallel(i)) FROM many')->{state}, '0A000', 'a function falsely marked as safe brings it there');
};

# A value of the administrator's that was lost does not mean "off"
subtest 'by session_preload_libraries' => sub {
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\nsession_preload_libraries = 'zklock'");
	$node->restart;
	my $s = zk_session($node, user => 'app');
	is(comes_to($s, 'SELECT pg_advisory_lock(7)'), '7', 'redirected');
	$s->quit;
	foreach my $value (qw(off strict redirect))
	{
		$s = zk_session($node, user => 'app', options => "-c zklock.advisory=$value");
		is($s->query('SELECT pg_advisory_lock(7)')->{state}, '42501', "PGOPTIONS with $value");
		is(comes_to($s, 'SELECT in_sql(7)'), '42501', '- in an SQL function');
		is(comes_to($s, 'SELECT 7::locked'), '42501', '- and where nothing is planned');
		is(comes_to($s, 'SELECT alias(7)'), '42501', '- an alias');

		# a superuser's own function may, but what it has called is not called so afterwards
		is(comes_to($s, 'BEGIN; SELECT off_here(); SELECT in_plpgsql(); COMMIT'), '42501', '- after a function that sets it');
		$s->quit;
	}
};

zk_end($zk, $node);
