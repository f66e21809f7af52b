"""Recipes that exclude: locks, semaphore, election, leases. Several clients contend, each with a session of its own; a
guard in this process sees every holder, and the sequence number of a lock's node is its fencing token."""
import datetime
import threading
import time

from kazoo.exceptions import LockTimeout, NoNodeError
from kazoo.protocol.states import KazooState

from harness import Task, check, connect, main, raises, same, session_of, stage, until


class Guard:
    """What is protected: knows who is inside, and that tokens only grow."""

    def __init__(self, limit=1):
        self._mutex, self._limit = threading.Lock(), limit
        self.inside, self.entries, self.most, self.last = set(), 0, 0, -1
        self.broken = []

    def enter(self, who, token=None):
        with self._mutex:
            self.inside.add(who)
            self.entries += 1
            self.most = max(self.most, len(self.inside))
            if len(self.inside) > self._limit:
                self.broken.append("%r are inside together" % sorted(self.inside))
            if token is not None:
                if token <= self.last:
                    self.broken.append("token %d of %s after %d" % (token, who, self.last))
                self.last = token

    def leave(self, who):
        with self._mutex:
            self.inside.discard(who)

    def verify(self, entries):
        same(self.broken, [])
        same(self.entries, entries, "entries")


def token(lock):
    return int(lock.node[-10:])


def contend(path, rounds, clients, inside=None, recipe="Lock"):
    """Each client takes the lock so many times. In it, it raises a counter in the tree by reading and writing without a
    version: an update that is lost is an exclusion that was broken."""
    guard = Guard()
    clients[0].ensure_path(path + "-counter")
    clients[0].set(path + "-counter", b"0")

    def one(zk, name):
        lock = getattr(zk, recipe)(path, name)
        for i in range(rounds):
            assert lock.acquire(timeout=60)
            guard.enter(name, token(lock))
            if inside:
                inside(zk, name, lock, guard)
            zk.retry(zk.sync, path)
            value = int(zk.retry(zk.get, path + "-counter")[0])
            # Unknown outcomes are repeated: the same value is written again.
            zk.retry(zk.set, path + "-counter", b"%d" % (value + 1))
            guard.leave(name)
            lock.release()

    tasks = [Task(one, zk, "c%d" % i) for i, zk in enumerate(clients)]
    for t in tasks:
        t.finish("a contender")
    total = rounds * len(clients)
    guard.verify(total)
    stage("heal")  # takes back cuts that have not happened
    zk = clients[0]
    zk.retry(zk.sync, path)
    same(int(zk.retry(zk.get, path + "-counter")[0]), total, "counter")
    same(zk.retry(zk.get_children, path), [], "lock nodes left behind")


@check("Lock", "create", "delete", "getChildren", "getData", "watch events")
def _():
    a, b = connect(), connect()
    lock, other = a.Lock("/lock", "a"), b.Lock("/lock", "b")
    assert lock.acquire()
    assert not other.acquire(blocking=False)
    raises(LockTimeout, other.acquire, timeout=0.2)
    a.sync("/lock")
    same(lock.contenders(), ["a"])
    waiting = Task(other.acquire)
    until(lambda: (a.sync("/lock"), lock.contenders())[1] == ["a", "b"], "b waits")
    assert not other.is_acquired
    first = token(lock)
    lock.release()
    assert waiting.finish()
    assert token(other) > first
    cancelled = a.Lock("/lock", "c")
    third = Task(cancelled.acquire)
    until(lambda: (b.sync("/lock"), other.contenders())[1] == ["b", "c"], "c waits")
    cancelled.cancel()
    assert third.join(60) is None and type(third.error).__name__ == "CancelledError", third.error
    other.release()
    with lock:
        assert lock.is_acquired
    contend("/lock-many", 12, [a, b, connect(), connect()])


@check("Lock: connections cut while it is held", "create", "delete", "getChildren", "reconnect", "resume")
def _():
    clients = [connect(n) for n in (1, 2, 3, 1)]
    sessions = [session_of(zk)[0] for zk in clients]
    cuts = []

    def cut(zk, name, lock, guard):
        if guard.entries % 3 == 0:
            stage("cut", "all")
            cuts.append(name)
        node = "%s/%s" % (lock.path, lock.node)
        zk.retry(zk.sync, node)
        same(zk.retry(zk.get, node)[1].ephemeralOwner, session_of(zk)[0], "the node of a held lock")

    contend("/lock-cut", 6, clients, cut)
    same(len(cuts), 8)
    same([session_of(zk)[0] for zk in clients], sessions, "sessions")


