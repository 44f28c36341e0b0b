--
-- Where a lock may be taken: in functions of every kind, in triggers, in
-- read-only transactions, by the leader of a parallel query but not by its
-- workers; and many times.
--
CREATE EXTENSION zklock;
\set locks 'SELECT path, scope, count, state FROM zk_locks ORDER BY path COLLATE "C", scope;'

--
-- A row trigger
--
CREATE TABLE jobs (id integer, path text);
CREATE FUNCTION lock_job() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN PERFORM zk_xact_lock(NEW.path); RETURN NEW; END $$;
CREATE TRIGGER lock_job BEFORE INSERT OR UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION lock_job();

-- the same lock for each of 10,000 rows: as many holds of one node
BEGIN;
INSERT INTO jobs SELECT i, '/places/job' FROM generate_series(1, 10000) i;
:locks
SAVEPOINT update;
UPDATE jobs SET id = -id;
:locks
ROLLBACK TO update;
:locks
COMMIT;
:locks

-- ... and in the other scope
CREATE OR REPLACE FUNCTION lock_job() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN PERFORM zk_lock(NEW.path); RETURN NEW; END $$;
UPDATE jobs SET id = id + 1;
:locks
SELECT zk_unlock('/places/job');
:locks
SELECT zk_unlock_all();
:locks

-- ... and of the other kinds
CREATE OR REPLACE FUNCTION lock_job() RETURNS trigger LANGUAGE plpgsql
AS $$
BEGIN
	PERFORM zk_xact_lock_shared(NEW.path), zk_xact_semaphore_acquire(NEW.path, 2),
		zk_xact_lock_many(ARRAY[NEW.path || '/b', NEW.path || '/a']);
	RETURN NEW;
END $$;
BEGIN;
UPDATE jobs SET id = id + 1;
SELECT path, mode, scope, count, state FROM zk_locks ORDER BY path COLLATE "C", mode;
SELECT zk_try_xact_lock_shared('/places/job'), zk_try_xact_lock('/places/job/a');
COMMIT;
:locks
CREATE OR REPLACE FUNCTION lock_job() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN PERFORM zk_lock(NEW.path); RETURN NEW; END $$;

-- a lock for each row
DELETE FROM jobs;
BEGIN;
INSERT INTO jobs SELECT i, '/places/job' || i % 100 FROM generate_series(1, 1000) i;
SELECT count(*), sum(count), count(DISTINCT node) AS nodes, count(DISTINCT token) AS tokens FROM zk_locks;
ROLLBACK;
:locks

-- a trigger that fails in the middle
INSERT INTO jobs SELECT i, CASE WHEN i < 50 THEN '/places/job' || i END FROM generate_series(1, 100) i;
\echo :LAST_ERROR_SQLSTATE
:locks
SELECT count(*) FROM jobs;

--
-- 10,000 EXCEPTION blocks
--

-- each takes a lock of its own and releases it
DO $$
DECLARE
	caught integer := 0;
BEGIN
	FOR i IN 1..10000 LOOP
		BEGIN
			PERFORM zk_lock('/places/block');
			RAISE EXCEPTION 'no';
		EXCEPTION WHEN raise_exception THEN
			caught := caught + 1;
		END;
	END LOOP;
	RAISE NOTICE '% caught', caught;
END $$;
:locks

-- each takes a lock that is already held
BEGIN;
SELECT zk_xact_lock('/places/block');
DO $$
DECLARE
	caught integer := 0;
BEGIN
	FOR i IN 1..10000 LOOP
		BEGIN
			PERFORM zk_xact_lock('/places/block'), zk_lock('/places/block');
			RAISE EXCEPTION 'no';
		EXCEPTION WHEN raise_exception THEN
			caught := caught + 1;
		END;
	END LOOP;
	RAISE NOTICE '% caught', caught;
END $$;
:locks
COMMIT;

-- each succeeds
DO $$
BEGIN
	FOR i IN 1..10000 LOOP
		BEGIN
			PERFORM zk_xact_lock('/places/block'), zk_lock('/places/block');
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
	END LOOP;
END $$;
:locks
SELECT zk_unlock_all();

-- nested a hundred deep
CREATE FUNCTION deep(level integer) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
	PERFORM zk_lock('/places/deep');
	IF level = 100 THEN
		RAISE NOTICE 'at the bottom: % of %', (SELECT count FROM zk_locks), (SELECT path FROM zk_locks);
	ELSE
		PERFORM deep(level + 1);
	END IF;
	-- on the way up one fails, and takes what is below it along
	IF level = 50 THEN
		RAISE EXCEPTION 'no';
	END IF;
