--
-- Shared locks, as one session sees them: re-entry in every combination with
-- the exclusive lock, downgrade and upgrade, with each node style.  What other
-- sessions see of it is tested in specs/.
--
CREATE EXTENSION zklock;
SET statement_timeout = '30s';
\set locks 'SELECT path, mode, scope, count, state FROM zk_locks ORDER BY path COLLATE "C", mode, scope;'

-- what is held now, in one line
CREATE FUNCTION held() RETURNS text LANGUAGE sql
AS $$ SELECT coalesce(string_agg(format('%s %s %s %s', path, mode, scope, count), ', '
                                 ORDER BY path COLLATE "C", mode, scope), 'nothing')
        FROM zk_locks WHERE state = 'held' $$;

-- the nodes of what is held, without what varies
CREATE FUNCTION nodes() RETURNS text LANGUAGE sql
AS $$ SELECT string_agg(format('%s %s', mode, regexp_replace(regexp_replace(node, '[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}', 'UUID'),
                                                             '[0-9]{10}$', 'N')), ', ' ORDER BY mode, scope)
        FROM zk_locks $$;

--
-- Taking and releasing
--
SELECT zk_lock_shared('/shared/a');
:locks
SELECT token > 0 AS token,
       token = zk_lock_token('/shared/a') AS same_token,
       node ~ '^_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-shared-lock-[0-9]{10}$' AS node,
       acquired_at BETWEEN now() - interval '1 minute' AND clock_timestamp() AS acquired_at
  FROM zk_locks;
SELECT zk_unlock_shared('/shared/a');
:locks
SELECT zk_lock_token('/shared/a');

-- all ways to call it
SELECT zk_lock_shared('/shared/a'), zk_xact_lock_shared('/shared/b'), zk_try_lock_shared('/shared/c'), zk_try_xact_lock_shared('/shared/d');
SELECT zk_lock_shared('/shared/e', '10 seconds'), zk_lock_shared('/shared/f', NULL), zk_lock_shared('/shared/g', '0');
SELECT zk_lock_shared(path => '/shared/h', timeout => '10 seconds'), zk_lock_shared(timeout => '10 seconds', path => '/shared/i'),
       zk_lock_shared(path => '/shared/j'), zk_try_lock_shared(path => '/shared/k');
SELECT zk_xact_lock_shared(path => '/shared/l', timeout => '10 seconds'), zk_xact_lock_shared('/shared/m', '0'),
       zk_try_xact_lock_shared(path => '/shared/n');
:locks
SELECT zk_unlock_shared(path => '/shared/h');
SELECT zk_unlock_all();
:locks

--
-- Re-entry
--

-- holds are counted; together they have one node and one token
SELECT zk_lock_shared('/shared/a');
SELECT token AS token_before, node AS node_before FROM zk_locks \gset
SELECT zk_lock_shared('/shared/a'), zk_try_lock_shared('/shared/a'), zk_lock_shared('/shared/a', '0'), zk_lock_shared('/shared/a', '1 microsecond');
SELECT count, token = :token_before AS same_token, node = :'node_before' AS same_node FROM zk_locks;
SELECT zk_unlock_shared('/shared/a'), zk_unlock_shared('/shared/a'), zk_unlock_shared('/shared/a'), zk_unlock_shared('/shared/a');
:locks
SELECT zk_lock_token('/shared/a') = :token_before AS same_token;
SELECT zk_unlock_shared('/shared/a');
:locks

-- both scopes, counted separately
BEGIN;
SELECT zk_xact_lock_shared('/shared/a'), zk_lock_shared('/shared/a'), zk_xact_lock_shared('/shared/a');
:locks
SELECT count(DISTINCT node) AS nodes, count(DISTINCT token) AS tokens FROM zk_locks;
COMMIT;
:locks
SELECT zk_unlock_shared('/shared/a');

-- each function releases the session's latest hold of its kind, and no other
SELECT zk_unlock_shared('/shared/never');
SELECT zk_lock('/shared/a');
SELECT zk_unlock_shared('/shared/a');
SELECT held();
SELECT zk_unlock('/shared/a');
SELECT zk_lock_shared('/shared/a');
SELECT zk_unlock('/shared/a');
SELECT held();
SELECT zk_unlock_shared('/shared/a');
SELECT zk_unlock_shared('/shared/a');
BEGIN;
SELECT zk_xact_lock_shared('/shared/a');
SELECT zk_unlock_shared('/shared/a');
SELECT zk_unlock_all();
SELECT held();
COMMIT;
SELECT held();