@check("Lock: the leader dies while it is held", "create", "delete", "getChildren", "leader death", "resume")
def _():
    clients = [connect(timeout=20.0) for _ in range(4)]
    sessions = [session_of(zk)[0] for zk in clients]
    killed = []

    def kill(zk, name, lock, guard):
        if guard.entries == 6:
            killed.append(stage.leader())
            stage("kill", killed[0])
        zk.retry(zk.sync, lock.path)
        same(zk.retry(zk.get, "%s/%s" % (lock.path, lock.node))[1].ephemeralOwner, session_of(zk)[0], "the node of a held lock")

    contend("/lock-death", 4, clients, kill)
    same(len(killed), 1)
    same([session_of(zk)[0] for zk in clients], sessions, "sessions")
    stage("start", killed[0])


@check("Lock: frames cut in the middle", "create", "delete", "getChildren", "reconnect")
def _():
    clients = [connect(n) for n in (1, 2, 3)]
    sizes = iter([7, 61, 130, 33, 19, 90, 250, 45, 3, 77, 210, 5] * 10)

    def cut(zk, name, lock, guard):
        if guard.entries % 2 == 0:
            for n in (1, 2, 3):
                stage("cutafter", n, ("up", "down")[guard.entries // 2 % 2], next(sizes))

    contend("/lock-middle", 5, clients, cut)


def _expire(victim, member):
    """Lets the session of a client that knows one member only expire; its proxy must be refusing already. Returns what the
    caller waits for: that the client has noticed."""
    states = []
    victim.add_listener(states.append)
    stage("refuse", member)
    stage("cut", member)
    return states


@check("Lock: an expired session gives it up", "create", "delete", "expiry", "reconnect")
def _():
    other, victim = connect(1, 2), connect(3, timeout=1.0)
    session = session_of(victim)[0]
    lost = victim.Lock("/lock-expired", "victim")
    assert lost.acquire()
    node = "/lock-expired/" + lost.node
    lock = other.Lock("/lock-expired", "other")
    waiting = Task(lock.acquire)
    until(lambda: len(other.get_children("/lock-expired")) == 2, "the other waits")
    states = _expire(victim, 3)
    begin = time.monotonic()
    assert waiting.finish("the lock of a session that is gone")
    assert time.monotonic() - begin > 0.5, "the session ended with its connection"
    assert token(lock) > int(node[-10:])
    raises(NoNodeError, other.get, node)
    same(states, [KazooState.SUSPENDED])
    stage("accept", 3)
    until(lambda: len(states) == 3, "the victim has a new session")
    same(states, [KazooState.SUSPENDED, KazooState.LOST, KazooState.CONNECTED])
    assert session_of(victim)[0] != session
    victim.sync("/lock-expired")
    raises(NoNodeError, victim.get, node)
    again = victim.Lock("/lock-expired", "again")
    assert not again.acquire(blocking=False)
    lock.release()
    assert again.acquire()
    assert token(again) > token_of(node)


def token_of(node):
    return int(node[-10:])


def _read_write(path, rounds, disturb=lambda: None):
    """Rounds of: two readers inside together; a writer that waits for both; a second writer behind it; readers behind
    the second. (kazoo 2.8.0 takes the last writer in the list for a reader's predecessor, so a reader that waits while a
    writer queues up behind it waits for ever, whatever the server does: nobody queues up behind a waiting reader here.)"""
    clients = [connect() for _ in range(6)]

    def queued(n):
        until(lambda: (clients[0].retry(clients[0].sync, path), len(clients[0].retry(clients[0].get_children, path)))[1] == n, "%d in the queue" % n)

    for _ in range(rounds):
        readers = [zk.ReadLock(path) for zk in clients[:2]]
        for r in readers:
            assert r.acquire(timeout=60)
        disturb()
        writers = [zk.WriteLock(path) for zk in clients[2:4]]
        tasks = []
        for i, w in enumerate(writers):
            tasks.append(Task(w.acquire))
            queued(3 + i)
        late = [zk.ReadLock(path) for zk in clients[4:]]
        for i, r in enumerate(late):
            tasks.append(Task(r.acquire))
            queued(5 + i)
        disturb()
        for r in readers:
            assert not any(x.is_acquired for x in writers + late)
            r.release()
        assert tasks[0].finish("the first writer")
        disturb()
        assert not any(x.is_acquired for x in writers[1:] + late)
        writers[0].release()
        assert tasks[1].finish("the second writer")
        disturb()
        assert not any(x.is_acquired for x in late)
        writers[1].release()
        assert tasks[2].finish("a reader") and tasks[3].finish("the other reader")
        for r in late:
            r.release()
        queued(0)


@check("ReadLock", "create", "delete", "getChildren", "watch events")
def _():
    a, b, c = connect(), connect(), connect()
    first, second = a.ReadLock("/rw", "a"), b.ReadLock("/rw", "b")
    assert first.acquire() and second.acquire(blocking=False)
    writer = c.WriteLock("/rw", "c")
    assert not writer.acquire(blocking=False)
    waiting = Task(writer.acquire)
    until(lambda: (a.sync("/rw"), len(a.get_children("/rw")))[1] == 3, "the writer waits")
    late = a.ReadLock("/rw", "late")
    assert not late.acquire(blocking=False), "a reader overtook a writer that waits"
    first.release()
    assert not writer.is_acquired
    second.release()
    assert waiting.finish()
    reading = Task(late.acquire)
    until(lambda: (a.sync("/rw"), len(a.get_children("/rw")))[1] == 2, "the reader waits")
    assert not late.is_acquired
    writer.release()
    assert reading.finish()
    late.release()


@check("WriteLock", "create", "delete", "getChildren", "watch events")
def _():
    a, b = connect(), connect()
    one, two = a.WriteLock("/w-lock", "a"), b.WriteLock("/w-lock", "b")
    with one:
        assert not two.acquire(blocking=False)
        assert not b.ReadLock("/w-lock").acquire(blocking=False)
    contend("/w-lock-many", 8, [a, b, connect()], recipe="WriteLock")
    _read_write("/rw-many", 3)


@check("ReadLock and WriteLock: connections cut while they are held", "create", "delete", "getChildren", "reconnect", "resume")
def _():
    _read_write("/rw-cut", 2, lambda: stage("cut", "all"))


@check("Semaphore", "create", "delete", "getChildren", "exists", "setData", "watch events")
def _():
    clients = [connect() for _ in range(4)]
    holders = [zk.Semaphore("/sem", "s%d" % i, max_leases=2) for i, zk in enumerate(clients)]
    assert holders[0].acquire() and holders[1].acquire()
    assert not holders[2].acquire(blocking=False)
    raises(LockTimeout, holders[2].acquire, timeout=0.2)
    clients[0].sync("/sem")
    same(sorted(holders[0].lease_holders()), ["s0", "s1"])
    waiting = Task(holders[2].acquire)
    holders[0].release()
    assert waiting.finish()
    for h in holders[1:3]:
        h.release()
    raises(ValueError, clients[3].Semaphore("/sem", max_leases=3).acquire)
    guard = Guard(limit=2)
    both = threading.Barrier(2)

    def one(zk, name):
        for i in range(5):
            s = zk.Semaphore("/sem-many", name, max_leases=2)
            assert s.acquire(timeout=60)
            guard.enter(name)
            try:
                both.wait(0.05)  # until somebody else is inside too, if he comes
            except threading.BrokenBarrierError:
                both.reset()
            guard.leave(name)
            s.release()

    tasks = [Task(one, zk, "c%d" % i) for i, zk in enumerate(clients)]
    for t in tasks:
        t.finish("a holder")
    guard.verify(20)
    same(guard.most, 2, "the most at once")


@check("Semaphore: an expired session gives its lease back", "create", "expiry", "getChildren", "watch events")
def _():
    other, victim = connect(1, 2), connect(3, timeout=1.0)
    held = victim.Semaphore("/sem-expired", "victim", max_leases=1)
    assert held.acquire()
    waiting = Task(other.Semaphore("/sem-expired", "other", max_leases=1).acquire)
    _expire(victim, 3)
    assert waiting.finish("the lease of a session that is gone")


@check("Election", "create", "delete", "getChildren", "watch events", "leader death")
def _():
    clients = [connect(timeout=20.0) for _ in range(3)]
    elections = [zk.Election("/election", "e%d" % i) for i, zk in enumerate(clients)]
    guard, order = Guard(), []
    release = [threading.Event() for _ in clients]

    def lead(i):
        guard.enter("e%d" % i)
        order.append(i)
        assert release[i].wait(60)
        guard.leave("e%d" % i)

    tasks = []
    for i, e in enumerate(elections):
        tasks.append(Task(e.run, lead, i))
        until(lambda: (clients[0].sync("/election"), len(elections[0].contenders()))[1] == i + 1, "contender %d" % i)
    clients[0].sync("/election")
    same(elections[0].contenders(), ["e0", "e1", "e2"])
    until(lambda: order == [0], "the first leads")
    release[0].set()
    until(lambda: order == [0, 1], "the second leads")
    died = stage.leader()
    stage("kill", died)
    clients[0].retry(clients[0].sync, "/election")  # the others' connections may come back later
    same(order, [0, 1])
    release[1].set()
    until(lambda: order == [0, 1, 2], "the third leads")
    release[2].set()
    for t in tasks:
        t.finish("a candidate")
    guard.verify(3)
    # A candidate that gives up is none any more.
    release = [threading.Event() for _ in clients]
    first = Task(elections[0].run, lead, 0)
    until(lambda: order == [0, 1, 2, 0], "the first leads again")
    second = Task(elections[1].run, lead, 1)
    until(lambda: (clients[0].sync("/election"), len(elections[0].contenders()))[1] == 2, "the second waits")
    elections[1].cancel()
    second.finish("the cancelled")
    release[0].set()
    first.finish("the leader")
    same(order, [0, 1, 2, 0])


@check("NonBlockingLease", "create", "delete", "exists", "getData")
def _():
    a, b = connect(), connect()
    now = [datetime.datetime(2026, 1, 1)]
    clock = lambda: now[0]
    hour = datetime.timedelta(hours=1)
    assert a.NonBlockingLease("/lease", hour, identifier="a", utcnow=clock)
    assert not b.NonBlockingLease("/lease", hour, identifier="b", utcnow=clock)
    assert a.NonBlockingLease("/lease", hour, identifier="a", utcnow=clock), "renewed"
    now[0] += datetime.timedelta(minutes=59)
    b.sync("/lease")
    assert not b.NonBlockingLease("/lease", hour, identifier="b", utcnow=clock)
    now[0] += datetime.timedelta(minutes=2)
    assert b.NonBlockingLease("/lease", hour, identifier="b", utcnow=clock)
    a.sync("/lease")
    assert not a.NonBlockingLease("/lease", hour, identifier="a", utcnow=clock)
    # Many ask at once: one gets it.
    clients = [a, b] + [connect() for _ in range(3)]
    tasks = [Task(lambda zk=zk, i=i: bool(zk.NonBlockingLease("/lease-many", hour, identifier="i%d" % i))) for i, zk in enumerate(clients)]
    same(sorted(t.finish("a lease") for t in tasks), [False] * 4 + [True])


@check("MultiNonBlockingLease", "create", "delete", "exists", "getData")
def _():
    clients = [connect() for _ in range(4)]
    now = [datetime.datetime(2026, 1, 1)]
    hour = datetime.timedelta(hours=1)

    def ask(i):
        clients[i].sync("/leases")
        return bool(clients[i].MultiNonBlockingLease(2, "/leases", hour, identifier="i%d" % i, utcnow=lambda: now[0]))

    tasks = [Task(ask, i) for i in range(4)]
    got = [t.finish("a lease") for t in tasks]
    same(sorted(got), [False, False, True, True])
    same([ask(i) for i in range(4)], got, "renewed, and still none for the others")
    now[0] += datetime.timedelta(hours=2)
    late = got.index(False)
    assert ask(late)


if __name__ == "__main__":
    main()
