package checks;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.RetryNTimes;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

/** What a check works with: clients, threads, a node of its own, and the control over network and servers. */
final class Env {
    static String proxied;
    static String direct;

    static final int SESSION_MS = 20_000;
    private static final long EVENTUALLY_SECONDS = 30;

    /** The node below which the check works. It does not exist at first. */
    final String root;

    private final List<AutoCloseable> closing = Collections.synchronizedList(new ArrayList<>());
    private final List<Throwable> background = Collections.synchronizedList(new ArrayList<>());
    private final ExecutorService threads = Executors.newCachedThreadPool(r -> {
        Thread t = new Thread(r, "worker");
        t.setDaemon(true);
        return t;
    });

    Env(String root) {
        this.root = root;
    }

    /** A started and connected Curator client whose connections go through the proxies. */
    CuratorFramework client() throws Exception {
        return start(builder().connectString(proxied).ensembleTracker(false));
    }

    /** A started Curator client that nothing cuts, unless its server dies. */
    CuratorFramework undisturbed() throws Exception {
        return start(builder().connectString(direct).ensembleTracker(false));
    }

    static CuratorFrameworkFactory.Builder builder() {
        return CuratorFrameworkFactory.builder()
                .sessionTimeoutMs(SESSION_MS)
                .connectionTimeoutMs(15_000)
                .retryPolicy(new RetryNTimes(100, 100));
    }

    CuratorFramework start(CuratorFrameworkFactory.Builder builder) throws Exception {
        CuratorFramework c = closeLater(builder.build());
        c.start();
        require(c.blockUntilConnected(60, TimeUnit.SECONDS), "no session");
        return c;
    }

    /** A plain client that has a session. */
    ZooKeeper zookeeper(String servers, Watcher watcher) throws Exception {
        return closeLater(Sessions.connect(servers, SESSION_MS, watcher));
    }

    ZooKeeper zookeeper() throws Exception {
        return zookeeper(proxied, e -> {});
    }

    <T extends AutoCloseable> T closeLater(T c) {
        closing.add(c);
        return c;
    }

    /** Runs in a thread of its own; what it throws fails the check when {@link #join} is called or the check ends. */
    <T> Future<T> go(Callable<T> task) {
        return threads.submit(() -> {
            try {
                return task.call();
            } catch (Throwable t) {
                fail(t);
                throw t;
            }
        });
    }

    /** Waits for all of them. What failed first is thrown, at once: others may wait in vain for the one that failed. */
    void join(List<? extends Future<?>> all) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(100);
        for (Future<?> f : all) {
            while (!f.isDone()) {
                checkBackground();
                require(System.nanoTime() < end, "not done in time");
                Thread.sleep(5);
            }
        }
        checkBackground();
    }

    /** For callbacks and threads, which have nobody to throw to. */
    void fail(Throwable t) {
        background.add(t);
    }

    void checkBackground() {
        if (!background.isEmpty()) {
            throw new AssertionError("in a thread or callback", background.get(0));
        }
    }

    /** How many children a node has by now, none if it is gone: an empty container is removed. */
    static int childrenLeft(CuratorFramework c, String path) throws Exception {
        settle(c);
        Stat s = c.checkExists().forPath(path);
        return s == null ? 0 : s.getNumChildren();
    }

    /** Waits until a client has got everything that was sent to it so far: the answer comes behind the events. */
    static void settle(CuratorFramework c) throws Exception {
        CountDownLatch answered = new CountDownLatch(1);
        c.sync().inBackground((x, ev) -> answered.countDown()).forPath("/");
        require(answered.await(60, TimeUnit.SECONDS), "no answer to a sync");
    }

    static void require(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    static void same(Object got, Object want, String what) {
        if (!java.util.Objects.equals(got, want)) {
            throw new AssertionError(what + ": got " + got + ", want " + want);
        }
    }

    /** Asks until got is want; the last answer is the failure. */
    static <T> void eventually(T want, Callable<T> got, String what) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(EVENTUALLY_SECONDS);
        while (true) {
            T g = got.call();
            if (java.util.Objects.equals(g, want)) {
                return;
            }
            if (System.nanoTime() > end) {
                throw new AssertionError(what + ": at last " + g + ", want " + want);
            }
            Thread.sleep(10);
        }
    }

    static byte[] bytes(String s) {
        return s.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] b) {
        return b == null ? "(null)" : new String(b, StandardCharsets.UTF_8);
    }

    /** Ends every connection through the proxies; new ones are accepted. */
    static void cut() {
        control("cut all");
        cuts = true;
    }

    /** Ends every connection through the proxies and resets new ones, until {@link #accept}. */
    static void refuse() {
        for (int i = 1; i <= members; i++) {
            control("refuse " + i);
        }
        control("cut all");
        cuts = true;
    }

    static void accept() {
        for (int i = 1; i <= members; i++) {
            control("accept " + i);
        }
    }

    private static volatile boolean cuts;
    private static volatile String killed;

    /** Kills the leader with SIGKILL and returns when the process is gone. */
    static void killLeader() {
        killed = control("leader");
        control("kill " + killed);
    }

    /** Starts the killed server again and returns when it serves. */
    static void restart() {
        control("start " + killed);
    }

    /** Undoes whatever a check did to servers and network, and returns what that was, by the names of the table. */
    static List<String> heal() {
        control("heal");
        List<String> all = new ArrayList<>();
        if (cuts) {
            all.add("reconnect");
        }
        if (killed != null) {
            all.add("leader death");
        }
        cuts = false;
        killed = null;
        return all;
    }

    private static BufferedReader answers;
    private static PrintWriter commands;
    private static int members;

    /** Finds the servers and what commands them: the environment says where, stage_test.go says how. */
    static void begin() throws IOException {
        String[] address = System.getenv("KVD_CONTROL").split(":");
        Socket s = new Socket(address[0], Integer.parseInt(address[1]));
        answers = new BufferedReader(new InputStreamReader(s.getInputStream(), StandardCharsets.UTF_8));
        commands = new PrintWriter(s.getOutputStream(), true, StandardCharsets.UTF_8);
        proxied = System.getenv("KVD_SERVERS");
        members = proxied.split(",").length;
        List<String> all = new ArrayList<>();
        for (int i = 1; i <= members; i++) {
            all.add(control("direct " + i));
        }
        direct = String.join(",", all);
    }

    /** One command; returns what the answer says behind "ok". */
    private static String control(String command) {
        synchronized (commands) {
            commands.println(command);
            try {
                String answer = answers.readLine();
                require(answer != null && answer.startsWith("ok"), command + ": " + answer);
                return answer.substring(2).trim();
            } catch (IOException e) {
                throw new AssertionError(e);
            }
        }
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static String quote(String s) {
        StringBuilder b = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            if (c == '"' || c == '\\') {
                b.append('\\').append(c);
            } else if (c < ' ') {
                b.append(String.format("\\u%04x", (int) c));
            } else {
                b.append(c);
            }
        }
        return b.append('"').toString();
    }

    void close() {
        Collections.reverse(closing);
        for (AutoCloseable c : closing) {
            try {
                c.close();
            } catch (Exception e) {
                // The check has its verdict already; what could not be closed expires.
            }
        }
        threads.shutdownNow();
    }
}
