--
-- zk_lock_queue and zk_lock_break, as far as one session can see: its own
-- nodes of every kind, what they say about it, bad arguments, privileges.
--
CREATE EXTENSION zklock;
SET statement_timeout = '30s';

-- A queue in the order in which it is returned, without what varies
CREATE FUNCTION queue(path text)
RETURNS TABLE ("position" integer, kind text, mode text, granted boolean, whose text, node text)
LANGUAGE sql
AS $$ SELECT q.position, q.kind, q.mode, q.granted,
             CASE WHEN q.zk_session = (SELECT session_id FROM zk_session) THEN 'ours' ELSE q.zk_session END,
             regexp_replace(regexp_replace(q.node, '^_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|^[0-9a-f]{32}', 'UUID'),
                            '[0-9]{10}$', 'N')
        FROM zk_lock_queue($1) q $$;

-- The queue, and what zk_locks says about the same nodes
CREATE FUNCTION agrees(path text, OUT nodes bigint, OUT tokens boolean, OUT sessions boolean, OUT since boolean)
LANGUAGE sql
AS $$ SELECT count(l.node), bool_and(q.token = l.token), bool_and(q.zk_session = (SELECT session_id FROM zk_session)),
             bool_and(q.since BETWEEN now() - interval '1 minute' AND clock_timestamp() + interval '1 minute')
        FROM zk_lock_queue($1) q LEFT JOIN zk_locks l ON l.path = $1 AND l.node = q.node $$;

CREATE FUNCTION until_lost(lost text) RETURNS text LANGUAGE plpgsql
AS $$
BEGIN
	WHILE EXISTS (SELECT FROM zk_locks WHERE path = lost AND state <> 'lost') LOOP
		PERFORM pg_sleep(0.005);
	END LOOP;
	RETURN (SELECT string_agg(DISTINCT state, ' ') FROM zk_locks WHERE path = lost);
END $$;

--
-- Nobody there
--

-- it opens the ZooKeeper session if there is none
SELECT state FROM zk_session;
SELECT * FROM zk_lock_queue('/queue/none') \gdesc
SELECT count(*) FROM zk_lock_queue('/queue/none');
SELECT state FROM zk_session;
SELECT count(*) FROM zk_lock_queue(path => '/queue/none/below');

-- a directory without contenders, and one that only contains another directory
SELECT zk_lock('/queue/above/below'), zk_lock('/queue/empty'), zk_unlock('/queue/empty');
SELECT * FROM queue('/queue/above');
SELECT * FROM queue('/queue/empty');
SELECT zk_unlock_all();

--
-- The session's own nodes, of every kind
--
SELECT zk_lock('/queue/a');
SELECT * FROM queue('/queue/a');
SELECT * FROM agrees('/queue/a');
-- once, however often it is held
SELECT zk_lock('/queue/a');
BEGIN;
SELECT zk_xact_lock('/queue/a');
SELECT * FROM queue('/queue/a');
COMMIT;
SELECT zk_unlock_all();
SELECT * FROM queue('/queue/a');

SELECT zk_lock_shared('/queue/a');
SELECT * FROM queue('/queue/a');
SELECT * FROM agrees('/queue/a');
SELECT zk_unlock_all();

SELECT zk_semaphore_acquire('/queue/a', 3);
SELECT * FROM queue('/queue/a');
SELECT * FROM agrees('/queue/a');
SELECT zk_unlock_all();

-- both on one path: two queues, that of the lock first
SELECT zk_semaphore_acquire('/queue/a', 12), zk_lock('/queue/a');
SELECT * FROM queue('/queue/a');
SELECT * FROM agrees('/queue/a');
SELECT zk_unlock_all();

