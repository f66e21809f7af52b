package checks;

import static checks.Env.eventually;
import static checks.Env.require;
import static checks.Env.same;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Function;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;

/** Locks. Sessions outlive every cut here, so what holds before one must hold behind it. */
final class Locks {
    private static final String OPS = "createContainer create2 delete getChildren2 getData exists setWatches";
    private static final int LIMIT = 60; // seconds, for what is only waited for

    static void register() {
        Main.curator("InterProcessMutex", OPS + " setData", e ->
                exclusive(e, c -> new InterProcessMutex(c, e.root + "/lock"), true));
        Main.curator("InterProcessSemaphoreMutex", OPS + " setData", e ->
                exclusive(e, c -> new InterProcessSemaphoreMutex(c, e.root + "/lock"), false));
        Main.curator("InterProcessMultiLock", OPS + " setData", e ->
                exclusive(e, c -> new InterProcessMultiLock(c, List.of(e.root + "/a", e.root + "/b")), false));
        Main.curator("InterProcessReadWriteLock", OPS, Locks::readWrite);
        Main.curator("InterProcessSemaphoreV2", OPS, Locks::semaphore);
        Main.curator("InterProcessMutex of a closed client", OPS + " closeSession", Locks::abandoned);
        Main.curator("Revoker", OPS + " setData", Locks::revoke);
    }

    /**
     * Clients take the lock in turns and increment a number that only the lock protects, while connections are cut and
     * the leader is killed by the one that holds it. The number shows lost updates: reading through a server that is
     * behind the lock's last holder would be one.
     */
    private static void exclusive(Env e, Function<CuratorFramework, InterProcessLock> kind, boolean reentrant) throws Exception {
        final int clients = 4;
        final int rounds = 8;
        String counter = e.root + "-counter";
        CuratorFramework judge = e.undisturbed();
        judge.create().forPath(counter, Env.bytes("0"));
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger entries = new AtomicInteger();
        List<Future<Void>> all = new ArrayList<>();
        for (int i = 0; i < clients; i++) {
            CuratorFramework client = e.client();
            InterProcessLock lock = kind.apply(client);
            all.add(e.go(() -> {
                for (int round = 0; round < rounds; round++) {
                    require(lock.acquire(LIMIT, TimeUnit.SECONDS), "acquire timed out");
                    same(inside.incrementAndGet(), 1, "holders");
                    if (reentrant) {
                        require(lock.acquire(LIMIT, TimeUnit.SECONDS), "acquire once more");
                        lock.release();
                    }
                    int value = Integer.parseInt(Env.text(client.getData().forPath(counter)));
                    switch (entries.incrementAndGet()) {
                        case 6 -> Env.cut();
                        case 12 -> Env.killLeader();
                        case 18 -> Env.restart();
                        case 24 -> Env.cut();
                        default -> {}
                    }
                    client.setData().forPath(counter, Env.bytes(Integer.toString(value + 1)));
                    same(inside.decrementAndGet(), 0, "holders at the end");
                    lock.release();
                }
                return null;
            }));
        }
        e.join(all);
        judge.sync().forPath(counter);
        same(Env.text(judge.getData().forPath(counter)), Integer.toString(clients * rounds), "increments");
    }

    private static void readWrite(Env e) throws Exception {
        final int readers = 3;
        final int writers = 2;
        final int rounds = 4;
        AtomicInteger reading = new AtomicInteger();
        AtomicInteger writing = new AtomicInteger();
        AtomicInteger writes = new AtomicInteger();
        CyclicBarrier together = new CyclicBarrier(readers);
        CountDownLatch allRead = new CountDownLatch(readers);
        List<Future<Void>> all = new ArrayList<>();
        for (int i = 0; i < readers; i++) {
            CuratorFramework client = e.client();
            all.add(e.go(() -> {
                InterProcessMutex lock = new InterProcessReadWriteLock(client, e.root + "/lock").readLock();
                for (int round = 0; round < rounds; round++) {
                    require(lock.acquire(LIMIT, TimeUnit.SECONDS), "read lock");
                    reading.incrementAndGet();
                    same(writing.get(), 0, "writers beside a reader");
                    if (round == 0) {
                        together.await(LIMIT, TimeUnit.SECONDS); // all readers are inside at once
                        allRead.countDown();
                    }
                    same(writing.get(), 0, "writers beside a reader");
                    reading.decrementAndGet();
                    lock.release();
                }
                return null;
            }));
        }
        for (int i = 0; i < writers; i++) {
            CuratorFramework client = e.client();
            all.add(e.go(() -> {
                allRead.await();
                InterProcessReadWriteLock lock = new InterProcessReadWriteLock(client, e.root + "/lock");
                for (int round = 0; round < rounds; round++) {
                    require(lock.writeLock().acquire(LIMIT, TimeUnit.SECONDS), "write lock");
                    same(writing.incrementAndGet(), 1, "writers");
                    same(reading.get(), 0, "readers beside a writer");
                    switch (writes.incrementAndGet()) {
                        case 2 -> Env.cut();
                        case 4 -> Env.killLeader();
                        case 6 -> Env.restart();
                        default -> {}
                    }
                    same(reading.get(), 0, "readers beside a writer");
                    writing.decrementAndGet();
                    lock.writeLock().release();
                }
                return null;
            }));
        }
        e.join(all);

        // A writer may go on as a reader, in which others join it, while a writer that comes later waits.
        InterProcessReadWriteLock lock = new InterProcessReadWriteLock(e.client(), e.root + "/lock");
        require(lock.writeLock().acquire(LIMIT, TimeUnit.SECONDS), "write lock");
        require(lock.readLock().acquire(LIMIT, TimeUnit.SECONDS), "read lock of the writer");
        Env.cut();
        InterProcessReadWriteLock reader = new InterProcessReadWriteLock(e.client(), e.root + "/lock");
        InterProcessReadWriteLock writer = new InterProcessReadWriteLock(e.client(), e.root + "/lock");
        require(!reader.readLock().acquire(100, TimeUnit.MILLISECONDS), "a reader beside a writer");
        lock.writeLock().release();
        require(reader.readLock().acquire(LIMIT, TimeUnit.SECONDS), "a reader beside a downgraded writer");
        require(!writer.writeLock().acquire(100, TimeUnit.MILLISECONDS), "a writer beside readers");
        reader.readLock().release();
        require(!writer.writeLock().acquire(100, TimeUnit.MILLISECONDS), "a writer beside a downgraded one");
        lock.readLock().release();
        require(writer.writeLock().acquire(LIMIT, TimeUnit.SECONDS), "write lock after all readers");
    }

