--
-- zk_fence: only the latest holder of a lock may write.
--
CREATE EXTENSION zklock;
SET statement_timeout = '30s';
SELECT current_setting('zklock.root') AS root \gset

-- By default, the token of this session's lock
SELECT zk_lock('/fence/a');
SELECT zk_fence('/fence/a') = zk_lock_token('/fence/a') AS own;
SELECT path, token = zk_lock_token('/fence/a') AS own, recorded_at <= clock_timestamp() AS past
  FROM zk_fences WHERE path LIKE '%/fence/%';

-- again, and again in the same transaction: nothing is written
SELECT ctid AS before FROM zk_fences WHERE path = :'root' || '/fence/a' \gset
BEGIN;
SELECT zk_fence('/fence/a') = zk_fence(path => '/fence/a', token => NULL) AS same;
COMMIT;
SELECT ctid = :'before' AS unwritten FROM zk_fences WHERE path = :'root' || '/fence/a';

-- a later holder has a greater one
SELECT zk_lock_token('/fence/a') AS first \gset
SELECT zk_unlock('/fence/a');
SELECT zk_lock('/fence/a');
SELECT zk_fence('/fence/a') > :first AS greater;
SELECT zk_lock_token('/fence/a') AS second \gset
SELECT zk_unlock('/fence/a');

-- Tokens from elsewhere.  The numbers are ZooKeeper's: only comparisons are shown.
CREATE FUNCTION complaint(query text) RETURNS TABLE (state text, message text, detail text, hint text)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE query;
    state := '00000';
    RETURN NEXT;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
        detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RETURN NEXT;
END $$;

SELECT state, message, replace(replace(detail, :'first', '(first)'), :'second', '(second)') AS detail, hint
  FROM complaint(format('SELECT zk_fence(%L, %s)', '/fence/a', :first));
SELECT zk_fence('/fence/a', :second) = :second AS equal_passes;
SELECT zk_fence('/fence/a', :second + 1) = :second + 1 AS greater_passes;
SELECT state FROM complaint(format('SELECT zk_fence(%L, %s)', '/fence/a', :second));
-- paths are independent
SELECT zk_fence('/fence/b', 1), zk_fence('/fence/b', 9223372036854775807);
SELECT zk_fence('/fence/c', -9223372036854775808);
SELECT zk_fence('/fence/c', 0);
SELECT zk_fence('/fence/c', -1);

-- A rollback undoes it
BEGIN;
SELECT zk_fence('/fence/d', 10);
SAVEPOINT s;
SELECT zk_fence('/fence/d', 20);
ROLLBACK TO s;
SELECT zk_fence('/fence/d', 15);
ROLLBACK;
SELECT count(*) FROM zk_fences WHERE path = :'root' || '/fence/d';

-- Bad arguments
SELECT zk_fence(NULL);
SELECT zk_fence(NULL, 1);
SELECT zk_fence('fence', 1);
SELECT zk_fence('/fence/a/', 1);
SELECT zk_fence('/fence/none');
-- held, but no longer by this session
BEGIN; SELECT zk_xact_lock('/fence/x'); SELECT zk_fence('/fence/x') = zk_lock_token('/fence/x') AS own; COMMIT;
SELECT state, message, hint FROM complaint($$SELECT zk_fence('/fence/x')$$);

-- Not where nothing can be written
BEGIN READ ONLY;
SELECT zk_fence('/fence/a', 1);
ROLLBACK;

-- The path is the one in ZooKeeper, under the current root, wherever this session holds one
SET zklock.root = '/elsewhere';
SELECT zk_fence('/fence/a', 1);
SET zklock.root = '/';
SELECT zk_fence('/fence/a', 1);
RESET zklock.root;
SELECT zk_lock('/fence/e');
SET zklock.root = '/elsewhere';
SELECT zk_fence('/fence/e');
RESET zklock.root;
SELECT zk_fence('/fence/e') = zk_lock_token('/fence/e') AS own;
SELECT zk_unlock('/fence/e');
SELECT path FROM zk_fences WHERE path ~ '/fence/[ae]$' ORDER BY 1;

-- A path of 1000 bytes, and one with special characters
SELECT length(zk_fence('/fence/' || repeat('x', 993), 1)::text);
SELECT zk_fence('/fence/' || repeat('x', 994), 1);
SELECT zk_fence(U&'/fence/\00e4 %_''"\\', 5);
SELECT path FROM zk_fences WHERE token = 5;

-- Privileges: nobody may write the table, and zk_fence ignores what the caller
-- has put first in search_path
CREATE ROLE regress_zk_fence;
CREATE SCHEMA regress_zk_trap AUTHORIZATION regress_zk_fence;
SET ROLE regress_zk_fence;
SELECT zk_fence('/fence/a', 1);
RESET ROLE;
GRANT EXECUTE ON FUNCTION zk_fence(text, bigint) TO regress_zk_fence;
SET ROLE regress_zk_fence;
SELECT count(*) FROM zk_fences;
INSERT INTO zk_fences VALUES ('/zklock_regress/fence/a', 1);
DELETE FROM zk_fences;
DO $$
DECLARE
    statement text;
    refused integer := 0;
