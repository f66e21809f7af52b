package checks;

import static checks.Env.bytes;
import static checks.Env.eventually;
import static checks.Env.require;
import static checks.Env.same;
import static checks.Env.text;

import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.api.CuratorEvent;
import org.apache.curator.framework.api.transaction.CuratorOp;
import org.apache.curator.framework.api.transaction.CuratorTransactionResult;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.Watcher.Event.EventType;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.Id;
import org.apache.zookeeper.data.Stat;
import org.apache.zookeeper.server.auth.DigestAuthenticationProvider;

/** Curator's own operations, without a recipe. */
final class Framework {
    static void register() {
        Main.curator("creating, changing, deleting", "create create2 exists getData setData getChildren2 delete sync", Framework::basics);
        Main.curator("transactions", "multi create2 setData check delete", Framework::transactions);
        Main.curator("background operations", "create2 exists getData setData getChildren2 getACL setACL delete sync multi", Framework::background);
        Main.curator("containers", "createContainer create2 delete exists", Framework::containers);
        Main.curator("TTL nodes", "createTTL exists setData delete", Framework::ttl);
        Main.curator("ACLs and digest authorization", "auth create2 getACL setACL getData setData delete", Framework::acl);
        Main.curator("watchers", "addWatch removeWatches watch_events create2 setData delete", Framework::watchers);
        Main.curator("namespace and chroot", "createContainer create2 exists getChildren2", Framework::chroot);
        Main.curator("ensemble tracker", "getConfig reconfig", Framework::tracker);
    }

    interface Call {
        void run() throws Exception;
    }

    /** The call must fail with this code. */
    static KeeperException refused(KeeperException.Code code, Call call) throws Exception {
        try {
            call.run();
        } catch (KeeperException e) {
            same(e.code(), code, "code of " + e.getMessage());
            return e;
        }
        throw new AssertionError("succeeded, want " + code);
    }

    private static void basics(Env e) throws Exception {
        CuratorFramework c = e.client();
        Stat stat = new Stat();
        String path = c.create().orSetData().storingStatIn(stat).creatingParentsIfNeeded().forPath(e.root + "/a/b", bytes("1"));
        same(path, e.root + "/a/b", "path");
        same(stat.getDataLength(), 1, "length in the Stat");
        c.create().orSetData().forPath(e.root + "/a/b", bytes("22"));
        same(text(c.getData().storingStatIn(stat).forPath(e.root + "/a/b")), "22", "data");
        same(stat.getVersion(), 1, "version");
        refused(KeeperException.Code.NODEEXISTS, () -> c.create().forPath(e.root + "/a/b"));
        refused(KeeperException.Code.NONODE, () -> c.create().forPath(e.root + "/x/y"));
        refused(KeeperException.Code.NONODE, () -> c.setData().forPath(e.root + "/x"));
        refused(KeeperException.Code.BADVERSION, () -> c.setData().withVersion(7).forPath(e.root + "/a/b"));
        refused(KeeperException.Code.BADVERSION, () -> c.delete().withVersion(7).forPath(e.root + "/a/b"));
        refused(KeeperException.Code.NOTEMPTY, () -> c.delete().forPath(e.root + "/a"));
        same(c.setData().withVersion(1).forPath(e.root + "/a/b", bytes("3")).getVersion(), 2, "version after a change");
        String first = c.create().withProtection().withMode(CreateMode.EPHEMERAL_SEQUENTIAL).forPath(e.root + "/a/s-");
        String second = c.create().withMode(CreateMode.PERSISTENT_SEQUENTIAL).forPath(e.root + "/a/s-");
        require(first.endsWith("s-0000000001") && second.endsWith("s-0000000002"), "numbers: " + first + " " + second);
        require(c.create().withMode(CreateMode.EPHEMERAL).forPath(e.root + "/a/e").equals(e.root + "/a/e"), "ephemeral");
        refused(KeeperException.Code.NOCHILDRENFOREPHEMERALS, () -> c.create().forPath(e.root + "/a/e/below"));
        c.checkExists().creatingParentsIfNeeded().forPath(e.root + "/made/by/exists");
        same(c.getChildren().forPath(e.root + "/made").size(), 1, "parents made by exists");
        same(c.checkExists().forPath(e.root + "/a").getNumChildren(), 4, "children");
        c.sync().forPath(e.root);
        c.delete().guaranteed().deletingChildrenIfNeeded().forPath(e.root);
        c.delete().quietly().forPath(e.root);
        same(c.checkExists().forPath(e.root), null, "after the deletion");
    }

