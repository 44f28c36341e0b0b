# Does with doc/programs/sqlalchemy.md's code what t/096_docs_programs.pl says.

import sys
import threading

from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

import page


def leak(engine):
    with engine.begin() as db:
        db.execute(text("SELECT zk_lock('/pool')"))
    with engine.connect() as db:
        return db.execute(text("SELECT count(*) FROM zk_locks")).scalar()


def state_of(call, *args):
    try:
        return str(call(*args))
    except DBAPIError as error:
        return page.sqlstate(error)


def dirty():
    engine = create_engine("postgresql+psycopg2:///shop")
    print("next user:", leak(engine), flush=True)
    sys.stdin.readline()
    engine.dispose()
    return "closed"


def cancel():
    with page.engine.connect() as db:
        other = threading.Thread(target=lambda: (sys.stdin.readline(), db.connection.dbapi_connection.cancel()))
        print("waits", flush=True)
        other.start()
        state = state_of(db.execute, text("SELECT zk_lock('/jobs/report')"))
        other.join()
        return state


def work(db):
    attempts.append(1)
    print("working", flush=True)
    path = sys.stdin.readline().split()[1:]
    db.execute(text("UPDATE account SET n = n + 1"))
    if path:
        print("written", flush=True)
        sys.stdin.readline()
        db.execute(text("SELECT zk_xact_lock(:path)"), {"path": path[0]})


def tried(loop, path):
    attempts.clear()
    loop(path, work)
    return f"done {len(attempts)}"


attempts = []
commands = {
    "dirty": dirty,
    "clean": lambda: f"next user: {leak(page.engine)}",
    "timeouts": lambda: " ".join(
        state_of(page.make_report, timeout) for timeout in (page.timedelta(milliseconds=50), "50ms", 5)),
    "lock_timeout": lambda: state_of(page.make_report_or_raise),
    "cancel": cancel,
    "in_lock": lambda path: tried(page.in_lock, path),
    "in_session_lock": lambda path: tried(page.in_session_lock, path),
}
print("ready", flush=True)
for line in iter(sys.stdin.readline, "quit\n"):
    name, *args = line.split()
    print(state_of(commands[name], *args), flush=True)
page.engine.dispose()
