package checks;

import static checks.Env.bytes;
import static checks.Env.eventually;
import static checks.Env.require;
import static checks.Env.same;
import static checks.Env.text;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.queue.DistributedDelayQueue;
import org.apache.curator.framework.recipes.queue.DistributedIdQueue;
import org.apache.curator.framework.recipes.queue.DistributedPriorityQueue;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.framework.state.ConnectionState;

/** Queues. */
final class Queues {
    private static final String OPS = "createContainer create2 getChildren2 getData delete";

    static void register() {
        Main.curator("DistributedQueue", OPS, e -> queue(e, false));
        Main.curator("DistributedQueue with locks, while connections are cut", OPS + " setWatches", e -> queue(e, true));
        Main.curator("DistributedIdQueue", OPS, Queues::idQueue);
        Main.curator("DistributedPriorityQueue", OPS, Queues::priorityQueue);
        Main.curator("DistributedDelayQueue", OPS, Queues::delayQueue);
        Main.curator("SimpleDistributedQueue", "createContainer create2 getChildren2 getData delete", Queues::simpleQueue);
    }

    private static final QueueSerializer<String> serializer = new QueueSerializer<>() {
        @Override
        public byte[] serialize(String item) {
            return bytes(item);
        }

        @Override
        public String deserialize(byte[] data) {
            return text(data);
        }
    };

    private static QueueConsumer<String> into(java.util.Collection<String> all) {
        return new QueueConsumer<>() {
            @Override
            public void consumeMessage(String item) {
                all.add(item);
            }

            @Override
            public void stateChanged(CuratorFramework client, ConnectionState state) {}
        };
    }

    /**
     * With locks an item is removed only after it was consumed: none may be lost, whatever happens, and one may come
     * twice only if something did happen. Undisturbed, each comes once. A consumer whose answer to the creation of a lock
     * was lost leaves the item locked until its session ends, so the disturbed ones make room for another in the end.
     */
    private static void queue(Env e, boolean disturbed) throws Exception {
        final int items = 40;
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        List<CuratorFramework> consumers = List.of(e.client(), e.client());
        for (CuratorFramework c : consumers) {
            consume(e, c, got, disturbed);
        }
        QueueBuilder<String> b = QueueBuilder.builder(e.undisturbed(), null, serializer, e.root + "/queue");
        DistributedQueue<String> producer = e.closeLater(b.buildQueue());
        producer.start();
        for (int i = 0; i < items; i++) {
            producer.put("item-" + i);
            if (disturbed && i == items / 3) {
                Env.cut();
            } else if (disturbed && i == items / 2) {
                Env.killLeader();
                Env.restart();
            }
        }
        require(producer.flushPuts(60, TimeUnit.SECONDS), "puts are not through");
        if (disturbed) {
            for (CuratorFramework c : consumers) {
                c.close();
            }
            consume(e, e.undisturbed(), got, true);
        }
        eventually(items, () -> new TreeSet<>(List.copyOf(got)).size(), "different items consumed");
        if (!disturbed) {
            same(got.size(), items, "items consumed");
        }
        CuratorFramework judge = e.undisturbed();
        eventually(0, () -> Env.childrenLeft(judge, e.root + "/queue"), "items left");
    }

    private static void consume(Env e, CuratorFramework c, List<String> into, boolean locks) throws Exception {
        QueueBuilder<String> b = QueueBuilder.builder(c, into(into), serializer, e.root + "/queue");
        if (locks) {
            b.lockPath(e.root + "/locks");
        }
        e.closeLater(b.buildQueue()).start();
    }

    private static void idQueue(Env e) throws Exception {
        CuratorFramework client = e.client();
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        DistributedIdQueue<String> producer =
                e.closeLater(QueueBuilder.builder(client, null, serializer, e.root + "/queue").buildIdQueue());
        producer.start();
        producer.put("one", "id-1");
        producer.put("two", "id-2");
        producer.put("three", "id-3");
        require(producer.flushPuts(60, TimeUnit.SECONDS), "puts are not through");
        same(producer.remove("id-2"), 1, "removed by its id");
        same(producer.remove("id-2"), 0, "removed twice");
        DistributedIdQueue<String> consumer =
                e.closeLater(QueueBuilder.builder(e.client(), into(got), serializer, e.root + "/queue").buildIdQueue());
        consumer.start();
        eventually(List.of("one", "three"), () -> List.copyOf(got), "items in order");
    }

    private static void priorityQueue(Env e) throws Exception {
        List<String> got = Collections.synchronizedList(new ArrayList<>());
        DistributedPriorityQueue<String> producer =
                e.closeLater(QueueBuilder.builder(e.client(), null, serializer, e.root + "/queue").buildPriorityQueue(0));
        producer.start();
        for (int priority : new int[] {5, 1, 9, 3, 7}) {
            producer.put("p" + priority, priority);
        }
        require(producer.flushPuts(60, TimeUnit.SECONDS), "puts are not through");
        CuratorFramework client = e.client();
        client.sync().forPath("/");
        DistributedPriorityQueue<String> consumer =
                e.closeLater(QueueBuilder.builder(client, into(got), serializer, e.root + "/queue").buildPriorityQueue(0));
        consumer.start();
        eventually(List.of("p1", "p3", "p5", "p7", "p9"), () -> List.copyOf(got), "items by priority");
    }

    private static void delayQueue(Env e) throws Exception {
        BlockingQueue<String> got = new LinkedBlockingQueue<>();
        DistributedDelayQueue<String> queue =
                e.closeLater(QueueBuilder.builder(e.client(), into(got), serializer, e.root + "/queue").buildDelayQueue());
        queue.start();
        long start = System.currentTimeMillis();
        queue.put("later", start + 1_000);
        queue.put("at once", start);
        same(got.poll(60, TimeUnit.SECONDS), "at once", "first");
        same(got.poll(60, TimeUnit.SECONDS), "later", "second");
        require(System.currentTimeMillis() >= start + 1_000, "before its time");
    }

    private static void simpleQueue(Env e) throws Exception {
        SimpleDistributedQueue producer = new SimpleDistributedQueue(e.undisturbed(), e.root + "/queue");
        SimpleDistributedQueue a = new SimpleDistributedQueue(e.client(), e.root + "/queue");
        SimpleDistributedQueue b = new SimpleDistributedQueue(e.client(), e.root + "/queue");
        same(a.poll(), null, "poll of an empty queue");
        try {
            a.element();
            throw new AssertionError("element of an empty queue");
        } catch (NoSuchElementException expected) {
            // as it should be
        }
        Future<byte[]> waiting = e.go(a::take);
        require(producer.offer(bytes("first")), "offer");
        same(text(waiting.get(60, TimeUnit.SECONDS)), "first", "take that waited");
        for (int i = 0; i < 20; i++) {
            producer.offer(bytes("item-" + i));
        }
        Set<String> got = Collections.synchronizedSet(new TreeSet<>());
        List<Future<Void>> all = new ArrayList<>();
        for (SimpleDistributedQueue q : List.of(a, b)) {
            all.add(e.go(() -> {
                for (byte[] item = q.poll(1, TimeUnit.SECONDS); item != null; item = q.poll(1, TimeUnit.SECONDS)) {
                    require(got.add(text(item)), "consumed twice: " + text(item));
                }
                return null;
            }));
        }
        e.join(all);
        same(got.size(), 20, "items consumed");
    }
}
