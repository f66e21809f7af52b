"""Every call of the client itself: nodes, their options and errors, watches, transactions, access lists."""
import threading

from kazoo import exceptions as ke
from kazoo.protocol.states import EventType, WatchedEvent
from kazoo.security import ACL, Id, make_acl, make_digest_acl, make_digest_acl_credential

from harness import check, close, connect, main, raises, same, session_of, stage, until


class Events:
    """Collects what a watch gets."""

    def __init__(self):
        self.all, self._more = [], threading.Condition()

    def __call__(self, event):
        with self._more:
            self.all.append((event.type, event.path))
            self._more.notify_all()

    def wait(self, n):
        until(lambda: len(self.all) >= n, "%d events, have %r" % (n, self.all))
        return self.all


@check("connect and close", "createSession", "closeSession", "ping")
def _():
    zk = connect(timeout=10.0)
    assert zk.connected and session_of(zk)[0] != 0 and len(session_of(zk)[1]) == 16, session_of(zk)
    other = connect(timeout=10.0)
    assert session_of(other)[0] != session_of(zk)[0] and session_of(other)[1] != session_of(zk)[1]
    version = zk.server_version()
    assert len(version) >= 3 and version[0] == 3, version
    assert zk.command(b"ruok") == "imok"
    close(zk)
    assert not zk.connected
    zk.start()
    assert zk.connected
    zk.restart()
    assert zk.connected


@check("create", "create", "delete", "exists", "getData")
def _():
    zk = connect()
    same(zk.create("/b", b"one"), "/b")
    same(zk.get("/b")[0], b"one")
    same(zk.create("/b/empty"), "/b/empty")
    same(zk.get("/b/empty")[0], b"")
    same(zk.create("/b/big", b"x" * 1000000), "/b/big")
    same(len(zk.get("/b/big")[0]), 1000000)
    raises(ke.NodeExistsError, zk.create, "/b", b"")
    raises(ke.NoNodeError, zk.create, "/b/none/child", b"")
    same(zk.create("/b/x/y/z", b"deep", makepath=True), "/b/x/y/z")
    same(zk.get("/b/x/y")[0], b"")
    same(zk.create("/b/ü €", b"name"), "/b/ü €")
    assert "ü €" in zk.get_children("/b")
    raises(ke.NodeExistsError, zk.create, "/", b"")
    zk.delete("/b", recursive=True)
    assert zk.exists("/b") is None
    raises(ke.NoNodeError, zk.delete, "/b")


@check("create with sequence", "create")
def _():
    zk, other = connect(), connect()
    zk.create("/s")
    names = [zk.create("/s/n-", sequence=True), other.create("/s/n-", sequence=True), zk.create("/s/m-", sequence=True)]
    same(names, ["/s/n-0000000000", "/s/n-0000000001", "/s/m-0000000002"])
    zk.delete(names[2])
    same(zk.create("/s/", sequence=True), "/s/0000000003")
    same(zk.create("/s/deep/er-", sequence=True, makepath=True), "/s/deep/er-0000000000")
    asked = [zk.create_async("/s/a-", sequence=True) for _ in range(500)]
    got = [a.get(timeout=30) for a in asked]
    same(got, ["/s/a-%010d" % (5 + i) for i in range(500)], "pipelined sequence numbers")
    zk.delete("/s", recursive=True)


@check("ephemeral nodes", "create", "closeSession", "watch events", "exists")
def _():
    zk, other = connect(), connect()
    zk.ensure_path("/e")
    zk.create("/e/n", b"", ephemeral=True)
    sequential = zk.create("/e/s-", b"", ephemeral=True, sequence=True)
    raises(ke.NoChildrenForEphemeralsError, zk.create, "/e/n/child")
    other.sync("/e")
    seen = Events()
    same(other.exists("/e/n", watch=seen).ephemeralOwner, session_of(zk)[0])
    assert other.exists(sequential) is not None
    close(zk)
    seen.wait(1)
    same(seen.all, [(EventType.DELETED, "/e/n")])
    other.sync("/e")
    same(other.get_children("/e"), [])
    other.delete("/e")


