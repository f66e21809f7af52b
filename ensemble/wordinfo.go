package ensemble

import (
	"fmt"
	"net"
	"os"
	"os/user"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/kv/wire"
)

// Words about the member itself: conf, envi, dirs, hash.

var pid = os.Getpid()

// aliasOfRoot is what ZooKeeper counts too much: its root is there under two names.
const aliasOfRoot = 1

func nodeCount(v *kv.View) int64 { return int64(v.NodeCount()) + aliasOfRoot }

// list are the connections in the order in which they came.
func (p *clientPort) list() []*conn {
	var all []*conn
	p.each(func(c *conn) { all = append(all, c) })
	sortConns(all)
	return all
}

// clientPortNumber is the port that clients connect to, -1 without one.
func (m *Member) clientPortNumber() int {
	for _, a := range m.ClientAddrs() {
		if tcp, ok := a.(*net.TCPAddr); ok {
			return tcp.Port
		}
	}
	return -1
}

// writeConf writes the configuration in effect: ZooKeeper's lines first, in its order, then what else a zoo.cfg can
// say, then the membership.
func (m *Member) writeConf(w *wordWriter) {
	cfg := &m.cfg
	dataSize, logSize := m.directorySizes()
	line := func(key string, value any) { w.printf("%s=%v\n", key, value) }
	ms := func(key string, d time.Duration) { line(key, d.Milliseconds()) }
	line("clientPort", m.clientPortNumber())
	line("secureClientPort", -1)
	line("dataDir", cfg.DataDir)
	line("dataDirSize", dataSize)
	line("dataLogDir", cfg.LogDir)
	line("dataLogSize", logSize)
	ms("tickTime", cfg.TickTime)
	line("maxClientCnxns", cfg.MaxClientConns)
	ms("minSessionTimeout", cfg.MinSessionTimeout)
	ms("maxSessionTimeout", cfg.MaxSessionTimeout)
	line("clientPortListenBacklog", cfg.listenBacklog())
	line("serverId", uint64(cfg.ID))
	if !cfg.standalone() {
		own, _ := cfg.peer(cfg.ID)
		line("initLimit", cfg.InitLimit)
		line("syncLimit", cfg.SyncLimit)
		line("electionAlg", 3)
		line("electionPort", own.ElectionPort)
		line("quorumPort", own.LearnerPort)
		line("peerType", map[bool]int{false: 0, true: 1}[own.Observer])
	}
	for _, s := range cfg.settings() {
		line(s.key, s.value)
	}
	if !cfg.standalone() {
		w.printf("membership: \n%s", cfg.membershipText())
	}
}

// setting is one line of conf beyond ZooKeeper's own.
type setting struct {
	key   string
	value any
}

// settings are the values in effect of what a zoo.cfg can say, under its keys. Secrets are not among them.
func (c *Config) settings() []setting {
	ms := func(d time.Duration) int64 { return d.Milliseconds() }
	return []setting{
		{"maxCnxns", c.MaxConns},
		{"nio.sessionlessCnxnTimeout", ms(c.SessionlessTimeout)},
		{"jute.maxbuffer", c.MaxFrameBytes},
		{"extendedTypesEnabled", c.ExtendedTypes},
		{"localSessionsEnabled", c.LocalSessions},
		{"localSessionsUpgradingEnabled", c.LocalSessionsUpgrading},
		{"readonlymode.enabled", c.ReadOnlyMode},
		{"enforceQuota", c.EnforceQuota},
		{"skipACL", map[bool]string{false: "no", true: "yes"}[c.SkipACL]},
		{"DigestAuthenticationProvider.enabled", !c.DisableDigest},
		{"DigestAuthenticationProvider.digestAlg", c.DigestAlgorithm},
		{"enforce.auth.enabled", len(c.EnforceAuthSchemes) > 0},
		{"enforce.auth.schemes", strings.Join(c.EnforceAuthSchemes, ",")},
		{"znode.container.checkIntervalMs", ms(c.ContainerCheckInterval)},
		{"znode.container.maxPerMinute", c.ContainerMaxPerMinute},
		{"znode.container.maxNeverUsedIntervalMs", ms(c.ContainerMaxNeverUsed)},
		{"requestThrottleLimit", c.ThrottleLimit},
		{"throttled_op_wait_time", ms(c.ThrottledOpWait)},
		{"largeRequestThreshold", minusOne(c.LargeRequestBytes)},
		{"largeRequestMaxBytes", c.LargeRequestMaxBytes},
		{"connectionMaxTokens", c.ConnectionTokens},
		{"connectionTokenFillTime", ms(c.ConnectionTokenFillTime)},
		{"connectionTokenFillCount", c.ConnectionTokenFillCount},
		{"snapCount", c.SnapCount},
		{"autopurge.snapRetainCount", c.SnapshotRetain},
		{"4lw.commands.whitelist", strings.Join(c.FourLetterWords, ",")},
		{"kvd.pingInterval", ms(c.PingInterval)},
		{"kvd.leaderTimeout", ms(c.LeaderTimeout)},
		{"kvd.finalizeWait", ms(c.FinalizeWait)},
		{"kvd.snapshotLogBytes", c.SnapshotLogBytes},
		{"kvd.lowSpaceBytes", max(0, c.LowSpaceBytes)},
		{"kvd.ballastBytes", max(0, c.BallastBytes)},
		{"kvd.retainEntries", c.RetainEntries},
		{"kvd.retainBytes", c.RetainBytes},
		{"kvd.reservedFiles", c.ReservedFiles},
		{"kvd.maxOutstandingRequests", c.MaxOutstandingRequests},
		{"kvd.maxOutstandingBytes", c.MaxOutstandingBytes},
		{"kvd.maxReplyBytes", c.MaxReplyBytes},
	}
}

