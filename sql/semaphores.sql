--
-- Semaphores, as one session sees them.  Competition for places is tested in
-- specs/.
--
CREATE EXTENSION zklock;
SET statement_timeout = '30s';
\set locks 'SELECT path, mode, scope, count, state FROM zk_locks ORDER BY path COLLATE "C", mode, scope;'

-- what is held now, in one line
CREATE FUNCTION held() RETURNS text LANGUAGE sql
AS $$ SELECT coalesce(string_agg(format('%s %s %s %s', path, mode, scope, count), ', '
                                 ORDER BY path COLLATE "C", mode, scope), 'nothing')
        FROM zk_locks WHERE state = 'held' $$;

--
-- Taking and releasing
--
SELECT zk_semaphore_acquire('/semaphores/a', 3);
:locks
SELECT token > 0 AS token,
       node ~ '^_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-semaphore-3-[0-9]{10}$' AS node,
       acquired_at BETWEEN now() - interval '1 minute' AND clock_timestamp() AS acquired_at
  FROM zk_locks;
-- holders of places do not exclude each other: no token
SELECT zk_lock_token('/semaphores/a');
SELECT zk_semaphore_release('/semaphores/a');
:locks

-- all ways to call it
SELECT zk_semaphore_acquire('/semaphores/a', 1), zk_xact_semaphore_acquire('/semaphores/b', 2);
SELECT zk_semaphore_acquire('/semaphores/c', 1, '10 seconds'), zk_semaphore_acquire('/semaphores/d', 1, NULL),
       zk_semaphore_acquire('/semaphores/e', 1, '0'), zk_xact_semaphore_acquire('/semaphores/f', 1, '0');
SELECT zk_semaphore_acquire(path => '/semaphores/g', permits => 5, timeout => '10 seconds'),
       zk_semaphore_acquire(timeout => '10 seconds', permits => 5, path => '/semaphores/h'),
       zk_semaphore_acquire(path => '/semaphores/i', permits => 5),
       zk_xact_semaphore_acquire(permits => 5, path => '/semaphores/j');
SELECT held();
SELECT zk_semaphore_release(path => '/semaphores/g');
SELECT zk_unlock_all();

-- the greatest possible number of permits
DO $$
DECLARE
	permits integer;
BEGIN
	FOREACH permits IN ARRAY ARRAY[1, 2, 10, 1000000, 2147483647] LOOP
		PERFORM zk_semaphore_acquire('/semaphores/a', permits);
		RAISE NOTICE '% of %', (SELECT substring(node from 'semaphore-\d+-') FROM zk_locks), permits;
		PERFORM zk_semaphore_release('/semaphores/a');
	END LOOP;
END $$;

--
-- Re-entry takes no second place
--
SELECT zk_semaphore_acquire('/semaphores/a', 1);
SELECT token AS token_before, node AS node_before FROM zk_locks \gset
SELECT zk_semaphore_acquire('/semaphores/a', 1), zk_semaphore_acquire('/semaphores/a', 1, '0'), zk_semaphore_acquire('/semaphores/a', 1, '1 microsecond');
SELECT count, token = :token_before AS same_token, node = :'node_before' AS same_node FROM zk_locks;
-- and the number no longer matters
SELECT zk_semaphore_acquire('/semaphores/a', 2), zk_semaphore_acquire('/semaphores/a', 100, '0');
SELECT count, node = :'node_before' AS same_node FROM zk_locks;
SELECT zk_semaphore_release('/semaphores/a') FROM generate_series(1, 5);
SELECT held();
SELECT zk_semaphore_release('/semaphores/a');
SELECT held();

-- both scopes, counted separately
BEGIN;
SELECT zk_xact_semaphore_acquire('/semaphores/a', 1), zk_semaphore_acquire('/semaphores/a', 1), zk_xact_semaphore_acquire('/semaphores/a', 1);
:locks
SELECT count(DISTINCT node) AS nodes FROM zk_locks;
COMMIT;
SELECT held();
SELECT zk_semaphore_release('/semaphores/a');

-- outside a transaction block, the statement is the transaction
SELECT zk_xact_semaphore_acquire('/semaphores/a', 1);
SELECT held();

