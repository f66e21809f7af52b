"""What a session lives through: cuts, other members, a dead leader, members that hang, expiry."""
import threading

from kazoo.exceptions import ConnectionLoss, NoNodeError, SessionExpiredError
from kazoo.protocol.states import EventType, KazooState

from harness import Task, check, close, connect, main, raises, same, session_of, stage, until


def states_of(zk):
    states = []
    zk.add_listener(states.append)
    return states


@check("session events over a cut", "reconnect", "resume")
def _():
    zk = connect()
    states, session = states_of(zk), session_of(zk)
    zk.create("/cut", b"", ephemeral=True)
    for i in range(1, 4):
        stage("cut", "all")
        until(lambda: len(states) == 2 * i, "suspended and connected")
        same(states[-2:], [KazooState.SUSPENDED, KazooState.CONNECTED])
        same(session_of(zk), session)
        same(zk.get("/cut")[1].ephemeralOwner, session[0])


@check("a session moves between members", "resume", "createSession", "getData", "watch events", "reconnect")
def _():
    zk, other = connect(timeout=20.0), connect(timeout=20.0)
    states, session = states_of(zk), session_of(zk)
    zk.ensure_path("/moved")
    zk.create("/moved/mine", b"0", ephemeral=True)
    other.sync("/moved")
    seen = []
    zk.DataWatch("/moved/mine", lambda data, stat: seen.append(data))
    for move in range(1, 5):
        here = [n for n in (1, 2, 3) if int(stage("conns", n)) and n == _member_of(zk)][0]
        stage("refuse", here)
        stage("cut", here)
        until(lambda: zk.connected and _member_of(zk) not in (None, here), "the session is on another member")
        same(session_of(zk), session)
        same(zk.retry(zk.get, "/moved/mine")[1].ephemeralOwner, session[0])
        other.retry(other.set, "/moved/mine", b"%d" % move)
        until(lambda: seen[-1] == b"%d" % move, "the watch after move %d" % move)
        stage("accept", here)
    assert KazooState.LOST not in states, states
    close(zk)
    other.retry(other.sync, "/moved")
    same(other.get_children("/moved"), [])


def _member_of(zk):
    """The member whose proxy the client's socket is connected to."""
    import os

    try:
        port = zk._connection._socket.getpeername()[1]
    except (OSError, AttributeError):
        return None
    ports = [int(s.rsplit(":", 1)[1]) for s in os.environ["KVD_SERVERS"].split(",")]
    return ports.index(port) + 1 if port in ports else None


@check("an expired session says so", "expiry", "resume", "createSession", "reconnect")
def _():
    zk, other = connect(3, timeout=1.0), connect(1, 2)
    states, session = states_of(zk), session_of(zk)
    zk.create("/late", b"", ephemeral=True)
    other.sync("/late")
    gone = threading.Event()
    other.get("/late", watch=lambda event: gone.set())
    stage("refuse", 3)
    stage("cut", 3)
    until(lambda: states == [KazooState.SUSPENDED], "suspended")
    assert gone.wait(60), "the session does not expire"
    same(states, [KazooState.SUSPENDED], "only a server's word ends a session")
    stage("accept", 3)
    until(lambda: len(states) >= 3, "lost and connected")
    same(states, [KazooState.SUSPENDED, KazooState.LOST, KazooState.CONNECTED], "never a silent new session")
    assert session_of(zk)[0] != session[0] and session_of(zk)[1] != session[1]
    assert zk.exists("/late") is None

    # The old id and password are of no use anywhere, nor is a wrong password for a living session.
    for n in (1, 2, 3):
        back = connect(n, client_id=session)
        assert session_of(back)[0] not in (0, session[0])
        close(back)
    living = connect(1, 2)
    living.create("/alive", b"", ephemeral=True)
    thief = connect(3, client_id=(session_of(living)[0], b"x" * 16))
    assert session_of(thief)[0] != session_of(living)[0]
    same(living.retry(living.get, "/alive")[1].ephemeralOwner, session_of(living)[0])