--
-- Shared over exclusive: no node of its own
--
SELECT zk_lock('/shared/a');
SELECT token AS token_before, node AS node_before FROM zk_locks \gset
SELECT zk_lock_shared('/shared/a'), zk_try_lock_shared('/shared/a'), zk_lock_shared('/shared/a', '0'), zk_lock_shared('/shared/a', '1s');
:locks
SELECT count(DISTINCT node) AS nodes, min(node) = :'node_before' AS same_node, min(token) = :token_before AS same_token,
       zk_lock_token('/shared/a') = :token_before AS lock_token FROM zk_locks;
-- the shared ones are released first: the exclusive lock stays
SELECT zk_unlock_shared('/shared/a'), zk_unlock_shared('/shared/a'), zk_unlock_shared('/shared/a'), zk_unlock_shared('/shared/a');
SELECT zk_unlock_shared('/shared/a');
SELECT held();
SELECT zk_unlock('/shared/a');
SELECT held();

--
-- Downgrade: the exclusive one first.  What becomes of the node depends on the
-- style; the token stays.
--
CREATE PROCEDURE downgrade() LANGUAGE plpgsql
AS $$
DECLARE
	token_before bigint;
	node_before text;
BEGIN
	PERFORM zk_lock('/shared/down'), zk_lock('/shared/down'), zk_lock_shared('/shared/down');
	SELECT token, node FROM zk_locks INTO token_before, node_before;
	PERFORM zk_unlock('/shared/down');
	RAISE NOTICE 'one of two given back: %; %', held(), nodes();
	PERFORM zk_unlock('/shared/down');
	RAISE NOTICE 'downgraded: %; %', held(), nodes();
	RAISE NOTICE 'token: %', CASE WHEN zk_lock_token('/shared/down') = token_before
	                               AND (SELECT token FROM zk_locks) = token_before THEN 'the same' ELSE 'another' END;
	RAISE NOTICE 'node: %, number: %',
		CASE WHEN (SELECT node FROM zk_locks) = node_before THEN 'the same' ELSE 'another' END,
		CASE WHEN right((SELECT node FROM zk_locks), 10) = right(node_before, 10) THEN 'the same' ELSE 'another' END;
	RAISE NOTICE 'uuid: %', CASE WHEN left((SELECT node FROM zk_locks), 32) = left(node_before, 32) THEN 'the same' ELSE 'another' END;
	PERFORM zk_lock_shared('/shared/down'), zk_unlock_shared('/shared/down');
	RAISE NOTICE 'zk_unlock: %', zk_unlock('/shared/down');
	-- and up again: the node that was downgraded stays what it is
	PERFORM zk_lock('/shared/down');
	RAISE NOTICE 'upgraded: %; %', held(), nodes();
	RAISE NOTICE 'token: %', CASE WHEN zk_lock_token('/shared/down') > token_before THEN 'greater' ELSE 'not greater' END;
	PERFORM zk_unlock('/shared/down');
	RAISE NOTICE 'down once more: %; %', held(), nodes();
	PERFORM zk_unlock_shared('/shared/down');
	RAISE NOTICE 'given back: %; token: %', held(), zk_lock_token('/shared/down');
	RAISE NOTICE 'free: %, %', zk_try_lock('/shared/down'), nodes();
	PERFORM zk_unlock('/shared/down');
END $$;
CALL downgrade();

--
-- Upgrade: exclusive over shared, with nobody else there
--
CREATE PROCEDURE upgrade() LANGUAGE plpgsql
AS $$
DECLARE
	token_before bigint;
	token_after bigint;
