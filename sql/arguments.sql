--
-- Bad input, row by row, and the settings.  Whatever is refused leaves no hold
-- behind, and the session stays usable.
--
CREATE EXTENSION zklock;
LOAD 'zklock';
\set VERBOSITY sqlstate

-- what a statement reports
CREATE FUNCTION attempt(statement text, OUT code text, OUT message text, OUT detail text, OUT hint text)
LANGUAGE plpgsql
AS $$
BEGIN
	EXECUTE statement INTO message;
	code := '00000';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
		detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
END $$;

--
-- Paths
--

-- NULL
SELECT statement, a.code, a.message
  FROM unnest(ARRAY['SELECT zk_lock(NULL)', 'SELECT zk_lock(NULL, ''0'')', 'SELECT zk_xact_lock(NULL)',
                    'SELECT zk_try_lock(NULL)', 'SELECT zk_try_xact_lock(NULL)', 'SELECT zk_unlock(NULL)',
                    'SELECT zk_lock_token(NULL)', 'SELECT zk_lock_held(NULL)',
                    'SELECT zk_lock_shared(NULL)', 'SELECT zk_lock_shared(NULL, ''0'')', 'SELECT zk_xact_lock_shared(NULL)',
                    'SELECT zk_try_lock_shared(NULL)', 'SELECT zk_try_xact_lock_shared(NULL)', 'SELECT zk_unlock_shared(NULL)',
                    'SELECT zk_lock_many(NULL)', 'SELECT zk_lock_many(NULL, ''0'')', 'SELECT zk_xact_lock_many(NULL)',
                    'SELECT zk_lock_many(ARRAY[NULL])', 'SELECT zk_lock_many(ARRAY[NULL], ''0'')',
                    'SELECT zk_lock_many(ARRAY[''/a'', NULL])', 'SELECT zk_xact_lock_many(ARRAY[NULL, ''/a'', ''/b''])',
                    'SELECT zk_semaphore_acquire(NULL, 1)', 'SELECT zk_semaphore_acquire(''/a'', NULL)',
                    'SELECT zk_semaphore_acquire(''/a'', NULL, ''0'')', 'SELECT zk_semaphore_acquire(NULL, NULL)',
                    'SELECT zk_xact_semaphore_acquire(NULL, 1)', 'SELECT zk_xact_semaphore_acquire(''/a'', NULL)',
                    'SELECT zk_semaphore_release(NULL)']) statement,
       attempt(statement) a;

-- each function refuses a bad path
SELECT statement, a.code, a.message, a.detail, a.hint
  FROM unnest(ARRAY['SELECT zk_lock(''a'')', 'SELECT zk_lock(''a'', ''0'')', 'SELECT zk_xact_lock(''a'')',
                    'SELECT zk_try_lock(''a'')', 'SELECT zk_try_xact_lock(''a'')', 'SELECT zk_unlock(''a'')',
                    'SELECT zk_lock_token(''a'')', 'SELECT zk_lock_held(''a'')', 'SELECT zk_unlock_many(ARRAY[''/b'', ''a''])',
                    'SELECT zk_lock_shared(''a'')', 'SELECT zk_lock_shared(''a'', ''0'')', 'SELECT zk_xact_lock_shared(''a'')',
                    'SELECT zk_try_lock_shared(''a'')', 'SELECT zk_try_xact_lock_shared(''a'')', 'SELECT zk_unlock_shared(''a'')',
                    'SELECT zk_lock_many(ARRAY[''a''])', 'SELECT zk_lock_many(ARRAY[''/b'', ''a''], ''0'')',
                    'SELECT zk_xact_lock_many(ARRAY[''/b'', ''a'', ''/c''])',
                    'SELECT zk_semaphore_acquire(''a'', 1)', 'SELECT zk_xact_semaphore_acquire(''a'', 1)',
                    'SELECT zk_semaphore_release(''a'')']) statement,
       attempt(statement) a;

