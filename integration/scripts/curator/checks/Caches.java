package checks;

import static checks.Env.bytes;
import static checks.Env.eventually;
import static checks.Env.require;
import static checks.Env.same;
import static checks.Env.text;

import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.cache.ChildData;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.cache.NodeCache;
import org.apache.curator.framework.recipes.cache.PathChildrenCache;
import org.apache.curator.framework.recipes.cache.TreeCache;
import org.apache.curator.framework.recipes.watch.PersistentWatcher;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher.Event.EventType;

/** Caches: whatever happens to the connection, in the end they show what is there. */
@SuppressWarnings("deprecation") // the older caches are what many programs use
final class Caches {
    private static final String OPS = "create2 getData getChildren2 exists delete setData watch_events";

    static void register() {
        Main.curator("CuratorCache", OPS + " addWatch removeWatches setWatches2", Caches::curatorCache);
        Main.curator("PathChildrenCache", OPS + " setWatches", Caches::pathChildrenCache);
        Main.curator("NodeCache", OPS + " setWatches", Caches::nodeCache);
        Main.curator("TreeCache", OPS + " setWatches", Caches::treeCache);
        Main.curator("PersistentWatcher", "addWatch removeWatches setWatches2 create2 setData delete", Caches::persistentWatcher);
    }

    /** How much of the tree a cache shows. */
    private enum Reach {
        TREE,
        CHILDREN
    }

    /**
     * Changes the tree in many ways: while all is well, while the cache is cut off, and after the leader was killed; the
     * view must become what the server has. Paths map to data.
     */
    private static void converge(Env e, Reach reach, Callable<Map<String, String>> view) throws Exception {
        CuratorFramework writer = e.undisturbed();
        Callable<Map<String, String>> truth = () -> {
            writer.sync().forPath("/");
            Map<String, String> m = new TreeMap<>();
            read(writer, e.root, reach, 0, m);
            return m;
        };
        eventually(truth.call(), view, "at the start");
        for (int i = 0; i < 10; i++) {
            writer.create().creatingParentsIfNeeded().forPath(e.root + "/a" + i + "/b/c", bytes("c" + i));
            writer.setData().forPath(e.root + "/a" + i, bytes("a" + i));
        }
        writer.delete().deletingChildrenIfNeeded().forPath(e.root + "/a3");
        writer.delete().forPath(e.root + "/a4/b/c");
        eventually(truth.call(), view, "after changes");

        Env.refuse();
        writer.setData().forPath(e.root + "/a0", bytes("changed unseen"));
        writer.setData().forPath(e.root + "/a0/b/c", bytes("changed unseen too"));
        writer.delete().deletingChildrenIfNeeded().forPath(e.root + "/a1");
        writer.create().creatingParentsIfNeeded().forPath(e.root + "/unseen/b", bytes("new"));
        writer.delete().deletingChildrenIfNeeded().forPath(e.root + "/a2");
        writer.create().forPath(e.root + "/a2", bytes("another"));
        Env.accept();
        eventually(truth.call(), view, "after a cut with changes in between");

        Env.killLeader();
        writer.setData().forPath(e.root + "/a5", bytes("with two servers"));
        writer.create().forPath(e.root + "/later", bytes("with two servers"));
        eventually(truth.call(), view, "after the leader's death");
        Env.restart();
        writer.setData().forPath(e.root + "/a5", bytes("with three again"));
        writer.delete().deletingChildrenIfNeeded().forPath(e.root + "/a6");
        eventually(truth.call(), view, "at the end");
    }

    private static void read(CuratorFramework c, String path, Reach reach, int depth, Map<String, String> into) throws Exception {
        if (depth > 0 || reach == Reach.TREE) {
            into.put(path, text(c.getData().forPath(path)));
        }
        if (depth == 0 || reach == Reach.TREE) {
            for (String child : c.getChildren().forPath(path)) {
                read(c, path + "/" + child, reach, depth + 1, into);
            }
        }
    }

    private static void start(Env e) throws Exception {
        e.undisturbed().create().forPath(e.root, bytes("root"));
    }

    private static void curatorCache(Env e) throws Exception {
        start(e);
        Set<String> created = ConcurrentHashMap.newKeySet();
        Set<String> changed = ConcurrentHashMap.newKeySet();
        Set<String> deleted = ConcurrentHashMap.newKeySet();
        CuratorCache cache = e.closeLater(CuratorCache.build(e.client(), e.root));
        CountDownLatch ready = new CountDownLatch(1);
        cache.listenable().addListener(CuratorCacheListener.builder()
                .forInitialized(ready::countDown)
                .forCreates(n -> created.add(n.getPath()))
                .forChanges((old, n) -> changed.add(n.getPath()))
                .forDeletes(n -> deleted.add(n.getPath()))
                .build());
        cache.start();
        require(ready.await(60, TimeUnit.SECONDS), "never initialized");
        converge(e, Reach.TREE, () -> {
            Map<String, String> m = new TreeMap<>();
            cache.stream().forEach(n -> m.put(n.getPath(), text(n.getData())));
            return m;
        });
        for (String p : new String[] {"", "/a0/b/c", "/unseen/b", "/later"}) {
            eventually(true, () -> created.contains(e.root + p), "event of the creation of " + p);
        }
        for (String p : new String[] {"/a0", "/a0/b/c", "/a5"}) {
            eventually(true, () -> changed.contains(e.root + p), "event of the change of " + p);
        }
        for (String p : new String[] {"/a3/b/c", "/a1", "/a6/b"}) {
            eventually(true, () -> deleted.contains(e.root + p), "event of the deletion of " + p);
        }
    }

