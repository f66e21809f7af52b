package checks;

import static checks.Env.bytes;
import static checks.Env.eventually;
import static checks.Env.require;
import static checks.Env.same;
import static checks.Env.text;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.atomic.AtomicValue;
import org.apache.curator.framework.recipes.atomic.CachedAtomicLong;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicInteger;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicValue;
import org.apache.curator.framework.recipes.atomic.PromotedToLock;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.recipes.shared.SharedCountListener;
import org.apache.curator.framework.recipes.shared.SharedCountReader;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryNTimes;

/** Counters. */
final class Counters {
    private static final String OPS = "create2 getData setData";

    static void register() {
        Main.curator("DistributedAtomicLong", OPS + " createContainer getChildren2 delete", Counters::atomicLong);
        Main.curator("DistributedAtomicLong while connections are cut", OPS, Counters::disturbed);
        Main.curator("DistributedAtomicInteger, DistributedAtomicValue", OPS, Counters::otherAtomics);
        Main.curator("CachedAtomicLong", OPS, Counters::cached);
        Main.curator("SharedCount", OPS + " setWatches", Counters::sharedCount);
    }

    /** Counts on several clients at once and returns how many increments were reported as done. */
    private static int count(Env e, String path, int clients, int rounds, PromotedToLock lock, Callable<Void> midway) throws Exception {
        AtomicInteger done = new AtomicInteger();
        AtomicInteger tried = new AtomicInteger();
        List<Future<Void>> all = new ArrayList<>();
        for (int i = 0; i < clients; i++) {
            CuratorFramework client = e.client();
            DistributedAtomicLong n = new DistributedAtomicLong(client, path, new RetryNTimes(200, 5), lock);
            all.add(e.go(() -> {
                for (int round = 0; round < rounds; round++) {
                    if (tried.incrementAndGet() == clients * rounds / 2) {
                        midway.call();
                    }
                    AtomicValue<Long> v = n.increment();
                    if (v.succeeded()) {
                        same(v.postValue(), v.preValue() + 1, "a step");
                        done.incrementAndGet();
                    }
                }
                return null;
            }));
        }
        e.join(all);
        return done.get();
    }

    private static long value(Env e, String path) throws Exception {
        CuratorFramework judge = e.undisturbed();
        judge.sync().forPath("/");
        return new DistributedAtomicLong(judge, path, new RetryNTimes(10, 5)).get().postValue();
    }

    private static void atomicLong(Env e) throws Exception {
        Callable<Void> nothing = () -> null;
        int done = count(e, e.root + "-optimistic", 3, 20, null, nothing);
        same((int) value(e, e.root + "-optimistic"), done, "increments");
        require(done > 0, "no increment succeeded");
        PromotedToLock lock = PromotedToLock.builder().lockPath(e.root + "/lock").timeout(60, TimeUnit.SECONDS).build();
        done = count(e, e.root + "-locked", 3, 10, lock, nothing);
        same(done, 30, "increments under the lock");
        same((int) value(e, e.root + "-locked"), 30, "increments under the lock");

        DistributedAtomicLong n = new DistributedAtomicLong(e.client(), e.root + "-single", new RetryNTimes(10, 5));
        n.forceSet(10L);
        require(!n.compareAndSet(9L, 11L).succeeded(), "a wrong expectation was taken");
        require(n.compareAndSet(10L, 11L).succeeded(), "a right expectation was refused");
        same(n.subtract(4L).postValue(), 7L, "subtract");
        same(n.trySet(100L).postValue(), 100L, "trySet");
        require(!n.initialize(5L), "initialized twice");
        same(n.get().postValue(), 100L, "value");
    }

