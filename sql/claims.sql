--
-- zk_claim, zk_last_claim and zk_claim_forget, as far as one session can see
-- (t/094_claims.pl has several).
--
CREATE EXTENSION zklock;
SET statement_timeout = '30s';
SET timezone = 'UTC';
\set last 'SELECT period, state FROM zk_last_claim(''/claims/a'');'

-- marks outlive everybody: those of an earlier run of this test, too
SELECT bool_and(zk_claim_forget(path) IS NOT NULL) AS afresh
  FROM unnest(ARRAY['/claims/a', '/claims/a/b', '/claims/b', '/claims/c', '/claims/d', '/claims/e', '/claims/f']) path;

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

--
-- Each period once
--
SELECT * FROM zk_last_claim('/claims/a');
SELECT zk_claim('/claims/a', '2026-01-01 00:00');
SELECT period, state, since BETWEEN now() - interval '1 minute' AND now() AS since, host IS NOT NULL AS host,
       datname = current_database() AS datname,
       system_identifier = (SELECT system_identifier FROM pg_control_system()) AS system_identifier, transaction_id
  FROM zk_last_claim('/claims/a');
SELECT zk_claim('/claims/a', '2026-01-01 00:00');
SELECT zk_claim('/claims/a', '2025-12-31 23:59');
SELECT zk_claim('/claims/a', '2026-01-01 00:01');
:last
-- nothing is left of the locks
SELECT path, mode, scope, count, state FROM zk_locks;
SELECT count(*) FROM zk_lock_queue('/claims/a');

-- all ways to call it
SELECT zk_claim('/claims/b', '2026-01-01', '10 seconds'), zk_claim('/claims/c', '2026-01-01', NULL), zk_claim('/claims/d', '2026-01-01', '0');
SELECT zk_claim(timeout => '10 seconds', period => '2026-01-02', path => '/claims/b'), zk_claim(path => '/claims/c', period => '2026-01-02');
SELECT zk_claim('/claims/d', '4714-11-24 00:00:00 BC'), zk_claim('/claims/d', '294276-12-31 23:59:59.999999');
SELECT period, state FROM zk_last_claim(path => '/claims/d');

-- the lock is held until the end of the transaction, by the claim
BEGIN;
SELECT zk_claim('/claims/a', '2026-01-01 00:02');
SELECT path, mode, scope, count, state FROM zk_locks;
SELECT mode, granted FROM zk_lock_queue('/claims/a');
-- not written before the commit
:last
COMMIT;
:last

-- a claim that is refused holds nothing
BEGIN;
SELECT zk_claim('/claims/a', '2026-01-01 00:02');
SELECT count(*) FROM zk_locks;
COMMIT;
BEGIN;
SELECT zk_xact_lock('/claims/a'), zk_lock('/claims/a');
SELECT zk_claim('/claims/a', '2026-01-01 00:02');
SELECT path, mode, scope, count, state FROM zk_locks ORDER BY scope;
COMMIT;
SELECT zk_unlock('/claims/a');

--
-- The end of a transaction
--
BEGIN;
SELECT zk_claim('/claims/a', '2026-01-01 00:03');
ROLLBACK;
:last
SELECT zk_claim('/claims/a', '2026-01-01 00:03');
:last

-- after the mark was written: by a deferred constraint it is not yet, since those come first
CREATE TABLE once (i integer, UNIQUE (i) DEFERRABLE INITIALLY DEFERRED);
BEGIN;
INSERT INTO once VALUES (1), (1);
SELECT zk_claim('/claims/a', '2026-01-01 00:04');
\set VERBOSITY sqlstate
COMMIT;
\set VERBOSITY default
:last

-- a deferred trigger may claim
CREATE FUNCTION claim_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE '%', zk_claim('/claims/a', '2026-01-01 00:04');
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON once DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION claim_late();
INSERT INTO once VALUES (1);
:last
-- the transaction that wrote says which it was
SELECT pg_xact_status(transaction_id) FROM zk_last_claim('/claims/a');

-- COMMIT in a procedure
CREATE PROCEDURE steps() LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE 'first: %', zk_claim('/claims/a', '2026-01-01 00:05');
    COMMIT;
    RAISE NOTICE 'held: %, state: %', (SELECT count(*) FROM zk_locks), (SELECT state FROM zk_last_claim('/claims/a'));
    RAISE NOTICE 'again: %', zk_claim('/claims/a', '2026-01-01 00:05');
    RAISE NOTICE 'second: %', zk_claim('/claims/a', '2026-01-01 00:06');
    ROLLBACK;
    RAISE NOTICE 'third: %', zk_claim('/claims/a', '2026-01-01 00:06');
