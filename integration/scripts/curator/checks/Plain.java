package checks;

import static checks.Env.bytes;
import static checks.Env.require;
import static checks.Env.same;
import static checks.Env.text;
import static checks.Framework.refused;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.AsyncCallback;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.OpResult;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooDefs.Perms;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.admin.ZooKeeperAdmin;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.ClientInfo;
import org.apache.zookeeper.data.Id;
import org.apache.zookeeper.data.Stat;

/** The Java client itself, every method that asks the server something. Watches and sessions are elsewhere. */
final class Plain {
    private static final List<ACL> OPEN = Ids.OPEN_ACL_UNSAFE;

    static void register() {
        Main.java("nodes", "create create2 createContainer createTTL exists getData setData getChildren getChildren2 delete", Plain::nodes);
        Main.java("every Stat field", "create2 exists setData setACL delete getChildren2", Plain::stats);
        Main.java("multi", "multi create create2 createContainer createTTL setData check delete", Plain::multi);
        Main.java("multi of reads", "multiRead getData getChildren", Plain::multiRead);
        Main.java("ACLs, auth, whoAmI", "auth whoAmI getACL setACL create getData", Plain::acl);
        Main.java("getEphemerals, getAllChildrenNumber", "getEphemerals getAllChildrenNumber create delete", Plain::counts);
        Main.java("getConfig, reconfigure", "getConfig reconfig", Plain::config);
        Main.java("asynchronous calls, in order", "create create2 exists getData setData getChildren getChildren2 getACL setACL sync delete multi "
                + "getEphemerals getAllChildrenNumber", Plain::async);
    }

    private static void nodes(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        String p = e.root;
        same(zk.create(p, bytes("data"), OPEN, CreateMode.PERSISTENT), p, "path");
        Stat stat = new Stat();
        same(text(zk.getData(p, false, stat)), "data", "data");
        same(zk.create(p + "/null", null, OPEN, CreateMode.PERSISTENT, stat), p + "/null", "path");
        same(zk.getData(p + "/null", false, null), null, "null data");
        zk.create(p + "/empty", new byte[0], OPEN, CreateMode.PERSISTENT);
        same(zk.getData(p + "/empty", false, null).length, 0, "empty data");
        same(zk.create(p + "/s", bytes("x"), OPEN, CreateMode.PERSISTENT_SEQUENTIAL), p + "/s0000000002", "sequential");
        same(zk.create(p + "/", bytes("x"), OPEN, CreateMode.EPHEMERAL_SEQUENTIAL), p + "/0000000003", "a number alone");
        same(zk.create(p + "/c", bytes("x"), OPEN, CreateMode.CONTAINER, stat), p + "/c", "container");
        same(stat.getEphemeralOwner(), 0L, "owner of a container");
        same(zk.create(p + "/t", bytes("x"), OPEN, CreateMode.PERSISTENT_WITH_TTL, stat, 60_000), p + "/t", "TTL");
        same(zk.create(p + "/ts", bytes("x"), OPEN, CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL, stat, 60_000), p + "/ts0000000006", "TTL");
        same(stat.getEphemeralOwner(), 0L, "owner of a TTL node");
        zk.create(p + "/e", bytes("x"), OPEN, CreateMode.EPHEMERAL, stat);
        same(stat.getEphemeralOwner(), zk.getSessionId(), "owner of an ephemeral");
        List<String> names = zk.getChildren(p, false);
        Collections.sort(names);
        same(names, List.of("0000000003", "c", "e", "empty", "null", "s0000000002", "t", "ts0000000006"), "names");
        same(zk.getChildren(p, false, stat).size(), 8, "names with a Stat");
        same(stat.getNumChildren(), 8, "children in the Stat");
        same(zk.exists(p + "/none", false), null, "exists of a missing node");
        refused(Code.NONODE, () -> zk.getData(p + "/none", false, null));
        refused(Code.NONODE, () -> zk.getChildren(p + "/none", false));
        refused(Code.NONODE, () -> zk.delete(p + "/none", -1));
        refused(Code.NONODE, () -> zk.setData(p + "/none", null, -1));
        refused(Code.NONODE, () -> zk.create(p + "/none/x", null, OPEN, CreateMode.PERSISTENT));
        refused(Code.NODEEXISTS, () -> zk.create(p + "/c", null, OPEN, CreateMode.PERSISTENT));
        refused(Code.NODEEXISTS, () -> zk.create("/", null, OPEN, CreateMode.PERSISTENT));
        refused(Code.NOCHILDRENFOREPHEMERALS, () -> zk.create(p + "/e/x", null, OPEN, CreateMode.PERSISTENT));
        refused(Code.NOTEMPTY, () -> zk.delete(p, -1));
        refused(Code.BADVERSION, () -> zk.setData(p, null, 1));
        refused(Code.BADVERSION, () -> zk.delete(p + "/c", 1));
        refused(Code.BADARGUMENTS, () -> zk.delete("/", -1));
        refused(Code.INVALIDACL, () -> zk.create(p + "/x", null, List.of(), CreateMode.PERSISTENT));
        same(zk.setData(p, bytes("more"), 0).getVersion(), 1, "version");
        zk.delete(p + "/c", 0);
        byte[] large = new byte[1_000_000];
        new java.util.Random(1).nextBytes(large);
        zk.setData(p, large, -1);
        require(Arrays.equals(zk.getData(p, false, null), large), "a million bytes came back changed");
    }