    /**
     * An increment whose answer was lost is tried again by the recipe, which cannot tell whether it was executed. So
     * the number may exceed what was reported, by one for each client and disturbance, and must never fall short.
     */
    private static void disturbed(Env e) throws Exception {
        final int clients = 3;
        int done = count(e, e.root + "-n", clients, 20, null, () -> {
            Env.cut();
            Env.killLeader();
            Env.restart();
            Env.cut();
            return null;
        });
        long value = value(e, e.root + "-n");
        require(value >= done, "increments lost: " + value + " of " + done);
        require(value <= done + 4L * clients, "increments repeated: " + value + " of " + done);
    }

    private static void otherAtomics(Env e) throws Exception {
        CuratorFramework a = e.client();
        CuratorFramework b = e.client();
        DistributedAtomicInteger i = new DistributedAtomicInteger(a, e.root + "-int", new RetryNTimes(10, 5));
        require(i.initialize(5), "not initialized");
        same(i.add(3).postValue(), 8, "add");
        same(i.decrement().postValue(), 7, "decrement");
        DistributedAtomicValue v = new DistributedAtomicValue(a, e.root + "-value", new RetryNTimes(10, 5));
        DistributedAtomicValue w = new DistributedAtomicValue(b, e.root + "-value", new RetryNTimes(10, 5));
        require(v.initialize(bytes("one")), "not initialized");
        b.sync().forPath("/");
        require(!w.compareAndSet(bytes("none"), bytes("two")).succeeded(), "a wrong expectation was taken");
        require(w.compareAndSet(bytes("one"), bytes("two")).succeeded(), "a right expectation was refused");
        a.sync().forPath("/");
        same(text(v.get().postValue()), "two", "value");
    }

    private static void cached(Env e) throws Exception {
        Set<Long> seen = java.util.concurrent.ConcurrentHashMap.newKeySet();
        List<Future<Void>> all = new ArrayList<>();
        for (int c = 0; c < 3; c++) {
            CachedAtomicLong n = new CachedAtomicLong(new DistributedAtomicLong(e.client(), e.root, new RetryNTimes(200, 5)), 10);
            all.add(e.go(() -> {
                Set<Long> mine = new HashSet<>();
                while (mine.size() < 25) {
                    AtomicValue<Long> v = n.next();
                    if (v.succeeded()) {
                        require(seen.add(v.postValue()), "given out twice: " + v.postValue());
                        mine.add(v.postValue());
                    }
                }
                return null;
            }));
        }
        e.join(all);
        same(seen.size(), 75, "numbers");
    }

    private static void sharedCount(Env e) throws Exception {
        CuratorFramework first = e.client();
        SharedCount a = e.closeLater(new SharedCount(first, e.root + "/count", 7));
        SharedCount b = e.closeLater(new SharedCount(e.client(), e.root + "/count", 7));
        List<Integer> told = java.util.Collections.synchronizedList(new ArrayList<>());
        b.addListener(new SharedCountListener() {
            @Override
            public void countHasChanged(SharedCountReader r, int n) {
                told.add(n);
            }

            @Override
            public void stateChanged(CuratorFramework c, ConnectionState s) {}
        });
        a.start();
        b.start();
        eventually(7, b::getCount, "the seed");
        a.setCount(8);
        eventually(8, b::getCount, "what another set");
        eventually(true, () -> told.contains(8), "the listener was told");
        var version = b.getVersionedValue();
        a.setCount(9);
        require(!b.trySetCount(version, 1), "set over another's change");
        eventually(9, b::getCount, "what another set");
        Env.cut();
        require(tryUntilSet(b, 10), "never set");
        eventually(10, a::getCount, "what another set, after a cut");
        Env.killLeader();
        require(tryUntilSet(a, 11), "never set");
        Env.restart();
        eventually(11, b::getCount, "what another set, after the leader's death");
    }

    /** An answer that was lost shows as a failed try although the value is there. */
    private static boolean tryUntilSet(SharedCount c, int n) throws Exception {
        for (int i = 0; i < 50; i++) {
            if (c.trySetCount(c.getVersionedValue(), n) || c.getCount() == n) {
                return true;
            }
        }
        return false;
    }
}
