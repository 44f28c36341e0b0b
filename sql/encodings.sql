--
-- Paths are compared byte by byte in UTF-8, whatever the database's encoding.
-- Each encoding has a database; non-ASCII characters are written as escapes
-- here, and shown as the bytes that ZooKeeper gets.
--
\set database :DBNAME
\set bytes 'SELECT convert_to(path, ''UTF8'') AS utf8 FROM zk_locks ORDER BY 1;'
\set lengths 'SELECT length(path) AS characters, octet_length(path) AS here, octet_length(convert_to(path, ''UTF8'')) AS utf8 FROM zk_locks ORDER BY 1;'
CREATE DATABASE regress_zklock_utf8 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;
CREATE DATABASE regress_zklock_latin1 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;
CREATE DATABASE regress_zklock_win1252 ENCODING 'WIN1252' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;
CREATE DATABASE regress_zklock_euc_jp ENCODING 'EUC_JP' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;
CREATE DATABASE regress_zklock_sql_ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0;

--
-- UTF8
--
\c regress_zklock_utf8
\encoding UTF8
CREATE EXTENSION zklock;
SELECT zk_lock(U&'/caf\00e9'), zk_lock(U&'/\30ed\30c3\30af'), zk_lock(U&'/\ac00');
:bytes
SELECT zk_lock_token(U&'/caf\00e9') > 0 AS token;

-- nothing is folded or normalized: these are three locks
SELECT zk_lock(U&'/CAF\00c9'), zk_lock(U&'/cafe\0301');
SELECT count(*) FROM zk_locks WHERE path ILIKE '/caf%';
SELECT zk_unlock(U&'/caf\00e9');
SELECT zk_unlock_all();

-- the limit is in bytes: 1000 and 1001, with characters of two and three bytes
BEGIN;
SELECT zk_xact_lock('/a' || repeat(U&'\00e9', 499)), zk_xact_lock('/' || repeat(U&'\30ed', 333));
:lengths
ROLLBACK;
\set VERBOSITY sqlstate
SELECT zk_xact_lock('/aa' || repeat(U&'\00e9', 499));
SELECT zk_xact_lock('/a' || repeat(U&'\30ed', 333));

-- characters that ZooKeeper refuses: control, private use, special; and their
-- neighbors
CREATE FUNCTION try_character(code_point text, OUT code text, OUT detail text) LANGUAGE plpgsql
AS $$
BEGIN
	code := '00000';
	PERFORM zk_try_xact_lock('/encodings/' || chr(('x' || lpad(code_point, 8, '0'))::bit(32)::integer) || 'x');
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, detail = PG_EXCEPTION_DETAIL;
END $$;
SELECT 'U+' || code_point AS character, t.*
  FROM unnest(ARRAY['007E', '007F', '0080', '009F', '00A0', 'D7FF', 'E000', 'F8FF', 'F900', 'FEFF', 'FFEF', 'FFF0', 'FFFD',
                    'FFFF']) code_point,
       try_character(code_point) t;
-- ... and everything beyond
SELECT 'U+' || code_point AS character, t.code
  FROM unnest(ARRAY['10000', '1F512', '10FFFF']) code_point,
       try_character(code_point) t;
:bytes

-- the root may have such characters too
SET zklock.root = U&'/zklock_regress/caf\0085';
SET zklock.root = U&'/zklock_regress/caf\00e9';
SELECT zk_lock(U&'/caf\00e9');
:bytes
SELECT zk_unlock_all();
:bytes
RESET zklock.root;

--
-- LATIN1: each character has up to two bytes in UTF-8
--
\c regress_zklock_latin1
\encoding UTF8
CREATE EXTENSION zklock;
SELECT zk_lock(U&'/caf\00e9');
:bytes
:lengths
SELECT path = U&'/caf\00e9' AS shown FROM zk_locks;
SELECT zk_lock_token(U&'/caf\00e9') > 0 AS token;
SELECT zk_unlock(U&'/caf\00e9');
\set VERBOSITY sqlstate
BEGIN;
SELECT zk_xact_lock('/a' || repeat(U&'\00e9', 499));
:lengths
ROLLBACK;
SELECT zk_xact_lock('/aa' || repeat(U&'\00e9', 499));
-- a control character
SELECT zk_lock('/caf' || chr(133));
\set VERBOSITY default
SELECT zk_unlock(U&'/caf\00e9');
:bytes

--
-- WIN1252: five byte values are not characters
--
\c regress_zklock_win1252
\encoding UTF8
CREATE EXTENSION zklock;
SELECT zk_lock(U&'/\20ac'), zk_lock(U&'/caf\00e9');
:bytes
SELECT zk_unlock_all();
SELECT zk_lock('/' || chr(129));
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY sqlstate
SELECT zk_xact_lock('/a' || chr(141));
SELECT zk_try_lock(chr(143));
SELECT zk_try_xact_lock('/' || chr(144) || '/b');
SELECT zk_unlock('/' || chr(157));
SELECT zk_lock_token('/' || chr(129));
\set VERBOSITY default
:bytes
SELECT zk_lock('/a'), zk_unlock('/a');

--
-- EUC_JP: the number of bytes changes
--
\c regress_zklock_euc_jp
\encoding UTF8
CREATE EXTENSION zklock;
SELECT zk_lock(U&'/\30ed\30c3\30af');
:bytes
:lengths
SELECT zk_unlock(U&'/\30ed\30c3\30af');
:bytes

--
-- SQL_ASCII: bytes that are valid UTF-8, or nothing
--
\c regress_zklock_sql_ascii
CREATE EXTENSION zklock;
SELECT zk_lock(E'/caf\xc3\xa9'), zk_lock('/cafe');
-- convert_to does nothing here, either
:bytes
SELECT zk_unlock(E'/caf\xc3\xa9');
SELECT zk_unlock_all();
SELECT zk_lock(E'/caf\xe9');
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY sqlstate
-- truncated, overlong, a surrogate, beyond the last character
SELECT zk_lock(E'/caf\xc3');
SELECT zk_lock(E'/\xc0\xafa');
SELECT zk_lock(E'/\xed\xa0\x80');
SELECT zk_lock(E'/\xf4\x90\x80\x80');
SELECT zk_unlock(E'/caf\xe9');
SELECT zk_lock_token(E'/caf\xe9');
-- valid UTF-8, and refused as elsewhere
SELECT zk_lock(E'/\xc2\x85');
SELECT zk_lock(E'/\xee\x80\x80');
SET zklock.root = E'/caf\xe9';
\set VERBOSITY default
:bytes

\c :"database"
DROP DATABASE regress_zklock_utf8;
DROP DATABASE regress_zklock_latin1;
DROP DATABASE regress_zklock_win1252;
DROP DATABASE regress_zklock_euc_jp;
DROP DATABASE regress_zklock_sql_ascii;
