import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooKeeper;

/** Children SERVER PATH: one getChildren. Prints "names N" or "code C", then the number of connections made. */
public class Children {
    public static void main(String[] args) throws Exception {
        AtomicInteger connects = new AtomicInteger();
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper zk = new ZooKeeper(args[0], 30000, event -> {
            if (event.getState() == KeeperState.SyncConnected && event.getPath() == null) {
                connects.incrementAndGet();
                connected.countDown();
            }
        });
        connected.await();
        try {
            System.out.println("names " + zk.getChildren(args[1], false).size());
        } catch (KeeperException e) {
            System.out.println("code " + e.code().intValue());
        }
        zk.exists("/", false);
        System.out.println("connects " + connects.get());
        zk.close();
    }
}
