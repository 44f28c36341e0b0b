--
-- What transactions do to the locks of a session: the table "Scopes and
-- transactions", row by row.  What another session sees of it is tested in
-- specs/.
--
CREATE EXTENSION zklock;
SET statement_timeout = '30s';
\set locks 'SELECT path, scope, count, state FROM zk_locks ORDER BY path COLLATE "C", scope;'

-- what is held now, in one line; exclusive locks unless it says otherwise
CREATE FUNCTION held() RETURNS text LANGUAGE sql
AS $$ SELECT coalesce(string_agg(concat_ws(' ', path, nullif(mode, 'exclusive'), scope, count), ', '
                                 ORDER BY path COLLATE "C", mode, scope), 'nothing')
        FROM zk_locks WHERE state = 'held' $$;

--
-- COMMIT
--
BEGIN;
SELECT zk_lock('/s'), zk_xact_lock('/x'), zk_lock('/both'), zk_xact_lock('/both');
:locks
COMMIT;
:locks

-- one more hold, in a later transaction
BEGIN;
SELECT zk_lock('/s'), zk_xact_lock('/s');
SELECT held();
COMMIT;
SELECT held();
SELECT zk_unlock_all();

-- COMMIT AND CHAIN
BEGIN;
SELECT zk_lock('/s'), zk_xact_lock('/x');
COMMIT AND CHAIN;
SELECT held();
SELECT zk_lock('/s'), zk_xact_lock('/x');
COMMIT;
SELECT held();
SELECT zk_unlock_all();

--
-- ROLLBACK and errors
--

-- only the holds that the transaction took are undone
SELECT zk_lock('/before'), zk_lock('/before_too');
BEGIN;
SELECT zk_lock('/before'), zk_lock('/before'), zk_xact_lock('/before_too'), zk_lock('/s'), zk_xact_lock('/x');
SELECT held();
ROLLBACK;
SELECT held();

-- an error is a ROLLBACK, of a block ...
BEGIN;
SELECT zk_lock('/before'), zk_lock('/s'), zk_xact_lock('/x');
SELECT * FROM no_such_table;
SELECT held();
COMMIT;
SELECT held();

-- ... and of a statement
DO $$
BEGIN
	PERFORM zk_lock('/before'), zk_lock('/s'), zk_xact_lock('/x');
	RAISE NOTICE '%', held();
	RAISE EXCEPTION 'an error in the middle';
END $$;
SELECT held();
SELECT zk_lock('/s' || i), 1 / (2 - i) FROM generate_series(1, 3) i;
SELECT held();

-- so is an error of a lock call; the session continues
BEGIN;
SELECT zk_lock('/before'), zk_xact_lock('/x');
SELECT zk_lock('not a path');
ROLLBACK;
SELECT held();

-- ROLLBACK AND CHAIN
BEGIN;
SELECT zk_lock('/before'), zk_xact_lock('/x');
ROLLBACK AND CHAIN;
SELECT held();
SELECT zk_lock('/before'), zk_xact_lock('/x');
COMMIT;
SELECT held();
SELECT zk_unlock_all();

--
-- ROLLBACK TO SAVEPOINT
--

-- holds of nested savepoints, counted separately
BEGIN;
SELECT zk_lock('/a'), zk_xact_lock('/x');
SAVEPOINT one;
SELECT zk_lock('/a'), zk_xact_lock('/x'), zk_lock('/one');
SAVEPOINT two;
SELECT zk_lock('/a'), zk_lock('/a'), zk_xact_lock('/x'), zk_lock('/two'), zk_xact_lock('/one');
SAVEPOINT three;
SELECT zk_lock('/a'), zk_xact_lock('/three');
SELECT held();
ROLLBACK TO three;
SELECT held();
ROLLBACK TO two;
SELECT held();
SELECT zk_lock('/a'), zk_lock('/two');
SELECT held();
ROLLBACK TO two;
SELECT held();
ROLLBACK TO one;
SELECT held();
COMMIT;
SELECT held();
SELECT zk_unlock_all();

-- from the innermost to the outermost in one step
BEGIN;
SELECT zk_lock('/a');
SAVEPOINT one;
SELECT zk_lock('/a');
SAVEPOINT two;
SELECT zk_lock('/a');
SAVEPOINT three;
SELECT zk_lock('/a'), zk_lock('/three');
ROLLBACK TO one;
SELECT held();
COMMIT;
SELECT held();
SELECT zk_unlock_all();