    private static void stats(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        String p = e.root;
        long before = System.currentTimeMillis();
        Stat made = new Stat();
        zk.create(p, bytes("12345"), OPEN, CreateMode.PERSISTENT, made);
        same(made.getCzxid(), made.getMzxid(), "mzxid of a new node");
        same(made.getCzxid(), made.getPzxid(), "pzxid of a new node");
        same(made.getCtime(), made.getMtime(), "mtime of a new node");
        require(made.getCtime() >= before - 60_000 && made.getCtime() <= System.currentTimeMillis() + 60_000, "ctime");
        same(made.getVersion() + made.getCversion() + made.getAversion(), 0, "versions of a new node");
        same(made.getDataLength(), 5, "length");
        same(zk.exists(p, false), made, "Stat of exists and of create");
        Stat set = zk.setData(p, bytes("123"), 0);
        require(set.getMzxid() > made.getMzxid() && set.getCzxid() == made.getCzxid(), "zxids after setData");
        same(set.getVersion(), 1, "version after setData");
        same(set.getDataLength(), 3, "length after setData");
        Stat acl = zk.setACL(p, OPEN, 0);
        same(acl.getAversion(), 1, "aversion after setACL");
        same(acl.getMzxid(), set.getMzxid(), "mzxid after setACL");
        Stat child = new Stat();
        zk.create(p + "/c", null, OPEN, CreateMode.PERSISTENT, child);
        Stat parent = zk.exists(p, false);
        same(parent.getPzxid(), child.getCzxid(), "pzxid after a child's creation");
        same(parent.getCversion(), 1, "cversion after a child's creation");
        same(parent.getMzxid(), set.getMzxid(), "mzxid after a child's creation");
        zk.setData(p + "/c", bytes("x"), -1);
        same(zk.exists(p, false), parent, "parent after a child's change");
        zk.delete(p + "/c", -1);
        Stat last = zk.exists(p, false);
        require(last.getPzxid() > parent.getPzxid(), "pzxid after a child's deletion");
        same(last.getCversion(), 2, "cversion after a child's deletion");
        same(last.getNumChildren(), 0, "children after a child's deletion");
    }