@check("create2: include_data", "create2")
def _():
    zk = connect()
    path, stat = zk.create("/c2", b"abc", include_data=True)
    same((path, stat.data_length, stat.version, stat.czxid), ("/c2", 3, 0, stat.mzxid))
    same(zk.get("/c2")[1], stat)
    path, stat = zk.create("/c2/e-", b"", ephemeral=True, sequence=True, include_data=True)
    same((path, stat.ephemeralOwner), ("/c2/e-0000000000", session_of(zk)[0]))
    zk.delete("/c2", recursive=True)


@check("ensure_path", "create", "exists")
def _():
    zk = connect()
    zk.ensure_path("/p/q/r")
    zk.ensure_path("/p/q/r")
    assert zk.exists("/p/q/r") is not None
    zk.delete("/p", recursive=True)


@check("get, set, exists", "getData", "setData", "exists")
def _():
    zk = connect()
    zk.create("/g", b"one")
    data, stat = zk.get("/g")
    same((data, stat.version, stat.dataLength, stat.numChildren, stat.ephemeralOwner), (b"one", 0, 3, 0, 0))
    after = zk.set("/g", b"two")
    same((after.version, after.czxid), (1, stat.czxid))
    assert after.mzxid > stat.mzxid and after.last_modified >= stat.last_modified
    same(zk.set("/g", b"three", version=1).version, 2)
    raises(ke.BadVersionError, zk.set, "/g", b"four", version=1)
    raises(ke.NoNodeError, zk.set, "/none", b"")
    raises(ke.NoNodeError, zk.get, "/none")
    assert zk.exists("/none") is None
    same(zk.exists("/g").version, 2)
    raises(ke.BadVersionError, zk.delete, "/g", version=1)
    zk.create("/g/c")
    raises(ke.NotEmptyError, zk.delete, "/g")
    zk.delete("/g/c")
    zk.delete("/g", version=2)


@check("get_children", "getChildren", "getChildren2")
def _():
    zk = connect()
    zk.create("/l", b"list")
    same(zk.get_children("/l"), [])
    for i in range(200):
        zk.create_async("/l/%03d" % i, b"")
    same(sorted(zk.get_children("/l")), ["%03d" % i for i in range(200)])
    names, stat = zk.get_children("/l", include_data=True)
    same((len(names), stat.numChildren, stat.cversion), (200, 200, 200))
    raises(ke.NoNodeError, zk.get_children, "/none")
    assert "zookeeper" in zk.get_children("/")
    zk.delete("/l", recursive=True)


@check("sync", "sync", "setData", "getData")
def _():
    leader, follower = connect(stage.leader()), connect(stage.followers()[0])
    leader.create("/y", b"0")
    for i in range(1, 51):
        leader.set("/y", b"%d" % i)
        same(follower.sync("/y"), "/y")
        same(follower.get("/y")[0], b"%d" % i, "a read after sync")
    leader.delete("/y")
    same(follower.sync("/none"), "/none")


@check("watches", "exists", "getData", "getChildren", "watch events")
def _():
    zk, other = connect(stage.leader()), connect(stage.followers()[0])
    zk.create("/w", b"")
    other.sync("/w")
    data, children, exists = Events(), Events(), Events()
    other.get("/w", watch=data)
    other.get_children("/w", watch=children)
    assert other.exists("/w/later", watch=exists) is None
    zk.set("/w", b"1")
    zk.set("/w", b"2")
    zk.create("/w/later", b"")
    zk.create("/w/another", b"")
    other.sync("/w")
    for events, n in ((data, 1), (children, 1), (exists, 1)):
        events.wait(n)
    same(data.all, [(EventType.CHANGED, "/w")])
    same(children.all, [(EventType.CHILD, "/w")])
    same(exists.all, [(EventType.CREATED, "/w/later")])
    gone, parent = Events(), Events()
    other.get("/w/later", watch=gone)
    other.get_children("/w/later", watch=gone)
    other.get_children("/w", watch=parent)
    zk.delete("/w/later")
    parent.wait(1)
    gone.wait(2)
    same(gone.all, [(EventType.DELETED, "/w/later")] * 2)
    zk.delete("/w", recursive=True)