-- the exclusive lock and the shared one under it: one node, until the first is
-- released
SELECT zk_lock('/queue/a'), zk_lock_shared('/queue/a');
SELECT * FROM queue('/queue/a');
SELECT zk_unlock('/queue/a');
SELECT * FROM queue('/queue/a');
SELECT * FROM agrees('/queue/a');
-- upgraded: the shared lock stays, before the exclusive one
SELECT zk_lock('/queue/a');
SELECT * FROM queue('/queue/a');
SELECT * FROM agrees('/queue/a');
SELECT zk_unlock_all();

-- with the names of other clients, where a downgrade creates a new node
SET zklock.node_style = 'kazoo';
SELECT zk_lock('/queue/a'), zk_lock_shared('/queue/a');
SELECT * FROM queue('/queue/a');
SELECT token AS token_before, since AS since_before FROM zk_lock_queue('/queue/a') \gset
SELECT zk_unlock('/queue/a');
SELECT * FROM queue('/queue/a');
SELECT * FROM agrees('/queue/a');
SELECT token = :token_before AS same_token, since >= :'since_before' AS since FROM zk_lock_queue('/queue/a');
SELECT zk_unlock_all();
SET zklock.node_style = 'curator_rw';
SELECT zk_lock('/queue/a'), zk_lock_shared('/queue/b');
SELECT * FROM queue('/queue/a');
SELECT * FROM queue('/queue/b');
SELECT zk_unlock_shared('/queue/b'), zk_lock_shared('/queue/a'), zk_unlock('/queue/a');
SELECT * FROM queue('/queue/a');
SELECT * FROM agrees('/queue/a');
SELECT zk_unlock_all();
RESET zklock.node_style;

-- many queues in one query, and all ways to call a function
SELECT zk_lock_many('{/queue/a,/queue/b,/queue/c}');
SELECT path, q.position, q.granted FROM zk_locks, zk_lock_queue(path) q ORDER BY path;
SELECT (zk_lock_queue('/queue/b')).mode;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT count(*) FROM zk_lock_queue('/queue/b');
COMMIT;
SELECT zk_unlock_all();

--
-- What a node says
--
CREATE FUNCTION identity(path text, OUT host boolean, OUT port boolean, OUT cluster_name boolean, OUT pid boolean,
                         OUT datname boolean, OUT usename boolean, OUT application_name text, OUT data text)
LANGUAGE sql
AS $$ SELECT q.host ~ '^\S+$', q.port = current_setting('port')::int,
             q.cluster_name IS NOT DISTINCT FROM nullif(current_setting('cluster_name'), ''),
             q.pid = pg_backend_pid(), q.datname = current_database(), q.usename = session_user,
             CASE WHEN q.application_name = current_setting('application_name') THEN 'that of now' ELSE q.application_name END,
             q.data
        FROM zk_lock_queue($1) q $$;

SELECT zk_lock('/queue/a'), zk_lock_shared('/queue/b'), zk_semaphore_acquire('/queue/c', 2);
SELECT * FROM identity('/queue/a');
SELECT * FROM identity('/queue/b');
SELECT * FROM identity('/queue/c');
SELECT zk_lock_shared('/queue/a'), zk_unlock('/queue/a');
SELECT * FROM identity('/queue/a');
SELECT zk_unlock_all();
SET zklock.node_style = 'kazoo';
SELECT zk_lock('/queue/a'), zk_lock_shared('/queue/a'), zk_unlock('/queue/a');
SELECT * FROM identity('/queue/a');
SELECT zk_unlock_all();
RESET zklock.node_style;

-- application_name is as it was when the lock was requested
SET application_name = 'before';
SELECT zk_lock('/queue/a');
SET application_name = 'after';
SELECT * FROM identity('/queue/a');
SELECT zk_lock_shared('/queue/a'), zk_unlock('/queue/a');
SELECT mode, application_name FROM zk_lock_queue('/queue/a');
SELECT zk_unlock_all();
SET application_name = '';
SELECT zk_lock('/queue/a');
SELECT host IS NOT NULL AS host, coalesce(application_name, '') AS application_name FROM zk_lock_queue('/queue/a');
SELECT zk_unlock_all();
SET application_name = E'it''s "odd" \\ \\n \\\\x41 %s $1 {}, host elsewhere';
SELECT zk_lock('/queue/a');
SELECT application_name FROM zk_lock_queue('/queue/a');
SELECT * FROM identity('/queue/a');
SELECT zk_unlock_all();
SET application_name = 'regress/queue';