-- a released savepoint's holds pass to the enclosing one
BEGIN;
SELECT zk_lock('/a'), zk_xact_lock('/x');
SAVEPOINT one;
SELECT zk_lock('/a'), zk_lock('/one');
SAVEPOINT two;
SELECT zk_lock('/a'), zk_lock('/two'), zk_xact_lock('/x');
RELEASE two;
SELECT held();
ROLLBACK TO one;
SELECT held();
SAVEPOINT two;
SELECT zk_lock('/a'), zk_lock('/two'), zk_xact_lock('/x');
RELEASE one;
SELECT held();
COMMIT;
SELECT held();
SELECT zk_unlock_all();

-- ... up to the transaction itself
SELECT zk_lock('/a');
BEGIN;
SAVEPOINT one;
SELECT zk_lock('/a');
SAVEPOINT two;
SELECT zk_lock('/a'), zk_xact_lock('/a');
RELEASE one;
SELECT held();
ROLLBACK;
SELECT held();
SELECT zk_unlock_all();

-- a hold from before the transaction outlives every savepoint
SELECT zk_lock('/before');
BEGIN;
SAVEPOINT one;
SELECT zk_lock('/before'), zk_xact_lock('/before');
ROLLBACK TO one;
SELECT held();
COMMIT;
SELECT held();
SELECT zk_unlock_all();

-- an error inside a savepoint; the transaction continues
BEGIN;
SELECT zk_lock('/a');
SAVEPOINT one;
SELECT zk_lock('/a'), zk_lock('/one');
SELECT * FROM no_such_table;
ROLLBACK TO one;
SELECT held();
SELECT zk_lock('/one');
COMMIT;
SELECT held();
SELECT zk_unlock_all();

--
-- zk_unlock acts at once, and no rollback undoes it
--
BEGIN;
SELECT zk_lock('/a');
SAVEPOINT one;
SELECT zk_unlock('/a');
SELECT held();
ROLLBACK TO one;
SELECT held();
COMMIT;
SELECT held();

-- also of a hold from before the transaction
SELECT zk_lock('/before');
BEGIN;
SELECT zk_unlock('/before');
ROLLBACK;
SELECT held();

-- it releases the latest hold: the transaction's own before an earlier one
SELECT zk_lock('/before');
BEGIN;
SELECT zk_lock('/before');
SELECT zk_unlock('/before');
ROLLBACK;
SELECT held();
BEGIN;
SELECT zk_lock('/before');
SELECT zk_unlock('/before'), zk_unlock('/before');
SELECT held();
ROLLBACK;
SELECT held();

-- the savepoint's own before that of the enclosing transaction
BEGIN;
SELECT zk_lock('/a');
SAVEPOINT one;
SELECT zk_lock('/a');
SELECT zk_unlock('/a');
ROLLBACK TO one;
SELECT held();
SAVEPOINT two;
SELECT zk_lock('/a');
SELECT zk_unlock('/a'), zk_unlock('/a');
SELECT held();
ROLLBACK TO two;
SELECT held();
COMMIT;
SELECT held();

-- released and taken again, it belongs to the transaction
SELECT zk_lock('/before');
BEGIN;
SELECT zk_unlock('/before');
SELECT zk_lock('/before');
SELECT held();
ROLLBACK;
SELECT held();

-- zk_unlock_all too
SELECT zk_lock('/before');
BEGIN;
SELECT zk_lock('/before'), zk_xact_lock('/x');
SAVEPOINT one;
SELECT zk_lock('/before'), zk_lock('/one');
SELECT zk_unlock_all();
ROLLBACK TO one;
SELECT held();
ROLLBACK;
SELECT held();

--
-- PL/pgSQL EXCEPTION
--
SELECT zk_lock('/before');
DO $$
BEGIN
	PERFORM zk_lock('/outer'), zk_xact_lock('/outer');
	BEGIN
		PERFORM zk_lock('/before'), zk_lock('/outer'), zk_xact_lock('/outer'), zk_lock('/inner');
		BEGIN
			PERFORM zk_lock('/outer'), zk_lock('/innermost');
			RAISE NOTICE 'innermost: %', held();
			RAISE EXCEPTION 'no';
		EXCEPTION WHEN raise_exception THEN
			RAISE NOTICE 'caught: %', held();
		END;
		RAISE EXCEPTION 'no';
	EXCEPTION WHEN raise_exception THEN
		RAISE NOTICE 'caught: %', held();
	END;
	-- a block that ends well hands its holds on
	BEGIN
		PERFORM zk_lock('/inner'), zk_xact_lock('/inner');
	EXCEPTION WHEN raise_exception THEN
		RAISE NOTICE 'never here';
	END;
	RAISE NOTICE 'end: %', held();
