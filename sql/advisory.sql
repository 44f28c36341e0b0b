--
-- zklock_advisory, as one session sees it; t/101 compares it with PostgreSQL's
-- own functions.
--
CREATE EXTENSION zklock;
CREATE EXTENSION zklock_advisory;
SET search_path = zklock_advisory, pg_catalog, "$user", public;
\set locks 'SELECT replace(path, current_database(), ''DB'') AS path, mode, scope, count, state FROM zk_locks ORDER BY path COLLATE "C", mode, scope;'

-- what is installed
SELECT p.oid::regprocedure AS function, pg_get_function_result(p.oid) AS result,
       has_function_privilege('public', p.oid, 'EXECUTE') AS "public"
  FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
 WHERE d.refclassid = 'pg_extension'::regclass
   AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'zklock_advisory')
   AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
 ORDER BY p.oid::regprocedure::text COLLATE "C";

-- keys, modes, scopes
BEGIN;
SELECT pg_advisory_lock(1), pg_advisory_lock(-1, 1), pg_advisory_lock_shared(9223372036854775807), pg_advisory_xact_lock(2);
SELECT pg_try_advisory_lock(1), pg_try_advisory_xact_lock_shared(3, 4), pg_try_advisory_xact_lock(1);
:locks

-- an abort ends those of the transaction
ROLLBACK;
:locks

-- one hold after the other
SELECT pg_advisory_unlock(1), pg_advisory_unlock(1), pg_advisory_unlock(1), pg_advisory_unlock_shared(-1, 1), pg_advisory_unlock(NULL);

-- zk_lock's is another hold of the same lock
SELECT zk_lock(format('/advisory/%s/1', current_database())), pg_advisory_unlock(1), pg_advisory_lock(1);
SELECT pg_advisory_unlock_all();
:locks
SELECT zk_unlock_all();

-- another space
SET zklock.advisory_space = '../a b%';
SELECT pg_advisory_lock(1);
:locks
SET zklock.advisory_space = '..';
SELECT pg_advisory_unlock(1), pg_advisory_lock(1);
:locks
SELECT pg_advisory_unlock_all();
SET zklock.advisory_space = '1234567890123456789012345678901234567890123456789012345678901234';
RESET zklock.advisory_space;

-- dropped
SELECT pg_advisory_lock(1), zk_lock('/other');
DROP EXTENSION zklock_advisory;
:locks
SELECT zk_unlock_all();
DROP SCHEMA zklock_advisory;
DROP EXTENSION zklock;
