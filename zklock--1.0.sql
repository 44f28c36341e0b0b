/* zklock--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION zklock" to load this file. \quit

--
-- Taking a lock
--
-- COST 10000: what may ask ZooKeeper takes a round trip, or a wait, and mostly
-- leaves a lock behind.  A filter beside it in WHERE is to run first.
--

CREATE FUNCTION zk_lock(path text, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_lock'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_lock(text, interval) IS
'take an exclusive lock until zk_unlock or the end of the session; waits up to timeout (NULL: without limit, 0: not at all), false if somebody else held it all the time; 40P01 over an own shared lock that a waiter waits for';

CREATE FUNCTION zk_xact_lock(path text, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_xact_lock'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_xact_lock(text, interval) IS
'take an exclusive lock until the end of the transaction; waits up to timeout (NULL: without limit, 0: not at all), false if somebody else held it all the time; 40P01 over an own shared lock that a waiter waits for';

CREATE FUNCTION zk_try_lock(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_lock'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_try_lock(text) IS
'take an exclusive lock until zk_unlock or the end of the session if nobody else holds it or waits for it';

CREATE FUNCTION zk_try_xact_lock(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_xact_lock'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_try_xact_lock(text) IS
'take an exclusive lock until the end of the transaction if nobody else holds it or waits for it';

CREATE FUNCTION zk_lock_shared(path text, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_lock_shared'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_lock_shared(text, interval) IS
'take a shared lock until zk_unlock_shared or the end of the session; waits up to timeout (NULL: without limit, 0: not at all), false if somebody else held it exclusively, or waited for that before, all the time';

CREATE FUNCTION zk_xact_lock_shared(path text, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_xact_lock_shared'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_xact_lock_shared(text, interval) IS
'take a shared lock until the end of the transaction; waits up to timeout (NULL: without limit, 0: not at all), false if somebody else held it exclusively, or waited for that before, all the time';

CREATE FUNCTION zk_try_lock_shared(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_lock_shared'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_try_lock_shared(text) IS
'take a shared lock until zk_unlock_shared or the end of the session if nobody else holds the exclusive lock or waits for it';

CREATE FUNCTION zk_try_xact_lock_shared(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_xact_lock_shared'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_try_xact_lock_shared(text) IS
'take a shared lock until the end of the transaction if nobody else holds the exclusive lock or waits for it';

CREATE FUNCTION zk_lock_all(paths text[], timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_lock_all'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_lock_all(text[], interval) IS
'take the exclusive locks of all these paths, or none, until zk_unlock or the end of the session; waits up to timeout (NULL: without limit, 0: not at all), false if somebody else held one of them all the time; 54000 for too many, 40P01 as zk_lock';

CREATE FUNCTION zk_xact_lock_all(paths text[], timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_xact_lock_all'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_xact_lock_all(text[], interval) IS
'take the exclusive locks of all these paths, or none, until the end of the transaction; waits up to timeout (NULL: without limit, 0: not at all), false if somebody else held one of them all the time; 54000 for too many, 40P01 as zk_lock';

CREATE FUNCTION zk_semaphore_acquire(path text, permits integer, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_semaphore_acquire'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_semaphore_acquire(text, integer, interval) IS
'take one of so many places (at least 1) until zk_semaphore_release or the end of the session; waits up to timeout (NULL: without limit, 0: not at all), false if all were taken all the time';

CREATE FUNCTION zk_xact_semaphore_acquire(path text, permits integer, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_xact_semaphore_acquire'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_xact_semaphore_acquire(text, integer, interval) IS
'take one of so many places (at least 1) until the end of the transaction; waits up to timeout (NULL: without limit, 0: not at all), false if all were taken all the time';

--
-- Giving it back
--

CREATE FUNCTION zk_unlock(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_unlock'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_unlock(text) IS
'give the latest session-scope hold of an exclusive lock back; false with a warning if there is none, or if it was lost';

CREATE FUNCTION zk_unlock_shared(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_unlock_shared'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_unlock_shared(text) IS
'give the latest session-scope hold of a shared lock back; false with a warning if there is none, or if it was lost';

CREATE FUNCTION zk_semaphore_release(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_semaphore_release'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_semaphore_release(text) IS
'give the latest session-scope hold of a place of a semaphore back; false with a warning if there is none, or if it was lost';

CREATE FUNCTION zk_unlock_all()
RETURNS integer
AS 'MODULE_PATHNAME', 'zk_unlock_all'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_unlock_all() IS
'give all session-scope holds of this session back, of locks and semaphores; returns how many, lost ones not counted';

--
-- Looking
--

CREATE FUNCTION zk_lock_token(path text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'zk_lock_token'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zk_lock_token(text) IS
'the fencing token of a lock that this session holds, of the exclusive hold if there is one: greater than that of every earlier holder that it excludes; NULL if not held or lost';

CREATE TABLE zk_fences (
    path text COLLATE pg_catalog."C" PRIMARY KEY,
    token bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE zk_fences IS
'the greatest fencing token that has passed zk_fence in this database, for each lock path (with zklock.root in front)';

-- what it has seen is data: a restored database must not forget it
SELECT pg_catalog.pg_extension_config_dump('zk_fences', '');

CREATE FUNCTION zk_fence(path text, token bigint DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'zk_fence'
LANGUAGE C VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp;

COMMENT ON FUNCTION zk_fence(text, bigint) IS
'let only the latest holder of a lock write in this database: record its fencing token (NULL: that of this session''s exclusive lock), fail if a greater one was here before';

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
    OUT pid integer,
    OUT database text,
    OUT "user" text,
    OUT application_name text,
    OUT data text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'zk_lock_queue'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000 ROWS 10;

COMMENT ON FUNCTION zk_lock_queue(text) IS
'everyone who holds a lock or waits for it, of whichever client, in order; then the same of the semaphore of that path';

CREATE FUNCTION zk_lock_break(path text, node text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_lock_break'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_lock_break(text, text) IS
'take a lock, or a place in its queue, away from whoever has it: remove the node that zk_lock_queue shows; false if it was gone';

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

-- zk_fences, too: pg_dump reads it, as whoever owns the database
GRANT SELECT ON zk_locks, zk_session, zk_fences TO PUBLIC;

--
-- A lock reaches other databases and machines, so who may take one is the
-- administrator's decision.  The two views show a session only its own.
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
REVOKE ALL ON FUNCTION zk_unlock(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_unlock_shared(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_semaphore_release(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_unlock_all() FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_lock_token(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_fence(text, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_lock_queue(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_lock_break(text, text) FROM PUBLIC;