--
-- Releasing what is not held
--
SELECT zk_semaphore_release('/semaphores/never');
SELECT zk_semaphore_acquire('/semaphores/a', 1), zk_semaphore_release('/semaphores/a');
SELECT zk_semaphore_release('/semaphores/a');
BEGIN;
SELECT zk_xact_semaphore_acquire('/semaphores/a', 1);
SELECT zk_semaphore_release('/semaphores/a');
SELECT zk_unlock_all();
SELECT held();
SELECT zk_semaphore_acquire('/semaphores/a', 1);
SELECT zk_semaphore_release('/semaphores/a');
SELECT zk_semaphore_release('/semaphores/a');
SELECT held();
COMMIT;
SELECT held();

--
-- Semaphores and locks on one path are independent
--
SELECT zk_semaphore_acquire('/semaphores/a', 1), zk_lock('/semaphores/a'), zk_lock_shared('/semaphores/a');
:locks
SELECT zk_lock_token('/semaphores/a') = (SELECT token FROM zk_locks WHERE mode = 'exclusive') AS "that of the lock";
SELECT zk_unlock('/semaphores/a'), zk_unlock_shared('/semaphores/a');
SELECT zk_unlock('/semaphores/a');
SELECT zk_unlock_shared('/semaphores/a');
SELECT held();
SELECT zk_lock_token('/semaphores/a');
SELECT zk_lock('/semaphores/a');
SELECT zk_semaphore_release('/semaphores/a');
SELECT zk_semaphore_release('/semaphores/a');
SELECT held();
SELECT zk_unlock('/semaphores/a');

-- a place cannot be fenced
BEGIN;
SELECT zk_xact_semaphore_acquire('/semaphores/a', 1);
SELECT zk_fence('/semaphores/a');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;

--
-- zk_unlock_all and DISCARD ALL
--
SELECT zk_lock('/semaphores/a'), zk_lock_shared('/semaphores/a'), zk_lock_shared('/semaphores/b'), zk_lock_shared('/semaphores/b'),
       zk_semaphore_acquire('/semaphores/a', 2), zk_semaphore_acquire('/semaphores/a', 2), zk_semaphore_acquire('/semaphores/c', 1),
       zk_lock_many('{/semaphores/a,/semaphores/d}');
BEGIN;
SELECT zk_xact_lock('/semaphores/d'), zk_xact_lock_shared('/semaphores/b'), zk_xact_semaphore_acquire('/semaphores/c', 1);
SELECT held();
-- session-scope holds: 5 of /a, 2 of /b, 1 of /c, 1 of /d
SELECT zk_unlock_all();
SELECT held();
COMMIT;
SELECT held();
SELECT zk_lock('/semaphores/a'), zk_lock_shared('/semaphores/b'), zk_semaphore_acquire('/semaphores/a', 2);
DISCARD ALL;
SELECT held();

-- they are free again
SELECT zk_try_lock('/semaphores/a'), zk_try_lock('/semaphores/b'), zk_semaphore_acquire('/semaphores/a', 1, '0'), zk_semaphore_acquire('/semaphores/c', 1, '0');
SELECT zk_unlock_all();

--
-- Every node style has the same names for semaphores
--
SET zklock.node_style = 'curator_rw';
SELECT zk_semaphore_acquire('/semaphores/a', 7);
SELECT node ~ '^_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-semaphore-7-[0-9]{10}$' AS node FROM zk_locks;
SELECT zk_unlock_all();
SET zklock.node_style = 'kazoo';
SELECT zk_semaphore_acquire('/semaphores/a', 7);
SELECT node ~ '^_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-semaphore-7-[0-9]{10}$' AS node FROM zk_locks;
SELECT zk_unlock_all();
RESET zklock.node_style;

-- max_locks counts places, too
\set VERBOSITY sqlstate
SET zklock.max_locks = 2;
SELECT zk_semaphore_acquire('/semaphores/a', 1), zk_lock('/semaphores/a');
SELECT zk_semaphore_acquire('/semaphores/b', 1);
SELECT zk_lock('/semaphores/b');
SELECT zk_lock_shared('/semaphores/a'), zk_semaphore_acquire('/semaphores/a', 1);
SELECT held();
SELECT zk_unlock_all();
RESET zklock.max_locks;

DROP FUNCTION held();
DROP EXTENSION zklock;