-- the form of a path
SELECT path, a.code, a.detail
  FROM unnest(ARRAY['', 'a', 'a/b', ' /a', '/', '//', '/a/', '/a//', '//a', '/a//b', '/.', '/..', '/./a', '/../a', '/a/.',
                    '/a/..', '/a/../b', '/a/./b', '/../../zookeeper']) path,
       attempt(format('SELECT zk_try_xact_lock(%L)', path)) a;

-- characters that ZooKeeper refuses: control characters ...
SELECT 'U+' || lpad(to_hex(c), 4, '0') AS character, a.code, a.detail
  FROM unnest(ARRAY[1, 8, 9, 10, 13, 27, 31, 127]) c,
       attempt(format('SELECT zk_try_xact_lock(%L)', '/arguments' || chr(c) || 'x')) a;

-- a lock node's name, of whatever client, as any part
SELECT path, a.code, a.detail
  FROM unnest(ARRAY[
           -- Curator's mutex, go-zk; zklock, also what it will write
           '/lock-0000000001', '/_c_01234567-89ab-cdef-0123-456789abcdef-lock-0000000001',
           '/_c_01234567-89ab-cdef-0123-456789abcdef-shared-lock-0000000001',
           '/_c_01234567-89ab-cdef-0123-456789abcdef-anything', '/job-lock-0000000001',
           -- kazoo
           '/01234567890123456789012345678901__lock__0000000001',
           '/01234567890123456789012345678901__rlock__0000000001',
           -- Curator's read-write lock
           '/_c_01234567-89ab-cdef-0123-456789abcdef-__READ__0000000001', '/__READ__0000000001', '/__WRIT__0000000001',
           -- ZooKeeper's recipes, in Java and in C
           '/x-72057594037927936-0000000001', '/x--72057594037927936-0000000001', '/x-0100000a1b2c3d4e-0000000001',
           -- after 2^31 of them
           '/lock-2147483647', '/lock--000000001', '/lock--2147483648',
           -- a semaphore's
           '/_c_01234567-89ab-cdef-0123-456789abcdef-semaphore-3-0000000001',
           '/_c_01234567-89ab-cdef-0123-456789abcdef-semaphore-2147483647-2147483647',
           -- in the middle, and at the end
           '/a/lock-0000000001/b', '/a/b/lock-0000000001',
           '/a/_c_01234567-89ab-cdef-0123-456789abcdef-semaphore-3-0000000001/b']) path,
       attempt(format('SELECT zk_try_xact_lock(%L)', path)) a;

-- by the functions of every kind
SELECT statement, a.code
  FROM unnest(ARRAY['SELECT zk_try_xact_lock_shared(%L)', 'SELECT zk_xact_lock_many(ARRAY[''/a'', %L])',
                    'SELECT zk_xact_semaphore_acquire(%L, 1)', 'SELECT zk_unlock_shared(%L)', 'SELECT zk_semaphore_release(%L)']) statement,
       attempt(format(statement, '/_c_01234567-89ab-cdef-0123-456789abcdef-semaphore-3-0000000001')) a;

-- 1000 bytes at most
SELECT length(path), octet_length(path), a.code, a.message
  FROM unnest(ARRAY['/' || repeat('a', 999), '/' || repeat('a', 1000), '/' || repeat('a/', 2000) || 'a',
                    '/' || repeat('a', 1000000)]) path,
       attempt(format('SELECT zk_try_xact_lock(%L)', path)) a;

-- 32 parts at most; those of the root are its own
SELECT parts, a.code, a.message = format('invalid lock path "%s"', repeat('/a', parts)) AS named, a.detail, b.code AS "to look"
  FROM unnest(ARRAY[31, 32, 33, 480, 500]) parts,
       attempt(format('SELECT zk_try_xact_lock(%L)', repeat('/a', parts))) a,
       attempt(format('SELECT count(*) FROM zk_lock_queue(%L)', repeat('/a', parts))) b;
