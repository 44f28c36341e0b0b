# Without autocommit, as psycopg is by default: takes a lock, rolls back, and
# has it until it reads a line: rollback.py HOST PORT KEY

import sys

import psycopg2

host, port, key = sys.argv[1:]
connection = psycopg2.connect(host=host, port=port, dbname='shop', user='app')
cursor = connection.cursor()
cursor.execute('SELECT pg_advisory_lock(%s)', (int(key),))
connection.rollback()
try:
    cursor.execute('SELECT 1 / 0')
except psycopg2.Error:
    connection.rollback()
print('rolled back', flush=True)
sys.stdin.readline()
cursor.execute('SELECT pg_advisory_unlock(%s)', (int(key),))
print('held' if cursor.fetchone()[0] else 'not held', flush=True)
connection.rollback()