    private static void pathChildrenCache(Env e) throws Exception {
        start(e);
        PathChildrenCache cache = e.closeLater(new PathChildrenCache(e.client(), e.root, true));
        cache.start(PathChildrenCache.StartMode.BUILD_INITIAL_CACHE);
        converge(e, Reach.CHILDREN, () -> {
            Map<String, String> m = new TreeMap<>();
            for (ChildData n : cache.getCurrentData()) {
                m.put(n.getPath(), text(n.getData()));
            }
            return m;
        });
    }

    private static void nodeCache(Env e) throws Exception {
        CuratorFramework writer = e.undisturbed();
        NodeCache cache = e.closeLater(new NodeCache(e.client(), e.root));
        cache.start(true);
        Callable<String> view = () -> cache.getCurrentData() == null ? "none" : text(cache.getCurrentData().getData());
        eventually("none", view, "before it exists");
        writer.create().forPath(e.root, bytes("one"));
        eventually("one", view, "created");
        writer.setData().forPath(e.root, bytes("two"));
        eventually("two", view, "changed");
        Env.refuse();
        writer.setData().forPath(e.root, bytes("three"));
        Env.accept();
        eventually("three", view, "changed while cut off");
        Env.killLeader();
        writer.delete().forPath(e.root);
        eventually("none", view, "deleted");
        writer.create().forPath(e.root, bytes("four"));
        eventually("four", view, "created again");
        Env.restart();
        Env.refuse();
        writer.delete().forPath(e.root);
        Env.accept();
        eventually("none", view, "deleted while cut off");
    }

    private static void treeCache(Env e) throws Exception {
        start(e);
        TreeCache cache = e.closeLater(TreeCache.newBuilder(e.client(), e.root).build());
        cache.start();
        converge(e, Reach.TREE, () -> {
            Map<String, String> m = new TreeMap<>();
            collect(cache, e.root, m);
            return m;
        });
    }

    private static void collect(TreeCache cache, String path, Map<String, String> into) {
        ChildData n = cache.getCurrentData(path);
        Map<String, ChildData> children = cache.getCurrentChildren(path);
        if (n == null || children == null) {
            return;
        }
        into.put(path, text(n.getData()));
        for (String child : children.keySet()) {
            collect(cache, path + "/" + child, into);
        }
    }

    private static void persistentWatcher(Env e) throws Exception {
        CuratorFramework writer = e.undisturbed();
        CuratorFramework client = e.client();
        Set<String> seen = ConcurrentHashMap.newKeySet();
        PersistentWatcher watcher = e.closeLater(new PersistentWatcher(client, e.root, true));
        watcher.getListenable().addListener((WatchedEvent ev) -> {
            if (ev.getType() != EventType.None) {
                seen.add(ev.getType() + " " + ev.getPath().substring(e.root.length()));
            }
        });
        AtomicReference<CountDownLatch> reset = new AtomicReference<>(new CountDownLatch(1));
        watcher.getResetListenable().addListener(() -> reset.get().countDown());
        watcher.start();
        require(reset.get().await(60, TimeUnit.SECONDS), "the watch was never set");
        writer.create().creatingParentsIfNeeded().forPath(e.root + "/x/y", bytes("1"));
        writer.setData().forPath(e.root + "/x/y", bytes("2"));
        writer.delete().forPath(e.root + "/x/y");
        Set<String> want = Set.of("NodeCreated ", "NodeCreated /x", "NodeCreated /x/y", "NodeDataChanged /x/y", "NodeDeleted /x/y");
        eventually(want, () -> Set.copyOf(seen), "events");

        // A watch of this kind comes back with the connection, without being set anew by the program.
        CountDownLatch back = new CountDownLatch(1);
        CountDownLatch lost = new CountDownLatch(1);
        client.getConnectionStateListenable().addListener((c, state) -> {
            if (state == ConnectionState.SUSPENDED) {
                lost.countDown();
            } else if (state == ConnectionState.RECONNECTED) {
                back.countDown();
            }
        });
        Env.cut();
        require(lost.await(60, TimeUnit.SECONDS), "the cut was not noticed");
        require(back.await(60, TimeUnit.SECONDS), "not reconnected");
        Env.settle(client); // the watch is set again behind the connect; what happens before is not told
        seen.clear();
        writer.create().forPath(e.root + "/x/z");
        writer.delete().forPath(e.root + "/x/z");
        eventually(Set.of("NodeCreated /x/z", "NodeDeleted /x/z"), () -> Set.copyOf(seen), "events after the reconnect");
        watcher.close();
        Env.settle(client);
        same(seen.size(), 2, "events in all");
    }
}