END $$;
CALL steps();
:last

--
-- Several claims in one transaction
--
BEGIN;
SELECT zk_claim('/claims/a', '2026-01-01 00:08');
SELECT zk_claim('/claims/a', '2026-01-01 00:08') AS same, zk_claim('/claims/a', '2026-01-01 00:07') AS earlier,
       zk_claim('/claims/a', '2026-01-01 00:09') AS later;
SELECT zk_claim('/claims/a', '2026-01-01 00:08') AS no_longer;
SELECT zk_claim('/claims/a/b', '2026-01-01'), zk_claim('/claims/e', '2026-01-01');
COMMIT;
:last
SELECT period, state FROM zk_last_claim('/claims/a/b');
SELECT period, state FROM zk_last_claim('/claims/e');

--
-- Subtransactions
--
BEGIN;
SAVEPOINT s;
SELECT zk_claim('/claims/a', '2026-01-01 00:10');
ROLLBACK TO s;
SELECT count(*) FROM zk_locks;
COMMIT;
:last
BEGIN;
SELECT zk_claim('/claims/a', '2026-01-01 00:10');
SAVEPOINT s;
SELECT zk_claim('/claims/a', '2026-01-01 00:12');
ROLLBACK TO s;
SELECT zk_claim('/claims/a', '2026-01-01 00:11');
SAVEPOINT t;
SELECT zk_claim('/claims/a', '2026-01-01 00:11') AS same, zk_claim('/claims/a', '2026-01-01 00:13');
RELEASE t;
SAVEPOINT u;
SELECT zk_claim('/claims/a', '2026-01-01 00:14');
ROLLBACK TO u;
COMMIT;
:last
BEGIN;
SAVEPOINT s;
SAVEPOINT t;
SELECT zk_claim('/claims/a', '2026-01-01 00:14');
RELEASE t;
RELEASE s;
COMMIT;
:last
DO $$
BEGIN
    BEGIN
        PERFORM zk_claim('/claims/a', '2026-01-01 00:15');
        RAISE division_by_zero;
    EXCEPTION WHEN division_by_zero THEN
    END;
END $$;
:last

--
-- Beside other holds
--
SELECT zk_lock('/claims/a'), zk_lock_shared('/claims/b');
SELECT zk_claim('/claims/a', '2026-01-01 00:15');
:last
SELECT zk_claim('/claims/a', '2026-01-01 00:15');
BEGIN;
SELECT zk_claim('/claims/a', '2026-01-01 00:16'), zk_claim('/claims/b', '2026-01-03');
ROLLBACK;
:last
BEGIN;
SELECT zk_claim('/claims/a', '2026-01-01 00:16'), zk_claim('/claims/b', '2026-01-03');
-- what was held before can be given back
SELECT zk_unlock('/claims/a');
COMMIT;
:last
SELECT period, state FROM zk_last_claim('/claims/b');
SELECT path, mode, scope, count, state FROM zk_locks;
SELECT zk_unlock_all();

-- the exclusive lock becomes a shared one
BEGIN;
SELECT zk_claim('/claims/a', '2026-01-01 00:17');
SELECT zk_lock_shared('/claims/a');
COMMIT;
:last
SELECT path, mode, scope, count, state FROM zk_locks;
SELECT zk_unlock_all();

--
-- Without a guard, and read only
--
SET zklock.commit_guard = off;
SELECT zk_claim('/claims/a', '2026-01-01 00:18');
SET zklock.commit_guard = strict;
SELECT zk_claim('/claims/a', '2026-01-01 00:19');
RESET zklock.commit_guard;
:last
BEGIN READ ONLY;
SELECT zk_claim('/claims/a', '2026-01-01 00:20');
COMMIT;
:last
BEGIN;
SELECT zk_claim('/claims/a', '2026-01-01 00:21');
\set VERBOSITY sqlstate
PREPARE TRANSACTION 'claims';
\set VERBOSITY default
:last

-- without saying who it is
SET zklock.publish_identity = off;
SELECT zk_claim('/claims/a', '2026-01-01 00:22');
RESET zklock.publish_identity;
SELECT period, host IS NULL AS host, datname IS NULL AS datname, system_identifier IS NOT NULL AS system_identifier
  FROM zk_last_claim('/claims/a');