@check("a session resumed by another client object", "resume", "createSession", "closeSession")
def _():
    zk = connect(1)
    zk.create("/resumed", b"", ephemeral=True)
    identity = session_of(zk)
    again = connect(2, client_id=identity)
    same(session_of(again), identity)
    same(again.get("/resumed")[1].ephemeralOwner, identity[0])
    again.stop()
    other = connect(3)
    other.sync("/")
    assert other.exists("/resumed") is None


@check("the leader dies under pipelined writes", "leader death", "setData", "create", "resume")
def _():
    clients = [connect(n, timeout=20.0) for n in stage.followers()]
    identities = [session_of(zk) for zk in clients]
    clients[0].create("/pipe")
    done = threading.Event()
    acknowledged, versions = [[], []], [[], []]

    def write(zk, i):
        zk.retry(zk.ensure_path, "/pipe/n%d" % i)
        last = -1
        while not done.is_set():
            asked = [zk.set_async("/pipe/n%d" % i, b"%d" % k) for k in range(20)]
            for a in asked:
                try:
                    stat = a.get(timeout=60)
                except ConnectionLoss:
                    continue  # unknown
                assert stat.version > last, "%d after %d" % (stat.version, last)
                last = stat.version
                acknowledged[i].append(stat.version)

    tasks = [Task(write, zk, i) for i, zk in enumerate(clients)]
    until(lambda: all(len(a) > 200 for a in acknowledged), "writes before")
    died = stage.leader()
    stage("kill", died)
    before = [len(a) for a in acknowledged]
    until(lambda: all(len(a) > b + 200 for a, b in zip(acknowledged, before)), "writes afterwards")
    done.set()
    for t in tasks:
        t.finish("a writer")
    same([session_of(zk) for zk in clients], identities)
    stage("start", died)
    fresh = connect(died)
    fresh.sync("/pipe")
    for i in range(2):
        assert fresh.get("/pipe/n%d" % i)[1].version >= acknowledged[i][-1], "an acknowledged write is gone"


@check("a member that hangs is left behind", "reconnect", "resume", "ping")
def _():
    zk = connect(timeout=4.0)
    identity = session_of(zk)
    zk.create("/hang", b"", ephemeral=True)
    here = _member_of(zk)
    stage("stall", here, "down")  # it hears us and does not answer: the session lives on
    until(lambda: zk.connected and _member_of(zk) not in (None, here), "the client moves on")
    same(session_of(zk), identity)
    same(zk.retry(zk.get, "/hang")[1].ephemeralOwner, identity[0])
    stage("flow", here, "down")


@check("answers that are cut in the middle are never taken for others", "reconnect", "getData", "setData")
def _():
    zk = connect()
    names = ["/mid/%02d" % i for i in range(20)]
    zk.ensure_path("/mid")
    for name in names:
        zk.create(name, name.encode() * 20)
    for round_ in range(12):
        for n in (1, 2, 3):
            stage("cutafter", n, "down", 37 + 211 * round_)
        while True:
            asked = [(name, zk.get_async(name)) for name in names]
            lost = 0
            for name, a in asked:
                try:
                    same(a.get(timeout=60)[0], name.encode() * 20, name)
                except ConnectionLoss:
                    lost += 1
            if not lost:
                break
    assert session_of(zk)[0] != 0


@check("writes cut in the middle are there at most once", "reconnect", "create", "setData")
def _():
    zk = connect()
    zk.create("/once", b"")
    version = 0
    for round_ in range(12):
        for n in (1, 2, 3):
            stage("cutafter", n, ("up", "down")[round_ % 2], 30 + 97 * round_)
        for _ in range(10):
            try:
                zk.retry(zk.sync, "/once")
                same(zk.set("/once", b"%d" % version, version=version).version, version + 1)
                version += 1
            except ConnectionLoss:
                zk.retry(zk.sync, "/once")
                now = zk.retry(zk.get, "/once")[1].version
                assert now in (version, version + 1), "%d became %d" % (version, now)
                version = now


if __name__ == "__main__":
    main()
