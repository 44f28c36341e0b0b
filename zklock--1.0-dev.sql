/* zklock--1.0-dev.sql */

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
'acquire exclusive session-level lock, waiting if necessary';

CREATE FUNCTION zk_xact_lock(path text, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_xact_lock'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_xact_lock(text, interval) IS
'acquire exclusive transaction-level lock, waiting if necessary';

CREATE FUNCTION zk_try_lock(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_lock'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_try_lock(text) IS
'acquire exclusive session-level lock if available';

CREATE FUNCTION zk_try_xact_lock(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_xact_lock'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_try_xact_lock(text) IS
'acquire exclusive transaction-level lock if available';

CREATE FUNCTION zk_lock_shared(path text, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_lock_shared'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_lock_shared(text, interval) IS
'acquire shared session-level lock, waiting if necessary';

CREATE FUNCTION zk_xact_lock_shared(path text, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_xact_lock_shared'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_xact_lock_shared(text, interval) IS
'acquire shared transaction-level lock, waiting if necessary';

CREATE FUNCTION zk_try_lock_shared(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_lock_shared'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_try_lock_shared(text) IS
'acquire shared session-level lock if available';

CREATE FUNCTION zk_try_xact_lock_shared(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_xact_lock_shared'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_try_xact_lock_shared(text) IS
'acquire shared transaction-level lock if available';

CREATE FUNCTION zk_lock_many(paths text[], timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_lock_many'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_lock_many(text[], interval) IS
'acquire several exclusive session-level locks, all or none';

CREATE FUNCTION zk_xact_lock_many(paths text[], timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_xact_lock_many'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_xact_lock_many(text[], interval) IS
'acquire several exclusive transaction-level locks, all or none';

CREATE FUNCTION zk_semaphore_acquire(path text, permits integer, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_semaphore_acquire'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_semaphore_acquire(text, integer, interval) IS
'acquire session-level place of semaphore, waiting if necessary';

CREATE FUNCTION zk_xact_semaphore_acquire(path text, permits integer, timeout interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_xact_semaphore_acquire'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_xact_semaphore_acquire(text, integer, interval) IS
'acquire transaction-level place of semaphore, waiting if necessary';

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
'claim period of path for the transaction, waiting if necessary';

CREATE FUNCTION zk_last_claim(
    path text,
    OUT period timestamptz,
    OUT state text,
    OUT since timestamptz,
    OUT host text,
    OUT datname text,
    OUT system_identifier bigint,
    OUT transaction_id xid8)
RETURNS record
AS 'MODULE_PATHNAME', 'zk_last_claim'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_last_claim(text) IS
'latest claim of path';

CREATE FUNCTION zk_claims(
    prefix text DEFAULT '/',
    OUT path text,
    OUT period timestamptz,
    OUT state text,
    OUT since timestamptz,
    OUT host text,
    OUT datname text,
    OUT system_identifier bigint,
    OUT transaction_id xid8)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'zk_claims'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000 ROWS 100;

COMMENT ON FUNCTION zk_claims(text) IS
'latest claim of each path at or below a path';

CREATE FUNCTION zk_claim_forget(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_claim_forget'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_claim_forget(text) IS
'forget latest claim of path';

--
-- Releasing a lock
--

CREATE FUNCTION zk_unlock(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_unlock'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_unlock(text) IS
'release exclusive session-level lock';

CREATE FUNCTION zk_unlock_shared(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_unlock_shared'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_unlock_shared(text) IS
'release shared session-level lock';

CREATE FUNCTION zk_semaphore_release(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_semaphore_release'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_semaphore_release(text) IS
'release session-level place of semaphore';

CREATE FUNCTION zk_unlock_many(paths text[])
RETURNS integer
AS 'MODULE_PATHNAME', 'zk_unlock_many'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_unlock_many(text[]) IS
'release several exclusive session-level locks';

CREATE FUNCTION zk_unlock_all()
RETURNS integer
AS 'MODULE_PATHNAME', 'zk_unlock_all'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_unlock_all() IS
'release all session-level locks and semaphore places';

--
-- Looking at locks
--

CREATE FUNCTION zk_lock_held(path text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_lock_held'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_lock_held(text) IS
'whether this session holds lock, asking ZooKeeper if necessary';

CREATE FUNCTION zk_lock_token(path text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'zk_lock_token'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zk_lock_token(text) IS
'fencing token of lock held by this session';

CREATE TABLE zk_fences (
    path text COLLATE pg_catalog."C" PRIMARY KEY,
    token bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE zk_fences IS
'greatest fencing token recorded for each lock';

-- a restored database must not forget the tokens that it has seen
SELECT pg_catalog.pg_extension_config_dump('zk_fences', '');

CREATE FUNCTION zk_fence(path text, token bigint DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'zk_fence'
LANGUAGE C VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp;

COMMENT ON FUNCTION zk_fence(text, bigint) IS
'record fencing token in this database, refusing a smaller one';

CREATE FUNCTION zk_fences_merge()
RETURNS trigger
AS 'MODULE_PATHNAME', 'zk_fences_merge'
LANGUAGE C VOLATILE PARALLEL UNSAFE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp;

COMMENT ON FUNCTION zk_fences_merge() IS
'trigger: replication never lowers a token of zk_fences';

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
'locks held by this session';

CREATE VIEW zk_locks AS
    SELECT * FROM zk_lock_status();

COMMENT ON VIEW zk_locks IS
'locks held by this session';

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
    OUT datname text,
    OUT usename text,
    OUT application_name text,
    OUT data text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'zk_lock_queue'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000 ROWS 10;

COMMENT ON FUNCTION zk_lock_queue(text) IS
'contenders for lock and semaphore, in queue order';

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
    OUT datname text,
    OUT usename text,
    OUT application_name text,
    OUT data text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'zk_lock_paths'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000 ROWS 100;

COMMENT ON FUNCTION zk_lock_paths(text) IS
'locks and semaphores in use at or below a path';

CREATE FUNCTION zk_lock_break(path text, node text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_lock_break'
LANGUAGE C VOLATILE PARALLEL RESTRICTED COST 10000;

COMMENT ON FUNCTION zk_lock_break(text, text) IS
'remove contender from the queue of a lock';

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
'ZooKeeper session of this backend';

CREATE VIEW zk_session AS
    SELECT * FROM zk_session_status();

COMMENT ON VIEW zk_session IS
'ZooKeeper session of this backend';

CREATE FUNCTION zk_server_lock_status(
    OUT pid integer,
    OUT datname text,
    OUT usename text,
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
'locks of all backends of this server';

CREATE VIEW zk_server_locks AS
    SELECT * FROM zk_server_lock_status();

COMMENT ON VIEW zk_server_locks IS
'locks of all backends of this server';

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
REVOKE ALL ON FUNCTION zk_lock_many(text[], interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_xact_lock_many(text[], interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_semaphore_acquire(text, integer, interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_xact_semaphore_acquire(text, integer, interval) FROM PUBLIC;
REVOKE ALL ON PROCEDURE zk_acquire(text, interval, boolean) FROM PUBLIC;
REVOKE ALL ON PROCEDURE zk_xact_acquire(text, interval, boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_claim(text, timestamptz, interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_last_claim(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_claims(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_claim_forget(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_unlock(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_unlock_shared(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_semaphore_release(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_unlock_many(text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_unlock_all() FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_lock_held(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_lock_token(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_fence(text, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_fences_merge() FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_lock_queue(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_lock_paths(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION zk_lock_break(text, text) FROM PUBLIC;
