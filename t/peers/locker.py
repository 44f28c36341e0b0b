# kazoo's locks with the commands that ./locker describes.

import logging
import os
import random
import sys
import threading
import time

import kazoo
from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout, NodeExistsError
from kazoo.security import CREATOR_ALL_ACL

logging.basicConfig(
    stream=sys.stderr,
    level=logging.WARNING,
    format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s",
    datefmt="%H:%M:%S",
)

hosts, session_timeout = sys.argv[1], int(sys.argv[2]) / 1000
client = KazooClient(hosts=hosts, timeout=session_timeout)
events = []
client.add_listener(lambda state: events.append(str(state)))
locks = {}
more_clients = []
identifier = None


class Single:
    """The simplest lock: whoever could create the node has it."""

    node = ""

    def __init__(self, client, path):
        self.client, self.path, self.is_acquired = client, path, False

    def acquire(self, timeout=None):
        end = None if timeout is None else time.monotonic() + timeout
        while not self.is_acquired:
            gone = threading.Event()
            try:
                self.client.create(self.path, b"kazoo", ephemeral=True)
                self.is_acquired = True
            except NodeExistsError:
                if self.client.exists(self.path, lambda event: gone.set()):
                    if not gone.wait(end and max(end - time.monotonic(), 0)):
                        raise LockTimeout()
        return True

    def release(self):
        self.is_acquired = False
        self.client.delete(self.path)
        return True


classes = {
    # the pattern lets it see the nodes of Curator, zklock and most others
    "pattern": lambda c, path: c.Lock(path, identifier, extra_lock_patterns=["-lock-"]),
    "lock": lambda c, path: c.Lock(path, identifier),
    "read": lambda c, path: c.ReadLock(path, identifier),
    "write": lambda c, path: c.WriteLock(path, identifier),
    "single": Single,
}


def token(client, path, lock):
    stat = client.exists((path + "/" + lock.node).rstrip("/"))
    return stat.czxid if stat else 0


def acquire(path, timeout, name="pattern"):
    lock = classes[name](client, path)
    timeout = int(timeout)
    try:
        if not lock.acquire(timeout=None if timeout < 0 else timeout / 1000):
            return "timeout"
    except LockTimeout:
        return "timeout"
    locks[path, name] = lock
    return "ok %d" % token(client, path, lock)


def release(path, name="pattern"):
    return "ok" if locks[path, name].release() else "error release returned False"


def held(path, name="pattern"):
    return "yes" if (path, name) in locks and locks[path, name].is_acquired else "no"


def clients(n):
    for _ in range(int(n)):
        more = KazooClient(hosts=hosts, timeout=session_timeout)
        more.start(timeout=30)
        more_clients.append(more)
    return "ok"


def auth(scheme, credentials):
    client.add_auth(scheme, credentials)
    # restrict access to what it creates from now on
    client.default_acl = CREATOR_ALL_ACL
    return "ok"


def read(counter):
    with open(counter) as file:
        # empty: another process is writing it, in violation of the lock
        return int(file.read() or -1)


def write(counter, n):
    with open(counter, "w") as file:
        file.write("%d\n" % n)


def now():
    return time.time_ns() // 1000


def run(path, seconds, name, share, counter, log):
    end = time.monotonic() + float(seconds)
    log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    holds, errors = [], []

    def work(number, client):
        chance = random.Random(number)
        lock = {"exclusive": classes[name](client, path), "shared": classes["read"](client, path)}
        turns = 0
        while time.monotonic() < end and not errors:
            mode = "shared" if turns and chance.random() * 100 < int(share) else "exclusive"
            turns += 1
            if not lock[mode].acquire():
                raise Exception("acquire returned False")
            since = now()
            if mode == "shared":
                time.sleep(0.02)
            else:
                n = read(counter)
                time.sleep(0.001)
                write(counter, n + 1)
            czxid = token(client, path, lock[mode])
            until = now()
            if not lock[mode].release():
                raise Exception("release returned False")
            line = "%d %s %d %d %d\n" % (number, mode, since, until, czxid)
            os.write(log, line.encode())
            holds.append(number)

    def try_to_work(number, client):
        try:
            work(number, client)
        except Exception as e:
            errors.append("client %d: %s" % (number, words(e)))

    threads = [threading.Thread(target=try_to_work, args=[n, c]) for n, c in enumerate(more_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(log)
    return "error " + "; ".join(errors) if errors else "ok %d" % len(holds)


def identify(*text):
    global identifier
    identifier = " ".join(text)
    return "ok"


def words(e):
    return "%s: %s" % (type(e).__name__, " ".join(str(e).split()))


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


commands = {
    "acquire": acquire,
    "release": release,
    "held": held,
    "events": lambda: " ".join(events),
    "version": lambda: kazoo.__version__,
    "auth": auth,
    "clients": clients,
    "run": run,
    "identify": identify,
}

client.start(timeout=30)
say("ready")
for line in iter(sys.stdin.readline, ""):
    word = line.split()
    if word[0] == "quit":
        break
    try:
        say(commands[word[0]](*word[1:]))
    except Exception as e:
        say("error " + words(e))
for c in [client] + more_clients:
    c.stop()
    c.close()
