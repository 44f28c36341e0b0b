# Without autocommit, as psycopg is by default: takes a lock, rolls back, has it until it
# reads a line, and stays connected until it reads another: rollback.py KEY wait|try

import sys

import psycopg2

key, how = sys.argv[1:]
connection = psycopg2.connect('')
cursor = connection.cursor()


def first(query):
    cursor.execute(query, (int(key),))
    return cursor.fetchone()[0]


if first('SELECT pg_advisory_lock(%s)' if how == 'wait' else 'SELECT pg_try_advisory_lock(%s)') is False:
    print('refused', flush=True)
    sys.exit()
connection.rollback()
try:
    cursor.execute('SELECT 1 / 0')
except psycopg2.Error:
    connection.rollback()
print('locked', flush=True)
sys.stdin.readline()
print('released' if first('SELECT pg_advisory_unlock(%s)') else 'not held', flush=True)
connection.rollback()
sys.stdin.readline()