END $$;
SELECT held();
SELECT zk_unlock_all();

-- the errors of lock calls can be caught
DO $$
BEGIN
	PERFORM zk_lock('/outer');
	BEGIN
		PERFORM zk_lock('/inner'), zk_lock('/');
	EXCEPTION WHEN invalid_parameter_value THEN
		RAISE NOTICE 'caught %: %', SQLSTATE, held();
	END;
END $$;
SELECT held();
SELECT zk_unlock_all();

--
-- COMMIT and ROLLBACK inside a procedure
--
CREATE PROCEDURE in_steps() LANGUAGE plpgsql
AS $$
BEGIN
	PERFORM zk_lock('/s'), zk_xact_lock('/x');
	COMMIT;
	RAISE NOTICE 'after COMMIT: %', held();
	PERFORM zk_lock('/s'), zk_lock('/s2'), zk_xact_lock('/x');
	RAISE NOTICE 'before ROLLBACK: %', held();
	ROLLBACK;
	RAISE NOTICE 'after ROLLBACK: %', held();
	PERFORM zk_lock('/s3'), zk_xact_lock('/x');
	COMMIT AND CHAIN;
	RAISE NOTICE 'after COMMIT AND CHAIN: %', held();
	FOR i IN 1..3 LOOP
		PERFORM zk_lock('/s'), zk_xact_lock('/x');
		COMMIT;
	END LOOP;
	RAISE NOTICE 'after the loop: %', held();
	PERFORM zk_xact_lock('/x');
END $$;
CALL in_steps();
SELECT held();
SELECT zk_unlock_all();

-- the error ends only the last transaction
DO $$
BEGIN
	PERFORM zk_lock('/s');
	COMMIT;
	PERFORM zk_lock('/s'), zk_lock('/s2');
	RAISE EXCEPTION 'no';
END $$;
SELECT held();
SELECT zk_unlock_all();

--
-- PREPARE TRANSACTION
--

-- refused if the transaction took a lock, in either scope; it is rolled back
SELECT zk_lock('/before');
BEGIN;
SELECT zk_xact_lock('/x');
PREPARE TRANSACTION 'regress_zklock';
\echo :LAST_ERROR_SQLSTATE
SELECT held();
BEGIN;
SELECT zk_lock('/s');
PREPARE TRANSACTION 'regress_zklock';
\echo :LAST_ERROR_SQLSTATE
SELECT held();
BEGIN;
SELECT zk_lock('/before');
PREPARE TRANSACTION 'regress_zklock';
\echo :LAST_ERROR_SQLSTATE
SELECT held();

-- even if it released the lock
BEGIN;
SELECT zk_lock('/s');
SELECT zk_unlock('/s');
PREPARE TRANSACTION 'regress_zklock';
\echo :LAST_ERROR_SQLSTATE
SELECT held();

-- an earlier session-scope lock does not matter, nor one that was rolled back
-- (without max_prepared_transactions there is nothing to prepare)
SELECT setting <> '0' AS can_prepare FROM pg_settings WHERE name = 'max_prepared_transactions' \gset
BEGIN;
SELECT held();
SAVEPOINT one;
SELECT zk_lock('/s'), zk_xact_lock('/x'), zk_lock('/before');
ROLLBACK TO one;
CREATE TABLE prepared (a integer);
\if :can_prepare
PREPARE TRANSACTION 'regress_zklock';
\else
ROLLBACK;
\endif
SELECT held();
\if :can_prepare
ROLLBACK PREPARED 'regress_zklock';
\endif
SELECT held();
SELECT zk_unlock_all();

--
-- What runs at COMMIT
--

-- a cursor WITH HOLD is materialized there
BEGIN;
DECLARE c NO SCROLL CURSOR WITH HOLD FOR SELECT i, zk_lock('/s' || i), zk_xact_lock('/x' || i) FROM generate_series(1, 3) i;
FETCH 1 FROM c;
SELECT held();
COMMIT;
SELECT held();
FETCH ALL FROM c;
SELECT held();
CLOSE c;
SELECT zk_unlock_all();

-- ... and fails there
BEGIN;
DECLARE c NO SCROLL CURSOR WITH HOLD FOR SELECT zk_lock('/s' || i), 1 / (3 - i) FROM generate_series(1, 3) i;
FETCH 1 FROM c;
SELECT held();
COMMIT;
SELECT held();

