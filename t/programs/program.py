# What the programs in Python have in common: see t/096_docs_programs.pl

import sys
import threading
from datetime import timedelta


# Says this, and returns the words of the next line
def ask(word):
    print(word, flush=True)
    return sys.stdin.readline().split()


# The SQLSTATE of an error of any of the libraries
def sqlstate(error):
    cause = getattr(error, "orig", error.__cause__) or error
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)


def state_of(call, *args):
    try:
        return str(call(*args))
    except Exception as error:
        if sqlstate(error) is None:
            raise
        return sqlstate(error)


def canceled(wait, cancel):
    def when_told():
        sys.stdin.readline()
        cancel()

    other = threading.Thread(target=when_told)
    print("waits", flush=True)
    other.start()
    state = state_of(wait)
    other.join()
    return state


# Returns an answer to "in_lock" or "in_session_lock"
def in_loop(loop, execute):
    attempts = []

    def work(db):
        attempts.append(1)
        path = ask("working")[1:]
        execute(db, "UPDATE account SET n = n + 1")
        if path:
            ask("written")
            execute(db, f"SELECT zk_xact_lock('{path[0]}')")

    def answer(path):
        attempts.clear()
        loop(path, work)
        return f"done {len(attempts)}"

    return answer


# make_report(timeout) is that of the page or of doc/programs.md, and execute(db, sql) runs a statement
def serve(page, make_report, execute=lambda db, sql: db.execute(sql), **commands):
    commands["timeouts"] = lambda: " ".join(state_of(make_report, timeout) for timeout in (timedelta(), "0s", 5))
    for loop in page.in_lock, page.in_session_lock:
        commands[loop.__name__] = in_loop(loop, execute)
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, "quit\n"):
        name, *args = line.split()
        print(state_of(commands[name], *args), flush=True)
