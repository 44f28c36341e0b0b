--
-- The procedures, as one session sees them: scopes, re-entry, savepoints, bad
-- arguments, and who may call them.  What they wait with is in t/108.
--
CREATE EXTENSION zklock;
SET statement_timeout = '30s';
\set locks 'SELECT path, mode, scope, count, state FROM zk_locks ORDER BY path COLLATE "C", mode, scope;'

-- what is installed: with SET or as SECURITY DEFINER they would keep their snapshot
SELECT p.oid::regprocedure AS procedure, lanname AS language, prosecdef AS definer, proconfig AS set,
       obj_description(p.oid, 'pg_proc') IS NOT NULL AS commented,
       has_function_privilege('public', p.oid, 'EXECUTE') AS "public"
  FROM pg_proc p JOIN pg_language l ON l.oid = prolang
 WHERE prokind = 'p' AND proname LIKE 'zk\_%' ORDER BY 1;

--
-- Scopes, modes and arguments
--
CALL zk_acquire('/procedures/a');
CALL zk_acquire('/procedures/a', '0');
CALL zk_acquire('/procedures/a', '1 second', true);
CALL zk_acquire(path => '/procedures/b', shared => true);
CALL zk_acquire(timeout => NULL, path => '/procedures/c');
:locks

-- outside a transaction, this is over at once
CALL zk_xact_acquire('/procedures/d');
:locks

BEGIN;
CALL zk_xact_acquire('/procedures/a');
CALL zk_xact_acquire('/procedures/d', shared => true);
CALL zk_xact_acquire('/procedures/d', '10s', true);
:locks
COMMIT;
:locks

-- together with the functions
SELECT zk_lock('/procedures/a'), zk_unlock('/procedures/a'), zk_unlock('/procedures/a'), zk_unlock('/procedures/a'),
       zk_unlock_shared('/procedures/a'), zk_unlock('/procedures/a');
SELECT zk_unlock_all();

--
-- Transactions
--
BEGIN;
CALL zk_acquire('/procedures/a');
SAVEPOINT s;
CALL zk_acquire('/procedures/a');
CALL zk_xact_acquire('/procedures/b');
ROLLBACK TO s;
:locks
ROLLBACK;
:locks

CREATE PROCEDURE each(VARIADIC paths text[]) LANGUAGE plpgsql
AS $$
DECLARE
	path text;
BEGIN
	FOREACH path IN ARRAY paths LOOP
		CALL zk_xact_acquire(path);
		RAISE NOTICE '%', (SELECT string_agg(l.path, ' ' ORDER BY l.path) FROM zk_locks l);
		COMMIT;
	END LOOP;
	BEGIN
		CALL zk_acquire('/procedures/x');
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		NULL;
	END;
	CALL zk_acquire('/procedures/y');
END $$;
CALL each('/procedures/a', '/procedures/b');
:locks
SELECT zk_unlock_all();

BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
CALL zk_xact_acquire('/procedures/a');
:locks
COMMIT;

--
-- What is refused
--
\set VERBOSITY sqlstate
CALL zk_acquire(NULL);
CALL zk_xact_acquire('procedures');
CALL zk_acquire('/procedures/a', '-1s');
CALL zk_acquire('/procedures/a', NULL, NULL);
CALL zk_acquire();
SELECT zk_acquire('/procedures/a');
BEGIN;
CALL zk_acquire('/procedures/a');
CALL zk_acquire('/procedures/');
ROLLBACK;
CREATE ROLE regress_procedures;
GRANT EXECUTE ON PROCEDURE zk_xact_acquire TO regress_procedures;
SET ROLE regress_procedures;
CALL zk_acquire('/procedures/a');
CALL zk_xact_acquire('/procedures/a');
RESET ROLE;
DROP PROCEDURE each;
REVOKE ALL ON PROCEDURE zk_xact_acquire FROM regress_procedures;
DROP ROLE regress_procedures;
:locks
DROP EXTENSION zklock;