@check("an event comes before the reply that shows the change", "getData", "setData", "watch events")
def _():
    zk, other = connect(stage.leader()), connect(stage.followers()[1])
    zk.create("/o", b"0")
    other.sync("/o")
    for i in range(100):
        order = []
        other.get("/o", watch=lambda event: order.append("event"))
        asked = [other.get_async("/o") for _ in range(20)]
        zk.set_async("/o", b"%d" % (i + 1))
        last = b""
        while last != b"%d" % (i + 1):
            last = other.get("/o")[0]
        # kazoo runs callbacks in the order in which the frames came, on one thread: what was queued before is run before.
        done = threading.Event()
        other.handler.dispatch_callback(_callback(done.set))
        assert done.wait(30)
        same(order, ["event"], "round %d" % i)
        for a in asked:
            a.get(timeout=30)
    zk.delete("/o")


def _callback(function):
    from kazoo.protocol.states import Callback

    return Callback("watch", function, ())


@check("transactions", "multi", "check", "create", "setData", "delete")
def _():
    zk = connect()
    zk.create("/t", b"0")
    zk.create("/t/old")
    t = zk.transaction()
    t.check("/t", version=0)
    t.create("/t/new", b"x")
    t.create("/t/s-", b"", sequence=True)
    t.create("/t/e", b"", ephemeral=True)
    t.set_data("/t", b"1", version=0)
    t.delete("/t/old")
    results = t.commit()
    same(results[:4], [True, "/t/new", "/t/s-0000000002", "/t/e"])
    same((results[4].version, results[5]), (1, True))
    same(zk.exists("/t/e").ephemeralOwner, session_of(zk)[0])
    same(len({zk.exists(p).czxid for p in ("/t/new", "/t/e")} | {results[4].mzxid}), 1, "one zxid")

    t = zk.transaction()
    t.create("/t/no", b"")
    t.check("/t", version=7)
    t.delete("/t/new")
    results = t.commit()
    same([type(r) for r in results], [ke.RolledBackError, ke.BadVersionError, ke.RuntimeInconsistency])
    assert zk.exists("/t/no") is None and zk.exists("/t/new") is not None

    for operation, error in (
        (lambda t: t.create("/t", b""), ke.NodeExistsError),
        (lambda t: t.create("/none/child", b""), ke.NoNodeError),
        (lambda t: t.delete("/t"), ke.NotEmptyError),
        (lambda t: t.set_data("/none", b""), ke.NoNodeError),
        (lambda t: t.create("/t/e/child", b""), ke.NoChildrenForEphemeralsError),
    ):
        t = zk.transaction()
        operation(t)
        same([type(r) for r in t.commit()], [error])
    with zk.transaction() as t:  # what an earlier operation made is there for a later one
        t.create("/t/a")
        t.create("/t/a/b")
        t.delete("/t/a/b")
        t.delete("/t/a")
    assert zk.exists("/t/a") is None
    same(zk.transaction().commit(), [])
    zk.delete("/t", recursive=True)


@check("chroot", "create", "getData", "getChildren", "watch events", "multi")
def _():
    zk = connect()
    zk.ensure_path("/root/of")
    inner = connect(chroot="/root/of")
    same(inner.create("/n", b"in"), "/n")
    same(zk.get("/root/of/n")[0], b"in")
    same(inner.create("/s-", sequence=True), "/s-0000000001")
    seen = Events()
    inner.get("/n", watch=seen)
    zk.set("/root/of/n", b"out")
    seen.wait(1)
    same(seen.all, [(EventType.CHANGED, "/n")])
    t = inner.transaction()
    t.create("/t", b"")
    same(t.commit(), ["/t"])
    same(sorted(inner.get_children("/")), ["n", "s-0000000001", "t"])
    raises(ke.NoNodeError, inner.get, "/root")
    zk.chroot = "/root"
    same(sorted(zk.get_children("/of")), ["n", "s-0000000001", "t"])
    zk.chroot = ""
    zk.delete("/root", recursive=True)