BEGIN
	PERFORM zk_lock_shared('/shared/up');
	token_before := zk_lock_token('/shared/up');
	RAISE NOTICE 'shared: %; %', held(), nodes();
	PERFORM zk_lock('/shared/up');
	token_after := zk_lock_token('/shared/up');
	RAISE NOTICE 'upgraded: %; %', held(), nodes();
	RAISE NOTICE 'token: %', CASE WHEN token_after > token_before THEN 'greater' ELSE 'not greater' END;
	PERFORM zk_lock('/shared/up'), zk_try_lock('/shared/up'), zk_lock_shared('/shared/up'), zk_try_lock_shared('/shared/up');
	RAISE NOTICE 'again: %; %', held(), nodes();
	RAISE NOTICE 'token: %', CASE WHEN zk_lock_token('/shared/up') = token_after THEN 'the same' ELSE 'another' END;
	-- the shared ones first
	PERFORM zk_unlock_shared('/shared/up'), zk_unlock_shared('/shared/up'), zk_unlock_shared('/shared/up');
	RAISE NOTICE 'exclusive alone: %; %', held(), nodes();
	RAISE NOTICE 'token: %', CASE WHEN zk_lock_token('/shared/up') = token_after THEN 'the same' ELSE 'another' END;
	PERFORM zk_unlock('/shared/up'), zk_unlock('/shared/up'), zk_unlock('/shared/up');
	-- the exclusive ones first
	PERFORM zk_lock_shared('/shared/up');
	RAISE NOTICE 'try: %, zero: %, timeout: %', zk_try_lock('/shared/up'), zk_lock('/shared/up', '0'), zk_lock('/shared/up', '1s');
	PERFORM zk_unlock('/shared/up'), zk_unlock('/shared/up'), zk_unlock('/shared/up');
	RAISE NOTICE 'shared alone: %; %', held(), nodes();
	PERFORM zk_unlock_shared('/shared/up');
	RAISE NOTICE 'given back: %', held();
END $$;
CALL upgrade();

--
-- Scopes of the two modes
--
SELECT zk_lock('/shared/a'), zk_lock_shared('/shared/a');
BEGIN;
SELECT zk_xact_lock('/shared/a'), zk_xact_lock_shared('/shared/a');
:locks
SELECT zk_unlock('/shared/a'), zk_unlock_shared('/shared/a');
SELECT held();
COMMIT;
SELECT held();

-- a downgrade at the end of the transaction
SELECT zk_try_xact_lock('/shared/a');
BEGIN;
SELECT zk_xact_lock('/shared/a'), zk_lock_shared('/shared/a');
SELECT zk_lock_token('/shared/a') AS token_before \gset
COMMIT;
SELECT held(), nodes(), zk_lock_token('/shared/a') = :token_before AS same_token;
BEGIN;
SELECT zk_xact_lock('/shared/a');
SELECT held();
COMMIT;
SELECT held();
SELECT zk_unlock_shared('/shared/a');

-- zk_unlock_all and DISCARD ALL release both
SELECT zk_lock('/shared/a'), zk_lock_shared('/shared/a'), zk_lock_shared('/shared/a'), zk_lock_shared('/shared/b');
SELECT zk_unlock_all();
SELECT held();
SELECT zk_lock_shared('/shared/a'), zk_lock('/shared/a'), zk_lock_shared('/shared/b');
DISCARD ALL;
SELECT held();
SELECT zk_try_lock('/shared/a'), zk_try_lock('/shared/b');
SELECT zk_unlock_all();

-- only the exclusive lock can be fenced
BEGIN;
SELECT zk_xact_lock_shared('/shared/a');
SELECT zk_fence('/shared/a');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN;
SELECT zk_xact_lock_shared('/shared/a'), zk_xact_lock('/shared/a');
SELECT zk_fence('/shared/a') = zk_lock_token('/shared/a') AS fenced;
COMMIT;

-- both at once, whichever comes first
SELECT bool_and(zk_lock('/shared/' || i) AND zk_lock_shared('/shared/' || i)) FROM generate_series(1, 30) i;
SELECT zk_unlock_all();

--
-- The other styles
--
SET zklock.node_style = 'curator_rw';
SELECT zk_lock('/shared/a'), zk_lock_shared('/shared/b');
SELECT regexp_replace(node, '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', 'UUID') ~ '^_c_UUID-__(READ|WRIT)__\d{10}$' AS node, mode FROM zk_locks ORDER BY mode;
SELECT zk_unlock_all();
CALL downgrade();
CALL upgrade();

SET zklock.node_style = 'kazoo';
SELECT zk_lock('/shared/a'), zk_lock_shared('/shared/b');
SELECT regexp_replace(node, '[0-9a-f]{32}', 'UUID') ~ '^UUID__r?lock__\d{10}$' AS node, mode FROM zk_locks ORDER BY mode;
SELECT zk_unlock_all();
CALL downgrade();
CALL upgrade();

-- the style is read at each call, whatever is held
SELECT zk_lock_shared('/shared/a');
SET zklock.node_style = 'curator';
SELECT zk_lock('/shared/b');
SELECT nodes();
SELECT zk_unlock_all();
SELECT zk_lock_shared('/shared/a'), zk_lock('/shared/b');
SELECT nodes();
SELECT zk_unlock_all();
RESET zklock.node_style;

DROP PROCEDURE downgrade(), upgrade();
DROP FUNCTION held(), nodes();
DROP EXTENSION zklock;