SELECT parts, a.code, a.detail
  FROM unnest(ARRAY[32, 33]) parts, attempt(format('SELECT set_config(''zklock.root'', %L, true)', repeat('/a', parts))) a;
SET zklock.root = '/zklock_regress/1/2/3/4/5/6/7/8/9/0/1/2/3/4/5/6/7/8/9/0/1/2/3/4/5/6/7/8/9/0/1';
SELECT zk_try_lock(repeat('/a', 32)), zk_unlock(repeat('/a', 32));
RESET zklock.root;

-- everything else is a path
SELECT path, a.code, a.message
  FROM unnest(ARRAY['/a', '/A', '/ ', '/ a ', '/...', '/.a', '/a.', '/a..b', '/a/...', '/-', '/*', '/%', '/''', '/"', '/\',
                    '/$1', '/:a', '/a:b@c', '/[a]', '/~', '/lock', '/lock-', '/lock-1', '/lock-000000001', '/lock-0000000001a',
                    '/semaphore', '/semaphore-', '/semaphore-3', '/semaphore-3-1', '/semaphore-3-0000000001',
                    '/job-semaphore-3-0000000001', '/_c_x-semaphore-1-0000000001',
                    '/0000000001', '/x-', '/x-1', '/_c_', '/_c_lock', '/zookeeper', '/zklock']) path,
       attempt(format('SELECT zk_try_xact_lock(%L)', path)) a;
SELECT path FROM zk_locks;

-- not a path at all, or not a valid text
SELECT zk_lock();
SELECT zk_lock(1);
SELECT zk_lock('/arguments/a', 5);
SELECT zk_lock('/arguments/a', 'soon');
SELECT zk_lock(lock => '/arguments/a');
SELECT zk_try_lock('/arguments/a', '1s');
SELECT zk_lock(E'/arguments/\x00');
SELECT zk_lock_shared();
SELECT zk_try_lock_shared('/arguments/a', '1s');
SELECT zk_lock_many();
SELECT zk_lock_many('/arguments/a');
SELECT zk_lock_many('/arguments/a', '/arguments/b');
SELECT zk_lock_many(ARRAY[1]);
SELECT zk_lock_many('/arguments/a'::text);
SELECT zk_semaphore_acquire('/arguments/a');
SELECT zk_semaphore_acquire('/arguments/a', '1s');
SELECT zk_semaphore_acquire('/arguments/a', 1.5);
SELECT zk_semaphore_acquire('/arguments/a', 2147483648);
SELECT path FROM zk_locks;

--
-- Permits
--
SELECT permits, a.code, a.message, a.detail, a.hint
  FROM unnest(ARRAY[0, -1, -2147483648]) permits,
       attempt(format('SELECT zk_semaphore_acquire(''/arguments/a'', %s)', permits)) a;
SELECT zk_semaphore_acquire('/arguments/a', 0, '0');
SELECT zk_xact_semaphore_acquire('/arguments/a', 0);
-- also if the session already has a place
SELECT zk_semaphore_acquire('/arguments/a', 1);
SELECT zk_semaphore_acquire('/arguments/a', 0);
SELECT zk_semaphore_acquire('/arguments/a', NULL);
SELECT path, mode, count FROM zk_locks;
SELECT zk_unlock_all();

--
-- Timeouts.  The path is held already, so that a positive one, however short,
-- is always met.
--
SELECT zk_lock('/arguments/a');

-- the sign is that of the sum: a month is 30 days, a day 24 hours
SELECT timeout, a.code, a.message
  FROM unnest(ARRAY['-1 s', '-1 microsecond', '-1 day', '-1 month', '1 day -25 hours', '1 day -24 hours -1 microsecond',
                    '1 month -31 days', '1 month -30 days -1 microsecond', '-1 month 29 days 23 hours', '1 year -361 days',
                    '-178000000 years', '-178000000 years 1 day', '-1 month -2147483648 days']) timeout,
       attempt(format('SELECT zk_lock(''/arguments/a'', %L)', timeout)) a;
