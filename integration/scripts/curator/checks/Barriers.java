package checks;

import static checks.Env.eventually;
import static checks.Env.require;
import static checks.Env.same;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;

/** Barriers. */
final class Barriers {
    static void register() {
        Main.curator("DistributedBarrier", "createContainer create2 exists delete setWatches", Barriers::barrier);
        Main.curator("DistributedDoubleBarrier", "createContainer create2 exists getChildren2 delete setWatches", Barriers::doubleBarrier);
    }

    private static void barrier(Env e) throws Exception {
        final int waiters = 3;
        String path = e.root + "/barrier";
        DistributedBarrier gate = new DistributedBarrier(e.undisturbed(), path);
        gate.setBarrier();
        AtomicInteger passed = new AtomicInteger();
        AtomicInteger waiting = new AtomicInteger();
        List<Future<Void>> all = new ArrayList<>();
        for (int i = 0; i < waiters; i++) {
            CuratorFramework client = e.client();
            client.sync().forPath("/");
            DistributedBarrier b = new DistributedBarrier(client, path);
            require(!b.waitOnBarrier(100, TimeUnit.MILLISECONDS), "passed a closed barrier");
            all.add(e.go(() -> {
                waiting.incrementAndGet();
                require(b.waitOnBarrier(60, TimeUnit.SECONDS), "never passed");
                passed.incrementAndGet();
                return null;
            }));
        }
        eventually(waiters, waiting::get, "waiting");
        Env.cut();
        Env.killLeader();
        same(passed.get(), 0, "passed a closed barrier");
        gate.removeBarrier();
        e.join(all);
        Env.restart();
        require(new DistributedBarrier(e.client(), path).waitOnBarrier(60, TimeUnit.SECONDS), "an absent barrier holds");
    }

    private static void doubleBarrier(Env e) throws Exception {
        final int members = 3;
        AtomicInteger entering = new AtomicInteger();
        AtomicInteger leaving = new AtomicInteger();
        CyclicBarrier together = new CyclicBarrier(members);
        List<Future<Void>> all = new ArrayList<>();
        for (int i = 0; i < members; i++) {
            DistributedDoubleBarrier b = new DistributedDoubleBarrier(e.client(), e.root + "/barrier", members);
            int number = i;
            all.add(e.go(() -> {
                if (number == members - 1) {
                    eventually(members - 1, entering::get, "about to enter");
                }
                entering.incrementAndGet();
                require(b.enter(60, TimeUnit.SECONDS), "enter timed out");
                same(entering.get(), members, "entered before all were there");
                together.await(60, TimeUnit.SECONDS); // the recipe gives up when a connection goes while it waits
                if (number == 0) {
                    Env.cut();
                    Env.killLeader();
                    Env.restart();
                }
                together.await(60, TimeUnit.SECONDS);
                if (number == 0) {
                    eventually(members - 1, leaving::get, "about to leave");
                }
                leaving.incrementAndGet();
                require(b.leave(60, TimeUnit.SECONDS), "leave timed out");
                same(leaving.get(), members, "left before all wanted to");
                return null;
            }));
        }
        e.join(all);
    }
}