// minusOne shows "off" as ZooKeeper does.
func minusOne(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

// listenBacklog is the backlog of the client port as ZooKeeper's configuration says it: -1 is the system's.
func (c *Config) listenBacklog() int {
	if c.ClientBacklog > 0 {
		return c.ClientBacklog
	}
	return -1
}

// writeEnvironment writes what envi knows. The lines about a Java virtual machine are not there: there is none.
func (m *Member) writeEnvironment(w *wordWriter) {
	s := wire.ServerStats{Version: wire.ProtocolVersion(m.cfg.Version), Built: buildTime()}
	w.printf("Environment:\nzookeeper.version=%s\n", s.FullVersion())
	host, err := os.Hostname()
	if err != nil {
		host = "<NA>"
	}
	name, home := "<NA>", "<NA>"
	if u, err := user.Current(); err == nil {
		name, home = u.Username, u.HomeDir
	}
	dir, err := os.Getwd()
	if err != nil {
		dir = "<NA>"
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	megabytes := func(n uint64) string { return strconv.FormatUint(n>>20, 10) + "MB" }
	for _, l := range [][2]string{
		{"host.name", host}, {"go.version", runtime.Version()}, {"os.name", osName()}, {"os.arch", runtime.GOARCH}, {"os.version", osVersion()},
		{"user.name", name}, {"user.home", home}, {"user.dir", dir},
		{"os.memory.free", megabytes(mem.HeapIdle - mem.HeapReleased)}, {"os.memory.max", megabytes(memoryLimit())}, {"os.memory.total", megabytes(mem.Sys)},
	} {
		w.printf("%s=%s\n", l[0], l[1])
	}
}

// osName writes the operating system as Java does: Linux, not linux.
func osName() string { return strings.ToUpper(runtime.GOOS[:1]) + runtime.GOOS[1:] }

// memoryLimit is the limit that the process has been given, else what it has taken from the system.
func memoryLimit() uint64 {
	if limit := debug.SetMemoryLimit(-1); limit < 1<<62 {
		return uint64(limit)
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	return mem.Sys
}

// directorySizes are the bytes under the member's directory and under that of its log.
func (m *Member) directorySizes() (data, log int64) {
	return treeSize(m.cfg.FS, m.cfg.DataDir), treeSize(m.cfg.FS, m.cfg.LogDir)
}

// treeSize adds up the files under dir. What goes away meanwhile does not count.
func treeSize(fs vfs.FS, dir string) (size int64) {
	names, err := fs.List(dir)
	if err != nil {
		return 0
	}
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		switch {
		case err != nil:
		case info.IsDir():
			size += treeSize(fs, path)
		default:
			size += info.Size()
		}
	}
	return size
}

// writeDigests writes the tree's digests, the oldest first.
func (m *Member) writeDigests(w *wordWriter) {
	for _, d := range m.tree.Digests() {
		if !w.printf("%x: %d\n", uint64(d.Zxid), int64(d.Digest)) {
			return
		}
	}
}

// loopPatience bounds how long a word waits for the member's loop. A loop that is busy for that long is itself a news.
const loopPatience = time.Second

// askLoop runs read on the loop, which owns the replica, and returns what it gives; false if the loop does not come
// to it in time or has ended.
func askLoop[T any](m *Member, read func(*replica.Replica) T) (answer T, ok bool) {
	q := loopQuestion[T]{read, make(chan T, 1)} // 1: the loop never waits for who asked
	if !m.inbox.push(q, false) {
		return answer, false
	}
	patience := time.NewTimer(loopPatience)
	defer patience.Stop()
	select {
	case answer = <-q.answer:
		return answer, true
	case <-m.closing:
	case <-patience.C:
	}
	return answer, false
}

type loopQuestion[T any] struct {
	read   func(*replica.Replica) T
	answer chan T
}

func (q loopQuestion[T]) deliver(l *loop) { q.answer <- q.read(l.replica) }

// deadlines are those of all sessions; none if this member does not lead.
func (m *Member) deadlines() []replica.Deadline {
	all, _ := askLoop(m, func(r *replica.Replica) []replica.Deadline { return r.Deadlines(nil) })
	return all
}

// freshStatus is the replica's state now; the last one published if the loop does not answer.
func (m *Member) freshStatus() *replica.Status {
	if s, ok := askLoop(m, (*replica.Replica).Status); ok {
		return &s
	}
	return m.status.Load()
}

// membershipText is the configuration as /zookeeper/config shows it (zookeeper-protocol 11.4, 11.5).
func (c *Config) membershipText() string {
	text := c.MembershipText
	if text == "" {
		var b strings.Builder
		for _, p := range c.Members {
			role := "participant"
			if p.Observer {
				role = "observer"
			}
			fmt.Fprintf(&b, "server.%d=%s:%d:%d:%s", p.ID, bracketed(p.Host), p.LearnerPort, p.ElectionPort, role)
			if host, port, err := net.SplitHostPort(p.ClientAddr); err == nil {
				fmt.Fprintf(&b, ";%s:%s", bracketed(host), port)
			}
			b.WriteByte('\n')
		}
		text = b.String()
	}
	return fmt.Sprintf("%s\nversion=%x", strings.TrimRight(text, "\n"), c.ConfigVersion)
}

// bracketed is a host as it stands before a colon.
func bracketed(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}