    private static void semaphore(Env e) throws Exception {
        final int leases = 3;
        final int clients = 5;
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger entries = new AtomicInteger();
        CyclicBarrier full = new CyclicBarrier(leases);
        List<Future<Void>> all = new ArrayList<>();
        for (int i = 0; i < clients; i++) {
            InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(e.client(), e.root + "/semaphore", leases);
            all.add(e.go(() -> {
                for (int round = 0; round < 4; round++) {
                    Lease lease = semaphore.acquire(LIMIT, TimeUnit.SECONDS);
                    require(lease != null, "no lease");
                    require(inside.incrementAndGet() <= leases, "more holders than leases");
                    int entry = entries.incrementAndGet();
                    if (entry <= leases) { // as many as there are leases are inside at once
                        full.await(LIMIT, TimeUnit.SECONDS);
                    } else if (entry == 6) {
                        Env.cut();
                    } else if (entry == 10) {
                        Env.killLeader();
                    } else if (entry == 14) {
                        Env.restart();
                    }
                    require(inside.get() <= leases, "more holders than leases");
                    inside.decrementAndGet();
                    semaphore.returnLease(lease);
                }
                return null;
            }));
        }
        e.join(all);

        // The leases of a client that goes away are free for others.
        CuratorFramework going = e.client();
        InterProcessSemaphoreV2 its = new InterProcessSemaphoreV2(going, e.root + "/semaphore", leases);
        Collection<Lease> taken = its.acquire(leases, LIMIT, TimeUnit.SECONDS);
        same(taken.size(), leases, "leases taken at once");
        CuratorFramework waiting = e.undisturbed();
        InterProcessSemaphoreV2 other = new InterProcessSemaphoreV2(waiting, e.root + "/semaphore", leases);
        require(other.acquire(300, TimeUnit.MILLISECONDS) == null, "a fourth lease of three");
        Future<Lease> next = e.go(() -> other.acquire(LIMIT, TimeUnit.SECONDS));
        going.close();
        require(next.get(LIMIT, TimeUnit.SECONDS) != null, "no lease after the holder's end");
    }

    private static void abandoned(Env e) throws Exception {
        CuratorFramework holder = e.client();
        CuratorFramework waiter = e.undisturbed();
        InterProcessMutex held = new InterProcessMutex(holder, e.root + "/lock");
        InterProcessMutex wanted = new InterProcessMutex(waiter, e.root + "/lock");
        held.acquire();
        require(!wanted.acquire(200, TimeUnit.MILLISECONDS), "two holders");
        Future<Boolean> next = e.go(() -> wanted.acquire(LIMIT, TimeUnit.SECONDS));
        eventually(2, () -> wanted.getParticipantNodes().size(), "nodes in the queue");
        require(!next.isDone(), "two holders");
        holder.close();
        require(next.get(LIMIT, TimeUnit.SECONDS), "not free after the holder's session ended");
        same(wanted.getParticipantNodes().size(), 1, "nodes in the queue");
    }

    private static void revoke(Env e) throws Exception {
        CuratorFramework holder = e.client();
        CuratorFramework other = e.client();
        InterProcessMutex lock = new InterProcessMutex(holder, e.root + "/lock");
        CountDownLatch asked = new CountDownLatch(1);
        lock.makeRevocable(l -> asked.countDown());
        lock.acquire();
        InterProcessMutex its = new InterProcessMutex(other, e.root + "/lock");
        other.sync().forPath("/");
        String node = its.getParticipantNodes().iterator().next();
        Revoker.attemptRevoke(other, node);
        require(asked.await(LIMIT, TimeUnit.SECONDS), "the holder was not asked");
        lock.release();
        require(its.acquire(LIMIT, TimeUnit.SECONDS), "not free after it was given back");
        its.release();
    }
}
