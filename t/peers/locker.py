# kazoo's lock behind the lines that ./locker describes.

import logging
import sys

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

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


def acquire(path, timeout):
    # the pattern lets it see the nodes of Curator, of zklock and of most others
    lock = client.Lock(path, extra_lock_patterns=["-lock-"])
    timeout = int(timeout)
    try:
        if not lock.acquire(timeout=None if timeout < 0 else timeout / 1000):
            return "timeout"
    except LockTimeout:
        return "timeout"
    locks[path] = lock
    stat = client.exists(path + "/" + lock.node)
    return "ok %d" % (stat.czxid if stat else 0)


def release(path):
    return "ok" if locks[path].release() else "error release returned False"


def held(path):
    return "yes" if path in locks and locks[path].is_acquired else "no"


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


commands = {
    "acquire": acquire,
    "release": release,
    "held": held,
    "events": lambda: " ".join(events),
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
        say("error %s: %s" % (type(e).__name__, " ".join(str(e).split())))
client.stop()
client.close()
