"""What an ordinary kazoo program does. Usage: kazoo_basics.py HOSTS. Prints one "ok NAME" per step; any
difference ends it with a traceback."""
import signal
import subprocess
import sys
import threading
import time

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.protocol.states import EventType

hosts = sys.argv[1]
LIMIT = 20  # seconds to wait for anything


def ok(name):
    print("ok", name, flush=True)


def connect(timeout=10.0):
    client = KazooClient(hosts=hosts, timeout=timeout)
    client.start(timeout=LIMIT)
    return client


def wait_until(condition, what):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "timed out: " + what
        time.sleep(0.02)


if len(sys.argv) > 2:  # the child of the last but one step
    connect(timeout=4.0).create("/kz/e2", b"", ephemeral=True)
    print("holding", flush=True)
    signal.pause()

zk = connect()
other = connect()
assert zk.connected and zk.client_id[0] != 0
ok("connect")

assert zk.create("/kz", b"one") == "/kz"
assert zk.create("/kz/s-", b"", sequence=True) == "/kz/s-0000000000"
assert zk.create("/kz/s-", b"", sequence=True) == "/kz/s-0000000001"
path, stat = zk.create("/kz/c2", b"abc", include_data=True)
assert path == "/kz/c2" and stat.data_length == 3 and stat.version == 0
try:
    zk.create("/kz", b"")
    raise AssertionError("created twice")
except NodeExistsError:
    pass
try:
    zk.create("/none/child", b"")
    raise AssertionError("created without a parent")
except NoNodeError:
    pass
zk.ensure_path("/kz/deep/er")
ok("create")

data, stat = zk.get("/kz")
assert data == b"one" and stat.version == 0 and stat.numChildren == 4, (data, stat)
stat = zk.set("/kz", b"two", version=0)
assert stat.version == 1
try:
    zk.set("/kz", b"three", version=0)
    raise AssertionError("set with a wrong version")
except BadVersionError:
    pass
other.sync("/kz")
assert other.get("/kz")[0] == b"two"
assert other.exists("/kz").version == 1 and other.exists("/none") is None
ok("set and get")

assert sorted(zk.get_children("/kz")) == ["c2", "deep", "s-0000000000", "s-0000000001"]
names, stat = zk.get_children("/kz", include_data=True)
assert len(names) == 4 and stat.numChildren == 4
ok("list")

seen = []
fired = threading.Event()


def watcher(event):
    seen.append(event)
    fired.set()


other.get("/kz", watch=watcher)
zk.set("/kz", b"three")
assert fired.wait(LIMIT), "no event"
zk.set("/kz", b"four")
other.sync("/kz")
assert other.get("/kz")[0] == b"four"
assert [(e.type, e.path) for e in seen] == [(EventType.CHANGED, "/kz")], seen
fired.clear()
assert other.exists("/kz/later", watch=watcher) is None
zk.create("/kz/later", b"")
assert fired.wait(LIMIT) and seen[-1].type == EventType.CREATED and seen[-1].path == "/kz/later"
fired.clear()
other.get_children("/kz", watch=watcher)
zk.delete("/kz/later")
assert fired.wait(LIMIT) and seen[-1].type == EventType.CHILD and seen[-1].path == "/kz"
ok("one-shot watches")

t = zk.transaction()
t.check("/kz", version=3)
t.create("/kz/t", b"x")
t.set_data("/kz/t", b"y")
t.delete("/kz/c2")
results = t.commit()
assert results[1] == "/kz/t" and results[2].version == 1, results
t = zk.transaction()
t.create("/kz/u", b"")
t.delete("/kz/none")
results = t.commit()
assert isinstance(results[1], NoNodeError) and zk.exists("/kz/u") is None, results
ok("transaction")

try:
    zk.delete("/kz")
    raise AssertionError("deleted a node with children")
except NotEmptyError:
    pass
zk.delete("/kz/t", version=1)
assert zk.exists("/kz/t") is None
ok("delete")

holder = connect()
assert holder.create("/kz/e", b"", ephemeral=True) == "/kz/e"
other.sync("/kz/e")
stat = other.exists("/kz/e")
assert stat.ephemeralOwner == holder.client_id[0], stat
gone = threading.Event()
other.exists("/kz/e", watch=lambda event: gone.set())
holder.stop()
assert gone.wait(LIMIT), "the ephemeral node outlived its session"
wait_until(lambda: zk.exists("/kz/e") is None, "the node is gone everywhere")
ok("ephemeral node of a closed session")

# A session that is cut and not closed expires by the leader's decision, not before its time-out.
child = subprocess.Popen([sys.executable, sys.argv[0], hosts, "hold"], stdout=subprocess.PIPE, text=True)
try:
    assert child.stdout.readline() == "holding\n"
    other.sync("/kz/e2")
    gone = threading.Event()
    assert other.exists("/kz/e2", watch=lambda event: gone.set()) is not None
finally:
    child.kill()
    child.wait()
begin = time.monotonic()
assert gone.wait(LIMIT), "the session of a client that is gone did not expire"
lasted = time.monotonic() - begin
assert lasted > 1, "the session of a killed client ended with its connection"
ok("ephemeral node of a lost session, after %.1f s" % lasted)

zk.delete("/kz", recursive=True)
assert zk.exists("/kz") is None
for client in (zk, other):
    client.stop()
    client.close()
ok("close")