    private static void multi(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        String p = e.root;
        List<OpResult> r = zk.multi(List.of(
                Op.create(p, bytes("0"), OPEN, CreateMode.PERSISTENT),
                Op.create(p + "/s-", bytes("x"), OPEN, CreateMode.EPHEMERAL_SEQUENTIAL),
                Op.create(p + "/c", bytes("x"), OPEN, CreateMode.CONTAINER),
                Op.create(p + "/t", bytes("x"), OPEN, CreateMode.PERSISTENT_WITH_TTL, 60_000),
                Op.setData(p, bytes("1"), 0),
                Op.check(p, 1),
                Op.delete(p + "/c", 0)));
        same(r.size(), 7, "results");
        same(((OpResult.CreateResult) r.get(1)).getPath(), p + "/s-0000000000", "path with a number");
        same(((OpResult.CreateResult) r.get(2)).getPath(), p + "/c", "path of a container");
        same(((OpResult.SetDataResult) r.get(4)).getStat().getVersion(), 1, "version");
        require(r.get(5) instanceof OpResult.CheckResult && r.get(6) instanceof OpResult.DeleteResult, "results " + r);
        same(zk.multi(List.of()), List.of(), "an empty multi");
        KeeperException failed = refused(Code.NONODE, () -> zk.multi(List.of(
                Op.create(p + "/a", null, OPEN, CreateMode.PERSISTENT), Op.delete(p + "/none", -1), Op.check(p, 1))));
        List<Integer> codes = new ArrayList<>();
        for (OpResult one : failed.getResults()) {
            codes.add(((OpResult.ErrorResult) one).getErr());
        }
        same(codes, List.of(0, Code.NONODE.intValue(), Code.RUNTIMEINCONSISTENCY.intValue()), "codes");
        same(zk.exists(p + "/a", false), null, "created by a multi that failed");
        r = zk.transaction().create(p + "/tx", null, OPEN, CreateMode.PERSISTENT).check(p + "/tx", 0).delete(p + "/tx", 0).commit();
        same(r.size(), 3, "results of a transaction");
        refused(Code.NODEEXISTS, () -> zk.multi(List.of(Op.create(p, null, OPEN, CreateMode.PERSISTENT))));
        refused(Code.BADVERSION, () -> zk.multi(List.of(Op.check(p, 7))));
        List<Op> many = new ArrayList<>();
        for (int i = 0; i < 2_000; i++) {
            many.add(Op.create(p + "/many-" + i, null, OPEN, CreateMode.PERSISTENT));
        }
        same(zk.multi(many).size(), 2_000, "results");
        same(zk.exists(p, false).getNumChildren(), 2_002, "children");
    }

    private static void multiRead(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        String p = e.root;
        zk.create(p, bytes("data"), OPEN, CreateMode.PERSISTENT);
        zk.create(p + "/c", null, OPEN, CreateMode.PERSISTENT);
        List<OpResult> r = zk.multi(List.of(Op.getData(p), Op.getChildren(p), Op.getData(p + "/none"), Op.getChildren(p + "/c")));
        same(r.size(), 4, "results");
        same(text(((OpResult.GetDataResult) r.get(0)).getData()), "data", "data");
        same(((OpResult.GetDataResult) r.get(0)).getStat(), zk.exists(p, false), "Stat");
        same(((OpResult.GetChildrenResult) r.get(1)).getChildren(), List.of("c"), "names");
        same(((OpResult.ErrorResult) r.get(2)).getErr(), Code.NONODE.intValue(), "code");
        same(((OpResult.GetChildrenResult) r.get(3)).getChildren(), List.of(), "names");
    }

