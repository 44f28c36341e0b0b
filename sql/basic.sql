--
-- The extension and its functions, as one session sees them: what is
-- installed and who may use it, then locking, re-entry and release.
--
CREATE EXTENSION zklock;
\set locks 'SELECT path, mode, scope, count, state FROM zk_locks ORDER BY path COLLATE "C", mode, scope;'

--
-- What is installed
--

-- every function (the procedures are in sql/procedures): what \df shows, and whether PUBLIC may call it
SELECT p.proname AS function,
       CASE WHEN p.pronargs > 0 THEN regexp_replace(pg_get_function_arguments(p.oid), $$, OUT .*$$, $$, ...$$) END AS arguments,
       pg_get_function_result(p.oid) AS result,
       p.provolatile AS vol, p.proparallel AS par, p.prosecdef AS definer,
       obj_description(p.oid, 'pg_proc') IS NOT NULL AS commented,
       has_function_privilege('public', p.oid, 'EXECUTE') AS "public"
  FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
 WHERE d.refclassid = 'pg_extension'::regclass
   AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'zklock')
   AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e' AND p.prokind = 'f'
 ORDER BY p.proname COLLATE "C";

-- each name has one signature
SELECT proname FROM pg_proc WHERE proname LIKE 'zk\_%' GROUP BY 1 HAVING count(*) > 1;

-- the views and their columns
SELECT c.relname AS relation, a.attname AS column, format_type(a.atttypid, a.atttypmod) AS type
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
 WHERE c.relname LIKE 'zk\_%' AND c.relkind IN ('r', 'v')
 ORDER BY c.relname, a.attnum;
SELECT relname AS relation, obj_description(oid, 'pg_class') IS NOT NULL AS commented,
       has_table_privilege('public', oid, 'SELECT') AS "public reads",
       has_table_privilege('public', oid, 'INSERT, UPDATE, DELETE, TRUNCATE') AS "public writes"
  FROM pg_class WHERE relname LIKE 'zk\_%' AND relkind IN ('r', 'v') ORDER BY 1;
SELECT obj_description(oid, 'pg_extension') IS NOT NULL AS commented, extrelocatable
  FROM pg_extension WHERE extname = 'zklock';

-- it stays in the schema where it was created
CREATE SCHEMA zklock_elsewhere;
ALTER EXTENSION zklock SET SCHEMA zklock_elsewhere;
\echo :LAST_ERROR_SQLSTATE

--
-- A lock, taken and released
--

-- before the first lock there is no ZooKeeper session
SELECT state, session_id, server, session_timeout, last_heard, requests,
       waits, timeouts, deadlock_checks, deadlocks, reconnections, losses
  FROM zk_session;
:locks

SELECT zk_lock('/basic/a');
:locks
SELECT token > 0 AS token,
       token = zk_lock_token('/basic/a') AS same_token,
       node ~ '^_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-lock-[0-9]{10}$' AS node,
       acquired_at BETWEEN now() - interval '1 minute' AND clock_timestamp() AS acquired_at
  FROM zk_locks;
SELECT state, session_id ~ '^0x[0-9a-f]+$' AS session_id, server ~ ':[0-9]+$' AS server,
       session_timeout > '0' AS session_timeout,
       last_heard BETWEEN now() - interval '1 minute' AND clock_timestamp() AS last_heard,
       requests > 0 AS requests, waits, timeouts, deadlock_checks, deadlocks, reconnections, losses
  FROM zk_session;
SELECT zk_unlock('/basic/a');
:locks

-- the session stays, for the next lock
SELECT session_id AS session_before FROM zk_session \gset
SELECT zk_lock('/basic/a');
SELECT zk_unlock('/basic/a');
SELECT state, session_id = :'session_before' AS same_session FROM zk_session;

