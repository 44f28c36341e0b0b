# kazoo's Lock as a subject of dev/bench, with the commands that ./runner
# describes.
#
# The client has kazoo's defaults, including its handler (threads).  Each client
# is a process, so that a measurement of many does not show how they share one
# interpreter.  The first process has no session; it forks the clients before it
# starts any thread, and tells them what to do.

import ctypes
import logging
import os
import signal
import sys
import time
import traceback

import kazoo
from kazoo.client import KazooClient

hosts, session_timeout = sys.argv[1], int(sys.argv[2]) / 1000
now = time.monotonic_ns
SECOND = 1000000000
PR_SET_PDEATHSIG = 1
first_process = os.getpid()

logging.basicConfig(
    stream=sys.stderr,
    level=logging.WARNING,
    format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s",
    datefmt="%H:%M:%S",
)


def words(e):
    return "%s: %s" % (type(e).__name__, " ".join(str(e).split()))


class Client:
    def __init__(self):
        self.kazoo = KazooClient(hosts=hosts, timeout=session_timeout)
        self.kazoo.start(timeout=30)
        self.locks = {}

    # one object for each path, as an application would keep it
    def lock(self, path):
        if path not in self.locks:
            self.locks[path] = self.kazoo.Lock(path)
        return self.locks[path]

    def close(self):
        self.kazoo.stop()
        self.kazoo.close()

    def free(self, path, rounds):
        lock = self.lock(path)
        times = []
        for _ in range(int(rounds)):
            asked = now()
            acquired = lock.acquire()
            got = now()
            released = lock.release()
            times.append((got - asked, now() - got))
            assert acquired and released
        return " ".join("%d:%d" % t for t in times)

    def attempt(self, path, rounds):
        lock = self.lock(path)
        times = []
        for _ in range(int(rounds)):
            began = now()
            acquired = lock.acquire(blocking=False)
            times.append(now() - began)
            if acquired:
                lock.release()
                raise Exception("nobody has it: " + path)
        return " ".join("%d" % t for t in times)

    # it has no call for several locks
    def many(self, path, k, rounds):
        locks = [self.lock("%s/%d" % (path, i + 1)) for i in range(int(k))]
        times = []
        for _ in range(int(rounds)):
            began = now()
            for lock in locks:
                lock.acquire()
            for lock in locks:
                lock.release()
            times.append(now() - began)
        return " ".join("%d" % t for t in times)

    def first(self, path, rounds):
        self.kazoo.ensure_path(path)
        times = []
        for _ in range(int(rounds)):
            began = now()
            other = Client()
            lock = other.lock(path)
            acquired = lock.acquire()
            times.append(now() - began)
            assert acquired and lock.release()
            other.close()
        return " ".join("%d" % t for t in times)

    def hand(self, path, start, rounds):
        lock = self.lock(path)
        times = []
        sleep_until(int(start))
        for _ in range(int(rounds)):
            asked = now()
            acquired = lock.acquire()
            got = now()
            release = now()
            released = lock.release()
            times.append((asked, got, release, now()))
            assert acquired and released
        return " ".join("%d:%d:%d:%d" % t for t in times)

    # rounds that end within the measured time count
    def own(self, path, start, seconds):
        lock = self.lock(path)
        since = int(start) + SECOND
        until = since + int(float(seconds) * SECOND)
        count = 0
        sleep_until(int(start))
        while True:
            acquired = lock.acquire()
            released = lock.release()
            t = now()
            assert acquired and released
            if t >= until:
                return "%d" % count
            if t >= since:
                count += 1


def sleep_until(when):
    time.sleep(max(0, when - now()) / SECOND)


scenes = {
    "free": Client.free,
    "try": Client.attempt,
    "many": Client.many,
    "first": Client.first,
    "hand": Client.hand,
    "own": Client.own,
}


class Worker:
    """A client in a process of its own."""

    def __init__(self, others):
        theirs, to = os.pipe()
        fro, ours = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                # it ends with the first process, even in the middle of a scene
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != first_process:
                    os._exit(0)
                # the others must notice when the first process closes their
                # pipes
                for other in others:
                    other.to.close()
                    other.fro.close()
                os.close(to)
                os.close(fro)
                self.work(os.fdopen(theirs), os.fdopen(ours, "w"))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(theirs)
        os.close(ours)
        self.to = os.fdopen(to, "w")
        self.fro = os.fdopen(fro)

    @staticmethod
    def work(requests, answers):
        def say(text):
            answers.write(text + "\n")
            answers.flush()

        try:
            client = Client()
        except Exception as e:
            return say("error " + words(e))
        say("ok")
        for line in iter(requests.readline, ""):
            word = line.split()
            try:
                say("ok " + scenes[word[0]](client, *word[1:]))
            except Exception as e:
                say("error " + words(e))
        client.close()

    def tell(self, *word):
        self.to.write(" ".join(str(w) for w in word) + "\n")
        self.to.flush()

    def answer(self):
        line = self.fro.readline().rstrip("\n")
        if not line:
            raise Exception("a client has ended")
        if not line.startswith("ok"):
            raise Exception(line[len("error ") :])
        return line[len("ok ") :]

    def end(self):
        self.to.close()
        self.fro.close()
        os.waitpid(self.pid, 0)


# [0] does what one client does, the others contend
workers = []


def have_clients(n):
    while len(workers) > n + 1:
        workers.pop().end()
    new = []
    while len(workers) < n + 1:
        workers.append(Worker(workers))
        new.append(workers[-1])
    answers_of(new)


# read all answers, so that none is taken for that of the next request
def answers_of(asked):
    texts, errors = [], []
    for worker in asked:
        try:
            texts.append(worker.answer())
        except Exception as e:
            errors.append(e)
    if errors:
        raise errors[0]
    return texts


def together(scene, path, n, rounds):
    have_clients(int(n))
    start = now() + SECOND // 5
    for i, worker in enumerate(workers[1:], 1):
        worker.tell(scene, "%s/%d" % (path, i) if scene == "own" else path, start, rounds)
    return answers_of(workers[1:])


def answer(word):
    if word[0] == "version":
        return kazoo.__version__
    if word[0] == "clients":
        have_clients(int(word[1]))
        return ""
    if word[0] == "hand":
        return " ".join(together(*word))
    if word[0] == "own":
        count = sum(int(text) for text in together(*word))
        return "%d:%d" % (count, float(word[3]) * SECOND)
    if word[0] not in scenes:
        raise Exception("no such scene")
    workers[0].tell(*word)
    return workers[0].answer()


def say(line):
    sys.stdout.write(line.rstrip() + "\n")
    sys.stdout.flush()


signal.signal(signal.SIGPIPE, signal.SIG_IGN)
try:
    have_clients(0)
except Exception as e:
    say("error " + words(e))
    sys.exit(1)
say("ready")
for line in iter(sys.stdin.readline, ""):
    word = line.split()
    if word == ["quit"]:
        break
    try:
        say("ok " + answer(word))
    except Exception as e:
        say("error %s" % e)
while workers:
    workers.pop().end()