SELECT timeout, a.code, a.message
  FROM unnest(ARRAY['0', '1 microsecond', '999 microseconds', '1.5 ms', '1 s', '1 month', '1 day -24 hours',
                    '-1 day 24 hours 1 microsecond', '-1 month 30 days', '1 year -360 days', '-1 month 31 days',
                    '2562047788 hours', '100 years', '292000 years', '178000000 years', '178000000 years -1 day',
                    '1 month 2147483647 days']) timeout,
       attempt(format('SELECT zk_lock(''/arguments/a'', %L)', timeout)) a;
SELECT zk_lock('/arguments/a', make_interval(secs => -0.000001));
SELECT zk_xact_lock('/arguments/a', '-1s');
SELECT zk_lock_shared('/arguments/a', '-1s');
SELECT zk_xact_lock_shared('/arguments/a', '-1 microsecond');
SELECT zk_lock_many('{/arguments/a}', '-1s');
SELECT zk_lock_many('{}', '-1s');
SELECT zk_xact_lock_many('{/arguments/a,/arguments/b}', '1 day -25 hours');
SELECT zk_semaphore_acquire('/arguments/a', 1, '-1s');
SELECT zk_xact_semaphore_acquire('/arguments/a', 1, '-1 microsecond');
SELECT path, count FROM zk_locks;
SELECT zk_unlock_all();

-- zero allows one try, which gets a free lock; so does a call without limit
BEGIN;
SELECT zk_lock('/arguments/b', '0'), zk_xact_lock('/arguments/c', '0'), zk_lock('/arguments/d', '178000000 years'),
       zk_xact_lock('/arguments/e', NULL);
SELECT zk_lock_shared('/arguments/f', '0'), zk_xact_lock_shared('/arguments/f', '178000000 years'),
       zk_lock_many('{/arguments/g,/arguments/h}', '0'), zk_xact_lock_many('{/arguments/i,/arguments/j}', '178000000 years'),
       zk_semaphore_acquire('/arguments/k', 1, '0'), zk_xact_semaphore_acquire('/arguments/l', 1, '178000000 years');
ROLLBACK;

--
-- Settings
--
SELECT name, context, vartype, unit, boot_val, min_val, max_val, short_desc ~ '^\w[^.]{1,78}\.$' AS described
  FROM pg_settings WHERE name LIKE 'zklock.%' ORDER BY name COLLATE "C";

-- a misspelled name is refused
SELECT statement, a.code = '42602' AS refused
  FROM unnest(ARRAY['SET zklock.hots = ''localhost:2181''', 'SET zklock.max_lock = 10',
                    'SELECT set_config(''zklock.'', ''1'', false)']) statement,
       attempt(statement) a;

-- values that are out of range, or meaningless
SELECT statement, a.code, a.detail
  FROM unnest(ARRAY['SET zklock.session_timeout = ''999ms''', 'SET zklock.session_timeout = ''2h''',
                    'SET zklock.connect_timeout = 0', 'SET zklock.connect_timeout = -1',
                    'SET zklock.operation_timeout = 0', 'SET zklock.operation_timeout = ''soon''',
                    'SET zklock.release_timeout = -1', 'SET zklock.release_timeout = ''1001ms''',
                    'SET zklock.max_locks = 0',
                    'SET zklock.node_style = ''''', 'SET zklock.node_style = ''zkc''', 'SET zklock.node_style = 1',
                    'SET zklock.root = ''''', 'SET zklock.root = ''a''', 'SET zklock.root = ''/a/''',
                    'SET zklock.root = ''/a//b''', 'SET zklock.root = ''/a/../b''', 'SET zklock.root = ''/lock-0000000001''',
                    'SET zklock.root = ''/zookeeper''', 'SET zklock.root = ''/zookeeper/a''']) statement,
       attempt(statement) a;
SELECT a.code, a.detail FROM attempt(format('SET zklock.root = %L', '/' || repeat('a', 1001))) a;

