package checks;

import static checks.Env.bytes;
import static checks.Env.eventually;
import static checks.Env.require;
import static checks.Env.same;
import static checks.Env.text;

import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.framework.recipes.nodes.PersistentTtlNode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.data.Stat;

/** Nodes that are kept there by a client. */
final class Nodes {
    static void register() {
        Main.curator("PersistentNode", "createContainer create2 exists setData getData delete setWatches closeSession", Nodes::persistentNode);
        Main.curator("PersistentTtlNode", "createContainer createTTL setData exists delete", Nodes::ttlNode);
        Main.curator("GroupMember", "createContainer create2 exists getData getChildren2 setWatches", Nodes::group);
    }

    private static long owner(CuratorFramework c, String path) throws Exception {
        Stat s = c.checkExists().forPath(path);
        return s == null ? -1 : s.getEphemeralOwner();
    }

    private static void persistentNode(Env e) throws Exception {
        CuratorFramework client = e.client();
        CuratorFramework judge = e.undisturbed();
        String path = e.root + "/dir/node";
        PersistentNode node = e.closeLater(new PersistentNode(client, CreateMode.EPHEMERAL, false, path, bytes("mine")));
        node.start();
        require(node.waitForInitialCreate(60, TimeUnit.SECONDS), "never created");
        long session = client.getZookeeperClient().getZooKeeper().getSessionId();
        judge.sync().forPath("/");
        same(owner(judge, path), session, "owner");
        same(text(judge.getData().forPath(path)), "mine", "data");
        judge.delete().forPath(path);
        eventually(session, () -> owner(judge, path), "owner of the node that was made again");
        node.setData(bytes("other"));
        eventually("other", () -> text(judge.getData().forPath(path)), "data that was set");

        // A cut, and the leader's death, cost neither the session nor the node.
        long czxid = judge.checkExists().forPath(path).getCzxid();
        Env.cut();
        Env.killLeader();
        Env.restart();
        client.sync().forPath("/");
        judge.sync().forPath("/");
        Stat after = judge.checkExists().forPath(path);
        require(after != null && after.getCzxid() == czxid, "the node was made again though its session lives: " + after);
        same(client.getZookeeperClient().getZooKeeper().getSessionId(), session, "session after cut and kill");

        // The session ends (somebody else closes it, as the server would when it expires): a new one, and a new node.
        Sessions.end(client.getZookeeperClient().getZooKeeper());
        eventually(true, () -> {
            long o = owner(judge, path);
            return o != -1 && o != session && o == client.getZookeeperClient().getZooKeeper().getSessionId();
        }, "owner after the session's end");
        node.close();
        eventually(-1L, () -> owner(judge, path), "owner after close");
    }

    private static void ttlNode(Env e) throws Exception {
        CuratorFramework client = e.client();
        CuratorFramework judge = e.undisturbed();
        String path = e.root + "/ttl";
        PersistentTtlNode node = e.closeLater(new PersistentTtlNode(client, path, 3_000, bytes("kept")));
        node.start();
        require(node.waitForInitialCreate(60, TimeUnit.SECONDS), "never created");
        judge.sync().forPath("/");
        long czxid = judge.checkExists().forPath(path).getCzxid();
        // The recipe touches a child of it every third of the time to live: the child's versions count the touches.
        eventually(true, () -> {
            Stat touch = judge.checkExists().forPath(path + "/touch");
            return touch != null && touch.getVersion() >= 2;
        }, "touched twice");
        Stat still = judge.checkExists().forPath(path);
        require(still != null && still.getCzxid() == czxid, "the node went although it is touched");
        same(still.getEphemeralOwner(), 0L, "owner that clients see");
        same(text(judge.getData().forPath(path)), "kept", "data");
    }

    private static void group(Env e) throws Exception {
        CuratorFramework first = e.client();
        CuratorFramework second = e.client();
        GroupMember a = e.closeLater(new GroupMember(first, e.root + "/group", "a", bytes("A")));
        GroupMember b = new GroupMember(second, e.root + "/group", "b", bytes("B"));
        a.start();
        b.start();
        eventually(Set.of("a", "b"), () -> a.getCurrentMembers().keySet(), "members");
        eventually(Set.of("a", "b"), () -> b.getCurrentMembers().keySet(), "members");
        eventually("B", () -> text(a.getCurrentMembers().get("b")), "data of a member");
        Env.cut();
        a.setThisData(bytes("A2"));
        eventually("A2", () -> text(b.getCurrentMembers().get("a")), "data of a member");
        b.close();
        eventually(Set.of("a"), () -> a.getCurrentMembers().keySet(), "members");
    }
}
