/* zklock--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION zklock" to load this file. \quit

--
-- Taking a lock
--
-- COST 10000: a function that may ask ZooKeeper takes a round trip or a wait,
-- and mostly leaves a lock behind.  A cheaper filter in WHERE should run first.
--

CREATE FUNCTION zk_lock(path text, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_lock'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_lock(text, interval) IS
'take the exclusive lock for the session; waits up to timeout (NULL: without limit, 0: not at all), false if somebody else was ahead all the time; 40P01 in a deadlock';

CREATE FUNCTION zk_xact_lock(path text, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_xact_lock'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_xact_lock(text, interval) IS
'take the exclusive lock for the transaction; waits up to timeout (NULL: without limit, 0: not at all), false if somebody else was ahead all the time; 40P01 in a deadlock';

CREATE FUNCTION zk_try_lock(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_lock'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_try_lock(text) IS
'take the exclusive lock for the session if nobody else holds the lock or waits for it';

CREATE FUNCTION zk_try_xact_lock(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_xact_lock'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_try_xact_lock(text) IS
'take the exclusive lock for the transaction if nobody else holds the lock or waits for it';

CREATE FUNCTION zk_lock_shared(path text, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_lock_shared'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_lock_shared(text, interval) IS
'take the shared lock for the session; waits up to timeout (NULL: without limit, 0: not at all), false if a writer was ahead all the time; 40P01 in a deadlock';

CREATE FUNCTION zk_xact_lock_shared(path text, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_xact_lock_shared'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_xact_lock_shared(text, interval) IS
'take the shared lock for the transaction; waits up to timeout (NULL: without limit, 0: not at all), false if a writer was ahead all the time; 40P01 in a deadlock';

CREATE FUNCTION zk_try_lock_shared(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_lock_shared'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_try_lock_shared(text) IS
'take the shared lock for the session if no writer holds the lock or waits for it';

CREATE FUNCTION zk_try_xact_lock_shared(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_xact_lock_shared'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_try_xact_lock_shared(text) IS
'take the shared lock for the transaction if no writer holds the lock or waits for it';

CREATE FUNCTION zk_lock_all(paths text[], timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_lock_all'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_lock_all(text[], interval) IS
'take the exclusive locks of all these paths, or none, for the session; waits up to timeout (NULL: without limit, 0: not at all), false if somebody else was ahead at one of them all the time; 54000 if there are too many, 40P01 in a deadlock';

CREATE FUNCTION zk_xact_lock_all(paths text[], timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_xact_lock_all'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_xact_lock_all(text[], interval) IS
'take the exclusive locks of all these paths, or none, for the transaction; waits up to timeout (NULL: without limit, 0: not at all), false if somebody else was ahead at one of them all the time; 54000 if there are too many, 40P01 in a deadlock';

CREATE FUNCTION zk_semaphore_acquire(path text, permits integer, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_semaphore_acquire'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_semaphore_acquire(text, integer, interval) IS
'take a place of a semaphore with that many permits (at least 1) for the session; waits up to timeout (NULL: without limit, 0: not at all), false if no place became free; 40P01 in a deadlock';

CREATE FUNCTION zk_xact_semaphore_acquire(path text, permits integer, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_xact_semaphore_acquire'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_xact_semaphore_acquire(text, integer, interval) IS
'take a place of a semaphore with that many permits (at least 1) for the transaction; waits up to timeout (NULL: without limit, 0: not at all), false if no place became free; 40P01 in a deadlock';

CREATE PROCEDURE zk_acquire(path text, timeout interval DEFAULT NULL, shared boolean DEFAULT false)
AS 'MODULE_PATHNAME', 'zk_acquire'
LANGUAGE C;

COMMENT ON PROCEDURE zk_acquire(text, interval, boolean) IS
'acquire session-level lock or fail, waiting without a snapshot';

CREATE PROCEDURE zk_xact_acquire(path text, timeout interval DEFAULT NULL, shared boolean DEFAULT false)
AS 'MODULE_PATHNAME', 'zk_xact_acquire'
LANGUAGE C;

COMMENT ON PROCEDURE zk_xact_acquire(text, interval, boolean) IS
'acquire transaction-level lock or fail, waiting without a snapshot';

--
-- Claiming a period
--

CREATE FUNCTION zk_claim(path text, period timestamptz, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_claim'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_claim(text, timestamptz, interval) IS
'take the exclusive lock for the transaction, and this period, which no other transaction then gets that commits; false if that or a later one was claimed, or somebody else was ahead for the whole timeout (NULL: without limit, 0: not at all); 40P01 in a deadlock';

CREATE FUNCTION zk_last_claim(
    path text,
    OUT period timestamptz,
    OUT state text,
    OUT since timestamptz,
    OUT host text,
    OUT database text,
    OUT system_identifier bigint,
    OUT transaction_id xid8)
RETURNS record
AS 'MODULE_PATHNAME', 'zk_last_claim'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_last_claim(text) IS
'the latest period of that path that was claimed, and whose transaction it is; while the state is pending, that has not told yet whether it committed; NULLs if there is none';

CREATE FUNCTION zk_claim_forget(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_claim_forget'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_claim_forget(text) IS
'forget the latest claim of that path, so that its periods can be claimed again; false if there is none';

--
-- Releasing a lock
--

CREATE FUNCTION zk_unlock(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_unlock'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_unlock(text) IS
'release the session''s latest hold of the exclusive lock; false with a warning if there is none, or if the lock was lost';

CREATE FUNCTION zk_unlock_shared(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_unlock_shared'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_unlock_shared(text) IS
'release the session''s latest hold of the shared lock; false with a warning if there is none, or if the lock was lost';

CREATE FUNCTION zk_semaphore_release(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_semaphore_release'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_semaphore_release(text) IS
'release the session''s latest hold of a place of a semaphore; false with a warning if there is none, or if the place was lost';

CREATE FUNCTION zk_unlock_all()
RETURNS integer
AS 'MODULE_PATHNAME', 'zk_unlock_all'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_unlock_all() IS
'release all session-scope holds of this session, semaphores included; returns how many, not counting lost ones';

--
-- Looking at locks
--

CREATE FUNCTION zk_lock_token(path text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'zk_lock_token'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zk_lock_token(text) IS
'the fencing token of this session''s exclusive hold, or else of its shared one: greater than that of every earlier holder that it excludes; NULL if the lock is not held, or is lost';

CREATE TABLE zk_fences (
    path text COLLATE pg_catalog."C" PRIMARY KEY,
    token bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE zk_fences IS
'the greatest fencing token that zk_fence has recorded in this database for each lock path (including zklock.root)';

-- a restored database must not forget the tokens that it has seen
SELECT pg_catalog.pg_extension_config_dump('zk_fences', '');

CREATE FUNCTION zk_fence(path text, token bigint DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'zk_fence'
LANGUAGE C VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp;

COMMENT ON FUNCTION zk_fence(text, bigint) IS
'let only the latest holder of a lock write to this database: record its fencing token (NULL: that of this session''s exclusive lock), and fail if a greater one has already been recorded';

CREATE FUNCTION zk_fences_merge()
RETURNS trigger
AS 'MODULE_PATHNAME', 'zk_fences_merge'
LANGUAGE C VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp;

COMMENT ON FUNCTION zk_fences_merge() IS
'for the triggers of zk_fences: what logical replication brings there may raise a token, and not lower or remove one';

CREATE TRIGGER merge_row BEFORE INSERT OR UPDATE OR DELETE ON zk_fences
    FOR EACH ROW EXECUTE FUNCTION zk_fences_merge();
CREATE TRIGGER before_truncate BEFORE TRUNCATE ON zk_fences
    FOR EACH STATEMENT EXECUTE FUNCTION zk_fences_merge();
CREATE TRIGGER after_truncate AFTER TRUNCATE ON zk_fences
    FOR EACH STATEMENT EXECUTE FUNCTION zk_fences_merge();

-- elsewhere they neither cost anything nor keep the owner from emptying the table
ALTER TABLE zk_fences ENABLE REPLICA TRIGGER merge_row;
ALTER TABLE zk_fences ENABLE REPLICA TRIGGER before_truncate;
ALTER TABLE zk_fences ENABLE REPLICA TRIGGER after_truncate;

CREATE FUNCTION zk_lock_status(
    OUT path text,
    OUT root text,
    OUT mode text,
    OUT scope text,
    OUT count bigint,
    OUT state text,
    OUT token bigint,
    OUT node text,
    OUT acquired_at timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'zk_lock_status'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED ROWS 10;

COMMENT ON FUNCTION zk_lock_status() IS
'the locks that this session holds; use the view zk_locks';

CREATE VIEW zk_locks AS
    SELECT * FROM zk_lock_status();

COMMENT ON VIEW zk_locks IS
'the ZooKeeper locks that this session holds';

CREATE FUNCTION zk_lock_queue(
    path text,
    OUT "position" integer,
    OUT kind text,
    OUT mode text,
    OUT granted boolean,
    OUT token bigint,
    OUT zk_session text,
    OUT since timestamptz,
    OUT node text,
    OUT host text,
    OUT port integer,
    OUT cluster_name text,
    OUT pid integer,
    OUT database text,
    OUT "user" text,
    OUT application_name text,
    OUT data text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'zk_lock_queue'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000 ROWS 10;

COMMENT ON FUNCTION zk_lock_queue(text) IS
'everybody who holds a lock or waits for it, whatever client they use, in order; then the same for the semaphore of that path';

CREATE FUNCTION zk_lock_paths(
    prefix text DEFAULT '/',
    OUT path text,
    OUT kind text,
    OUT contenders integer,
    OUT holders integer,
    OUT oldest_since timestamptz,
    OUT zk_session text,
    OUT host text,
    OUT port integer,
    OUT cluster_name text,
    OUT pid integer,
    OUT database text,
    OUT "user" text,
    OUT application_name text,
    OUT data text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'zk_lock_paths'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000 ROWS 100;

COMMENT ON FUNCTION zk_lock_paths(text) IS
'every lock and semaphore at this path or below it that somebody holds or waits for, on whatever server, and who has been there longest';

CREATE FUNCTION zk_lock_break(path text, node text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_lock_break'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_lock_break(text, text) IS
'take a lock, or a place in its queue, away from whoever has it, by deleting the node that zk_lock_queue shows; false if it was already gone';

CREATE FUNCTION zk_session_status(
    OUT state text,
    OUT session_id text,
    OUT hosts text,
    OUT server text,
    OUT session_timeout interval,
    OUT last_heard timestamptz,
    OUT requests bigint,
    OUT waits bigint,
    OUT timeouts bigint,
    OUT deadlock_checks bigint,
    OUT deadlocks bigint,
    OUT reconnections bigint,
    OUT losses bigint,
    OUT unreleased integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'zk_session_status'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED ROWS 1;

COMMENT ON FUNCTION zk_session_status() IS
'the ZooKeeper session of this backend; use the view zk_session';

CREATE VIEW zk_session AS
    SELECT * FROM zk_session_status();

COMMENT ON VIEW zk_session IS
'the ZooKeeper session of this backend: one row';

CREATE FUNCTION zk_server_lock_status(
    OUT pid integer,
    OUT database text,
    OUT role text,
    OUT path text,
    OUT root text,
    OUT mode text,
    OUT scope text,
    OUT count bigint,
    OUT granted boolean,
    OUT state text,
    OUT token bigint,
    OUT acquired_at timestamptz,
    OUT waiting_since timestamptz,
    OUT more integer,
    OUT zk_session text,
    OUT session_state text,
    OUT requests bigint,
    OUT waits bigint,
    OUT timeouts bigint,
    OUT deadlock_checks bigint,
    OUT deadlocks bigint,
    OUT reconnections bigint,
    OUT losses bigint,
    OUT unreleased integer)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'zk_server_lock_status'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED ROWS 100;

COMMENT ON FUNCTION zk_server_lock_status() IS
'the locks of all backends of this server; use the view zk_server_locks';

CREATE VIEW zk_server_locks AS
    SELECT * FROM zk_server_lock_status();

COMMENT ON VIEW zk_server_locks IS
'what each backend of this server that has used ZooKeeper holds and waits for; those of other roles only for members of pg_read_all_stats';

-- zk_fences is public because pg_dump reads it, as the owner of the database
GRANT SELECT ON zk_locks, zk_session, zk_server_locks, zk_fences TO PUBLIC;

--
-- A lock reaches other databases and machines, so the administrator decides who
-- may take one.  Two of the views show a session only its own state; the third
-- checks rights for each row.
--

REVOKE ALL ON FUNCTION zk_lock(text, interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_xact_lock(text, interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_try_lock(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_try_xact_lock(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_lock_shared(text, interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_xact_lock_shared(text, interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_try_lock_shared(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_try_xact_lock_shared(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_lock_all(text[], interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_xact_lock_all(text[], interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_semaphore_acquire(text, integer, interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_xact_semaphore_acquire(text, integer, interval) FROM PUBLIC;
REVOKE ALL ON PROCEDURE zk_acquire(text, interval, boolean) FROM PUBLIC;
REVOKE ALL ON PROCEDURE zk_xact_acquire(text, interval, boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_claim(text, timestamptz, interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_last_claim(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_claim_forget(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_unlock(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_unlock_shared(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_semaphore_release(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_unlock_all() FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_lock_token(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_fence(text, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_fences_merge() FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_lock_queue(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_lock_paths(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_lock_break(text, text) FROM PUBLIC;