-- only a superuser may set those that choose the ensemble, and what it is asked for
CREATE ROLE regress_zklock;
SET ROLE regress_zklock;
SET zklock.hosts = 'localhost:2181';
SET zklock.root = '/';
SET zklock.session_timeout = '1min';
SET zklock.max_locks = 10;
SET zklock.node_style = 'kazoo';
SELECT set_config('zklock.hosts', 'localhost:2181', false);
SET zklock.connect_timeout = '3s';
SET zklock.operation_timeout = '3s';
SET zklock.release_timeout = '1s';
SELECT name, setting, unit FROM pg_settings
 WHERE name IN ('zklock.connect_timeout', 'zklock.operation_timeout', 'zklock.release_timeout') ORDER BY name;
RESET zklock.connect_timeout;
RESET zklock.operation_timeout;
RESET zklock.release_timeout;

-- ... even with ALTER ROLE, or for a function
ALTER ROLE regress_zklock SET zklock.hosts = 'localhost:2181';
ALTER ROLE regress_zklock SET zklock.root = '/';
ALTER ROLE regress_zklock SET zklock.operation_timeout = '3s';
RESET ROLE;
GRANT CREATE ON SCHEMA public TO regress_zklock;
SET ROLE regress_zklock;
CREATE FUNCTION other_ensemble() RETURNS text LANGUAGE sql SET zklock.hosts = 'localhost:2181'
AS $$ SELECT current_setting('zklock.hosts') $$;
CREATE FUNCTION other_timeout() RETURNS text LANGUAGE sql SET zklock.operation_timeout = '3s'
AS $$ SELECT current_setting('zklock.operation_timeout') $$;
SELECT other_timeout();
DROP FUNCTION other_timeout();
RESET ROLE;
ALTER ROLE regress_zklock SET zklock.hosts = 'localhost:2181';
ALTER ROLE regress_zklock SET zklock.max_locks = 0;
SELECT unnest(setconfig) AS setting FROM pg_db_role_setting WHERE setrole = 'regress_zklock'::regrole;
REVOKE CREATE ON SCHEMA public FROM regress_zklock;
DROP ROLE regress_zklock;

-- set for a database, they are in effect from the start of its sessions
\set database :DBNAME
ALTER DATABASE :"database" SET zklock.max_locks = 7;
\c
\set VERBOSITY sqlstate
LOAD 'zklock';
SHOW zklock.max_locks;
ALTER DATABASE :"database" RESET zklock.max_locks;
\c
\set VERBOSITY sqlstate

--
-- zklock.max_locks
--
SET zklock.max_locks = 2;
SELECT zk_lock('/arguments/a'), zk_xact_lock('/arguments/b');
SELECT zk_lock('/arguments/b');
\set VERBOSITY default
SELECT zk_lock('/arguments/c');
\set VERBOSITY sqlstate
SELECT zk_try_lock('/arguments/c');
SELECT zk_lock('/arguments/c', '0');
-- it counts locks, not calls
SELECT zk_lock('/arguments/a'), zk_try_xact_lock('/arguments/a'), zk_lock('/arguments/b');
SELECT path, count FROM zk_locks ORDER BY path COLLATE "C";
-- a released lock makes room at once
SELECT zk_unlock('/arguments/b'), zk_unlock('/arguments/b');
SELECT zk_lock('/arguments/c');
SELECT zk_unlock_all();
-- so do the locks of a failed transaction
BEGIN;
SELECT zk_lock('/arguments/a'), zk_lock('/arguments/b');
SELECT zk_lock('/arguments/c');
ROLLBACK;
SELECT zk_lock('/arguments/c'), zk_lock('/arguments/d');
SELECT zk_unlock_all();
RESET zklock.max_locks;

--
-- zklock.hosts and zklock.root
--

