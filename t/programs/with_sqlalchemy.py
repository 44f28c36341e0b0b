# Does with doc/programs/sqlalchemy.md's code what t/096_docs_programs.pl says.

from datetime import timedelta

from sqlalchemy import create_engine, text

import page
from program import ask, canceled, in_loop, serve, state_of


def leak(engine):
    with engine.begin() as db:
        db.execute(text("SELECT zk_lock('/pool')"))
    with engine.connect() as db:
        return "next user: " + str(db.execute(text("SELECT count(*) FROM zk_locks")).scalar())


def dirty():
    engine = create_engine("postgresql+psycopg2:///shop")
    ask(leak(engine))
    engine.dispose()
    return "closed"


# How doc/programs.md binds a timeout
def make_report(patience=timedelta(seconds=5)):
    with page.engine.begin() as db:
        locked = db.execute(text("SELECT zk_xact_lock(:path, :patience)"), {"path": "/jobs/report", "patience": patience}).scalar()
        if locked:
            db.execute(text("INSERT INTO report VALUES (now())"))
        return locked


def timeouts():
    return " ".join(state_of(make_report, timeout) for timeout in (timedelta(), "0s", 5))


def cancel():
    with page.engine.connect() as db:
        return canceled(
            lambda: db.execute(text("SELECT zk_lock('/jobs/report')")), lambda: db.connection.dbapi_connection.cancel())


def execute(db, sql):
    db.execute(text(sql))


serve({
    "dirty": dirty,
    "clean": lambda: leak(page.engine),
    "timeouts": timeouts,
    "cancel": cancel,
    "in_lock": in_loop(page.in_lock, execute),
    "in_session_lock": in_loop(page.in_session_lock, execute),
})
page.engine.dispose()
