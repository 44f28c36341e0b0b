# Does with doc/programs/sqlalchemy.md's code what t/096_docs_programs.pl says.

from sqlalchemy import create_engine, text

import page
from program import ask, canceled, serve


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
def make_report(patience):
    with page.engine.begin() as db:
        locked = db.execute(text("SELECT zk_xact_lock(:path, :patience)"), {"path": "/jobs/report", "patience": patience}).scalar()
        if locked:
            db.execute(text("INSERT INTO report VALUES (now())"))
        return locked


def cancel():
    with page.engine.connect() as db:
        return canceled(
            lambda: db.execute(text("SELECT zk_lock('/jobs/report')")), lambda: db.connection.dbapi_connection.cancel())


serve(page, make_report, lambda db, sql: db.execute(text(sql)), dirty=dirty, clean=lambda: leak(page.engine), cancel=cancel)
page.engine.dispose()