-- not set: a default might be somebody else's ensemble
SELECT session_id AS session_before FROM zk_session \gset
SET zklock.hosts = '';
\set VERBOSITY default
SELECT zk_lock('/arguments/a');
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY sqlstate
SELECT zk_try_lock('/arguments/a');
SELECT zk_try_xact_lock('/arguments/a');
SELECT zk_lock('/arguments/a', '0');
SELECT zk_lock('/arguments/a', '1s');
SELECT zk_lock_shared('/arguments/a');
SELECT zk_try_lock_shared('/arguments/a');
SELECT zk_lock_many('{/arguments/a,/arguments/b}', '0');
SELECT zk_lock_many('{}');
SELECT zk_semaphore_acquire('/arguments/a', 1);
SELECT path FROM zk_locks;
SELECT state FROM zk_session;
RESET zklock.hosts;
SELECT zk_lock('/arguments/a');
SELECT state, session_id <> :'session_before' AS another FROM zk_session;

-- a session that holds a lock stays in its ensemble, and locks nothing elsewhere
SELECT session_id AS session_before FROM zk_session \gset
SET zklock.hosts = '';
SELECT zk_lock('/arguments/a'); -- no ensemble
SET zklock.hosts = 'zk1,zk2';
\set VERBOSITY terse
SELECT zk_lock('/arguments/a'); -- another
\set VERBOSITY sqlstate
RESET zklock.hosts;
SET zklock.session_timeout = '12s';
SELECT zk_lock('/arguments/a'), zk_lock('/arguments/b');
SELECT session_id = :'session_before' AS same FROM zk_session;
SELECT zk_unlock_all();

-- a new session timeout gives a new session, when nothing is held
SELECT zk_lock('/arguments/a');
SELECT path FROM zk_locks;
SELECT session_id <> :'session_before' AS another FROM zk_session;
SELECT session_id AS session_before FROM zk_session \gset
SELECT zk_unlock('/arguments/a');
RESET zklock.session_timeout;
SELECT zk_lock('/arguments/a');
SELECT session_id <> :'session_before' AS another FROM zk_session;
SELECT zk_unlock('/arguments/a');

-- the root and the node style take effect at once
SELECT zk_lock('/arguments/a');
SELECT session_id AS session_before FROM zk_session \gset
SET zklock.node_style = 'kazoo';
SET zklock.root = '/zklock_regress_other';
SELECT zk_lock('/arguments/a');
SELECT path, root, node ~ '^[0-9a-f]{32}__lock__\d{10}$' AS style, count FROM zk_locks ORDER BY root;
SELECT session_id = :'session_before' AS same FROM zk_session;
SELECT zk_unlock_all();
RESET zklock.root;
RESET zklock.node_style;

-- without a root, ZooKeeper's own tree is in reach, and refused
SET zklock.root = '/';
\set VERBOSITY default
SELECT zk_lock('/zookeeper');
\echo :LAST_ERROR_SQLSTATE
SELECT zk_lock('/zookeeper/quota');
\set VERBOSITY sqlstate
SELECT zk_lock('/zookeepers');
SELECT path FROM zk_locks;
SELECT zk_unlock_all();
RESET zklock.root;

-- nobody there, no such host, no port (so 2181), no host name
SET zklock.connect_timeout = '1s';
SELECT hosts, a.code, a.message, a.detail NOT LIKE 'The last attempt%' AS detail, a.hint <> '' AS hint
  FROM unnest(ARRAY['127.0.0.1:1', 'no.such.host.invalid', ':2181', 'no.such.host.invalid:2181', '127.0.0.1:port', ',', 'zk1:2181/chroot']) hosts,
       attempt(format('SELECT zk_lock(''/arguments/a'') FROM set_config(''zklock.hosts'', %L, true)', hosts)) a;
SELECT path FROM zk_locks;
RESET zklock.hosts;
RESET zklock.connect_timeout;
SELECT zk_lock('/arguments/a'), zk_unlock('/arguments/a');
SELECT zk_lock('/arguments/a'), zk_unlock('/arguments/a');

DROP FUNCTION attempt(text);
DROP EXTENSION zklock;