    private static void transactions(Env e) throws Exception {
        CuratorFramework c = e.client();
        c.create().forPath(e.root, bytes("0"));
        CuratorOp create = c.transactionOp().create().forPath(e.root + "/a", bytes("a"));
        CuratorOp seq = c.transactionOp().create().withMode(CreateMode.PERSISTENT_SEQUENTIAL).forPath(e.root + "/s-", bytes("s"));
        CuratorOp set = c.transactionOp().setData().withVersion(0).forPath(e.root, bytes("1"));
        CuratorOp check = c.transactionOp().check().withVersion(1).forPath(e.root);
        CuratorOp delete = c.transactionOp().delete().forPath(e.root + "/a");
        List<CuratorTransactionResult> results = c.transaction().forOperations(create, seq, set, check, delete);
        same(results.size(), 5, "results");
        same(results.get(0).getResultPath(), e.root + "/a", "path");
        same(results.get(1).getResultPath(), e.root + "/s-0000000001", "path with a number");
        same(results.get(2).getResultStat().getVersion(), 1, "version");
        same(c.checkExists().forPath(e.root + "/a"), null, "created and deleted");
        same(text(c.getData().forPath(e.root)), "1", "data");

        // All or nothing, and each member's own code.
        CuratorOp fails = c.transactionOp().check().withVersion(9).forPath(e.root);
        CuratorOp later = c.transactionOp().create().forPath(e.root + "/later");
        KeeperException failed = refused(KeeperException.Code.BADVERSION, () -> c.transaction().forOperations(create, fails, later));
        int[] want = {0, KeeperException.Code.BADVERSION.intValue(), KeeperException.Code.RUNTIMEINCONSISTENCY.intValue()};
        for (int i = 0; i < want.length; i++) {
            int got = ((org.apache.zookeeper.OpResult.ErrorResult) failed.getResults().get(i)).getErr();
            same(got, want[i], "code of member " + i);
        }
        same(c.checkExists().forPath(e.root + "/a"), null, "created by a transaction that failed");
    }

    private static void background(Env e) throws Exception {
        CuratorFramework c = e.client();
        BlockingQueue<CuratorEvent> answers = new LinkedBlockingQueue<>();
        c.create().inBackground((x, ev) -> answers.add(ev)).forPath(e.root, bytes("1"));
        c.setData().inBackground((x, ev) -> answers.add(ev)).forPath(e.root, bytes("2"));
        c.getData().inBackground((x, ev) -> answers.add(ev)).forPath(e.root);
        c.checkExists().inBackground((x, ev) -> answers.add(ev)).forPath(e.root + "/none");
        c.getChildren().inBackground((x, ev) -> answers.add(ev)).forPath(e.root);
        c.getACL().inBackground((x, ev) -> answers.add(ev)).forPath(e.root);
        c.sync().inBackground((x, ev) -> answers.add(ev)).forPath(e.root);
        c.transaction().inBackground((x, ev) -> answers.add(ev)).forOperations(c.transactionOp().check().forPath(e.root));
        c.delete().inBackground((x, ev) -> answers.add(ev)).forPath(e.root);
        String[] want = {"CREATE 0", "SET_DATA 0", "GET_DATA 0", "EXISTS -101", "CHILDREN 0", "GET_ACL 0", "SYNC 0", "TRANSACTION 0", "DELETE 0"};
        for (String w : want) {
            CuratorEvent ev = answers.poll(60, TimeUnit.SECONDS);
            require(ev != null, "no answer, want " + w);
            same(ev.getType() + " " + ev.getResultCode(), w, "answer in the order of the requests");
            if (w.startsWith("GET_DATA")) {
                same(text(ev.getData()), "2", "data");
            }
        }
    }

    private static void containers(Env e) throws Exception {
        CuratorFramework c = e.client();
        String path = c.create().creatingParentContainersIfNeeded().withMode(CreateMode.EPHEMERAL).forPath(e.root + "/c1/c2/leaf");
        same(c.checkExists().forPath(e.root + "/c1/c2").getEphemeralOwner(), 0L, "owner that clients see");
        CountDownLatch gone = new CountDownLatch(1);
        Watcher w = ev -> {
            if (ev.getType() == EventType.NodeDeleted) {
                gone.countDown();
            }
        };
        require(c.checkExists().usingWatcher(w).forPath(e.root + "/c1/c2") != null, "no container");
        c.create().withMode(CreateMode.CONTAINER).forPath(e.root + "/c1/never");
        c.delete().forPath(path);
        require(gone.await(30, TimeUnit.SECONDS), "an emptied container stays");
        // A container that never had a child stays, and so does its parent.
        require(c.checkExists().forPath(e.root + "/c1/never") != null, "a container that was never used went");
        c.delete().forPath(e.root + "/c1/never");
        eventually(null, () -> c.checkExists().forPath(e.root), "containers all the way up");
    }

