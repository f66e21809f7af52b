package checks;

import static checks.Env.bytes;
import static checks.Env.require;
import static checks.Env.same;
import static checks.Framework.log;
import static checks.Framework.refused;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.Watcher.WatcherType;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;

/** Watches of the Java client. */
final class Watching {
    static void register() {
        Main.java("one-shot watches", "watch_events exists getData getChildren2 create setData delete", Watching::oneShots);
        Main.java("event before reply", "watch_events exists getData getChildren create setData delete multi", Watching::order);
        Main.java("addWatch", "addWatch create setData delete", Watching::added);
        Main.java("removeWatches", "removeWatches addWatch exists getData getChildren", Watching::removed);
        Main.java("one-shot beside a persistent watch, as in 3.9", "addWatch getData setData", Watching::both);
        Main.java("setWatches", "setWatches getData exists getChildren create delete setData", Watching::setWatches);
        Main.java("setWatches2", "setWatches2 addWatch create setData delete", Watching::setWatches2);
    }

    private static void create(ZooKeeper zk, String path) throws Exception {
        zk.create(path, bytes("x"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
    }

    private static void next(BlockingQueue<String> events, String... want) throws Exception {
        for (String w : want) {
            same(events.poll(60, TimeUnit.SECONDS), w, "event");
        }
    }

    /** The answer to a sync comes behind all events that were sent before. */
    private static void nothing(ZooKeeper zk, BlockingQueue<String> events) throws Exception {
        Sessions.sync(zk);
        same(new ArrayList<>(events), List.of(), "events that should not be");
    }

    private static void oneShots(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        ZooKeeper writer = e.zookeeper();
        String p = e.root;
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        Watcher w = log(events, p);
        same(zk.exists(p, w), null, "not there");
        refused(Code.NONODE, () -> zk.getData(p + "/none", w, null)); // sets no watch
        refused(Code.NONODE, () -> zk.getChildren(p + "/none", w));
        create(writer, p);
        next(events, "NodeCreated ");
        writer.setData(p, bytes("1"), -1);
        nothing(zk, events);
        zk.exists(p, w);
        zk.getData(p, w, null); // the same entry: one event
        writer.setData(p, bytes("2"), -1);
        next(events, "NodeDataChanged ");
        create(writer, p + "/none"); // of the reads that failed nothing is left
        nothing(zk, events);
        zk.getChildren(p, w);
        writer.setData(p, bytes("3"), -1);
        writer.setData(p + "/none", bytes("3"), -1);
        nothing(zk, events);
        writer.delete(p + "/none", -1);
        next(events, "NodeChildrenChanged ");
        BlockingQueue<String> other = new LinkedBlockingQueue<>();
        zk.getChildren(p, w);
        zk.getData(p, log(other, p), null);
        writer.delete(p, -1);
        next(events, "NodeDeleted ");
        next(other, "NodeDeleted ");
        nothing(zk, events);
        nothing(zk, other);
    }

    /**
     * Events and answers of one client pass through one thread in the order in which they came. The event of a change comes
     * before the first answer that shows it, also before the answer to the write itself.
     */
    private static void order(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        String p = e.root;
        BlockingQueue<String> got = new LinkedBlockingQueue<>();
        Watcher w = log(got, p);
        zk.exists(p, w);
        zk.create(p, bytes("0"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT, (rc, path, ctx, name) -> got.add("create " + rc), null);
        zk.getData(p, w, (rc, path, ctx, d, st) -> got.add("get " + rc), null);
        zk.getChildren(p, w, (rc, path, ctx, c) -> got.add("children " + rc), null);
        zk.setData(p, bytes("1"), -1, (rc, path, ctx, st) -> got.add("set " + rc), null);
        zk.create(p + "/a", bytes("0"), Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT, (rc, path, ctx, name) -> got.add("create " + rc), null);
        zk.getChildren(p + "/a", w, (rc, path, ctx, c) -> got.add("children " + rc), null);
        zk.multi(List.of(org.apache.zookeeper.Op.delete(p + "/a", -1), org.apache.zookeeper.Op.setData(p, bytes("2"), -1)),
                (rc, path, ctx, r) -> got.add("multi " + rc), null);
        next(got, "NodeCreated ", "create 0", "get 0", "children 0", "NodeDataChanged ", "set 0", "NodeChildrenChanged ", "create 0",
                "children 0", "NodeDeleted /a", "multi 0");

        // Another's change: what this client reads behind it comes behind the event.
        ZooKeeper writer = e.zookeeper();
        for (int i = 0; i < 50; i++) {
            String value = "value-" + i;
            byte[] old = zk.getData(p, w, null);
            writer.setData(p, bytes(value), -1);
            BlockingQueue<String> seen = new LinkedBlockingQueue<>();
            for (String last = ""; !last.equals(value); ) { // a read may be stale, but not before its event
                zk.getData(p, false, (rc, path, ctx, d, st) -> seen.add(Env.text(d)), null);
                last = seen.poll(60, TimeUnit.SECONDS);
                require(last != null, "no answer");
                if (last.equals(value)) {
                    same(got.poll(), "NodeDataChanged ", "event before the answer");
                } else {
                    same(last, Env.text(old), "an answer from nowhere");
                }
            }
        }
    }

    private static void added(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        ZooKeeper writer = e.zookeeper();
        String p = e.root;
        BlockingQueue<String> persistent = new LinkedBlockingQueue<>();
        BlockingQueue<String> recursive = new LinkedBlockingQueue<>();
        zk.addWatch(p, log(persistent, p), AddWatchMode.PERSISTENT); // the node is not there yet
        BlockingQueue<Integer> answered = new LinkedBlockingQueue<>();
        zk.addWatch(p + "/a", log(recursive, p), AddWatchMode.PERSISTENT_RECURSIVE, (rc, path, ctx) -> answered.add(rc), null);
        same(answered.poll(60, TimeUnit.SECONDS), 0, "asynchronous addWatch");
        for (int round = 0; round < 3; round++) {
            create(writer, p);
            writer.setData(p, bytes("1"), -1);
            create(writer, p + "/a");
            create(writer, p + "/a/b");
            create(writer, p + "/ab"); // no descendant of /a
            writer.setData(p + "/a/b", bytes("1"), -1);
            writer.delete(p + "/a/b", -1);
            writer.delete(p + "/a", -1);
            writer.delete(p + "/ab", -1);
            writer.delete(p, -1);
            next(persistent, "NodeCreated ", "NodeDataChanged ", "NodeChildrenChanged ", "NodeChildrenChanged ", "NodeChildrenChanged ",
                    "NodeChildrenChanged ", "NodeDeleted ");
            next(recursive, "NodeCreated /a", "NodeCreated /a/b", "NodeDataChanged /a/b", "NodeDeleted /a/b", "NodeDeleted /a");
        }
        nothing(zk, persistent);
        nothing(zk, recursive);

        // Watches that overlap give one event each to the program, for one on the wire.
        BlockingQueue<String> all = new LinkedBlockingQueue<>();
        ZooKeeper root = e.zookeeper();
        root.addWatch("/", log(all, ""), AddWatchMode.PERSISTENT_RECURSIVE);
        create(writer, p);
        create(writer, p + "/deep");
        next(all, "NodeCreated " + p, "NodeCreated " + p + "/deep");
    }

    private static void removed(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        ZooKeeper writer = e.zookeeper();
        String p = e.root;
        create(writer, p);
        Sessions.sync(zk);
        BlockingQueue<String> data = new LinkedBlockingQueue<>();
        BlockingQueue<String> children = new LinkedBlockingQueue<>();
        BlockingQueue<String> persistent = new LinkedBlockingQueue<>();
        BlockingQueue<String> recursive = new LinkedBlockingQueue<>();
        Watcher d = log(data, p);
        Watcher c = log(children, p);
        Watcher ps = log(persistent, p);
        Watcher rc = log(recursive, p);
        zk.getData(p, d, null);
        zk.getChildren(p, c);
        refused(Code.NOWATCHER, () -> zk.removeWatches(p, c, WatcherType.Data, false));
        refused(Code.NOWATCHER, () -> zk.removeWatches(p, d, WatcherType.Children, false));
        refused(Code.NOWATCHER, () -> zk.removeWatches(p + "/none", d, WatcherType.Any, false));
        zk.removeWatches(p, c, WatcherType.Children, false);
        next(children, "ChildWatchRemoved ");
        create(writer, p + "/a");
        writer.setData(p, bytes("1"), -1);
        next(data, "NodeDataChanged "); // the other one is still there
        nothing(zk, children);

        zk.getData(p, d, null);
        zk.getChildren(p, c);
        BlockingQueue<Integer> answered = new LinkedBlockingQueue<>();
        zk.removeWatches(p, d, WatcherType.Data, false, (code, path, ctx) -> answered.add(code), null);
        same(answered.poll(60, TimeUnit.SECONDS), 0, "asynchronous removeWatches");
        next(data, "DataWatchRemoved ");
        writer.setData(p, bytes("2"), -1);
        nothing(zk, data);
        writer.delete(p + "/a", -1);
        next(children, "NodeChildrenChanged ");

        zk.exists(p + "/e", d);
        zk.removeWatches(p + "/e", d, WatcherType.Any, false);
        next(data, "DataWatchRemoved /e");
        create(writer, p + "/e");
        nothing(zk, data);

        zk.addWatch(p, ps, AddWatchMode.PERSISTENT);
        zk.addWatch(p + "/e", rc, AddWatchMode.PERSISTENT_RECURSIVE);
        writer.setData(p + "/e", bytes("1"), -1);
        next(recursive, "NodeDataChanged /e");
        zk.removeWatches(p + "/e", rc, WatcherType.Any, false);
        next(recursive, "PersistentWatchRemoved /e");
        writer.setData(p + "/e", bytes("2"), -1);
        writer.delete(p + "/e", -1);
        nothing(zk, recursive);
        next(persistent, "NodeChildrenChanged ");
        zk.removeAllWatches(p, WatcherType.Any, false);
        next(persistent, "PersistentWatchRemoved ");
        writer.setData(p, bytes("3"), -1);
        nothing(zk, persistent);

        // Without a connection the client may forget them by itself; the server must not have them afterwards either.
        zk.getData(p, d, null);
        Env.refuse();
        zk.removeWatches(p, d, WatcherType.Data, true);
        Env.accept();
        next(data, "DataWatchRemoved ");
        Sessions.connected(zk);
        ZooKeeper third = e.zookeeper(Env.direct, ev -> {});
        third.setData(p, bytes("4"), -1);
        nothing(zk, data);
    }

    private static void both(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        ZooKeeper writer = e.zookeeper();
        create(writer, e.root);
        Sessions.sync(zk);
        BlockingQueue<String> persistent = new LinkedBlockingQueue<>();
        BlockingQueue<String> once = new LinkedBlockingQueue<>();
        zk.addWatch(e.root, log(persistent, e.root), AddWatchMode.PERSISTENT);
        zk.getData(e.root, log(once, e.root), null);
        for (int i = 0; i < 3; i++) {
            writer.setData(e.root, bytes("x" + i), -1);
            next(persistent, "NodeDataChanged ");
        }
        next(once, "NodeDataChanged ");
        nothing(zk, once);
        nothing(zk, persistent);
    }

    /**
     * More watches than fit into one request, of all kinds, over a time without connection in which some of the nodes
     * change: those are told on reconnect, the others are armed as before. Each fires once.
     */
    private static void setWatches(Env e) throws Exception {
        final int each = 700;
        ZooKeeper zk = e.zookeeper();
        ZooKeeper writer = e.zookeeper(Env.direct, ev -> {});
        String p = e.root + "-" + "p".repeat(120); // 2,100 paths of 130 characters are two requests and a bit
        create(writer, p);
        for (String kind : List.of("/data-", "/child-")) {
            List<org.apache.zookeeper.Op> ops = new ArrayList<>();
            for (int i = 0; i < each; i++) {
                ops.add(org.apache.zookeeper.Op.create(p + kind + i, null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT));
            }
            writer.multi(ops);
        }
        Sessions.sync(zk);
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        Watcher w = log(events, p);
        BlockingQueue<Integer> answered = new LinkedBlockingQueue<>();
        for (int i = 0; i < each; i++) {
            zk.getData(p + "/data-" + i, w, (rc, path, ctx, d, st) -> answered.add(rc), null);
            zk.exists(p + "/exist-" + i, w, (rc, path, ctx, st) -> answered.add(rc == Code.NONODE.intValue() ? 0 : -1), null);
            zk.getChildren(p + "/child-" + i, w, (rc, path, ctx, c) -> answered.add(rc), null);
        }
        for (int i = 0; i < 3 * each; i++) {
            same(answered.poll(60, TimeUnit.SECONDS), 0, "answer");
        }
        Set<String> want = new HashSet<>();
        Env.refuse();
        for (int i = 0; i < each; i += 70) {
            writer.setData(p + "/data-" + i, bytes("1"), -1);
            want.add("NodeDataChanged /data-" + i);
            writer.delete(p + "/data-" + (i + 1), -1);
            want.add("NodeDeleted /data-" + (i + 1));
            create(writer, p + "/exist-" + i);
            want.add("NodeCreated /exist-" + i);
            create(writer, p + "/exist-" + (i + 1));
            writer.delete(p + "/exist-" + (i + 1), -1); // came and went: nobody can tell, the watch stays
            create(writer, p + "/child-" + i + "/new");
            want.add("NodeChildrenChanged /child-" + i);
            writer.delete(p + "/child-" + (i + 1), -1);
            want.add("NodeDeleted /child-" + (i + 1));
            writer.setData(p + "/child-" + (i + 2), bytes("1"), -1); // no change of its children
        }
        Env.accept();
        for (int n = want.size(); n > 0; n--) {
            String got = events.poll(60, TimeUnit.SECONDS);
            require(want.remove(got), "event " + got + " is not among those missing: " + want);
        }
        Sessions.connected(zk);
        nothing(zk, events);

        // Everything else is armed.
        for (int i = 2; i < each; i += 70) {
            writer.setData(p + "/data-" + i, bytes("1"), -1);
            create(writer, p + "/exist-" + (i - 1));
            create(writer, p + "/child-" + i + "/new");
            want.add("NodeDataChanged /data-" + i);
            want.add("NodeCreated /exist-" + (i - 1));
            want.add("NodeChildrenChanged /child-" + i);
            // and what fired is not
            writer.setData(p + "/data-" + (i - 2), bytes("2"), -1);
        }
        for (int n = want.size(); n > 0; n--) {
            String got = events.poll(60, TimeUnit.SECONDS);
            require(want.remove(got), "event " + got + " is not among those missing: " + want);
        }
        nothing(zk, events);
    }

    private static void setWatches2(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        ZooKeeper writer = e.zookeeper(Env.direct, ev -> {});
        String p = e.root;
        create(writer, p);
        Sessions.sync(zk);
        BlockingQueue<String> persistent = new LinkedBlockingQueue<>();
        BlockingQueue<String> recursive = new LinkedBlockingQueue<>();
        BlockingQueue<String> once = new LinkedBlockingQueue<>();
        zk.addWatch(p, log(persistent, p), AddWatchMode.PERSISTENT);
        zk.addWatch(p + "/r", log(recursive, p), AddWatchMode.PERSISTENT_RECURSIVE);
        zk.exists(p + "/once", log(once, p));
        for (int round = 0; round < 2; round++) {
            if (round == 0) {
                Env.cut();
            } else {
                Env.killLeader();
            }
            Sessions.connected(zk);
            Sessions.connected(writer); // its server may have been the one
            create(writer, p + "/r");
            create(writer, p + "/r/s");
            create(writer, p + "/r/s/t");
            writer.setData(p + "/r/s/t", bytes("1"), -1);
            writer.delete(p + "/r/s/t", -1);
            writer.delete(p + "/r/s", -1);
            writer.delete(p + "/r", -1);
            next(persistent, "NodeChildrenChanged ", "NodeChildrenChanged ");
            next(recursive, "NodeCreated /r", "NodeCreated /r/s", "NodeCreated /r/s/t", "NodeDataChanged /r/s/t", "NodeDeleted /r/s/t",
                    "NodeDeleted /r/s", "NodeDeleted /r");
        }
        Env.restart();
        create(writer, p + "/once");
        next(once, "NodeCreated /once");
        next(persistent, "NodeChildrenChanged ");
        nothing(zk, recursive);
        nothing(zk, persistent);
        nothing(zk, once);
    }
}
