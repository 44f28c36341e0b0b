# Does with doc/programs/python.md's code what t/096_docs_programs.pl says.

import psycopg
import psycopg2.pool
from psycopg_pool import ConnectionPool

import page
from program import ask, canceled, serve


def own_connection():
    return psycopg.connect("dbname=shop", autocommit=True)


def leak(pool):
    with pool.connection() as db:
        db.execute("SELECT zk_lock('/pool')")
    with pool.connection() as db:
        return "next user: " + str(db.execute("SELECT count(*) FROM zk_locks").fetchone()[0])


def dirty():
    with ConnectionPool("dbname=shop", kwargs={"autocommit": True}, min_size=1) as pool:
        ask(leak(pool))
    return "closed"


# The page's function in a pool without autocommit; the connection that was given back is taken again
def transactions():
    with ConnectionPool("dbname=shop", min_size=1, reset=page.clean) as pool:
        with pool.connection() as db:
            pid = db.info.backend_pid
        found = leak(pool)
        with pool.connection() as db:
            return f"{found}, {db.info.backend_pid == pid}"


def make_report(timeout):
    with own_connection() as db:
        return page.make_report(db, timeout)


# A session-scope lock belongs to the transaction that took it until that commits
def trap():
    db = psycopg.connect("dbname=shop")
    db.execute("SELECT zk_lock('/leader')")
    db.rollback()
    assert db.execute("SELECT count(*) FROM zk_locks").fetchone()[0] == 0

    db.execute("SELECT zk_lock('/leader')")
    db.commit()
    db.rollback()
    assert db.execute("SELECT count(*) FROM zk_locks").fetchone()[0] == 1
    db.close()


def cancel():
    with own_connection() as db:
        return canceled(lambda: db.execute("SELECT zk_lock('/jobs/report')"), db.cancel)


# What the page says of psycopg2: how many locks there are after putconn, without reset()
# and with it
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


trap()
serve(page, make_report, dirty=dirty, clean=lambda: leak(page.pool), cancel=cancel, transactions=transactions, psycopg2=psycopg_2)
page.pool.close()
