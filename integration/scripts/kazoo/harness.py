"""What the kazoo programs share: the stage that they run on, connections, waiting, and the report.

The environment has KVD_SERVERS, the proxied addresses of the three members in order, and KVD_CONTROL, where the stage
takes commands (see stage_test.go). KVD_JUDGED is what is behind it, kvd or zookeeper."""
import json
import logging
import os
import socket
import sys
import threading
import time
import traceback

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

SERVERS = os.environ["KVD_SERVERS"].split(",")
KVD = os.environ.get("KVD_JUDGED", "kvd") == "kvd"
LIMIT = 60  # seconds; only ends what hangs

logging.basicConfig(level=logging.ERROR)
logging.getLogger("kazoo").setLevel(logging.CRITICAL)


class Stage:
    """Commands to the cluster and its proxies."""

    def __init__(self):
        host, port = os.environ["KVD_CONTROL"].rsplit(":", 1)
        self._file = socket.create_connection((host, int(port))).makefile("rw")
        self._lock = threading.Lock()

    def __call__(self, *words):
        with self._lock:
            print(*words, file=self._file, flush=True)
            answer = self._file.readline().strip()
        if answer != "ok" and not answer.startswith("ok "):
            raise RuntimeError("%s: %s" % (words, answer))
        return answer[3:]

    def leader(self):
        return int(self("leader"))

    def followers(self):
        leader = self.leader()
        return [n for n in (1, 2, 3) if n != leader]


stage = Stage()
_clients = []


def connect(*members, timeout=10.0, **kwargs):
    """A started client that knows the proxies of these members, or of all."""
    hosts = ",".join(SERVERS[n - 1] for n in members or range(1, len(SERVERS) + 1))
    chroot = kwargs.pop("chroot", "")
    client = KazooClient(
        hosts=hosts + chroot,
        timeout=timeout,
        connection_retry=KazooRetry(max_tries=-1, delay=0.02, backoff=1.5, max_delay=0.3, max_jitter=0.1),
        command_retry=KazooRetry(max_tries=-1, delay=0.02, backoff=1.5, max_delay=0.3, max_jitter=0.1),
        **kwargs
    )
    _clients.append(client)
    client.start(timeout=LIMIT)
    return client


def close(*clients):
    for client in clients:
        client.stop()
        client.close()
        if client in _clients:
            _clients.remove(client)


def until(condition, what):
    """Waits for the condition and returns its value."""
    deadline = time.monotonic() + LIMIT
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError("waited in vain: " + what)
        time.sleep(0.01)


def session_of(zk):
    """The client's session and password. kazoo is connected, and answers, a moment before it has them again."""
    until(lambda: zk.client_id, "the client has its session")
    return zk.client_id


def raises(kind, call, *args, **kwargs):
    try:
        result = call(*args, **kwargs)
    except kind as e:
        return e
    raise AssertionError("%s%r gave %r, not %s" % (getattr(call, "__name__", call), args, result, kind))


def same(got, want, what=""):
    if got != want:
        raise AssertionError("%s: got %r, want %r" % (what, got, want))


class Task(threading.Thread):
    """A thread whose failure is raised by join."""

    def __init__(self, target, *args):
        super().__init__(daemon=True)
        self._call, self._args, self.error, self.result = target, args, None, None
        self.start()

    def run(self):
        try:
            self.result = self._call(*self._args)
        except BaseException as e:  # reported by finish
            self.error = e

    def finish(self, what="a task"):
        self.join(LIMIT)
        if self.is_alive():
            raise AssertionError("hangs: " + what)
        if self.error:
            raise self.error
        return self.result


_checks = []


def check(name, *ops):
    """Decorator of one check: what it depends on are operations of the protocol."""

    def add(function):
        _checks.append((name, list(ops), function))
        return function

    return add


def main():
    only = sys.argv[1:]
    failed = 0
    for name, ops, function in _checks:
        if only and name not in only:
            continue
        detail, begin = "", time.monotonic()
        try:
            function()
        except BaseException as e:
            frames = traceback.extract_tb(e.__traceback__)
            own = [f for f in frames if os.path.dirname(f.filename) == os.path.dirname(os.path.abspath(__file__))]
            detail = "%s: %s (%s)" % (type(e).__name__, e, ", ".join("%s:%d" % (os.path.basename(f.filename), f.lineno) for f in own))
            traceback.print_exc()
        failed += detail != ""
        print(json.dumps({"client": "kazoo", "check": name, "ops": ops, "pass": detail == "", "detail": detail}), flush=True)
        print("%s took %.2f s" % (name, time.monotonic() - begin), file=sys.stderr, flush=True)
        for client in list(_clients):
            try:
                close(client)
            except Exception:
                traceback.print_exc()
        stage("heal")
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # threads of a failed check may hang