-- names of databases and users, in which nothing begins a new field; a line feed, which PostgreSQL 19 refuses: t/074
SELECT current_database() AS database, E'regress_zklock "\\n" \\ it''s\x01user evil\x0bhost elsewhere' AS odd, E'regress_zklock \\\x01pid 1\x0b' AS odd_user \gset
CREATE DATABASE :"odd";
CREATE ROLE :"odd_user" SUPERUSER;
\c :"odd"
CREATE EXTENSION zklock;
SELECT zk_lock('/queue/a');
SELECT datname, datname = current_database() AS datname, usename = session_user AS usename, pid = pg_backend_pid() AS pid,
       host NOT LIKE '%elsewhere%' AS host FROM zk_lock_queue('/queue/a');
SELECT zk_unlock_all();
\c :"database"
-- the session user, whatever the current user
SET SESSION AUTHORIZATION :"odd_user";
SELECT zk_lock('/queue/a');
SELECT usename, usename = session_user AS usename, pid = pg_backend_pid() AS pid, datname = current_database() AS datname
  FROM zk_lock_queue('/queue/a');
SELECT zk_unlock_all();
RESET SESSION AUTHORIZATION;
CREATE ROLE regress_zklock;
GRANT EXECUTE ON FUNCTION zk_lock TO regress_zklock;
SET ROLE regress_zklock;
SELECT zk_lock('/queue/a');
RESET ROLE;
SELECT usename = session_user AS usename, usename = 'regress_zklock' AS role FROM zk_lock_queue('/queue/a');
SELECT zk_unlock_all();

-- the longest possible names
SET statement_timeout = '30s';
SELECT repeat('n', 63) AS long \gset
SET application_name = :'long';
CREATE ROLE :"long" SUPERUSER;
SET SESSION AUTHORIZATION :"long";
SELECT zk_lock('/queue/a'), zk_lock_shared('/queue/a'), zk_unlock('/queue/a');
SELECT mode, usename = :'long' AS usename, application_name = :'long' AS application_name, pid = pg_backend_pid() AS pid,
       datname = current_database() AS datname, data
  FROM zk_lock_queue('/queue/a');
SELECT zk_unlock_all();
RESET SESSION AUTHORIZATION;
DROP ROLE :"long";
SET application_name = 'regress/queue';

--
-- publish_identity
--
CREATE FUNCTION published(path text, OUT mode text, OUT token boolean, OUT session boolean, OUT since boolean, OUT node boolean,
                          OUT host boolean, OUT port boolean, OUT pid boolean, OUT datname boolean,
                          OUT usename boolean, OUT application_name boolean, OUT data boolean)
RETURNS SETOF record LANGUAGE sql
AS $$ SELECT mode, token IS NOT NULL, zk_session IS NOT NULL, since IS NOT NULL, node IS NOT NULL, host IS NOT NULL,
             port IS NOT NULL, pid IS NOT NULL, datname IS NOT NULL, usename IS NOT NULL, application_name IS NOT NULL, data IS NOT NULL
        FROM zk_lock_queue($1) $$;