def _pairs(acls):
    return sorted((a.perms, a.id.scheme, a.id.id) for a in acls)


@check("access lists", "getACL", "setACL", "create", "auth")
def _():
    zk = connect()
    zk.create("/acl", b"open")
    acls, stat = zk.get_acls("/acl")
    same(_pairs(acls), [(31, "world", "anyone")])
    same(stat.aversion, 0)
    own = make_digest_acl("me", "secret", read=True, create=True, admin=True, write=True, delete=True)
    after = zk.set_acls("/acl", [own, make_acl("world", "anyone", read=True)], version=0)
    same((after.aversion, after.version), (1, 0))
    raises(ke.NoAuthError, zk.set_acls, "/acl", [own])
    raises(ke.NoAuthError, zk.set, "/acl", b"x")
    raises(ke.NoAuthError, zk.create, "/acl/child", b"")
    same(zk.get("/acl")[0], b"open")

    owner = connect(auth_data=[("digest", "me:secret")])
    owner.sync("/acl")
    owner.set("/acl", b"mine")
    raises(ke.BadVersionError, owner.set_acls, "/acl", [own], version=0)
    owner.create("/acl/private", b"", acl=[own])
    zk.sync("/acl")
    for call in (zk.get, zk.get_children, zk.get_acls):
        raises(ke.NoAuthError, call, "/acl/private")
    raises(ke.NoAuthError, zk.delete, "/acl/private")
    zk.add_auth("digest", "me:wrong")
    raises(ke.NoAuthError, zk.get, "/acl/private")
    zk.add_auth("digest", "me:secret")
    same(zk.get("/acl/private")[0], b"")
    same(_pairs(zk.get_acls("/acl/private")[0]), [(31, "digest", make_digest_acl_credential("me", "secret"))])
    raises(ke.InvalidACLError, zk.create, "/acl/bad", b"", acl=[ACL(31, Id("digest", "nocolon"))])
    raises(ke.InvalidACLError, zk.set_acls, "/acl", [ACL(31, Id("none", "x"))])
    default = connect(default_acl=[own], auth_data=[("digest", "me:secret")])
    default.create("/acl/default", b"")
    same(_pairs(default.get_acls("/acl/default")[0]), [(31, "digest", own.id.id)])
    owner.delete("/acl", recursive=True)


@check("an auth list is made of the connection's identities", "create", "auth", "getACL")
def _():
    zk = connect()
    raises(ke.InvalidACLError, zk.create, "/au", b"", acl=[make_acl("auth", "", all=True)])
    zk.add_auth("digest", "a:1")
    zk.add_auth("digest", "b:2")
    zk.create("/au", b"", acl=[make_acl("auth", "", all=True)])
    want = sorted((31, "digest", make_digest_acl_credential(*up)) for up in (("a", "1"), ("b", "2")))
    same(_pairs(zk.get_acls("/au")[0]), want)
    other = connect(auth_data=[("digest", "b:2")])
    other.sync("/au")
    other.set("/au", b"x")
    zk.delete("/au")


@check("credentials come back on every reconnect", "auth", "reconnect", "setData")
def _():
    zk = connect(auth_data=[("digest", "u:p")])
    zk.create("/ra", b"", acl=[make_acl("auth", "", all=True)])
    session = session_of(zk)[0]
    for _ in range(5):
        stage("cut", "all")
        zk.retry(zk.set, "/ra", b"x")
    same(session_of(zk)[0], session)
    zk.retry(zk.delete, "/ra")


@check("bad credentials", "auth")
def _():
    zk = connect()
    raises(ke.AuthFailedError, zk.add_auth, "unheard-of", "x")


if __name__ == "__main__":
    main()