-- one lock may have two names, of which each has claims of its own
SELECT current_setting('zklock.root') || '/claims' AS below \gset
BEGIN;
SELECT zk_claim('/claims/f', '2026-01-01');
SET LOCAL zklock.root = :'below';
SELECT state, message, detail FROM complaint('SELECT zk_claim(''/f'', ''2026-01-01'')');
COMMIT;
BEGIN;
SELECT zk_xact_lock('/claims/f');
SET LOCAL zklock.root = :'below';
SELECT zk_claim('/f', '2026-01-02');
COMMIT;
SELECT period FROM zk_last_claim('/claims/f');
SET zklock.root = :'below';
SELECT period FROM zk_last_claim('/f');
SELECT zk_claim_forget('/f');
RESET zklock.root;

--
-- Forgetting
--
SELECT zk_claim_forget('/claims/a'), zk_claim_forget('/claims/a') AS again, zk_claim_forget('/claims/none') AS none;
SELECT * FROM zk_last_claim('/claims/a');
SELECT zk_claim('/claims/a', '2026-01-01 00:00');
BEGIN;
SELECT zk_claim('/claims/a', '2026-01-01 00:01');
SELECT zk_claim_forget('/claims/a');
COMMIT;
SELECT * FROM zk_last_claim('/claims/a');

--
-- All claims below a path
--
BEGIN;
SELECT zk_claim('/claims/tree', '2026-01-01'), zk_claim('/claims/tree/b/c', '2026-01-02'), zk_claim('/claims/tree2', '2026-01-03');
COMMIT;
-- each waits until what this session has written is final
SELECT known, state FROM unnest(ARRAY['/claims/tree', '/claims/tree/b/c']) AS known, zk_last_claim(known);
SELECT path, c.period, c.state, c.transaction_id IS NULL AS nothing_written,
       (c.since, c.host, c.datname, c.system_identifier) = (l.since, l.host, l.datname, l.system_identifier) AS same
  FROM unnest(ARRAY['/claims/tree', '/claims/tree/b/c']) AS known, zk_last_claim(known) AS l, zk_claims('/claims/tree') AS c
 WHERE path = known ORDER BY path;
SELECT path FROM zk_claims('/claims/tree') ORDER BY path;
SELECT path FROM zk_claims('/claims/tree/b');
SELECT path FROM zk_claims('/claims/none');
SELECT count(*) FILTER (WHERE path = '/claims/tree/b/c') AS c, count(*) FILTER (WHERE path = '/claims/tree/b') AS b FROM zk_claims();
SELECT state, message FROM complaint('SELECT zk_claims(NULL)');
SELECT state, message FROM complaint('SELECT zk_claims(''claims'')');
SELECT zk_claim_forget('/claims/tree'), zk_claim_forget('/claims/tree/b/c'), zk_claim_forget('/claims/tree2');
SELECT path FROM zk_claims('/claims/tree');

-- the marks are no locks
SELECT path FROM zk_lock_paths();
SELECT state, message, detail FROM complaint('SELECT zk_lock(''/__zklock_claims__/claims/a'')');

--
-- Bad input
--
SELECT state, message, detail, hint
  FROM unnest(ARRAY['SELECT zk_claim(NULL, now())', 'SELECT zk_claim(''/claims/a'', NULL)',
                    'SELECT zk_claim(''/claims/a'', ''infinity'')', 'SELECT zk_claim(''/claims/a'', ''-infinity'')',
                    'SELECT zk_claim(''/claims/a'', now(), ''-1 s'')', 'SELECT zk_claim(''a'', now())',
                    'SELECT zk_last_claim(NULL)', 'SELECT zk_last_claim(''a'')',
                    'SELECT zk_claim_forget(NULL)', 'SELECT zk_claim_forget(''/'')']) q, complaint(q);
SELECT count(*) FROM zk_locks;
SELECT bool_and(zk_claim_forget(path) IS NOT NULL) AS forgotten
  FROM unnest(ARRAY['/claims/a', '/claims/a/b', '/claims/b', '/claims/c', '/claims/d', '/claims/e', '/claims/f']) path;
DROP TABLE once;
DROP PROCEDURE steps;
DROP FUNCTION claim_late, complaint;
DROP EXTENSION zklock;