SHOW zklock.publish_identity;
SET zklock.publish_identity = off;
SELECT zk_lock('/queue/a'), zk_lock_shared('/queue/b'), zk_semaphore_acquire('/queue/a', 2);
SELECT * FROM published('/queue/a');
SELECT * FROM published('/queue/b');
SELECT * FROM queue('/queue/a');
SELECT * FROM agrees('/queue/a');
-- a reader in the place of a writer keeps its token, and still says nothing
SELECT zk_lock_shared('/queue/a'), zk_unlock('/queue/a');
SELECT * FROM published('/queue/a');
SELECT * FROM agrees('/queue/a');
SELECT zk_unlock_all();
SET zklock.node_style = 'kazoo';
SELECT zk_lock('/queue/a'), zk_lock_shared('/queue/a'), zk_unlock('/queue/a');
SELECT * FROM published('/queue/a');
SELECT * FROM agrees('/queue/a');
SELECT zk_unlock_all();
RESET zklock.node_style;
-- the setting takes effect at once, in both directions
SELECT zk_lock('/queue/a');
RESET zklock.publish_identity;
SELECT zk_lock('/queue/b');
SELECT * FROM published('/queue/a');
SELECT * FROM published('/queue/b');
SELECT zk_unlock_all();
SET ROLE regress_zklock;
SET zklock.publish_identity = on;
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;

--
-- zk_lock_break on the session's own node: the lock is lost, like any other
--

-- a loss is noticed within a quarter of this
SET zklock.session_timeout = '2s';
-- a NOTICE says whose it was, and names this process: see t/074_queue.pl
SET client_min_messages = warning;
SELECT zk_lock('/queue/a');
SELECT node FROM zk_locks \gset
SELECT zk_lock_break('/queue/a', :'node');
SELECT until_lost('/queue/a');
SELECT zk_lock_token('/queue/a');
SELECT zk_lock('/queue/a');
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM zk_lock_queue('/queue/a');
-- once
SELECT zk_lock_break('/queue/a', :'node');
SELECT zk_lock_break(node => :'node', path => '/queue/a');
SELECT zk_unlock('/queue/a');
SELECT zk_lock('/queue/a'), zk_unlock('/queue/a');

-- shared, and a semaphore
SELECT zk_lock_shared('/queue/a'), zk_semaphore_acquire('/queue/a', 2);
SELECT kind, zk_lock_break('/queue/a', node) FROM zk_lock_queue('/queue/a');
SELECT until_lost('/queue/a');
SELECT mode, state FROM zk_locks ORDER BY mode;
SELECT zk_lock_shared('/queue/a');
SELECT zk_semaphore_acquire('/queue/a', 2);
SELECT zk_unlock_shared('/queue/a');
SELECT zk_semaphore_release('/queue/a');

-- a transaction does not commit
BEGIN;
SET LOCAL zklock.cancel_on_loss = off;
SELECT zk_xact_lock('/queue/a');
SELECT zk_lock_break('/queue/a', node) FROM zk_locks;
SELECT until_lost('/queue/a');
COMMIT;
\echo :LAST_ERROR_SQLSTATE
-- but one that only breaks a lock does, even read-only
SELECT zk_lock('/queue/a');
SELECT node FROM zk_locks \gset
BEGIN READ ONLY;
SELECT zk_lock_break('/queue/a', :'node');
COMMIT;
SELECT until_lost('/queue/a'), zk_unlock_all();
RESET client_min_messages;
RESET zklock.session_timeout;

--
-- What is not a contender
--
\set VERBOSITY sqlstate
SELECT zk_lock('/queue/a'), zk_lock('/queue/a/b');
SELECT node FROM zk_locks WHERE path = '/queue/a' \gset
SELECT zk_lock_queue(NULL);
SELECT zk_lock_break(NULL, :'node');
SELECT zk_lock_break('/queue/a', NULL);
SELECT zk_lock_break(NULL, NULL);
CREATE FUNCTION state_of(query text, a text, b text DEFAULT NULL) RETURNS text LANGUAGE plpgsql
AS $$
DECLARE
	result text;
BEGIN
	EXECUTE query INTO result USING a, b;
	RETURN result;
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
-- paths
SELECT path, state_of('SELECT count(*) FROM zk_lock_queue($1)', path) AS queue, state_of('SELECT zk_lock_break($1, $2)', path, :'node') AS break
  FROM unnest(ARRAY['', '/', 'queue/a', '/queue/a/', '/queue//a', '/queue/./a', '/queue/../queue/a', '/queue/x-lock-0000000001',
                    '/queue/a' || chr(10)]) WITH ORDINALITY AS p (path, n)
 ORDER BY n;