-- all ways to call it
SELECT zk_lock('/basic/a'), zk_xact_lock('/basic/b'), zk_try_lock('/basic/c'), zk_try_xact_lock('/basic/d');
SELECT zk_lock('/basic/e', '10 seconds'), zk_lock('/basic/f', NULL), zk_lock('/basic/g', '0');
SELECT zk_lock(path => '/basic/h', timeout => '10 seconds'), zk_lock(timeout => '10 seconds', path => '/basic/i'),
       zk_lock(path => '/basic/j'), zk_try_lock(path => '/basic/k');
SELECT zk_xact_lock(path => '/basic/l', timeout => '10 seconds'), zk_xact_lock('/basic/m', '0');
:locks
SELECT zk_unlock(path => '/basic/h');
SELECT zk_unlock_all();
:locks

-- a cheap filter runs before functions that ask ZooKeeper, wherever it is written
CREATE TEMP TABLE job AS SELECT id, '/basic/' || id AS path FROM generate_series(1, 100) AS id;
SELECT count(*) FROM job WHERE zk_try_lock(path) AND id % 20 = 5;
SELECT zk_unlock_all();
DROP TABLE job;
SELECT string_agg(proname, ' ' ORDER BY proname) AS others FROM pg_proc
 WHERE proname ~ '^zk_' AND prokind = 'f' AND procost <> 10000;

-- a path and the one above it are two locks, and each spelling is another
SELECT zk_lock('/basic'), zk_lock('/basic/a'), zk_lock('/basic/a/b'), zk_lock('/basic/A'), zk_lock('/basic/a b'), zk_lock('/basic/%2F');
:locks
SELECT zk_unlock_all();

--
-- Re-entry
--

-- holds are counted; together they have one node and one token
SELECT zk_lock('/basic/a');
SELECT token AS token_before, node AS node_before FROM zk_locks \gset
SELECT zk_lock('/basic/a'), zk_try_lock('/basic/a'), zk_lock('/basic/a', '0'), zk_lock('/basic/a', '1 microsecond');
SELECT count, token = :token_before AS same_token, node = :'node_before' AS same_node FROM zk_locks;
SELECT zk_unlock('/basic/a'), zk_unlock('/basic/a'), zk_unlock('/basic/a'), zk_unlock('/basic/a');
:locks
SELECT zk_lock_token('/basic/a') = :token_before AS same_token;
SELECT zk_unlock('/basic/a');
:locks

-- both scopes of one path: one lock, counted separately
BEGIN;
SELECT zk_xact_lock('/basic/a'), zk_lock('/basic/a'), zk_xact_lock('/basic/a');
:locks
SELECT count(DISTINCT node) AS nodes, count(DISTINCT token) AS tokens FROM zk_locks;
COMMIT;
:locks
SELECT zk_unlock('/basic/a');

-- outside a transaction block, the statement is the transaction
SELECT zk_xact_lock('/basic/a');
:locks

--
-- The token
--

-- none while the lock is not held
SELECT zk_lock_token('/basic/a');
SELECT zk_lock_token('/basic/never');

-- it rises from one holder to the next, whatever the scope
SELECT zk_lock('/basic/a');
SELECT zk_lock_token('/basic/a') AS token1 \gset
SELECT zk_unlock('/basic/a');
SELECT zk_lock_token('/basic/a');
BEGIN;
SELECT zk_xact_lock('/basic/a');
SELECT zk_lock_token('/basic/a') AS token2 \gset
COMMIT;
SELECT zk_lock_token('/basic/a');
SELECT zk_try_lock('/basic/a');
SELECT zk_lock_token('/basic/a') AS token3 \gset
SELECT :token1 < :token2 AS second, :token2 < :token3 AS third;
SELECT zk_unlock('/basic/a');

--
-- Releasing what is not held
--

-- a warning and false, as with pg_advisory_unlock
SELECT zk_unlock('/basic/never');
SELECT zk_unlock_all();
SELECT zk_lock('/basic/a');
SELECT zk_unlock('/basic/a');
SELECT zk_unlock('/basic/a');

