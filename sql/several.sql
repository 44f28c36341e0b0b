--
-- Several locks at once, as one session sees them: all or none, duplicates,
-- locks that are already held, errors in the middle.
--
CREATE EXTENSION zklock;
SET statement_timeout = '30s';
\set locks 'SELECT path, mode, scope, count, state FROM zk_locks ORDER BY path COLLATE "C", mode, scope;'

-- what is held now, in one line
CREATE FUNCTION held() RETURNS text LANGUAGE sql
AS $$ SELECT coalesce(string_agg(format('%s %s %s %s', path, mode, scope, count), ', '
                                 ORDER BY path COLLATE "C", mode, scope), 'nothing')
        FROM zk_locks WHERE state = 'held' $$;

-- taken and released like any other lock
SELECT zk_lock_many('{/several/b,/several/a,/several/c}');
:locks
SELECT count(DISTINCT node) AS nodes, count(*) FILTER (WHERE token > 0 AND token = zk_lock_token(path)) AS tokens,
       bool_and(node ~ '^_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-lock-[0-9]{10}$') AS named FROM zk_locks;
SELECT zk_unlock('/several/a');
SELECT held();
SELECT zk_unlock_all();
SELECT held();

-- all ways to call it
SELECT zk_lock_many(ARRAY['/several/a', '/several/b']), zk_xact_lock_many(ARRAY['/several/c', '/several/d']);
SELECT held();
SELECT zk_lock_many('{/several/a}', '10 seconds'), zk_lock_many('{/several/b}', NULL), zk_lock_many('{/several/e}', '0'),
       zk_xact_lock_many('{/several/f}', '0'), zk_xact_lock_many('{/several/g}', NULL);
SELECT zk_lock_many(paths => '{/several/h}', timeout => '10 seconds'), zk_lock_many(timeout => '10 seconds', paths => '{/several/i}'),
       zk_lock_many(paths => '{/several/j}'), zk_xact_lock_many(paths => '{/several/k}', timeout => '1min');
SELECT held();
SELECT zk_unlock_all();

-- and given back together: one hold of each, however often it is named
SELECT zk_lock_many('{/several/a,/several/b,/several/c}'), zk_lock('/several/a'), zk_xact_lock('/several/c'), zk_lock_shared('/several/d');
SELECT zk_unlock_many('{/several/b,/several/a,/several/b}'), zk_unlock_many('{}'), zk_unlock_many(paths => '{{/several/a}}');
SELECT held();
SELECT path, zk_lock_held(path) FROM unnest('{/several/a,/several/b,/several/c,/several/d}'::text[]) AS path;
BEGIN;
SELECT zk_xact_lock('/several/a');
SELECT zk_unlock_many('{/several/a,/several/c,/several/d,/several/none}');
SELECT held();
COMMIT;
SELECT zk_unlock_many('{/several/d,/several/none}');
\set VERBOSITY sqlstate
SELECT zk_unlock_many(NULL);
SELECT zk_unlock_many(ARRAY['/several/d', NULL]);
SELECT zk_unlock_many('{/several/d,not a path}');
\set VERBOSITY default
SELECT held();
SELECT zk_unlock_all();

-- duplicates count once
SELECT zk_lock_many('{/several/a,/several/b,/several/a,/several/a,/several/b}');
SELECT held();
SELECT zk_unlock('/several/a'), zk_unlock('/several/b');
SELECT held();

-- an empty array
SELECT zk_lock_many('{}'), zk_xact_lock_many('{}'), zk_lock_many(ARRAY[]::text[], '0'), zk_lock_many('{}', '1s');
SELECT held();

-- arrays of any shape
SELECT zk_lock_many('{{/several/a,/several/b},{/several/c,/several/a}}'), zk_lock_many('[5:6]={/several/d,/several/e}');
SELECT held();
SELECT zk_unlock_all();
SELECT zk_lock_many(array_agg('/several/' || i)) FROM generate_series(1, 20) i;
SELECT count(*), sum(count), count(DISTINCT node) AS nodes FROM zk_locks;
SELECT zk_unlock_all();

-- nested paths, and adjacent ones in byte order
SELECT zk_lock_many(ARRAY['/several', '/several/a/b', '/several/a', '/several/a b', '/several/A', '/several/ä']);
:locks
SELECT zk_unlock_all();

