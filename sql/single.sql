--
-- zklock.node_style = single: one ephemeral node at the path itself, as one session
-- sees it.
--
CREATE EXTENSION zklock;
SET zklock.node_style = single;

SELECT zk_lock('/single/a'), zk_lock('/single/a'), zk_try_lock('/single/a'), zk_lock('/single/a', '1s');
SELECT path, mode, scope, count, state, node = 'single-' || token FROM zk_locks;
SELECT position, kind, mode, granted, token = zk_lock_token('/single/a'), node = 'single-' || token, pid = pg_backend_pid()
FROM zk_lock_queue('/single/a');
SELECT path, kind, contenders, holders FROM zk_lock_paths('/single');
SELECT zk_unlock('/single/a'), zk_unlock_all();
SELECT zk_unlock('/single/a');
SELECT * FROM zk_lock_queue('/single/a');
SELECT path FROM zk_lock_paths('/single');

-- exclusive only, one at a time
SELECT zk_lock_shared('/single/a');
SELECT zk_try_lock_shared('/single/a');
SELECT zk_xact_lock_shared('/single/a');
SELECT zk_try_xact_lock_shared('/single/a');
SELECT zk_semaphore_acquire('/single/a', 1);
SELECT zk_xact_semaphore_acquire('/single/a', 2, '0');
SELECT zk_lock_many('{/single/a,/single/b}');
SELECT zk_xact_lock_many('{/single/a,/single/a}');
SELECT zk_claim('/single/a', '2026-01-01 00:00 UTC');
SELECT zk_lock_many('{/single/a}'), zk_lock_many('{}');
SELECT count(*) FROM zk_locks;

-- a single node stays one, whatever the style is by now
SET zklock.node_style = curator;
SELECT zk_lock('/single/a');
SELECT zk_lock_shared('/single/a');
SELECT zk_semaphore_acquire('/single/a', 2);
SELECT zk_claim('/single/a', '2026-01-01 00:00 UTC');
SELECT zk_lock('/single/a/b');
SELECT path, mode, count, state FROM zk_locks;
SELECT zk_unlock_all();

-- nor does one of another style become one
SELECT zk_lock('/single/a'), zk_lock_shared('/single/c');
SET zklock.node_style = single;
SELECT zk_lock('/single/a');
SELECT zk_lock('/single/c');
SELECT zk_try_lock('/single/c');
SELECT zk_lock_shared('/single/c');
SELECT zk_unlock_all(), zk_unlock_shared('/single/c');
SELECT zk_lock('/single/c'), zk_unlock('/single/c');

-- transactions
BEGIN;
SELECT zk_xact_lock('/single/a'), zk_lock('/single/b');
SAVEPOINT s;
SELECT zk_xact_lock('/single/c'), zk_lock('/single/a');
ROLLBACK TO s;
SELECT path, scope, count FROM zk_locks ORDER BY path;
PREPARE TRANSACTION 'single';
SELECT count(*) FROM zk_locks;
BEGIN;
SELECT zk_xact_lock('/single/a'), zk_lock('/single/b'), zk_fence('/single/a') = zk_lock_token('/single/a');
COMMIT;
SELECT path, scope, count FROM zk_locks;
DISCARD ALL;
SET zklock.node_style = single;
SELECT path FROM zk_lock_paths('/single');

-- removing one
SELECT zk_lock('/single/a');
SELECT zk_lock_break('/single/a', 'a');
SELECT zk_lock_break('/single/a', 'single-');
SELECT zk_lock_break('/single/a', 'single-1');
SELECT state FROM zk_locks;
SET client_min_messages = warning;
SELECT zk_lock_break('/single/a', node) FROM zk_locks;
RESET client_min_messages;
SELECT state, token FROM zk_locks;
SELECT zk_lock('/single/a');
SELECT zk_unlock('/single/a');
SELECT zk_lock('/single/a'), zk_unlock('/single/a');

-- the longest path
SELECT zk_lock('/single/' || repeat('x', 992)), zk_lock(repeat('/y', 32));
SELECT length(path), node = 'single-' || token FROM zk_locks ORDER BY 1;
SELECT zk_unlock_all();
SET zklock.root = '/';
SELECT zk_lock('/zklock_regress_single'), zk_lock('/zklock_regress_other/a');
SELECT zk_unlock_all();
RESET zklock.root;
RESET zklock.node_style;

DROP EXTENSION zklock;