EXCEPTION WHEN raise_exception THEN
	NULL;
END $$;
SELECT deep(1);
:locks
SELECT zk_unlock_all();

--
-- Functions and queries
--
CREATE FUNCTION lock_in_sql(path text) RETURNS boolean LANGUAGE sql AS 'SELECT zk_lock(path)';
CREATE FUNCTION lock_in_strict(path text) RETURNS boolean LANGUAGE plpgsql STRICT
AS $$ BEGIN RETURN zk_lock(path); END $$;
CREATE PROCEDURE lock_in_procedure(path text) LANGUAGE sql AS 'SELECT zk_lock(path)';
SELECT lock_in_sql('/places/sql'), lock_in_strict('/places/strict'), lock_in_strict(NULL);
CALL lock_in_procedure('/places/procedure');
DO $$ BEGIN PERFORM zk_lock('/places/do'); END $$;
PREPARE lock_prepared AS SELECT zk_lock($1);
EXECUTE lock_prepared('/places/prepared');
EXECUTE lock_prepared('/places/prepared');
:locks
SELECT zk_unlock(path) FROM zk_locks;
:locks
SELECT zk_unlock_all();

-- once a row, and only for the rows that a query returns
SELECT zk_lock(path) FROM (SELECT '/places/' || i AS path FROM generate_series(1, 100) i LIMIT 3) q;
SELECT i FROM generate_series(1, 5) i WHERE i > 3 AND zk_lock('/places/' || i);
:locks
SELECT zk_unlock_all();

--
-- Read-only transactions, and stricter isolation levels
--
BEGIN READ ONLY;
SELECT zk_lock('/places/a'), zk_xact_lock('/places/b'), zk_try_lock('/places/c'), zk_unlock('/places/c');
SELECT zk_lock_token('/places/a') < zk_lock_token('/places/b') AS tokens;
:locks
COMMIT;
SET default_transaction_read_only = on;
SELECT zk_unlock('/places/a');
SELECT zk_lock('/places/a'), zk_unlock_all();
RESET default_transaction_read_only;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT zk_lock('/places/a');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE;
SELECT zk_xact_lock('/places/a'), zk_xact_lock('/places/b');
COMMIT;
:locks
SELECT zk_unlock_all();

--
-- Parallel queries
--
-- the setting has two names
SELECT set_config(name, 'on', false) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT zk_lock('/places/a'), zk_xact_lock('/places/b');
:locks
SELECT zk_lock('/places/a'), count(*) FROM jobs;
SELECT count(*) FROM jobs WHERE zk_try_lock('/places/a');
CREATE TABLE wide AS SELECT i FROM generate_series(1, 1000) i;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SELECT count(zk_lock('/places/a')) FROM wide;
SELECT count(*) FROM wide WHERE i % 100 = 0 AND zk_xact_lock('/places/' || i);
SELECT count(*) FROM wide WHERE i % 500 = 0 AND zk_xact_lock_shared('/places/' || i) AND zk_xact_lock_many(ARRAY['/places/' || i])
	AND zk_semaphore_acquire('/places/' || i, i) AND zk_semaphore_release('/places/' || i);
:locks
SELECT state FROM zk_session;
SELECT zk_unlock('/places/a');
:locks

-- a function that claims to be parallel safe: refused in a worker, and nothing is taken
-- from the leader
CREATE FUNCTION lock_in_worker() RETURNS boolean LANGUAGE plpgsql PARALLEL SAFE
AS $$ BEGIN RETURN zk_lock('/places/a'); END $$;
\set SHOW_CONTEXT never
SELECT lock_in_worker();
CREATE FUNCTION in_worker(call text) RETURNS boolean LANGUAGE plpgsql PARALLEL SAFE
AS $$ DECLARE result boolean; BEGIN EXECUTE 'SELECT ' || call INTO result; RETURN result; END $$;
SELECT in_worker($$zk_lock_shared('/places/a')$$);
SELECT in_worker($$zk_xact_lock_many('{/places/a}')$$);
SELECT in_worker($$zk_semaphore_acquire('/places/a', 1)$$);
SELECT in_worker($$zk_try_xact_lock_shared('/places/a')$$);
:locks
SELECT zk_unlock_all();
SELECT set_config(name, 'off', false) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SELECT lock_in_worker();
SELECT zk_unlock('/places/a');

DROP TABLE jobs, wide;
DROP FUNCTION lock_job(), deep(integer), lock_in_sql(text), lock_in_strict(text), lock_in_worker(), in_worker(text);
DROP PROCEDURE lock_in_procedure(text);
DROP EXTENSION zklock;
