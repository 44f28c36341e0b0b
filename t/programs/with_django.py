# Does with doc/programs/django.md's code what t/096_docs_programs.pl says.

import sys
import threading

import django
from django.conf import settings

settings.configure(DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": "shop", "CONN_MAX_AGE": 600}})
django.setup()

from django.core.signals import request_finished, request_started
from django.db import Error, connection

import page


def request(sql):
    request_started.send(None)
    with connection.cursor() as db:
        db.execute(sql)
        found = db.fetchone()[0]
    request_finished.send(None)
    return found


def leak():
    request("SELECT zk_lock('/pool')")
    return request("SELECT count(*) FROM zk_locks")


def state_of(call, *args):
    try:
        return str(call(*args))
    except Error as error:
        return page.sqlstate(error)


def dirty():
    request_finished.disconnect(page.clean)
    print("next user:", leak(), flush=True)
    sys.stdin.readline()
    request_finished.connect(page.clean)
    connection.close()
    return "closed"


def cancel():
    connection.ensure_connection()
    theirs = connection.connection
    other = threading.Thread(target=lambda: (sys.stdin.readline(), theirs.cancel()))
    print("waits", flush=True)
    other.start()
    state = state_of(request, "SELECT zk_lock('/jobs/report')")
    other.join()
    return state


def work(db):
    attempts.append(1)
    print("working", flush=True)
    path = sys.stdin.readline().split()[1:]
    db.execute("UPDATE account SET n = n + 1")
    if path:
        print("written", flush=True)
        sys.stdin.readline()
        db.execute("SELECT zk_xact_lock(%s)", path)


def tried(loop, path):
    attempts.clear()
    loop(path, work)
    return f"done {len(attempts)}"


attempts = []
commands = {
    "dirty": dirty,
    "clean": lambda: f"next user: {leak()}",
    "timeouts": lambda: " ".join(
        state_of(page.make_report, timeout) for timeout in (page.timedelta(milliseconds=50), "50ms", 5)),
    "lock_timeout": lambda: state_of(page.make_report_or_raise),
    "cancel": cancel,
    "in_lock": lambda path: tried(page.in_lock, path),
    "in_session_lock": lambda path: tried(page.in_session_lock, path),
}
page.nightly()
page.trap()
print("ready", flush=True)
for line in iter(sys.stdin.readline, "quit\n"):
    name, *args = line.split()
    print(state_of(commands[name], *args), flush=True)
connection.close()
