"""Recipes that share data or membership: queues, barriers, counter, parties, partitioner, watchers, cache."""
import threading

from kazoo.exceptions import NoNodeError
from kazoo.recipe.cache import TreeCache, TreeEvent
from kazoo.recipe.watchers import ChildrenWatch, DataWatch

from harness import Task, check, close, connect, main, raises, same, session_of, stage, until


@check("Queue", "create", "delete", "getChildren", "getData")
def _():
    a, b = connect(), connect()
    queue = a.Queue("/queue")
    assert queue.get() is None
    for value, priority in ((b"two", 100), (b"three", 100), (b"one", 5), (b"four", 500)):
        queue.put(value, priority)
    same(len(queue), 4)
    b.sync("/queue")
    same([b.Queue("/queue").get(), a.Queue("/queue").get()], [b"one", b"two"])
    b.sync("/queue")
    rest = b.Queue("/queue")
    same([rest.get(), rest.get(), rest.get()], [b"three", b"four", None])
    # Producers and consumers: every item exactly once, those of a producer in its order.
    clients = [a, b, connect(), connect()]
    total, got = 120, [[] for _ in range(2)]
    taken = threading.Semaphore(0)

    def produce(zk, who):
        q = zk.Queue("/queue-many")
        for i in range(total // 2):
            q.put(b"%d-%d" % (who, i))

    def consume(zk, into):
        q = zk.Queue("/queue-many")
        while sum(map(len, got)) < total:
            item = q.get()
            if item is not None:
                into.append(item)

    tasks = [Task(produce, clients[i], i) for i in range(2)] + [Task(consume, clients[2 + i], got[i]) for i in range(2)]
    for t in tasks:
        t.finish("a producer or consumer")
    same(sorted(got[0] + got[1]), sorted(b"%d-%d" % (w, i) for w in range(2) for i in range(total // 2)))
    for items in got:
        for who in range(2):
            own = [int(i.split(b"-")[1]) for i in items if i.startswith(b"%d-" % who)]
            same(own, sorted(own), "order")


@check("LockingQueue", "create", "delete", "multi", "getChildren", "sync", "watch events")
def _():
    a, b = connect(), connect()
    first, second = a.LockingQueue("/lq"), b.LockingQueue("/lq")
    first.put_all([b"one", b"two", b"three"])
    first.put(b"zero", priority=1)
    b.sync("/lq")
    same(len(second), 4)
    same(second.get(10), b"zero")
    same(first.get(10), b"one")
    assert second.holds_lock() and first.holds_lock()
    same(second.get(10), b"zero", "the same again until it is consumed")
    assert second.consume() and not second.consume()
    assert first.release()
    a.sync("/lq")
    same(first.get(10), b"one")
    assert first.consume()
    for want in (b"two", b"three"):
        same(first.get(10), want)
        assert first.consume()
    same(first.get(0.1), None)
    waiting = Task(second.get, 60)
    first.put(b"late")
    same(waiting.finish("a consumer that waits"), b"late")
    assert second.consume()
    same(len(first), 0)


@check("LockingQueue: consumers that are cut or whose session ends lose no item", "multi", "create", "expiry", "reconnect", "watch events")
def _():
    producer, other, victim = connect(1, 2), connect(1, 2), connect(3, timeout=1.0)
    producer.LockingQueue("/lq2").put_all([b"%02d" % i for i in range(20)])
    victim.sync("/lq2")
    held = victim.LockingQueue("/lq2")
    same(held.get(10), b"00")
    got = []
    q = other.LockingQueue("/lq2")
    for i in range(19):
        got.append(q.get(60))
        if i % 5 == 4:
            stage("cut", 1), stage("cut", 2)
            until(lambda: other.connected, "the connection comes back")
            assert other.retry(q.holds_lock)
        while not other.retry(q.consume):
            pass
    same(got, [b"%02d" % i for i in range(1, 20)])
    waiting = Task(q.get, 60)
    stage("refuse", 3)
    stage("cut", 3)
    same(waiting.finish("the item of the lost consumer"), b"00")
    assert q.consume()
    stage("accept", 3)
    until(lambda: victim.connected, "the victim is back")
    raises(NoNodeError, held.holds_lock)


@check("Barrier", "create", "delete", "exists", "watch events")
def _():
    a, b, c = connect(), connect(), connect()
    barrier = a.Barrier("/barrier")
    assert not barrier.remove()
    barrier.create()
    for zk in (b, c):
        zk.sync("/barrier")
    assert not b.Barrier("/barrier").wait(0.1)
    waiting = [Task(zk.Barrier("/barrier").wait, 60) for zk in (b, c)]
    assert barrier.remove()
    for w in waiting:
        assert w.finish("at the barrier") is True
    assert barrier.wait(0)


@check("DoubleBarrier", "create", "delete", "exists", "getChildren", "watch events")
def _():
    clients = [connect() for _ in range(3)]
    inside, before_leaving = [], []
    leave = threading.Event()

    def one(zk, i):
        barrier = zk.DoubleBarrier("/double", 3, identifier="d%d" % i)
        barrier.enter()
        inside.append(i)
        assert leave.wait(60)
        before_leaving.append(i)
        barrier.leave()
        return len(before_leaving)

    tasks = [Task(one, zk, i) for i, zk in enumerate(clients[:2])]
    until(lambda: (clients[2].sync("/"), clients[2].exists("/double") and len(clients[2].get_children("/double")) == 2)[1], "two have come")
    same(inside, [])
    tasks.append(Task(one, clients[2], 2))
    until(lambda: len(inside) == 3, "all are inside")
    leave.set()
    for t in tasks:
        same(t.finish("leaving"), 3, "who left waited for all")
    clients[0].sync("/double")
    same(clients[0].get_children("/double"), [])


@check("Counter", "create", "getData", "setData")
def _():
    clients = [connect() for _ in range(3)]
    counter = clients[0].Counter("/counter")
    counter += 2
    counter -= 1
    same((counter.value, counter.pre_value, counter.post_value), (1, 2, 1))
    decimal = clients[0].Counter("/decimal", default=1.5)
    decimal += 0.25
    same(decimal.value, 1.75)
    shared = clients[0].Counter("/curator", support_curator=True)
    shared += 7
    same((shared.value, clients[0].get("/curator")[0]), (7, b"\0\0\0\7"))

    def one(zk):
        c = zk.Counter("/counter")
        for _ in range(25):
            zk.retry(c.__add__, 1)

    tasks = [Task(one, zk) for zk in clients]
    for t in tasks:
        t.finish("a counter")
    clients[0].sync("/counter")
    same(counter.value, 76)


@check("Party", "create", "delete", "getChildren", "getData", "closeSession")
def _():
    _party("/party", "Party")


@check("ShallowParty", "create", "delete", "getChildren", "closeSession")
def _():
    _party("/shallow", "ShallowParty")


def _party(path, recipe):
    clients = [connect() for _ in range(3)]
    parties = [getattr(zk, recipe)(path, "p%d" % i) for i, zk in enumerate(clients)]

    def present(i):
        clients[i].sync(path)
        return sorted(parties[i])

    same(list(parties[0]), [])
    for p in parties:
        p.join()
    same([present(i) for i in range(3)], [["p0", "p1", "p2"]] * 3)
    stage("cut", "all")
    clients[1].retry(clients[1].sync, path)
    same(len(parties[1]), 3)
    parties[1].leave()
    assert not parties[1].participating
    clients[0].retry(clients[0].sync, path)
    same(sorted(parties[0]), ["p0", "p2"])
    close(clients[2])
    same(present(0), ["p0"])


@check("SetPartitioner", "create", "delete", "getChildren", "watch events", "closeSession")
def _():
    clients = [connect() for _ in range(3)]
    everything = tuple("part%d" % i for i in range(7))

    def start(zk, name):
        return zk.SetPartitioner("/parts", set=everything, identifier=name, time_boundary=0.3)

    held, running = {}, {i: threading.Event() for i in range(3)}

    def work(i):
        p = start(clients[i], "w%d" % i)
        try:
            while not running[i].is_set():
                if p.failed:
                    raise AssertionError("partitioning failed")
                if p.release:
                    held.pop(i, None)
                    p.release_set()
                elif p.acquired:
                    held[i] = list(p)
                    running[i].wait(0.01)
                elif p.allocating:
                    p.wait_for_acquire(10)
        finally:
            held.pop(i, None)
            p.finish()

    def shared_by(*who):
        now = dict(held)
        parts = sorted(sum(now.values(), []))
        if len(parts) != len(set(parts)):
            raise AssertionError("held twice: %r" % now)
        return sorted(now) == sorted(who) and parts == sorted(everything) and all(now.values())

    tasks = [Task(work, 0), Task(work, 1)]
    until(lambda: shared_by(0, 1), "two share the set, %r" % held)
    tasks.append(Task(work, 2))
    until(lambda: shared_by(0, 1, 2), "three share the set, %r" % held)
    running[1].set()
    tasks[1].finish("a worker")
    until(lambda: shared_by(0, 2), "the others take over, %r" % held)
    for e in running.values():
        e.set()
    for t in tasks:
        t.finish("a worker")


def _disturbances():
    """Connections cut; the leader dead; all of them again."""
    stage("cut", "all")
    yield "a cut"
    died = stage.leader()
    stage("kill", died)
    yield "the leader's death"
    stage("start", died)
    stage("cut", "all")
    yield "another cut"


@check("DataWatch", "getData", "exists", "setData", "watch events", "reconnect", "leader death", "resume")
def _():
    writer, zk = connect(timeout=20.0), connect(timeout=20.0)
    session = session_of(zk)[0]
    seen, bare = [], []

    @zk.DataWatch("/data")
    def changed(data, stat, event):
        seen.append((data, stat and stat.version))

    DataWatch(zk, "/data", lambda data, stat: bare.append(data))
    until(lambda: bare, "called for the missing node")
    same(seen, [(None, None)])
    writer.create("/data", b"0")
    until(lambda: seen[-1] == (b"0", 0) and bare[-1] == b"0", "created")
    version = 0
    for what in _disturbances():
        # kazoo looks again after a reconnect; what is written afterwards, the new watch shows.
        for _ in range(2):
            version += 1
            writer.retry(writer.set, "/data", b"%d" % version, version=version - 1)
            until(lambda: seen[-1] == (b"%d" % version, version) and bare[-1] == b"%d" % version, "change %d after %s" % (version, what))
    same([v for _, v in seen[1:]], sorted({v for _, v in seen[1:]}), "versions seen once and in order")
    same(session_of(zk)[0], session)
    writer.delete("/data")
    until(lambda: seen[-1] == (None, None), "deleted")


@check("ChildrenWatch", "getChildren", "watch events", "reconnect", "leader death", "resume")
def _():
    writer, zk = connect(timeout=20.0), connect(timeout=20.0)
    writer.create("/children")
    zk.sync("/children")
    seen, events = [], []
    stop = []
    ChildrenWatch(zk, "/children", lambda names: seen.append(sorted(names)))
    ChildrenWatch(zk, "/children", lambda names, event: events.append(event), send_event=True)
    ChildrenWatch(zk, "/children", lambda names: stop.append(1) or len(stop) < 2)
    same(seen, [[]])
    want = []
    for what in _disturbances():
        for _ in range(2):
            name = "c%d" % len(want)
            writer.retry(writer.ensure_path, "/children/" + name)
            want.append(name)
            until(lambda: seen[-1] == want, "%s after %s" % (name, what))
    for name in list(want):
        writer.delete("/children/" + name)
    until(lambda: seen[-1] == [], "all are gone")
    same(len(stop), 2, "calls after the watch was ended")
    assert {e.path for e in events if e} == {"/children"}, events


@check("TreeCache", "create", "getData", "getChildren", "watch events", "reconnect", "leader death", "resume")
def _():
    writer, zk = connect(timeout=20.0), connect(timeout=20.0)
    writer.create("/cache/a/x", b"1", makepath=True)
    zk.sync("/cache")
    cache = TreeCache(zk, "/cache")
    events = []
    cache.listen(lambda e: events.append((e.event_type, e.event_data.path if e.event_data else None)))
    cache.start()
    until(lambda: (TreeEvent.INITIALIZED, None) in events, "initialised")
    same(cache.get_data("/cache/a/x").data, b"1")
    same(sorted(cache.get_children("/cache")), ["a"])
    n = 1
    for what in _disturbances():
        n += 1
        writer.retry(writer.set, "/cache/a/x", b"%d" % n)
        until(lambda: cache.get_data("/cache/a/x").data == b"%d" % n, "data after %s" % what)
        writer.retry(writer.ensure_path, "/cache/b%d/deep" % n)
        until(lambda: cache.get_data("/cache/b%d/deep" % n) is not None, "a subtree after %s" % what)
        same(sorted(cache.get_children("/cache/b%d" % n)), ["deep"])
    writer.delete("/cache/a", recursive=True)
    until(lambda: (TreeEvent.NODE_REMOVED, "/cache/a") in events, "removed")
    assert cache.get_data("/cache/a/x") is None and cache.get_data("/cache/a") is None
    until(lambda: sorted(cache.get_children("/cache")) == ["b2", "b3", "b4"], "what is left")
    same([t for t, _ in events].count(TreeEvent.INITIALIZED), 1)
    cache.close()


if __name__ == "__main__":
    main()