-- a deferred trigger
CREATE TABLE deferred (path text);
CREATE FUNCTION lock_path() RETURNS trigger LANGUAGE plpgsql
AS $$
BEGIN
	PERFORM zk_lock(NEW.path), zk_xact_lock(NEW.path);
	RAISE NOTICE 'at COMMIT: %', held();
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER lock_path AFTER INSERT ON deferred
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION lock_path();
BEGIN;
INSERT INTO deferred VALUES ('/d1'), ('/d2'), ('/d1');
SELECT held();
COMMIT;
SELECT held();
SELECT zk_unlock_all();
BEGIN;
INSERT INTO deferred VALUES ('/d1'), ('not a path');
COMMIT;
\echo :LAST_ERROR_SQLSTATE
SELECT held();
SELECT path, count(*) FROM deferred GROUP BY 1 ORDER BY 1;

-- and in a transaction that is prepared
BEGIN;
INSERT INTO deferred VALUES ('/d1');
PREPARE TRANSACTION 'regress_zklock';
\echo :LAST_ERROR_SQLSTATE
SELECT held();

--
-- The same for shared locks, several at once and semaphores
--

-- COMMIT
BEGIN;
SELECT zk_lock_shared('/s'), zk_xact_lock_shared('/x'), zk_lock_shared('/both'), zk_xact_lock_shared('/both');
SELECT zk_lock_many('{/s1,/s2}'), zk_xact_lock_many('{/x1,/x2}'), zk_lock_many('{/both1,/both2}'), zk_xact_lock_many('{/both1,/both2}');
SELECT zk_semaphore_acquire('/s', 1), zk_xact_semaphore_acquire('/x', 1), zk_semaphore_acquire('/both', 1), zk_xact_semaphore_acquire('/both', 1);
SELECT held();
COMMIT;
SELECT held();

-- one more hold, in a later transaction that fails: an error is a ROLLBACK
BEGIN;
SELECT zk_lock_shared('/s'), zk_xact_lock_shared('/s'), zk_lock_many('{/s1,/s3}'), zk_semaphore_acquire('/s', 1), zk_xact_semaphore_acquire('/s', 1);
SELECT held();
SELECT * FROM no_such_table;
SELECT held();
COMMIT;
SELECT held();
DO $$
BEGIN
	PERFORM zk_lock_shared('/s'), zk_lock_many('{/s1,/s3}'), zk_semaphore_acquire('/s', 1), zk_xact_semaphore_acquire('/s', 1);
	RAISE EXCEPTION 'an error in the middle';
END $$;
SELECT held();
SELECT zk_unlock_all();

-- ROLLBACK
BEGIN;
SELECT zk_lock_shared('/s'), zk_xact_lock_shared('/x'), zk_lock_many('{/s1,/s2}'), zk_xact_lock_many('{/x1,/x2}'),
       zk_semaphore_acquire('/s', 1), zk_xact_semaphore_acquire('/x', 1);
ROLLBACK;
SELECT held();

-- ROLLBACK TO SAVEPOINT, counted separately by mode and scope
BEGIN;
SELECT zk_lock_shared('/a'), zk_xact_lock('/a'), zk_semaphore_acquire('/a', 2);
SAVEPOINT one;
SELECT zk_lock('/a'), zk_lock_shared('/a'), zk_xact_lock_shared('/a'), zk_semaphore_acquire('/a', 2), zk_lock_many('{/a,/one}');
SAVEPOINT two;
SELECT zk_xact_lock('/a'), zk_lock_shared('/a'), zk_xact_semaphore_acquire('/a', 2), zk_semaphore_acquire('/two', 1), zk_xact_lock_many('{/one,/two}');
SELECT held();
ROLLBACK TO two;
SELECT held();
SELECT zk_semaphore_acquire('/a', 2), zk_lock_shared('/two');
RELEASE two;
SELECT held();
ROLLBACK TO one;
SELECT held();
COMMIT;
SELECT held();
SELECT zk_unlock_all();

-- the exclusive hold inside the savepoint, the shared one outside: rolling back
-- undoes the upgrade, and other readers can join what is left
SELECT zk_lock_shared('/a');
BEGIN;
SAVEPOINT one;
SELECT zk_lock('/a');
SELECT held();
ROLLBACK TO one;
SELECT held();
SELECT zk_xact_lock('/a');
COMMIT;
SELECT held();
SELECT zk_unlock_all();