--
-- Locks that are already held
--
SELECT zk_lock('/several/b');
SELECT zk_lock_token('/several/b') AS token_before \gset
SELECT zk_lock_many('{/several/a,/several/b,/several/c}'), zk_lock_many('{/several/c,/several/b}', '0');
SELECT held();
SELECT zk_lock_token('/several/b') = :token_before AS same_token;
SELECT zk_unlock_all();

BEGIN;
SELECT zk_xact_lock_many('{/several/a,/several/b}'), zk_lock_many('{/several/b,/several/c}');
SELECT held();
COMMIT;
SELECT held();
SELECT zk_unlock_all();

-- under a shared hold it is an upgrade
SELECT zk_lock_shared('/several/b');
SELECT zk_lock_token('/several/b') AS token_before \gset
SELECT zk_lock_many('{/several/a,/several/b,/several/c}');
SELECT held();
SELECT zk_lock_token('/several/b') > :token_before AS greater;
SELECT zk_unlock('/several/b');
SELECT held();
SELECT zk_unlock_all();

-- and a semaphore is independent
SELECT zk_semaphore_acquire('/several/b', 1), zk_lock_many('{/several/a,/several/b}');
SELECT held();
SELECT zk_unlock_many('{/several/b}'), zk_lock_held('/several/b') AS "its place";
SELECT zk_unlock_all();

--
-- Transactions
--
SELECT zk_lock_many('{/several/a,/several/b}');
BEGIN;
SELECT zk_lock_many('{/several/b,/several/c}'), zk_xact_lock_many('{/several/c,/several/d}');
SAVEPOINT s;
SELECT zk_lock_many('{/several/a,/several/d,/several/e}'), zk_xact_lock_many('{/several/a,/several/e}');
SELECT held();
ROLLBACK TO s;
SELECT held();
ROLLBACK;
SELECT held();
BEGIN;
SELECT zk_lock_many('{/several/b,/several/c}'), zk_xact_lock_many('{/several/c,/several/d}');
COMMIT;
SELECT held();
SELECT zk_unlock_all();
DO $$
BEGIN
	PERFORM zk_lock_many('{/several/a}');
	BEGIN
		PERFORM zk_lock_many('{/several/a,/several/b}'), zk_lock_many('{/several/c,not a path}');
	EXCEPTION WHEN invalid_parameter_value THEN
		RAISE NOTICE 'caught %: %', SQLSTATE, held();
	END;
END $$;
SELECT held();
SELECT zk_unlock_all();

--
-- Nothing is left when one is refused
--
\set VERBOSITY sqlstate
SELECT zk_lock_many('{/several/a,not a path}');
SELECT held();
SELECT zk_lock_many('{/several/a,/several/b/}');
SELECT zk_lock_many(ARRAY['/several/a', NULL]);
SELECT zk_lock_many('{/several/a,/several/lock-0000000001}');
SELECT held();
-- not even a hold of a lock that was held before
SELECT zk_lock('/several/a');
SELECT zk_lock_many('{/several/a,not a path}');
SELECT zk_lock_many(ARRAY['/several/a', NULL]);
SELECT held();
SELECT zk_unlock_all();
SELECT zk_try_lock('/several/a'), zk_try_lock('/several/b');
SELECT zk_unlock_all();

-- zklock.max_locks limits the nodes that there would be
SET zklock.max_locks = 3;
\set VERBOSITY default
SELECT zk_lock_many('{/several/a,/several/b,/several/c,/several/d}');
\set VERBOSITY sqlstate
SELECT held();
SELECT zk_lock_many('{/several/a,/several/b,/several/c,/several/a,/several/b}');
SELECT zk_lock_many('{/several/a,/several/b,/several/c}'), zk_lock_many('{/several/c}');
SELECT held();
SELECT zk_lock_many('{/several/c,/several/d}');
SELECT held();
SELECT zk_unlock('/several/a');
SELECT zk_lock_many('{/several/c,/several/d}');
SELECT zk_unlock_all();
SELECT zk_lock_many('{/several/c,/several/d,/several/e}');
SELECT zk_unlock_all();
RESET zklock.max_locks;

DROP FUNCTION held();
DROP EXTENSION zklock;