-- zk_unlock does not release transaction-scope holds
BEGIN;
SELECT zk_xact_lock('/basic/a');
SELECT zk_unlock('/basic/a');
SELECT zk_unlock_all();
:locks
SELECT zk_lock('/basic/a');
SELECT zk_unlock('/basic/a');
SELECT zk_unlock('/basic/a');
:locks
COMMIT;
:locks

-- zk_unlock_all counts holds
SELECT zk_lock('/basic/a'), zk_lock('/basic/a'), zk_lock('/basic/a'), zk_lock('/basic/b');
BEGIN;
SELECT zk_lock('/basic/b'), zk_lock('/basic/c'), zk_xact_lock('/basic/c'), zk_xact_lock('/basic/d');
SELECT zk_unlock_all();
:locks
COMMIT;
:locks
SELECT zk_unlock_all();

--
-- DISCARD
--

-- ALL releases what the session holds; the others do not
SELECT zk_lock('/basic/a'), zk_lock('/basic/a'), zk_lock('/basic/b');
DISCARD PLANS;
DISCARD SEQUENCES;
DISCARD TEMP;
:locks
DISCARD ALL;
:locks
DISCARD ALL;

-- PostgreSQL refuses it in a transaction, and earlier holds stay
SELECT zk_lock('/basic/a');
BEGIN;
SELECT zk_lock('/basic/a');
DISCARD ALL;
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
:locks
DISCARD ALL;

--
-- Privileges
--
CREATE ROLE regress_zklock;
SET ROLE regress_zklock;

-- without a grant: no locks, but the views can be read
\set VERBOSITY sqlstate
SELECT zk_lock('/basic/a');
SELECT zk_xact_lock('/basic/a');
SELECT zk_try_lock('/basic/a');
SELECT zk_try_xact_lock('/basic/a');
SELECT zk_lock_shared('/basic/a');
SELECT zk_xact_lock_shared('/basic/a');
SELECT zk_try_lock_shared('/basic/a');
SELECT zk_try_xact_lock_shared('/basic/a');
SELECT zk_lock_many('{/basic/a}');
SELECT zk_xact_lock_many('{/basic/a}');
SELECT zk_semaphore_acquire('/basic/a', 1);
SELECT zk_xact_semaphore_acquire('/basic/a', 1);
SELECT zk_unlock('/basic/a');
SELECT zk_unlock_shared('/basic/a');
SELECT zk_semaphore_release('/basic/a');
SELECT zk_unlock_all();
SELECT zk_lock_token('/basic/a');
:locks
SELECT state FROM zk_session;
SELECT path FROM zk_lock_status();
SELECT state FROM zk_session_status();

-- with it
RESET ROLE;
GRANT EXECUTE ON FUNCTION
    zk_lock, zk_xact_lock, zk_try_lock, zk_try_xact_lock,
    zk_lock_shared, zk_xact_lock_shared, zk_try_lock_shared, zk_try_xact_lock_shared,
    zk_lock_many, zk_xact_lock_many,
    zk_semaphore_acquire, zk_xact_semaphore_acquire, zk_semaphore_release,
    zk_unlock, zk_unlock_shared, zk_unlock_many, zk_unlock_all, zk_lock_held, zk_lock_token
    TO regress_zklock;
SET ROLE regress_zklock;
BEGIN;
SELECT zk_lock('/basic/a'), zk_try_lock('/basic/b'), zk_xact_lock('/basic/c'), zk_try_xact_lock('/basic/d');
:locks
SELECT zk_lock_held('/basic/a'), zk_lock_token('/basic/a') > 0 AS token;
SELECT zk_lock_shared('/basic/e'), zk_try_lock_shared('/basic/f'), zk_xact_lock_shared('/basic/g'), zk_try_xact_lock_shared('/basic/h'),
       zk_lock_many('{/basic/i}'), zk_xact_lock_many('{/basic/j}'),
       zk_semaphore_acquire('/basic/k', 1), zk_xact_semaphore_acquire('/basic/l', 1);