BEGIN
    FOREACH statement IN ARRAY ARRAY[
        'UPDATE zk_fences SET token = 1', 'TRUNCATE zk_fences', 'SELECT * FROM zk_fences FOR UPDATE',
        'LOCK zk_fences IN SHARE MODE', 'DROP TABLE zk_fences', 'ALTER TABLE zk_fences DISABLE TRIGGER ALL',
        'CREATE RULE r AS ON INSERT TO zk_fences DO INSTEAD NOTHING',
        'CREATE TRIGGER t BEFORE UPDATE ON zk_fences EXECUTE FUNCTION suppress_redundant_updates_trigger()',
        'MERGE INTO zk_fences f USING (SELECT 1) s ON true WHEN MATCHED THEN DELETE',
        'CREATE OR REPLACE FUNCTION zk_fence(path text, token bigint DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $f$ SELECT 1 $f$']
    LOOP
        BEGIN
            EXECUTE statement;
            RAISE NOTICE 'passes: %', statement;
        EXCEPTION WHEN insufficient_privilege THEN
            refused := refused + 1;
        END;
    END LOOP;
    RAISE NOTICE '% more are refused', refused;
END $$;

-- Objects of the caller that hide what zk_fence uses
CREATE TABLE regress_zk_trap.zk_fences (path text PRIMARY KEY, token bigint, recorded_at timestamptz);
CREATE TEMP TABLE zk_fences (path text PRIMARY KEY, token bigint);
CREATE FUNCTION regress_zk_trap.greatest(bigint, bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a trap'; END $$;
CREATE FUNCTION regress_zk_trap.zk_lock_token(text) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a trap'; END $$;
CREATE FUNCTION regress_zk_trap.current_setting(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a trap'; END $$;
DO $$
DECLARE
    type text;
    op text;
    n integer := 0;
BEGIN
    FOREACH type IN ARRAY ARRAY['bigint', 'text'] LOOP
        FOREACH op IN ARRAY ARRAY['<', '<=', '>', '>=', '=', '<>'] LOOP
            n := n + 1;
            EXECUTE format('CREATE FUNCTION regress_zk_trap.op_%1$s(%2$s, %2$s) RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN RAISE EXCEPTION $m$a trap$m$; END $f$', n, type);
            EXECUTE format('CREATE OPERATOR regress_zk_trap.%3$s (LEFTARG = %2$s, RIGHTARG = %2$s, FUNCTION = regress_zk_trap.op_%1$s)', n, type, op);
        END LOOP;
    END LOOP;
END $$;
CREATE DOMAIN regress_zk_trap.bigint AS pg_catalog.int8 CHECK (VALUE IS NULL);
CREATE DOMAIN regress_zk_trap.text AS pg_catalog.text CHECK (VALUE IS NULL);
SET search_path = regress_zk_trap, pg_temp, public, pg_catalog;
SELECT public.zk_fence('/fence/t'::pg_catalog.text, '1'::pg_catalog.int8);
SET search_path = pg_temp, regress_zk_trap, pg_catalog, public;
SELECT public.zk_fence('/fence/t'::pg_catalog.text, '2'::pg_catalog.int8);
SET search_path = regress_zk_trap;
SELECT public.zk_fence('/fence/t'::pg_catalog.text, '3'::pg_catalog.int8);
SELECT public.zk_fence('/fence/t'::pg_catalog.text, '1'::pg_catalog.int8);
SHOW search_path;
SELECT count(*) FROM regress_zk_trap.zk_fences;
SELECT count(*) FROM pg_temp.zk_fences;
RESET search_path;
RESET ROLE;
DROP OWNED BY regress_zk_fence;
DROP ROLE regress_zk_fence;
SELECT token FROM zk_fences WHERE path LIKE '%/fence/t';

-- The function may be dropped while a statement runs, as by an update script.
-- Then the table's schema is unknown, and the caller's own table is not used.
BEGIN;
CREATE TEMP TABLE zk_fences (path text PRIMARY KEY, token bigint, recorded_at timestamptz DEFAULT now());
CREATE FUNCTION pg_temp.trap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a trap runs as %', current_user;
END $$;
CREATE TRIGGER trap BEFORE INSERT ON pg_temp.zk_fences FOR EACH ROW EXECUTE FUNCTION pg_temp.trap();
CREATE FUNCTION pg_temp.drop_it() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    ALTER EXTENSION zklock DROP FUNCTION public.zk_fence(text, bigint);
    DROP FUNCTION public.zk_fence(text, bigint);
    RETURN 0;
END $$;
\set SHOW_CONTEXT never
SELECT CASE WHEN i = 2 THEN pg_temp.drop_it() ELSE public.zk_fence('/fence/dropped', 1) END
  FROM generate_series(1, 3) AS i;
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;

-- Nor is a table used that somebody else has put there
BEGIN;
ALTER EXTENSION zklock DROP TABLE zk_fences;
DROP TABLE zk_fences;
SAVEPOINT none;
SELECT zk_fence('/fence/a', 1);
ROLLBACK TO none;
CREATE TABLE public.zk_fences (path text PRIMARY KEY, token bigint, recorded_at timestamptz DEFAULT now());
CREATE ROLE regress_zk_other;
ALTER TABLE zk_fences OWNER TO regress_zk_other;
SELECT zk_fence('/fence/a', 1);
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
\set SHOW_CONTEXT errors

-- The table is part of the extension, and its contents are dumped
SELECT extconfig::regclass[], extcondition FROM pg_extension WHERE extname = 'zklock';

-- In a schema of another name
BEGIN;
DROP FUNCTION complaint;
DROP EXTENSION zklock;
CREATE SCHEMA "Odd "" Schema";
CREATE EXTENSION zklock SCHEMA "Odd "" Schema";
ROLLBACK;
BEGIN;
DROP EXTENSION zklock;
CREATE SCHEMA "Odd Schema";
CREATE EXTENSION zklock SCHEMA "Odd Schema";
SELECT "Odd Schema".zk_fence('/fence/a', 1);
SELECT path, token FROM "Odd Schema".zk_fences;
ROLLBACK;

DROP FUNCTION complaint;
DROP EXTENSION zklock;