    private static void ttl(Env e) throws Exception {
        CuratorFramework c = e.client();
        c.create().withTtl(1_000).withMode(CreateMode.PERSISTENT_WITH_TTL).forPath(e.root + "-short", bytes("x"));
        c.create().withTtl(3_600_000).withMode(CreateMode.PERSISTENT_WITH_TTL).forPath(e.root + "-long", bytes("x"));
        String seq = c.create().withTtl(1_000).withMode(CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL).forPath(e.root + "-seq-");
        require(seq.matches(e.root + "-seq-\\d{10}"), seq);
        c.create().withTtl(1_000).withMode(CreateMode.PERSISTENT_WITH_TTL).forPath(e.root + "-parent");
        c.create().forPath(e.root + "-parent/child");
        same(c.checkExists().forPath(e.root + "-short").getEphemeralOwner(), 0L, "owner that clients see");
        eventually(null, () -> c.checkExists().forPath(e.root + "-short"), "a node past its time");
        eventually(null, () -> c.checkExists().forPath(seq), "a node past its time");
        require(c.checkExists().forPath(e.root + "-long") != null, "a node went before its time");
        require(c.checkExists().forPath(e.root + "-parent") != null, "a node with a child went");
        c.delete().forPath(e.root + "-parent/child");
        eventually(null, () -> c.checkExists().forPath(e.root + "-parent"), "a node past its time");
    }

    private static void acl(Env e) throws Exception {
        CuratorFramework owner = e.start(Env.builder().connectString(Env.proxied).ensembleTracker(false).authorization("digest", bytes("ann:secret")));
        CuratorFramework wrong = e.start(Env.builder().connectString(Env.proxied).ensembleTracker(false).authorization("digest", bytes("ann:guess")));
        CuratorFramework nobody = e.client();
        owner.create().withACL(ZooDefs.Ids.CREATOR_ALL_ACL).forPath(e.root, bytes("hers"));
        String hash = DigestAuthenticationProvider.generateDigest("ann:secret");
        same(owner.getACL().forPath(e.root), List.of(new ACL(ZooDefs.Perms.ALL, new Id("digest", hash))), "ACL");
        for (CuratorFramework c : List.of(wrong, nobody)) {
            c.sync().forPath(e.root);
            refused(KeeperException.Code.NOAUTH, () -> c.getData().forPath(e.root));
            refused(KeeperException.Code.NOAUTH, () -> c.setData().forPath(e.root, bytes("mine")));
            refused(KeeperException.Code.NOAUTH, () -> c.create().forPath(e.root + "/x"));
            refused(KeeperException.Code.NOAUTH, () -> c.getChildren().forPath(e.root));
            refused(KeeperException.Code.NOAUTH, () -> c.setACL().withACL(ZooDefs.Ids.OPEN_ACL_UNSAFE).forPath(e.root));
            refused(KeeperException.Code.NOAUTH, () -> c.getACL().forPath(e.root));
        }
        // The authorization belongs to the connection; the client gives it again on the next one.
        Env.cut();
        same(text(owner.getData().forPath(e.root)), "hers", "data after a cut");
        Env.killLeader();
        same(text(owner.getData().forPath(e.root)), "hers", "data after the leader's death");
        Env.restart();
        // Others may read, and see that there is a digest, but not which.
        owner.setACL().withVersion(0).withACL(List.of(
                new ACL(ZooDefs.Perms.ALL, new Id("digest", hash)), new ACL(ZooDefs.Perms.READ, ZooDefs.Ids.ANYONE_ID_UNSAFE))).forPath(e.root);
        refused(KeeperException.Code.BADVERSION, () -> owner.setACL().withVersion(0).withACL(ZooDefs.Ids.OPEN_ACL_UNSAFE).forPath(e.root));
        nobody.sync().forPath(e.root);
        same(text(nobody.getData().forPath(e.root)), "hers", "data that may be read");
        same(nobody.getACL().forPath(e.root).get(0).getId().getId(), "ann:x", "the hash is not shown");
        refused(KeeperException.Code.NOAUTH, () -> nobody.setData().forPath(e.root, bytes("mine")));
        refused(KeeperException.Code.INVALIDACL, () -> nobody.create().withACL(ZooDefs.Ids.CREATOR_ALL_ACL).forPath(e.root + "-x"));
        refused(KeeperException.Code.INVALIDACL, () -> nobody.create().withACL(List.of(
                new ACL(ZooDefs.Perms.ALL, new Id("ip", "999.1.1.1")))).forPath(e.root + "-x"));
        nobody.create().withACL(List.of(new ACL(ZooDefs.Perms.ALL, new Id("ip", "127.0.0.0/8")))).forPath(e.root + "-ip", bytes("local"));
        same(text(owner.getData().forPath(e.root + "-ip")), "local", "by address");
        CuratorFramework superUser = e.start(Env.builder().connectString(Env.proxied).ensembleTracker(false).authorization("digest", bytes("super:test")));
        same(text(superUser.getData().forPath(e.root)), "hers", "data for the super user");
        superUser.delete().forPath(e.root);
    }

