/* zklock_advisory--1.0-dev.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION zklock_advisory" to load this file. \quit

-- not those of zklock's schema, in which others may have a better fitting operator
SET LOCAL search_path = pg_catalog, pg_temp;

--
-- Calls will be looked for in this schema before PostgreSQL's own.  So nobody
-- may have put anything there, nor be able to, but a superuser.
--

DO $$
BEGIN
    IF NOT (SELECT r.rolsuper FROM pg_namespace AS n JOIN pg_roles AS r ON r.oid = n.nspowner
            WHERE n.nspname = 'zklock_advisory') THEN
        RAISE insufficient_privilege
        USING MESSAGE = 'schema "zklock_advisory" is not owned by a superuser',
              HINT = 'Drop it, so that CREATE EXTENSION creates it.';
    END IF;
    IF EXISTS (SELECT FROM pg_namespace AS n CROSS JOIN aclexplode(n.nspacl) AS a
               WHERE n.nspname = 'zklock_advisory' AND a.privilege_type = 'CREATE'
                 AND a.grantee NOT IN (0, n.nspowner)) THEN
        RAISE insufficient_privilege
        USING MESSAGE = 'others have the privilege CREATE on schema "zklock_advisory"',
              HINT = 'Revoke it, also from the default privileges if they grant it.';
    END IF;
    IF EXISTS (SELECT FROM pg_namespace AS n CROSS JOIN pg_depend AS d
               WHERE n.nspname = 'zklock_advisory' AND d.refclassid = 'pg_namespace'::regclass
                 AND d.refobjid = n.oid AND d.deptype = 'n'
                 AND d.classid <> 'pg_extension'::regclass) THEN
        RAISE object_not_in_prerequisite_state
        USING MESSAGE = 'schema "zklock_advisory" is not empty',
              HINT = 'Move what is in it to another schema.';
    END IF;
END $$;

-- Without USAGE the schema would silently be passed over, and PostgreSQL's own
-- lock taken.  So everybody has it, and nobody EXECUTE.
REVOKE ALL ON SCHEMA zklock_advisory FROM PUBLIC;
GRANT USAGE ON SCHEMA zklock_advisory TO PUBLIC;

--
-- The names, arguments, results and properties are those of PostgreSQL's, the cost
-- too, so that a plan stays what it was.  Unqualified they would be PostgreSQL's
-- here: pg_catalog comes first while a script runs.
--

CREATE FUNCTION zklock_advisory.pg_advisory_lock(bigint)
RETURNS void
AS 'MODULE_PATHNAME', 'zk_advisory_lock'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_advisory_lock(bigint) IS
'obtain exclusive advisory lock, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_advisory_lock(integer, integer)
RETURNS void
AS 'MODULE_PATHNAME', 'zk_advisory_lock'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_advisory_lock(integer, integer) IS
'obtain exclusive advisory lock, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_advisory_lock_shared(bigint)
RETURNS void
AS 'MODULE_PATHNAME', 'zk_advisory_lock_shared'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_advisory_lock_shared(bigint) IS
'obtain shared advisory lock, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_advisory_lock_shared(integer, integer)
RETURNS void
AS 'MODULE_PATHNAME', 'zk_advisory_lock_shared'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_advisory_lock_shared(integer, integer) IS
'obtain shared advisory lock, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_advisory_xact_lock(bigint)
RETURNS void
AS 'MODULE_PATHNAME', 'zk_advisory_xact_lock'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_advisory_xact_lock(bigint) IS
'obtain exclusive transaction-level advisory lock, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_advisory_xact_lock(integer, integer)
RETURNS void
AS 'MODULE_PATHNAME', 'zk_advisory_xact_lock'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_advisory_xact_lock(integer, integer) IS
'obtain exclusive transaction-level advisory lock, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_advisory_xact_lock_shared(bigint)
RETURNS void
AS 'MODULE_PATHNAME', 'zk_advisory_xact_lock_shared'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_advisory_xact_lock_shared(bigint) IS
'obtain shared transaction-level advisory lock, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_advisory_xact_lock_shared(integer, integer)
RETURNS void
AS 'MODULE_PATHNAME', 'zk_advisory_xact_lock_shared'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_advisory_xact_lock_shared(integer, integer) IS
'obtain shared transaction-level advisory lock, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_try_advisory_lock(bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_advisory_lock'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_try_advisory_lock(bigint) IS
'obtain exclusive advisory lock if available, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_try_advisory_lock(integer, integer)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_advisory_lock'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_try_advisory_lock(integer, integer) IS
'obtain exclusive advisory lock if available, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_try_advisory_lock_shared(bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_advisory_lock_shared'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_try_advisory_lock_shared(bigint) IS
'obtain shared advisory lock if available, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_try_advisory_lock_shared(integer, integer)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_advisory_lock_shared'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_try_advisory_lock_shared(integer, integer) IS
'obtain shared advisory lock if available, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_try_advisory_xact_lock(bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_advisory_xact_lock'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_try_advisory_xact_lock(bigint) IS
'obtain exclusive transaction-level advisory lock if available, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_try_advisory_xact_lock(integer, integer)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_advisory_xact_lock'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_try_advisory_xact_lock(integer, integer) IS
'obtain exclusive transaction-level advisory lock if available, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_try_advisory_xact_lock_shared(bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_advisory_xact_lock_shared'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_try_advisory_xact_lock_shared(bigint) IS
'obtain shared transaction-level advisory lock if available, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_try_advisory_xact_lock_shared(integer, integer)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_try_advisory_xact_lock_shared'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_try_advisory_xact_lock_shared(integer, integer) IS
'obtain shared transaction-level advisory lock if available, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_advisory_unlock(bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_advisory_unlock'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_advisory_unlock(bigint) IS
'release exclusive advisory lock, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_advisory_unlock(integer, integer)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_advisory_unlock'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_advisory_unlock(integer, integer) IS
'release exclusive advisory lock, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_advisory_unlock_shared(bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_advisory_unlock_shared'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_advisory_unlock_shared(bigint) IS
'release shared advisory lock, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_advisory_unlock_shared(integer, integer)
RETURNS boolean
AS 'MODULE_PATHNAME', 'zk_advisory_unlock_shared'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_advisory_unlock_shared(integer, integer) IS
'release shared advisory lock, in ZooKeeper';

CREATE FUNCTION zklock_advisory.pg_advisory_unlock_all()
RETURNS void
AS 'MODULE_PATHNAME', 'zk_advisory_unlock_all'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION zklock_advisory.pg_advisory_unlock_all() IS
'release all advisory locks of this session, in ZooKeeper';

--
-- As for zk_lock, the administrator decides who may take one
--

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA zklock_advisory FROM PUBLIC;