-- the other way round, which is a downgrade
BEGIN;
SELECT zk_xact_lock('/a');
SAVEPOINT one;
SELECT zk_lock_shared('/a');
ROLLBACK TO one;
SELECT held();
SELECT zk_lock_shared('/a');
COMMIT;
SELECT held();
BEGIN;
SELECT zk_lock_shared('/b');
SAVEPOINT one;
SELECT zk_xact_lock('/b'), zk_lock_shared('/b');
ROLLBACK TO one;
SELECT held();
ROLLBACK;
SELECT held();
SELECT zk_unlock_all();

-- a release acts at once, on the latest hold, and no rollback undoes it
SELECT zk_lock_shared('/before'), zk_semaphore_acquire('/before', 1);
BEGIN;
SELECT zk_lock_shared('/before'), zk_semaphore_acquire('/before', 1);
SAVEPOINT one;
SELECT zk_lock_shared('/before'), zk_semaphore_acquire('/before', 1);
SELECT zk_unlock_shared('/before'), zk_unlock_shared('/before'), zk_semaphore_release('/before'), zk_semaphore_release('/before');
ROLLBACK TO one;
SELECT held();
ROLLBACK;
SELECT held();
BEGIN;
SELECT zk_lock_shared('/before'), zk_semaphore_acquire('/before', 1);
SELECT zk_unlock_shared('/before'), zk_unlock_shared('/before'), zk_semaphore_release('/before'), zk_semaphore_release('/before');
SELECT held();
ROLLBACK;
SELECT held();

-- so does zk_unlock_all, which leaves transaction-scope holds
SELECT zk_lock_shared('/before'), zk_semaphore_acquire('/before', 1), zk_lock_many('{/before,/before2}');
BEGIN;
SELECT zk_lock_shared('/before'), zk_xact_lock_shared('/before'), zk_xact_semaphore_acquire('/before', 1), zk_xact_lock_many('{/before2,/x}');
SAVEPOINT one;
SELECT zk_semaphore_acquire('/one', 1), zk_lock_shared('/one');
SELECT zk_unlock_all();
SELECT held();
ROLLBACK TO one;
SELECT held();
COMMIT;
SELECT held();

-- PL/pgSQL EXCEPTION
DO $$
BEGIN
	PERFORM zk_lock_shared('/outer'), zk_xact_semaphore_acquire('/outer', 1);
	BEGIN
		PERFORM zk_lock('/outer'), zk_lock_shared('/outer'), zk_lock_many('{/inner,/outer}'), zk_semaphore_acquire('/inner', 1);
		RAISE NOTICE 'inner: %', held();
		RAISE EXCEPTION 'no';
	EXCEPTION WHEN raise_exception THEN
		RAISE NOTICE 'caught: %', held();
	END;
	BEGIN
		PERFORM zk_semaphore_acquire('/inner', 1), zk_xact_lock_shared('/inner'), zk_lock_many('{/inner}');
	EXCEPTION WHEN raise_exception THEN
		RAISE NOTICE 'never here';
	END;
	RAISE NOTICE 'end: %', held();
END $$;
SELECT held();
SELECT zk_unlock_all();

-- COMMIT and ROLLBACK inside a procedure
DO $$
BEGIN
	PERFORM zk_lock_shared('/s'), zk_xact_lock_shared('/x'), zk_lock_many('{/s1}'), zk_xact_lock_many('{/x1,/s}'),
	        zk_semaphore_acquire('/s', 1), zk_xact_semaphore_acquire('/x', 1);
	COMMIT;
	RAISE NOTICE 'after COMMIT: %', held();
	PERFORM zk_lock('/s'), zk_lock_shared('/s'), zk_xact_lock_shared('/x'), zk_semaphore_acquire('/s', 1), zk_semaphore_acquire('/s2', 1);
	RAISE NOTICE 'before ROLLBACK: %', held();
	ROLLBACK;
	RAISE NOTICE 'after ROLLBACK: %', held();
END $$;
SELECT held();
SELECT zk_unlock_all();

-- PREPARE TRANSACTION
BEGIN;
SELECT zk_lock_shared('/s');
PREPARE TRANSACTION 'regress_zklock';
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT zk_xact_lock_many('{/x}');
PREPARE TRANSACTION 'regress_zklock';
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SELECT zk_semaphore_acquire('/s', 1), zk_semaphore_release('/s');
PREPARE TRANSACTION 'regress_zklock';
\echo :LAST_ERROR_SQLSTATE
SELECT held();

DROP TABLE deferred;
DROP FUNCTION lock_path();
DROP PROCEDURE in_steps();
DROP FUNCTION held();
DROP EXTENSION zklock;
