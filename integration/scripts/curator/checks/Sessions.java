package checks;

import static checks.Env.bytes;
import static checks.Env.eventually;
import static checks.Env.require;
import static checks.Env.same;
import static checks.Framework.refused;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;

/** Sessions of the Java client. */
final class Sessions {
    static void register() {
        Main.java("resume by id and password", "createSession resume create exists getData getEphemerals closeSession", Sessions::resume);
        Main.java("a wrong password harms nobody, unlike ZooKeeper", "resume create exists", Sessions::wrongPassword);
        Main.java("moving between servers", "resume reconnect create exists getData setWatches", Sessions::moves);
        Main.java("expiry", "createSession ping expiry create exists getData", Sessions::expires);
        Main.java("close", "createSession create exists closeSession", Sessions::closes);
        Main.java("read-only flag", "createSession create", Sessions::readOnly);
    }

    /** What this client reads from now on is as new as this moment. */
    static void sync(ZooKeeper zk) throws Exception {
        BlockingQueue<Integer> answered = new LinkedBlockingQueue<>();
        zk.sync("/", (rc, path, ctx) -> answered.add(rc), null);
        same(answered.poll(60, TimeUnit.SECONDS), 0, "sync");
    }

    /** A client that can drop its connection and its threads without closing its session. */
    private static final class Deserter extends ZooKeeper {
        Deserter(String servers, Watcher w) throws IOException {
            super(servers, Env.SESSION_MS, w);
        }

        Deserter(String servers, Watcher w, long id, byte[] password) throws IOException {
            super(servers, Env.SESSION_MS, w, id, password);
        }

        void desert() {
            cnxn.disconnect();
        }
    }

    /** A client, once it has a session. */
    static ZooKeeper connect(String servers, int timeout, Watcher watcher) throws Exception {
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper zk = new ZooKeeper(servers, timeout, ev -> {
            if (ev.getState() == KeeperState.SyncConnected) {
                connected.countDown();
            }
            watcher.process(ev);
        });
        require(connected.await(60, TimeUnit.SECONDS), "no session");
        return zk;
    }

    /** Waits until a client that was cut off is connected again, and has got what was sent to it by then. */
    static void connected(ZooKeeper zk) throws Exception {
        BlockingQueue<Integer> answered = new LinkedBlockingQueue<>();
        eventually(0, () -> {
            zk.sync("/", (rc, path, ctx) -> answered.add(rc), null);
            return answered.poll(60, TimeUnit.SECONDS);
        }, "sync after a cut");
    }

    /** Closes the session behind its client's back. */
    static void end(ZooKeeper zk) throws Exception {
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper other = new ZooKeeper(Env.direct, zk.getSessionTimeout(), ev -> {
            if (ev.getState() == KeeperState.SyncConnected) {
                connected.countDown();
            }
        }, zk.getSessionId(), zk.getSessionPasswd());
        require(connected.await(60, TimeUnit.SECONDS), "the session was not resumed");
        other.close();
    }