    private static void acl(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        String p = e.root;
        List<String> before = new ArrayList<>();
        for (ClientInfo i : zk.whoAmI()) {
            before.add(i.getAuthScheme());
        }
        same(before, List.of("ip"), "who a fresh connection is");
        zk.addAuthInfo("digest", bytes("bob:pw"));
        zk.addAuthInfo("digest", bytes("eve:pw"));
        List<String> who = new ArrayList<>();
        for (ClientInfo i : zk.whoAmI()) {
            who.add(i.getAuthScheme() + ":" + i.getUser());
        }
        require(who.contains("digest:bob") && who.contains("digest:eve") && who.size() == 3, "who am I: " + who);
        zk.create(p, bytes("x"), Ids.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
        Stat stat = new Stat();
        same(zk.getACL(p, stat).size(), 2, "an entry for each identity");
        same(stat, zk.exists(p, false), "Stat of getACL");
        List<ACL> readOnly = Arrays.asList(new ACL(Perms.READ, Ids.ANYONE_ID_UNSAFE), new ACL(Perms.ADMIN, new Id("auth", "")));
        same(zk.setACL(p, readOnly, 0).getAversion(), 1, "aversion");
        refused(Code.BADVERSION, () -> zk.setACL(p, readOnly, 0));
        refused(Code.NOAUTH, () -> zk.setData(p, null, -1));
        refused(Code.NOAUTH, () -> zk.create(p + "/x", null, OPEN, CreateMode.PERSISTENT));
        same(zk.getACL(p, new Stat()).get(0), readOnly.get(0), "first entry");
        refused(Code.INVALIDACL, () -> zk.setACL(p, Arrays.asList(new ACL(Perms.ALL, new Id("nonsense", "x"))), -1));
        refused(Code.NONODE, () -> zk.getACL(p + "/none", new Stat()));
        refused(Code.NONODE, () -> zk.setACL(p + "/none", OPEN, -1));
        zk.setACL(p, OPEN, -1);

        // A scheme that the server does not know ends the connection for good: the Java client is dead afterwards.
        BlockingQueue<String> states = new LinkedBlockingQueue<>();
        ZooKeeper unknown = e.zookeeper(Env.proxied, ev -> states.add(ev.getState().toString()));
        unknown.addAuthInfo("nonsense", bytes("x"));
        for (String s = ""; !s.equals("AuthFailed"); ) {
            s = states.poll(60, TimeUnit.SECONDS);
            require(s != null, "authentication by an unknown scheme did not fail");
        }
    }

    private static void counts(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        ZooKeeper other = e.zookeeper();
        String p = e.root;
        zk.create(p, null, OPEN, CreateMode.PERSISTENT);
        zk.create(p + "/a", null, OPEN, CreateMode.PERSISTENT);
        zk.create(p + "/a/b", null, OPEN, CreateMode.EPHEMERAL);
        zk.create(p + "/e", null, OPEN, CreateMode.EPHEMERAL);
        zk.create(p + "x", null, OPEN, CreateMode.EPHEMERAL);
        same(zk.getAllChildrenNumber(p), 3, "descendants");
        same(zk.getAllChildrenNumber(p + "/e"), 0, "descendants of a leaf");
        refused(Code.NONODE, () -> zk.getAllChildrenNumber(p + "/none"));
        List<String> mine = zk.getEphemerals();
        Collections.sort(mine);
        same(mine, List.of(p + "/a/b", p + "/e", p + "x"), "own ephemerals");
        List<String> below = zk.getEphemerals(p + "/a");
        same(below, List.of(p + "/a/b"), "own ephemerals by prefix");
        Sessions.sync(other);
        same(other.getEphemerals(), List.of(), "another's ephemerals");
        zk.delete(p + "/e", -1);
        same(zk.getEphemerals(p + "/e"), List.of(), "after a deletion");
    }

    private static void config(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        Stat stat = new Stat();
        String config = text(zk.getConfig(false, stat));
        int servers = Env.direct.split(",").length;
        if (servers > 1) {
            for (String server : Env.direct.split(",")) {
                require(config.contains(server), "no " + server + " in " + config);
            }
            same(config.lines().filter(l -> l.startsWith("server.")).count(), (long) servers, "servers in " + config);
        }
        require(config.matches("(?s).*version=[0-9a-f]+"), "version in " + config);
        ZooKeeperAdmin admin = e.closeLater(new ZooKeeperAdmin(Env.proxied, Env.SESSION_MS, ev -> {}));
        admin.addAuthInfo("digest", bytes("super:test"));
        refused(Code.RECONFIGDISABLED, () -> admin.reconfigure("server.9=127.0.0.1:1:2;3", null, null, -1, new Stat()));
        same(text(zk.getConfig(false, null)), config, "configuration afterwards");
    }

    /** The answers of one connection come in the order of its requests, whatever they are. */
    private static void async(Env e) throws Exception {
        ZooKeeper zk = e.zookeeper();
        String p = e.root;
        BlockingQueue<String> got = new LinkedBlockingQueue<>();
        List<String> want = new ArrayList<>();
        AsyncCallback.StringCallback string = (rc, path, ctx, name) -> got.add(ctx + " " + rc + " " + name);
        AsyncCallback.Create2Callback create2 = (rc, path, ctx, name, st) -> got.add(ctx + " " + rc + " " + name + " " + st.getVersion());
        AsyncCallback.StatCallback stat = (rc, path, ctx, st) -> got.add(ctx + " " + rc + " " + (st == null ? "" : st.getVersion()));
        AsyncCallback.DataCallback data = (rc, path, ctx, d, st) -> got.add(ctx + " " + rc + " " + text(d));
        AsyncCallback.ChildrenCallback children = (rc, path, ctx, c) -> got.add(ctx + " " + rc + " " + c);
        AsyncCallback.Children2Callback children2 = (rc, path, ctx, c, st) -> got.add(ctx + " " + rc + " " + c + " " + st.getNumChildren());
        AsyncCallback.ACLCallback acl = (rc, path, ctx, a, st) -> got.add(ctx + " " + rc + " " + a.size());
        AsyncCallback.VoidCallback nothing = (rc, path, ctx) -> got.add(ctx + " " + rc);
        AsyncCallback.MultiCallback results = (rc, path, ctx, r) -> got.add(ctx + " " + rc + " " + (r == null ? "" : r.size()));
        AsyncCallback.AllChildrenNumberCallback number = (rc, path, ctx, n) -> got.add(ctx + " " + rc + " " + n);
        AsyncCallback.EphemeralsCallback ephemerals = (rc, ctx, paths) -> got.add(ctx + " " + rc + " " + paths);

        zk.create(p, bytes("0"), OPEN, CreateMode.PERSISTENT, string, "create");
        want.add("create 0 " + p);
        zk.exists(p, false, stat, "exists");
        want.add("exists 0 0");
        zk.setData(p, bytes("1"), -1, stat, "set");
        want.add("set 0 1");
        zk.getData(p, false, data, "get");
        want.add("get 0 1");
        zk.create(p + "/e", bytes("x"), OPEN, CreateMode.EPHEMERAL, create2, "create2");
        want.add("create2 0 " + p + "/e 0");
        zk.create(p, bytes("x"), OPEN, CreateMode.PERSISTENT, string, "again");
        want.add("again -110 null");
        zk.getChildren(p, false, children, "children");
        want.add("children 0 [e]");
        zk.getChildren(p, false, children2, "children2");
        want.add("children2 0 [e] 1");
        zk.setACL(p, OPEN, -1, stat, "setACL");
        want.add("setACL 0 1");
        zk.getACL(p, new Stat(), acl, "getACL");
        want.add("getACL 0 1");
        zk.getEphemerals(p, ephemerals, "ephemerals");
        want.add("ephemerals 0 [" + p + "/e]");
        zk.getAllChildrenNumber(p, number, "number");
        want.add("number 0 1");
        zk.sync(p, nothing, "sync");
        want.add("sync 0");
        zk.multi(List.of(Op.check(p, 1), Op.setData(p, bytes("2"), 1)), results, "multi");
        want.add("multi 0 2");
        zk.multi(List.of(Op.check(p, 1)), results, "badmulti");
        want.add("badmulti -103 1");
        for (int i = 0; i < 500; i++) {
            zk.setData(p, bytes("n" + i), -1, stat, "set" + i);
            want.add("set" + i + " 0 " + (i + 3));
            zk.getData(p, false, data, "get" + i);
            want.add("get" + i + " 0 n" + i);
        }
        zk.delete(p + "/e", -1, nothing, "delete");
        want.add("delete 0");
        zk.delete(p + "/e", -1, nothing, "delete again");
        want.add("delete again -101");
        for (String w : want) {
            same(got.poll(60, TimeUnit.SECONDS), w, "answer");
        }
    }
}