SELECT zk_lock_queue('/' || repeat('n', 1000));
SELECT zk_lock_break('/' || repeat('n', 1000), :'node');
-- nodes
SELECT name, state_of('SELECT zk_lock_break($1, $2)', '/queue/a', name) AS break
  FROM unnest(ARRAY['', '.', '..', 'b', 'a', '/', 'lock-', 'lock', '0000000001', 'lock-000000001', 'lock-0000000001' || chr(10),
                    'X-LOCK-0000000001', '_c_semaphore-1-0000000001', 'x-semaphore-0-0000000001', 'config', '*', '%'])
       WITH ORDINALITY AS p (name, n) ORDER BY n;
SELECT DISTINCT state_of('SELECT zk_lock_break($1, $2)', '/queue/a', name) AS "almost its name"
  FROM unnest(ARRAY[:'node' || '/', '/' || :'node', 'b/' || :'node', '../a/' || :'node', :'node' || '0x', :'node' || ' ',
                    repeat('n', 100000)]) name;
-- a valid name, but no such node
SELECT name, state_of('SELECT zk_lock_break($1, $2)', '/queue/a', name) AS break
  FROM unnest(ARRAY['lock-0000000001', '_c_other-lock-0000000001', 'x__lock__0000000001', 'x__rlock__0000000001',
                    'x__WRIT__0000000001', 'x__READ__0000000001', 'x-123-0000000001', 'lock--000000001',
                    '_c_0f5dd2a6-8e26-4f8e-9e0c-3a4be1f6a4d1-semaphore-2-0000000001'])
       WITH ORDINALITY AS p (name, n) ORDER BY n;
SELECT zk_lock_break('/queue/none', 'lock-0000000001'), zk_lock_break('/queue/b', :'node'), zk_lock_break('/queue/a/b', :'node');
\set VERBOSITY default
-- nothing has happened to it
SELECT path, state FROM zk_locks ORDER BY path;
SELECT count(*) FROM zk_lock_queue('/queue/a');
SELECT zk_lock_break('/queue/a', 'b');
SELECT zk_unlock_all();

--
-- Privileges: taking locks includes neither function
--
GRANT EXECUTE ON FUNCTION zk_lock, zk_unlock_all TO regress_zklock;
SET ROLE regress_zklock;
SELECT zk_lock('/queue/a');
SELECT count(*) FROM zk_lock_queue('/queue/a');
\echo :LAST_ERROR_SQLSTATE
SELECT zk_lock_break('/queue/a', (SELECT node FROM zk_locks));
\echo :LAST_ERROR_SQLSTATE
SELECT state FROM zk_locks;
RESET ROLE;
GRANT EXECUTE ON FUNCTION zk_lock_queue TO regress_zklock;
SET ROLE regress_zklock;
SELECT mode, granted, pid = pg_backend_pid() AS pid FROM zk_lock_queue('/queue/a');
SELECT zk_lock_break('/queue/a', (SELECT node FROM zk_locks));
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
GRANT EXECUTE ON FUNCTION zk_lock_break TO regress_zklock;
SET ROLE regress_zklock;
SET client_min_messages = warning;
SELECT zk_lock_break('/queue/a', (SELECT node FROM zk_locks));
SELECT count(*) FROM zk_lock_queue('/queue/a');
RESET client_min_messages;
RESET ROLE;
SELECT until_lost('/queue/a'), zk_unlock_all();

DROP OWNED BY regress_zklock;
DROP ROLE regress_zklock;
DROP ROLE :"odd_user";
DROP DATABASE :"odd";
DROP FUNCTION state_of(text, text, text);
DROP FUNCTION published(text);
DROP FUNCTION identity(text);
DROP FUNCTION until_lost(text);
DROP FUNCTION agrees(text);
DROP FUNCTION queue(text);
DROP EXTENSION zklock;