    private static void resume(Env e) throws Exception {
        ZooKeeper judge = e.zookeeper();
        String[] servers = Env.direct.split(",");
        BlockingQueue<KeeperState> first = new LinkedBlockingQueue<>();
        Deserter zk = new Deserter(servers[0], ev -> first.add(ev.getState()));
        same(first.poll(60, TimeUnit.SECONDS), KeeperState.SyncConnected, "state");
        long id = zk.getSessionId();
        byte[] password = zk.getSessionPasswd();
        zk.create(e.root, bytes("x"), Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        for (int i = 1; i <= 2 * servers.length; i++) { // on every member, one after the other
            zk.desert();
            BlockingQueue<KeeperState> states = new LinkedBlockingQueue<>();
            zk = new Deserter(servers[i % servers.length], ev -> states.add(ev.getState()), id, password);
            same(states.poll(60, TimeUnit.SECONDS), KeeperState.SyncConnected, "state of the resumed session");
            same(zk.getSessionId(), id, "session id");
            same(zk.exists(e.root, false).getEphemeralOwner(), id, "owner");
            same(zk.getEphemerals(), List.of(e.root), "ephemerals of the resumed session");
            zk.setData(e.root, bytes("x"), i - 1);
        }
        zk.close();
        sync(judge);
        require(judge.exists(e.root, false) == null, "the ephemeral is there after the session's end");
    }

    private static void wrongPassword(Env e) throws Exception {
        BlockingQueue<KeeperState> living = new LinkedBlockingQueue<>();
        ZooKeeper zk = e.zookeeper(Env.direct, ev -> living.add(ev.getState()));
        same(living.poll(60, TimeUnit.SECONDS), KeeperState.SyncConnected, "state");
        zk.create(e.root, bytes("x"), Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        byte[] wrong = zk.getSessionPasswd().clone();
        wrong[15] ^= 1;
        for (String server : Env.direct.split(",")) {
            for (byte[] password : new byte[][] {wrong, new byte[16], new byte[0]}) {
                BlockingQueue<KeeperState> states = new LinkedBlockingQueue<>();
                ZooKeeper thief = e.closeLater(new ZooKeeper(server, Env.SESSION_MS, ev -> states.add(ev.getState()), zk.getSessionId(), password));
                same(states.poll(60, TimeUnit.SECONDS), KeeperState.Expired, "state of a session taken with a wrong password");
                thief.close();
            }
        }
        zk.setData(e.root, bytes("mine"), -1);
        same(zk.exists(e.root, false).getEphemeralOwner(), zk.getSessionId(), "owner");
        same(living.poll(), null, "what the living session noticed");
    }

    private static void moves(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        ZooKeeper writer = e.zookeeper(Env.direct, ev -> {});
        long id = zk.getSessionId();
        zk.create(e.root, bytes("x"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        zk.create(e.root + "/e", bytes("x"), Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        for (int i = 0; i < 4; i++) {
            zk.getData(e.root, Framework.log(events, e.root), null);
            if (i == 1) {
                Env.killLeader();
            } else if (i == 2) {
                Env.restart();
            } else {
                Env.cut();
            }
            connected(zk);
            eventually(true, () -> { // the writer may have lost its server as well
                try {
                    writer.setData(e.root, bytes("x"), -1);
                    return true;
                } catch (org.apache.zookeeper.KeeperException.ConnectionLossException lost) {
                    return false;
                }
            }, "a write after the change");
            same(events.poll(60, TimeUnit.SECONDS), "NodeDataChanged ", "event of a watch that moved");
            same(zk.getSessionId(), id, "session id");
        }
        eventually(true, () -> {
            try {
                return zk.exists(e.root + "/e", false).getEphemeralOwner() == id;
            } catch (org.apache.zookeeper.KeeperException.ConnectionLossException lost) {
                return false;
            }
        }, "the ephemeral is still its own");
    }

    private static void expires(Env e) throws Exception {
        BlockingQueue<String> states = new LinkedBlockingQueue<>();
        ZooKeeper zk = e.closeLater(connect(Env.proxied, 4_000, ev -> states.add(ev.getState() + " " + ev.getType())));
        ZooKeeper judge = e.zookeeper(Env.direct, ev -> {});
        int timeout = zk.getSessionTimeout();
        zk.create(e.root, bytes("x"), Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        zk.exists("/", true);
        CountDownLatch gone = new CountDownLatch(1);
        sync(judge);
        require(judge.exists(e.root, ev -> gone.countDown()) != null, "no ephemeral");
        long start = System.nanoTime();
        Env.refuse();
        require(gone.await(60, TimeUnit.SECONDS), "the session never expired");
        long took = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start);
        // The last touch may be a third of the time-out old when the connection goes.
        require(took >= timeout / 2, "expired after " + took + " of " + timeout + " ms");
        Env.accept();
        for (String s = ""; !s.equals("Expired None"); ) {
            s = states.poll(60, TimeUnit.SECONDS);
            require(s != null, "the client was not told that its session expired");
        }
        refused(Code.SESSIONEXPIRED, () -> zk.exists("/", false)); // and never a new session in its place
    }

    private static void closes(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        ZooKeeper judge = e.zookeeper();
        for (int i = 0; i < 100; i++) {
            zk.create(e.root + "-" + i, null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        }
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        sync(judge);
        for (int i = 0; i < 100; i++) {
            require(judge.exists(e.root + "-" + i, Framework.log(events, "")) != null, "no ephemeral");
        }
        long before = judge.exists("/", false).getPzxid();
        zk.close();
        for (int i = 0; i < 100; i++) {
            String event = events.poll(60, TimeUnit.SECONDS);
            require(event != null && event.startsWith("NodeDeleted " + e.root + "-"), "event " + event);
        }
        require(judge.exists("/", false).getPzxid() > before, "pzxid of the parent after a close");
        CountDownLatch expired = new CountDownLatch(1);
        ZooKeeper late = e.closeLater(new ZooKeeper(Env.direct, Env.SESSION_MS, ev -> {
            if (ev.getState() == KeeperState.Expired) {
                expired.countDown();
            }
        }, zk.getSessionId(), zk.getSessionPasswd()));
        require(expired.await(60, TimeUnit.SECONDS), "a closed session was resumed");
        late.close();
    }

    private static void readOnly(Env e) throws Exception {
        BlockingQueue<KeeperState> states = new LinkedBlockingQueue<>();
        ZooKeeper zk = e.closeLater(new ZooKeeper(Env.proxied, Env.SESSION_MS, ev -> states.add(ev.getState()), true));
        same(states.poll(60, TimeUnit.SECONDS), KeeperState.SyncConnected, "state with a quorum");
        zk.create(e.root, bytes("x"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        same(zk.getState(), ZooKeeper.States.CONNECTED, "state");
    }
}