    private static void watchers(Env e) throws Exception {
        CuratorFramework c = e.client();
        CuratorFramework writer = e.undisturbed();
        writer.create().forPath(e.root, bytes("0"));
        c.sync().forPath("/");
        BlockingQueue<String> recursive = new LinkedBlockingQueue<>();
        BlockingQueue<String> persistent = new LinkedBlockingQueue<>();
        Watcher r = log(recursive, e.root);
        Watcher p = log(persistent, e.root);
        c.watchers().add().withMode(AddWatchMode.PERSISTENT_RECURSIVE).usingWatcher(r).forPath(e.root);
        // In one client, a recursive watcher is told what a persistent watch below it gets from the server, too.
        CuratorFramework other = e.client();
        other.watchers().add().withMode(AddWatchMode.PERSISTENT).usingWatcher(p).forPath(e.root + "/a");
        writer.create().creatingParentsIfNeeded().forPath(e.root + "/a/b/c");
        writer.setData().forPath(e.root + "/a/b/c", bytes("1"));
        writer.setData().forPath(e.root + "/a", bytes("1"));
        writer.delete().deletingChildrenIfNeeded().forPath(e.root + "/a");
        for (String w : List.of("NodeCreated /a", "NodeCreated /a/b", "NodeCreated /a/b/c", "NodeDataChanged /a/b/c", "NodeDataChanged /a",
                "NodeDeleted /a/b/c", "NodeDeleted /a/b", "NodeDeleted /a")) {
            same(recursive.poll(60, TimeUnit.SECONDS), w, "recursive watch");
        }
        for (String w : List.of("NodeCreated /a", "NodeChildrenChanged /a", "NodeDataChanged /a", "NodeChildrenChanged /a", "NodeDeleted /a")) {
            same(persistent.poll(60, TimeUnit.SECONDS), w, "persistent watch");
        }
        c.watchers().remove(r).forPath(e.root);
        same(recursive.poll(60, TimeUnit.SECONDS), "PersistentWatchRemoved ", "removal");
        other.watchers().removeAll().forPath(e.root + "/a");
        same(persistent.poll(60, TimeUnit.SECONDS), "PersistentWatchRemoved /a", "removal");
        refused(KeeperException.Code.NOWATCHER, () -> c.watchers().remove(r).forPath(e.root));
        writer.create().forPath(e.root + "/a");
        Env.settle(c);
        Env.settle(other);
        same(Set.copyOf(recursive), Set.of(), "events of a removed watch");
        same(Set.copyOf(persistent), Set.of(), "events of a removed watch");
    }

    static Watcher log(Collection<String> into, String root) {
        return (WatchedEvent ev) -> {
            if (ev.getType() != EventType.None) {
                into.add(ev.getType() + " " + ev.getPath().substring(root.length()));
            }
        };
    }

    private static void chroot(Env e) throws Exception {
        CuratorFramework plain = e.client();
        CuratorFramework chrooted = e.start(Env.builder().connectString(Env.proxied + e.root + "/ch").ensembleTracker(false));
        CuratorFramework named = e.start(Env.builder().connectString(Env.proxied).ensembleTracker(false).namespace(e.root.substring(1) + "/ns"));
        plain.create().creatingParentContainersIfNeeded().forPath(e.root + "/ch");
        chrooted.sync().forPath("/");
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        same(chrooted.checkExists().usingWatcher(log(events, "")).forPath("/x"), null, "not there yet");
        same(chrooted.create().forPath("/x", bytes("1")), "/x", "path as the client sees it");
        same(events.poll(60, TimeUnit.SECONDS), "NodeCreated /x", "event path as the client sees it");
        same(named.create().forPath("/y", bytes("2")), "/y", "path as the client sees it");
        plain.sync().forPath("/");
        same(text(plain.getData().forPath(e.root + "/ch/x")), "1", "data");
        same(text(plain.getData().forPath(e.root + "/ns/y")), "2", "data");
    }

    /** A client that was given one server learns the others from the configuration and lives on without the first. */
    private static void tracker(Env e) throws Exception {
        CuratorFramework c = e.start(Env.builder().connectString(Env.direct));
        String config = text(c.getConfig().forEnsemble());
        require(config.contains("version="), "no version in the configuration: " + config);
        refused(KeeperException.Code.RECONFIGDISABLED, () -> c.reconfig().joining("server.9=127.0.0.1:1:2;3").forEnsemble());
        String[] all = Env.direct.split(",");
        if (all.length == 1) {
            return;
        }
        for (String server : all) {
            CuratorFramework one = e.start(Env.builder().connectString(server));
            one.create().orSetData().forPath(e.root);
            eventually(Set.of(all), () -> Set.of(one.getZookeeperClient().getCurrentConnectionString().split(",")), "servers known");
        }
    }
}
