# Does with doc/programs/python.md's code what t/096_docs_programs.pl says.

import sys
import threading

import psycopg
import psycopg2.pool
from psycopg_pool import ConnectionPool

import page


def count(db):
    return db.execute("SELECT count(*) FROM zk_locks").fetchone()[0]


def leak(pool):
    with pool.connection() as db:
        db.execute("SELECT zk_lock('/pool')")
    with pool.connection() as db:
        return count(db)


def state_of(call, *args):
    try:
        return str(call(*args))
    except psycopg.Error as error:
        return error.sqlstate


def work(db):
    attempts.append(1)
    print("working", flush=True)
    path = sys.stdin.readline().split()[1:]
    db.execute("UPDATE account SET n = n + 1")
    if path:
        print("written", flush=True)
        sys.stdin.readline()
        db.execute("SELECT zk_xact_lock(%s)", path)


def dirty():
    with ConnectionPool("dbname=shop", kwargs={"autocommit": True}, min_size=1) as pool:
        print("next user:", leak(pool), flush=True)
        sys.stdin.readline()
    return "closed"


def timeouts():
    with psycopg.connect("dbname=shop", autocommit=True) as db:
        return " ".join([
            state_of(page.make_report, db, page.timedelta(milliseconds=50)),
            state_of(page.make_report, db, "50ms"),
            state_of(page.make_report, db, 5)])


def lock_timeout():
    with psycopg.connect("dbname=shop", autocommit=True) as db:
        return state_of(page.make_report_or_raise, db)


def cancel():
    with psycopg.connect("dbname=shop", autocommit=True) as db:
        other = threading.Thread(target=lambda: (sys.stdin.readline(), db.cancel()))
        other.start()
        print("waits", flush=True)
        state = state_of(db.execute, "SELECT zk_lock('/jobs/report')")
        other.join()
        return state


# what it says of psycopg2
def psycopg_2():
    pool = psycopg2.pool.SimpleConnectionPool(1, 1, "dbname=shop")
    found = []
    for reset in False, True:
        db = pool.getconn()
        with db, db.cursor() as cursor:
            cursor.execute("SELECT zk_lock('/pool')")
        if reset:
            db.reset()
        pool.putconn(db)
        db = pool.getconn()
        with db, db.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM zk_locks")
            found.append(str(cursor.fetchone()[0]))
        pool.putconn(db)
    pool.closeall()
    return " ".join(found)


def tried(loop, path):
    attempts.clear()
    loop(path, work)
    return f"done {len(attempts)}"


attempts = []
commands = {
    "dirty": dirty,
    "clean": lambda: f"next user: {leak(page.pool)}",
    "timeouts": timeouts,
    "lock_timeout": lock_timeout,
    "cancel": cancel,
    "in_lock": lambda path: tried(page.in_lock, path),
    "in_session_lock": lambda path: tried(page.in_session_lock, path),
    "psycopg2": psycopg_2,
}
print("ready", flush=True)
for line in iter(sys.stdin.readline, "quit\n"):
    name, *args = line.split()
    try:
        print(commands[name](*args), flush=True)
    except psycopg.Error as error:
        print("error", error.sqlstate, flush=True)
page.pool.close()
