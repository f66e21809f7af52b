package checks;

import static checks.Env.eventually;
import static checks.Env.require;
import static checks.Env.same;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;

/** Leader elections among clients. */
final class Elections {
    private static final String OPS = "createContainer create2 delete getChildren2 getData setWatches";

    static void register() {
        Main.curator("LeaderLatch", OPS, Elections::latch);
        Main.curator("LeaderSelector", OPS, Elections::selector);
    }

    private static void latch(Env e) throws Exception {
        List<LeaderLatch> latches = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            LeaderLatch l = new LeaderLatch(e.client(), e.root + "/latch", "candidate-" + i);
            l.start();
            latches.add(l);
        }
        one(latches);
        for (LeaderLatch l : latches) {
            eventually(3, () -> l.getParticipants().size(), "candidates");
            eventually(leader(latches).getId(), () -> l.getLeader().getId(), "who leads, asked of the server");
        }
        Env.cut();
        one(latches);
        Env.killLeader();
        one(latches);
        Env.restart();
        one(latches);
        while (latches.size() > 1) { // each that leads goes, and another follows
            LeaderLatch l = leader(latches);
            if (l == null) {
                one(latches);
                continue;
            }
            latches.remove(l);
            l.close();
            require(!l.hasLeadership(), "leads after its close");
            one(latches);
        }
        latches.get(0).close();
        same(Env.childrenLeft(e.undisturbed(), e.root + "/latch"), 0, "nodes left behind");
    }

    private static LeaderLatch leader(List<LeaderLatch> all) {
        return all.stream().filter(LeaderLatch::hasLeadership).findFirst().orElse(null);
    }

    /**
     * Waits until exactly one leads, and its node is the first one. While connections are lost none may lead: a latch gives
     * up as soon as it is told.
     */
    private static void one(List<LeaderLatch> all) throws Exception {
        eventually(1L, () -> all.stream().filter(LeaderLatch::hasLeadership).count(), "leaders");
        eventually(true, () -> {
            LeaderLatch l = leader(all);
            return l != null && all.get(0).getLeader().getId().equals(l.getId());
        }, "the first in the queue leads");
    }

    private static void selector(Env e) throws Exception {
        final int candidates = 3;
        final int terms = 9;
        AtomicInteger leading = new AtomicInteger();
        AtomicInteger term = new AtomicInteger();
        Set<String> led = ConcurrentHashMap.newKeySet();
        CountDownLatch enough = new CountDownLatch(terms);
        List<LeaderSelector> all = new ArrayList<>();
        for (int i = 0; i < candidates; i++) {
            String id = "candidate-" + i;
            LeaderSelector s = new LeaderSelector(e.client(), e.root + "/selector", new LeaderSelectorListenerAdapter() {
                @Override
                public void takeLeadership(CuratorFramework client) {
                    try {
                        same(leading.incrementAndGet(), 1, "leaders");
                        led.add(id);
                        int t = term.incrementAndGet();
                        // The one that leads kills; what follows must wait for its end all the same.
                        if (t == 3) {
                            Env.killLeader();
                        } else if (t == 5) {
                            Env.restart();
                        } else if (t == 7) {
                            Env.cut();
                        }
                        same(leading.get(), 1, "leaders");
                    } catch (Throwable failure) {
                        e.fail(failure);
                    } finally {
                        leading.decrementAndGet();
                        enough.countDown();
                    }
                }
            });
            s.setId(id);
            s.autoRequeue();
            e.closeLater(s);
            s.start();
            all.add(s);
        }
        require(enough.await(90, TimeUnit.SECONDS), "terms that never came: " + enough.getCount());
        eventually(candidates, led::size, "candidates that led once");
        eventually(candidates, () -> all.get(0).getParticipants().size(), "candidates");
    }
}
