# Does with doc/programs/django.md's code what t/096_docs_programs.pl says.

import django
from django.conf import settings

settings.configure(DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": "shop", "CONN_MAX_AGE": 600}})
django.setup()

from django.core.signals import request_finished, request_started
from django.db import connection, transaction

import page
from program import ask, canceled, serve


def request(sql):
    request_started.send(None)
    with connection.cursor() as db:
        db.execute(sql)
        found = db.fetchone()[0]
    request_finished.send(None)
    return found


def leak():
    request("SELECT zk_lock('/pool')")
    return "next user: " + str(request("SELECT count(*) FROM zk_locks"))


def dirty():
    request_finished.disconnect(page.clean)
    ask(leak())
    request_finished.connect(page.clean)
    connection.close()
    return "closed"


# How doc/programs.md binds a timeout
def make_report(patience):
    with transaction.atomic(), connection.cursor() as db:
        db.execute("SELECT zk_xact_lock(%s, %s)", ["/jobs/report", patience])
        locked = db.fetchone()[0]
        if locked:
            db.execute("INSERT INTO report VALUES (now())")
        return locked


def cancel():
    connection.ensure_connection()
    return canceled(lambda: request("SELECT zk_lock('/jobs/report')"), connection.connection.cancel)


page.nightly()
serve(page, make_report, dirty=dirty, clean=leak, cancel=cancel)
connection.close()