:locks
COMMIT;
SELECT zk_unlock_many('{/basic/a}'), zk_unlock_shared('/basic/e'), zk_semaphore_release('/basic/k');
SELECT zk_unlock_all();
RESET ROLE;
REVOKE EXECUTE ON FUNCTION
    zk_lock, zk_xact_lock, zk_try_lock, zk_try_xact_lock,
    zk_lock_shared, zk_xact_lock_shared, zk_try_lock_shared, zk_try_xact_lock_shared,
    zk_lock_many, zk_xact_lock_many,
    zk_semaphore_acquire, zk_xact_semaphore_acquire, zk_semaphore_release,
    zk_unlock, zk_unlock_shared, zk_unlock_many, zk_unlock_all, zk_lock_held, zk_lock_token
    FROM regress_zklock;

-- a SECURITY DEFINER function can give access to a single lock
CREATE FUNCTION lock_the_one() RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp
AS $$ SELECT zk_try_xact_lock('/basic/the one') $$;
SET ROLE regress_zklock;
SELECT lock_the_one();
SELECT zk_try_xact_lock('/basic/the one');
RESET ROLE;
DROP FUNCTION lock_the_one();

--
-- In another schema
--
DROP EXTENSION zklock;
CREATE EXTENSION zklock SCHEMA zklock_elsewhere;
SELECT zk_lock('/basic/a');
SELECT zklock_elsewhere.zk_lock('/basic/a', timeout => '10 seconds');
SELECT path, mode, scope, count, state FROM zklock_elsewhere.zk_locks;
SELECT zklock_elsewhere.zk_lock_token('/basic/a') > 0 AS token;
SELECT state FROM zklock_elsewhere.zk_session;

-- when the extension is dropped, this session's locks are released
SELECT zklock_elsewhere.zk_lock_shared('/basic/b'), zklock_elsewhere.zk_semaphore_acquire('/basic/a', 1);
BEGIN; DROP EXTENSION zklock; ROLLBACK;
BEGIN; DROP EXTENSION zklock; CREATE EXTENSION zklock; COMMIT;
:locks
BEGIN; SAVEPOINT s; DROP EXTENSION zklock; ROLLBACK TO s; COMMIT;
SELECT count(*) FROM zk_locks;
DROP EXTENSION zklock;
CREATE EXTENSION zklock;
:locks
SELECT zk_try_lock('/basic/a'), zk_try_lock('/basic/b'), zk_semaphore_acquire('/basic/a', 1, '0');
-- also with its schema, or its owner; and what the transaction itself took
SELECT zk_unlock_all();
DROP EXTENSION zklock;
CREATE EXTENSION zklock SCHEMA zklock_elsewhere;
SELECT zklock_elsewhere.zk_lock('/basic/a');
BEGIN;
SELECT zklock_elsewhere.zk_lock('/basic/a'), zklock_elsewhere.zk_xact_lock('/basic/b'), zklock_elsewhere.zk_lock('/basic/c');
SAVEPOINT s;
DO $$ BEGIN DROP SCHEMA zklock_elsewhere CASCADE; END $$;
COMMIT;
CREATE EXTENSION zklock;
:locks
-- no notice about what the end of the transaction releases in any case
BEGIN;
SELECT zk_lock('/basic/a'), zk_unlock('/basic/a'), zk_xact_lock('/basic/b');
DROP EXTENSION zklock;
COMMIT;
CREATE EXTENSION zklock;
:locks
CREATE ROLE regress_zklock_owner SUPERUSER;
SET ROLE regress_zklock_owner;
DROP EXTENSION zklock;
CREATE EXTENSION zklock;
RESET ROLE;
SELECT zk_lock('/basic/a');
SET client_min_messages = warning;
DROP OWNED BY regress_zklock_owner CASCADE;
CREATE EXTENSION zklock;
:locks
RESET client_min_messages;
DROP ROLE regress_zklock_owner;

DROP EXTENSION zklock;
DROP ROLE regress_zklock;
