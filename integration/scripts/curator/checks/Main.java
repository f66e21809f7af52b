package checks;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Runs every check in one virtual machine and prints one line of JSON for each.
 *
 * <p>Arguments: the client whose checks are to run, and a regular expression for their names. What it needs to know about the servers is
 * in the environment, see {@link Env#begin}.
 */
public final class Main {
    /** One check: what it exercises, the operations it sends (the columns of the conformance table), and its body. */
    record Check(String client, String name, List<String> ops, Body body) {}

    interface Body {
        void run(Env env) throws Exception;
    }

    /** Only ends what hangs; the machine may be slow. */
    private static final long LIMIT_SECONDS = 120;

    private static final List<Check> checks = new ArrayList<>();

    static void curator(String name, String ops, Body body) {
        checks.add(new Check("Curator", name, operations(ops), body));
    }

    static void java(String name, String ops, Body body) {
        checks.add(new Check("Java", name, operations(ops), body));
    }

    /** The names are those of the conformance table; one with a space is written with a low line. */
    private static List<String> operations(String words) {
        List<String> all = new ArrayList<>();
        for (String w : words.split(" ")) {
            all.add(w.replace('_', ' '));
        }
        return all;
    }

    public static void main(String[] args) throws Exception {
        Locks.register();
        Elections.register();
        Caches.register();
        Nodes.register();
        Barriers.register();
        Counters.register();
        Queues.register();
        Framework.register();
        Plain.register();
        Watching.register();
        Sessions.register();

        Env.begin();
        int number = 0;
        for (Check c : checks) {
            number++;
            if (c.client().equals(args[0]) && c.name().matches(args[1])) {
                run(c, number);
            }
        }
        System.exit(0); // threads of a hung check may still be there
    }

    private static void run(Check check, int number) throws InterruptedException {
        long start = System.nanoTime();
        Env env = new Env("/check-" + number);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Thread body = new Thread(() -> {
            try {
                check.body().run(env);
                env.checkBackground();
            } catch (Throwable t) {
                failure.set(t);
            }
        }, check.name());
        body.setDaemon(true);
        body.start();
        body.join(TimeUnit.SECONDS.toMillis(LIMIT_SECONDS));
        String detail = "";
        if (body.isAlive()) {
            detail = "still running after " + LIMIT_SECONDS + " s:" + stacks();
        } else if (failure.get() != null) {
            detail = describe(failure.get());
        }
        env.close();
        List<String> operations = new ArrayList<>(check.ops());
        operations.addAll(Env.heal());
        long ms = (System.nanoTime() - start) / 1_000_000;
        StringBuilder ops = new StringBuilder();
        for (String op : operations) {
            ops.append(ops.isEmpty() ? "" : ",").append(Env.quote(op));
        }
        Env.say("{\"client\":" + Env.quote(check.client()) + ",\"check\":" + Env.quote(check.name()) + ",\"ops\":[" + ops
                + "],\"pass\":" + detail.isEmpty() + ",\"detail\":" + Env.quote(detail) + "}");
        Env.say(check.name() + " took " + ms + " ms");
    }

    private static String describe(Throwable t) {
        StringBuilder b = new StringBuilder();
        for (; t != null; t = t.getCause()) {
            b.append(b.isEmpty() ? "" : "; caused by ").append(t);
            int shown = 0;
            for (StackTraceElement e : t.getStackTrace()) {
                if (e.getClassName().startsWith("checks.") && shown++ < 3) {
                    b.append(" at ").append(e.getFileName()).append(':').append(e.getLineNumber());
                }
            }
        }
        return b.toString();
    }

    private static String stacks() {
        StringBuilder b = new StringBuilder();
        for (Map.Entry<Thread, StackTraceElement[]> e : Thread.getAllStackTraces().entrySet()) {
            boolean ours = false;
            StringBuilder one = new StringBuilder("\n").append(e.getKey().getName());
            for (StackTraceElement f : e.getValue()) {
                one.append("\n  ").append(f);
                ours |= f.getClassName().startsWith("checks.");
            }
            if (ours) {
                b.append(one);
            }
        }
        return b.toString();
    }
}
