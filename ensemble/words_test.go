package ensemble

import (
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// askWord sends the pieces of a word and reads the answer to its end.
func askWord(t testing.TB, addr string, pieces ...string) string {
	t.Helper()
	r := dialRaw(t, addr)
	for _, p := range pieces {
		r.send([]byte(p))
	}
	b, err := io.ReadAll(r.nc)
	if err != nil {
		t.Fatalf("%q: %v", pieces, err)
	}
	_ = r.nc.Close()
	return string(b)
}

// monitor reads mntr.
func monitor(t testing.TB, addr string) map[string]string {
	t.Helper()
	values := map[string]string{}
	for line := range strings.Lines(askWord(t, addr, "mntr")) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !ok || !strings.HasPrefix(key, "zk_") {
			t.Fatalf("mntr: line %q", line)
		}
		if _, twice := values[key]; twice {
			t.Errorf("mntr: %s is there twice", key)
		}
		values[key] = value
	}
	return values
}

func allWords(c *Config) { c.FourLetterWords = []string{"*"} }

// What differs between two runs of real ZooKeeper becomes a placeholder.
var wordVariables = []struct {
	re   *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDR"},
	{regexp.MustCompile(`0x[0-9a-e][0-9a-f]{12,15}\b`), "SESSION"},
	{regexp.MustCompile(`expire at \w{3} \w{3} \d\d \d\d:\d\d:\d\d \S+ \d{4}:`), "expire at TIME:"},
	{regexp.MustCompile(`(est|lresp|llat|minlat|avglat|maxlat)=\d+`), "$1=N"},
	{regexp.MustCompile(`Latency min/avg/max: \d+/\d+\.\d{1,4}/\d+`), "Latency min/avg/max: A/B/C"},
	{regexp.MustCompile(`Zookeeper version: [\w.\-]+, built on \d\d/\d\d/\d{4} \d\d:\d\d GMT`), "VERSION"},
	{regexp.MustCompile(`(?s)Kvd version: .*`), "OWN LINES"},
}

func normalWord(s string) string {
	for _, v := range wordVariables {
		s = v.re.ReplaceAllString(s, v.with)
	}
	return s
}

// waitWritten waits until the goroutines that wrote the replies which clients already have know it too.
func waitWritten(t *testing.T, m *Member) {
	t.Helper()
	eventually(t, "replies are written", func() bool {
		for _, c := range m.port.list() {
			if _, held := c.snapshotStats(); held != 0 || c.writing.Load() != 0 {
				return false
			}
		}
		return true
	})
}

// The texts are those of real ZooKeeper 3.8.0 after the same requests, normalised likewise. Lines of sets that have no
// order there are compared by number in dump.
func TestWordsLikeZooKeeper(t *testing.T) {
	m, addr := startSingle(t, allWords)
	first := dialRaw(t, addr)
	first.session()
	world := []kv.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}
	first.send(request(1, wire.OpCreate, record(&wire.CreateRequest{Path: "/a", Data: []byte("hello"), ACL: world})))
	first.wantReply(1, kv.CodeOK)
	first.send(request(2, wire.OpCreate, record(&wire.CreateRequest{Path: "/a/e", ACL: world, Flags: 1})))
	first.wantReply(2, kv.CodeOK)
	first.send(request(3, wire.OpCreate, record(&wire.CreateRequest{Path: "/no/parent", ACL: world})))
	first.wantReply(3, kv.CodeNoNode)
	first.send(request(4, wire.OpGetData, record(&wire.PathWatchRequest{Path: "/a", Watch: true})))
	first.wantReply(4, kv.CodeOK)
	first.send(request(5, wire.OpExists, record(&wire.PathWatchRequest{Path: "/missing", Watch: true})))
	first.wantReply(5, kv.CodeNoNode)
	first.send(request(6, wire.OpGetChildren, record(&wire.PathWatchRequest{Path: "/a", Watch: true}))) // child watch: not listed
	first.wantReply(6, kv.CodeOK)
	second := dialRaw(t, addr)
	second.session()
	second.send(request(1, wire.OpGetData, record(&wire.PathWatchRequest{Path: "/a", Watch: true})))
	second.wantReply(1, kv.CodeOK)
	third := dialRaw(t, addr)
	third.session()
	third.send(request(7, wire.OpCreate, record(&wire.CreateRequest{Path: "/no/parent", ACL: world})))
	third.wantReply(7, kv.CodeNoNode)
	waitWritten(t, m)

	for _, c := range []struct{ word, want string }{
		{"ruok", "imok"},
		{"isro", "rw"},
		{"wchs", "2 connections watching 2 paths\nTotal watches:3\n"},
		{"gtmk", "306"},
		{"stmk\x00\x00\x00\x00\x00\x00\x00\x2a", "42"},
		{"gtmk", "42"},
		{"hash", ""},
		{"stat", "VERSION\nClients:\n /ADDR[1](queued=0,recved=7,sent=7)\n /ADDR[1](queued=0,recved=2,sent=2)\n /ADDR[1](queued=0,recved=2,sent=2)\n" +
			" /ADDR[0](queued=0,recved=1,sent=0)\n\nLatency min/avg/max: A/B/C\nReceived: 19\nSent: 18\nConnections: 4\nOutstanding: 0\n" +
			"Zxid: 0x100000007\nMode: standalone\nNode count: 7\nOWN LINES"},
		{"cons", " /ADDR[1](queued=0,recved=7,sent=7,sid=SESSION,lop=GETC,est=N,to=10000,lcxid=0x6,lzxid=0x100000004,lresp=N,llat=N,minlat=N,avglat=N,maxlat=N)\n" +
			" /ADDR[1](queued=0,recved=2,sent=2,sid=SESSION,lop=GETD,est=N,to=10000,lcxid=0x1,lzxid=0x100000005,lresp=N,llat=N,minlat=N,avglat=N,maxlat=N)\n" +
			" /ADDR[1](queued=0,recved=2,sent=2,sid=SESSION,lop=NA,est=N,to=10000,lcxid=0x7,lzxid=0x100000007,lresp=N,llat=N,minlat=N,avglat=N,maxlat=N)\n" +
			" /ADDR[0](queued=0,recved=1,sent=0)\n\n"},
		{"crst", "Connection stats reset.\n"},
		{"cons", strings.Repeat(" /ADDR[1](queued=0,recved=0,sent=0,sid=SESSION,lop=NA,est=N,to=10000,lzxid=0xffffffffffffffff,lresp=N,llat=N,minlat=N,avglat=N,maxlat=N)\n", 3) +
			" /ADDR[0](queued=0,recved=1,sent=0)\n\n"},
		{"srst", "Server stats reset.\n"},
		{"stat", "VERSION\nClients:\n" + strings.Repeat(" /ADDR[1](queued=0,recved=0,sent=0)\n", 3) +
			" /ADDR[0](queued=0,recved=1,sent=0)\n\nLatency min/avg/max: A/B/C\nReceived: 1\nSent: 1\nConnections: 4\nOutstanding: 0\n" +
			"Zxid: 0x100000007\nMode: standalone\nNode count: 7\nOWN LINES"},
		{"srvr", "VERSION\nLatency min/avg/max: A/B/C\nReceived: 2\nSent: 2\nConnections: 4\nOutstanding: 0\n" +
			"Zxid: 0x100000007\nMode: standalone\nNode count: 7\nOWN LINES"},
	} {
		if got := normalWord(askWord(t, addr, c.word)); got != c.want {
			t.Errorf("%.4s: got\n%s\nwant\n%s", c.word, got, c.want)
		}
	}

	byPath := askWord(t, addr, "wchp")
	if got := sortedBlocks(normalWord(byPath)); got != "/a\n\tSESSION\n\tSESSION\n/missing\n\tSESSION\n\n" {
		t.Errorf("wchp:\n%s", byPath)
	}
	bySession := askWord(t, addr, "wchc")
	if got := sortedBlocks(normalWord(bySession)); got != "SESSION\n\t/a\nSESSION\n\t/a\n\t/missing\n\n" {
		t.Errorf("wchc:\n%s", bySession)
	}
	dump := regexp.MustCompile(`\(\d+\)/\((\d+)\)|(?m)^\d+ expire at TIME:\n`).ReplaceAllString(normalWord(askWord(t, addr, "dump")), "$1")
	wantDump := "SessionTracker dump:\nSession Sets 3:\n\tSESSION\n\tSESSION\n\tSESSION\nephemeral nodes dump:\nSessions with Ephemerals (1):\nSESSION:\n\t/a/e\n" +
		"Connections dump:\nConnections Sets 4:\n" + strings.Repeat("\tip: /ADDR sessionId: SESSION\n", 3) + "\tip: /ADDR sessionId: 0x0\n"
	if sortLines(dump) != sortLines(wantDump) {
		t.Errorf("dump: got\n%s\nwant\n%s", dump, wantDump)
	}
}

func sortLines(s string) string {
	lines := strings.Split(s, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// sortedBlocks sorts the blocks of wchp and wchc (a line and those behind it that begin with a tab), and their lines.
func sortedBlocks(s string) string {
	var blocks [][]string
	for line := range strings.Lines(strings.TrimSuffix(s, "\n")) {
		if strings.HasPrefix(line, "\t") && len(blocks) > 0 {
			last := &blocks[len(blocks)-1]
			*last = append(*last, line)
		} else {
			blocks = append(blocks, []string{line})
		}
	}
	var all []string
	for _, b := range blocks {
		slices.Sort(b[1:])
		all = append(all, strings.Join(b, ""))
	}
	slices.Sort(all)
	return strings.Join(all, "") + "\n"
}

// conf of a single member and of an ensemble: ZooKeeper's lines in its order, then others, then the membership without
// a newline at its end.
func TestConf(t *testing.T) {
	keys := func(text string) (names []string) {
		for line := range strings.Lines(text) {
			k, _, ok := strings.Cut(line, "=")
			if !ok || strings.HasPrefix(line, "membership") {
				break
			}
			names = append(names, k)
		}
		return names
	}
	base := []string{"clientPort", "secureClientPort", "dataDir", "dataDirSize", "dataLogDir", "dataLogSize", "tickTime", "maxClientCnxns",
		"minSessionTimeout", "maxSessionTimeout", "clientPortListenBacklog", "serverId"}
	m, addr := startSingle(t, func(c *Config) { allWords(c); c.SuperDigest = "super:secret" })
	single := askWord(t, addr, "conf")
	if got := keys(single); !slices.Equal(got[:len(base)], base) {
		t.Errorf("single: %q", got)
	}
	_, port, _ := net.SplitHostPort(addr)
	for _, want := range []string{"clientPort=" + port + "\n", "tickTime=2000\n", "maxSessionTimeout=40000\n", "serverId=1\n", "jute.maxbuffer=1048575\n", "dataDir=" + m.cfg.DataDir + "\n"} {
		if !strings.Contains(single, want) {
			t.Errorf("single: no line %q in\n%s", want, single)
		}
	}
	if strings.Contains(single, "secret") || strings.Contains(single, "membership") {
		t.Errorf("single:\n%s", single)
	}
	if dirs := askWord(t, addr, "dirs"); !regexp.MustCompile(`^datadir_size: [1-9]\d*\nlogdir_size: [1-9]\d*\n$`).MatchString(dirs) {
		t.Errorf("dirs: %q", dirs)
	}

	tr := startTrio(t, allWords)
	tr.waitServing()
	text := askWord(t, tr.peers[1].ClientAddr, "conf")
	if got := keys(text); !slices.Equal(got[:len(base)+6], append(slices.Clone(base), "initLimit", "syncLimit", "electionAlg", "electionPort", "quorumPort", "peerType")) {
		t.Errorf("ensemble: %q", got)
	}
	_, membership, _ := strings.Cut(text, "\nmembership: \n")
	if want := tr.membership(); membership != want {
		t.Errorf("membership: got\n%s\nwant\n%s", membership, want)
	}
}

// membership is what conf and /zookeeper/config must show.
func (tr *trio) membership() string {
	var b strings.Builder
	for _, p := range tr.peers {
		fmt.Fprintf(&b, "server.%d=127.0.0.1:%d:%d:participant;%s\n", p.ID, p.LearnerPort, p.ElectionPort, p.ClientAddr)
	}
	return b.String() + "version=0"
}

// waitServing waits until all three members serve.
func (tr *trio) waitServing() {
	tr.t.Helper()
	for _, m := range tr.members {
		if err := m.WaitServing(tr.t.Context()); err != nil {
			tr.t.Fatal(err)
		}
	}
}

func TestEnvironmentWord(t *testing.T) {
	_, addr := startSingle(t, allWords)
	text := askWord(t, addr, "envi")
	if !strings.HasPrefix(text, "Environment:\nzookeeper.version=3.9.5-kvd.") || !strings.HasSuffix(text, "MB\n") {
		t.Errorf("got\n%s", text)
	}
	for _, key := range []string{"host.name", "os.name", "os.arch", "os.version", "user.name", "user.home", "user.dir", "os.memory.free", "os.memory.max", "os.memory.total"} {
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(key) + `=.+$`).MatchString(text) {
			t.Errorf("no %s in\n%s", key, text)
		}
	}
}

// A configured member that has no quorum: every word but four says so, and only those on the list are answered.
func TestWordsWhileNotServing(t *testing.T) {
	tr := startTrio(t, allWords)
	tr.waitServing()
	for i := range 2 {
		_ = tr.members[i].Close()
	}
	addr := tr.peers[2].ClientAddr
	for deadline := time.Now().Add(rawLimit); askWord(t, addr, "isro") != "null"; {
		if time.Now().After(deadline) {
			t.Fatal("still serving without a quorum")
		}
	}
	const notServing = "This ZooKeeper instance is not currently serving requests\n"
	for _, w := range []string{"conf", "cons", "crst", "srst", "dirs", "dump", "wchs", "wchc", "wchp", "hash", "mntr"} {
		if got := askWord(t, addr, w); got != notServing {
			t.Errorf("%s: %q", w, got)
		}
	}
	for _, w := range []string{"srvr", "stat"} {
		got := askWord(t, addr, w)
		if s, err := wire.ParseSrvr([]byte(got)); !strings.HasPrefix(got, notServing) || err != nil || s.Serving || s.Member != 3 {
			t.Errorf("%s: %q, %+v, %v", w, got, s, err)
		}
	}
	if got := askWord(t, addr, "ruok"); got != "imok" {
		t.Errorf("ruok: %q", got)
	}
	if got := askWord(t, addr, "gtmk"); got != "306" {
		t.Errorf("gtmk: %q", got)
	}
	if got := askWord(t, addr, "envi"); !strings.HasPrefix(got, "Environment:\n") {
		t.Errorf("envi: %q", got)
	}
}

func TestWhitelist(t *testing.T) {
	all := []string{"ruok", "isro", "srvr", "stat", "conf", "cons", "crst", "srst", "dirs", "dump", "envi", "gtmk", "stmk", "wchs", "wchc", "wchp", "hash", "mntr"}
	for _, c := range []struct {
		name    string
		tune    func(*Config)
		allowed []string
	}{
		{"default", nil, []string{"srvr", "isro", "ruok", "stat"}},
		{"none", func(c *Config) { c.FourLetterWords = []string{} }, nil},
		{"two", func(c *Config) { c.FourLetterWords = []string{"mntr", "conf"} }, []string{"mntr", "conf"}},
		{"read-only mode", func(c *Config) { c.FourLetterWords = []string{"srvr"}; c.ReadOnlyMode = true }, []string{"srvr", "isro"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, addr := startSingle(t, c.tune)
			for _, w := range all {
				refused := askWord(t, addr, w) == w+" is not executed because it is not in the whitelist.\n"
				if refused == slices.Contains(c.allowed, w) {
					t.Errorf("%s: refused %v", w, refused)
				}
			}
			if got := askWord(t, addr, "\xff\xf4\xff\xfd"); got != "" {
				t.Errorf("telnet's interrupt is answered: %q", got)
			}
		})
	}
}

// However the bytes of a word come, and whatever follows them, it is answered.
func TestWordsInPieces(t *testing.T) {
	_, addr := startSingle(t, allWords)
	for _, pieces := range [][]string{{"ruok\n"}, {"r", "u", "o", "k"}, {"ruok", strings.Repeat("x", 1000)}, {"ru", "ok\r\nmore"}} {
		if got := askWord(t, addr, pieces...); got != "imok" {
			t.Errorf("%q: %q", pieces, got)
		}
	}
	mask := binary.BigEndian.AppendUint64(nil, 0x8000000000000001)
	if got := askWord(t, addr, "stm", "k", string(mask[:3]), string(mask[3:])); got != "-9223372036854775807" {
		t.Errorf("stmk in pieces: %q", got)
	}
	for _, text := range []string{"ruok", "stmk" + string(mask)} {
		r := dialRaw(t, addr)
		r.send([]byte(text))
		_ = r.nc.(*net.TCPConn).CloseWrite()
		if b, err := io.ReadAll(r.nc); err != nil || len(b) == 0 {
			t.Errorf("half-closed %.4s: %q %v", text, b, err)
		}
	}
	// A mask that never comes.
	r := dialRaw(t, addr)
	r.send([]byte("stmk123"))
	_ = r.nc.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(r.nc); err != nil || len(b) != 0 {
		t.Errorf("stmk without a mask: %q %v", b, err)
	}
	for _, text := range []string{"quit", "RUOK", "ruoc"} { // oversized lengths
		r := dialRaw(t, addr)
		r.send([]byte(text))
		r.wantClosed()
	}
}

// A probe that is over is not counted by the next one, though its client may not have hung up yet.
func TestProbesDoNotCountEachOther(t *testing.T) {
	_, addr := startSingle(t, allWords)
	for range 20 {
		open := dialRaw(t, addr)
		open.send([]byte("ruok"))
		if b, err := io.ReadAll(open.nc); err != nil || string(b) != "imok" {
			t.Fatal(b, err)
		}
		if got := monitor(t, addr)["zk_num_alive_connections"]; got != "1" { // open has not closed
			t.Fatalf("%s connections", got)
		}
	}
}

// A large answer comes whole, and a client that does not take it is cut while others are answered.
func TestLargeAnswer(t *testing.T) {
	var log syncBuffer
	m, addr := startSingle(t, func(c *Config) {
		allWords(c)
		c.wordStall = 100 * time.Millisecond
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	const n = 30_000
	watcher := dialRaw(t, addr)
	watcher.session()
	name := strings.Repeat("w", 200)
	for i := 0; i < n; {
		var batch []byte
		begin := i
		for ; i < begin+1000; i++ {
			batch = append(batch, request(int32(i), wire.OpExists, record(&wire.PathWatchRequest{Path: fmt.Sprintf("/%s-%d", name, i), Watch: true}))...)
		}
		watcher.send(batch)
		for ; begin < i; begin++ {
			watcher.wantReply(int32(begin), kv.CodeNoNode)
		}
	}
	for _, w := range []string{"wchp", "wchc"} {
		if got := strings.Count(askWord(t, addr, w), name); got != n {
			t.Errorf("%s: %d of %d paths", w, got, n)
		}
	}
	stuck := dialRaw(t, addr)
	_ = stuck.nc.(*net.TCPConn).SetReadBuffer(4 << 10)
	stuck.send([]byte("wchp"))
	for deadline := time.Now().Add(rawLimit); ; {
		if got := monitor(t, addr)["zk_num_alive_connections"]; got == "2" && m.port.connections() == 1 {
			break // the watcher and the probe: the stuck one has gone
		}
		if time.Now().After(deadline) {
			t.Fatal("a client that does not read its answer is still there")
		}
	}
	log.mu.Lock()
	defer log.mu.Unlock()
	if text := log.text.String(); !strings.Contains(text, "the answer to wchp is not read") {
		t.Errorf("no line about it:\n%s", text)
	}
}

// syncBuffer takes log lines.
type syncBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// After the last session has been closed nothing is left of it.
func TestMonitorReturnsToZero(t *testing.T) {
	tr := startTrio(t, allWords)
	tr.waitServing()
	world := []kv.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}
	var clients []*raw
	for i := range 3 {
		for j := range 3 {
			r := dialRaw(t, tr.peers[i].ClientAddr)
			r.session()
			path := fmt.Sprintf("/e-%d-%d", i, j)
			r.send(request(1, wire.OpCreate, record(&wire.CreateRequest{Path: path, ACL: world, Flags: 1})))
			r.wantReply(1, kv.CodeOK)
			r.send(request(2, wire.OpGetData, record(&wire.PathWatchRequest{Path: path, Watch: true})))
			r.wantReply(2, kv.CodeOK)
			r.send(request(3, wire.OpGetChildren, record(&wire.PathWatchRequest{Path: "/", Watch: true})))
			clients = append(clients, r)
		}
	}
	if got := monitor(t, tr.peers[0].ClientAddr); got["zk_global_sessions"] == "0" || got["zk_watch_count"] == "0" || got["zk_ephemerals_count"] == "0" {
		t.Errorf("in use: %v", got)
	}
	for _, r := range clients {
		r.send(request(9, wire.OpCloseSession, nil))
	}
	for i := range 3 {
		addr := tr.peers[i].ClientAddr
		for deadline := time.Now().Add(rawLimit); ; {
			m := monitor(t, addr)
			got := []string{m["zk_watch_count"], m["zk_ephemerals_count"], m["zk_num_alive_connections"], m["zk_global_sessions"], m["zk_local_sessions"], m["zk_outstanding_requests"]}
			if slices.Equal(got, []string{"0", "0", "1", "0", "0", "0"}) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("member %d: watches, ephemerals, connections, sessions, local sessions, requests: %q", i+1, got)
			}
		}
	}
}

// The keys that dashboards and exporters read are there, on every kind of member, and say what is true.
func TestMonitorKeys(t *testing.T) {
	tr := startTrio(t, allWords)
	tr.waitServing()
	r := dialRaw(t, tr.peers[0].ClientAddr)
	r.session()
	world := []kv.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}
	r.send(request(1, wire.OpCreate, record(&wire.CreateRequest{Path: "/q", Data: []byte("12345"), ACL: world})))
	r.wantReply(1, kv.CodeOK)
	const writes = 50
	for i := range writes {
		r.send(request(int32(i), wire.OpSetData, record(&wire.SetDataRequest{Path: "/q", Data: []byte("123456"), Version: -1})))
		r.wantReply(int32(i), kv.CodeOK)
	}
	r.send(request(99, wire.OpGetData, record(&wire.PathWatchRequest{Path: "/q"})))
	r.wantReply(99, kv.CodeOK)

	// A reply is sent before it is counted, and a member that is not in the quorum of a write hears of its commit later than the client.
	leaders := 0
	for i := range tr.members {
		for deadline := time.Now().Add(rawLimit); ; {
			got := monitor(t, tr.peers[i].ClientAddr)
			wrong := checkMonitor(tr.members[i], i == 0, writes, got)
			if len(wrong) == 0 {
				if got["zk_server_state"] == "leader" {
					leaders++
				}
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("member %d: %s\n%v", i+1, strings.Join(wrong, "; "), got)
			}
		}
	}
	if leaders != 1 {
		t.Errorf("%d leaders", leaders)
	}
}

// checkMonitor says what of m's mntr keys does not fit a trio with one session, at client's member, that made a node and wrote it writes times.
func checkMonitor(m *Member, client bool, writes int64, got map[string]string) (faults []string) {
	wrong := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	number := func(key string) int64 {
		n, err := strconv.ParseInt(got["zk_"+key], 10, 64)
		if err != nil {
			wrong("%s is %q", key, got["zk_"+key])
		}
		return n
	}
	for key, want := range map[string]int64{
		"quorum_size": 3, "znode_count": int64(m.tree.View().NodeCount()) + 1, "global_sessions": 1, "local_sessions": 0, "ephemerals_count": 0, "watch_count": 0,
		"outstanding_requests": 0, "max_file_descriptor_count": int64(openFileLimit()), "looking_count": 1, "cnt_election_time": 1, "cnt_unavailable_time": 1,
		"throttled_ops": 0, "auth_failed_count": 0, "large_requests_rejected": 0,
	} {
		if n := number(key); n != want && (key != "looking_count" && !strings.HasPrefix(key, "cnt_") || n < want) {
			wrong("%s is %d, want %d", key, n, want)
		}
	}
	for _, key := range []string{"cnt_fsynctime", "uptime", "open_file_descriptor_count", "packets_received", "approximate_data_size", "cnt_dbinittime"} {
		if number(key) < 1 {
			wrong("%s is %s", key, got["zk_"+key])
		}
	}
	if !regexp.MustCompile(`^\d+\.\d{1,4}$`).MatchString(got["zk_avg_latency"]) || !strings.HasPrefix(got["zk_version"], "3.9.5-kvd.") {
		wrong("%q, %q", got["zk_avg_latency"], got["zk_version"])
	}
	_, synced := got["zk_synced_followers"]
	switch got["zk_server_state"] {
	case "leader":
		if got["zk_peer_state"] != "leading - broadcast" || number("synced_followers") != 2 || number("learners") != 2 || number("synced_observers") != 0 ||
			number("pending_syncs") != 0 || number("proposal_count") < writes || number("commit_count") < writes || number("last_proposal_size") < 6 ||
			number("min_proposal_size") > number("last_proposal_size") || number("max_proposal_size") < number("last_proposal_size") ||
			number("leader_uptime") < 0 || number("cnt_leader_unavailable_time") < 1 {
			wrong("a key of the leader")
		}
	case "follower":
		if got["zk_peer_state"] != "following - broadcast" || synced || number("learner_commit_received_count") < writes || number("learner_proposal_received_count") < writes ||
			number("cnt_follower_sync_time") < 1 {
			wrong("a key of the follower")
		}
	default:
		wrong("the state is %q", got["zk_server_state"])
	}
	if client {
		if number("cnt_updatelatency") != writes+1 || number("cnt_readlatency") != 1 || number("bytes_received_count") < writes*20 || number("connection_request_count") != 1 {
			wrong("a key of the client's member")
		}
	}
	return faults
}

// A single member has none of an ensemble's keys.
func TestMonitorOfASingleMember(t *testing.T) {
	_, addr := startSingle(t, allWords)
	got := monitor(t, addr)
	if got["zk_server_state"] != "standalone" || got["zk_znode_count"] != "5" || got["zk_approximate_data_size"] != "44" || got["zk_num_alive_connections"] != "1" {
		t.Errorf("%v", got)
	}
	for _, key := range []string{"peer_state", "quorum_size", "learners", "synced_followers", "pending_syncs", "last_proposal_size", "observer_master_id"} {
		if v, ok := got["zk_"+key]; ok {
			t.Errorf("%s is %s", key, v)
		}
	}
}

// Quotas by top-level node, as ZooKeeper sums them: hard limits count where they are set, several are added.
func TestMonitorQuotas(t *testing.T) {
	_, addr := startSingle(t, allWords)
	r := dialRaw(t, addr)
	r.session()
	world := []kv.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}
	for i, n := range [][2]string{
		{"/q", "12"}, {"/q/x", "345"},
		{"/zookeeper/quota/q", ""}, {"/zookeeper/quota/q/zookeeper_limits", "count=5,bytes=100=;byteHardLimit=300;countHardLimit=-1"},
		{"/zookeeper/quota/q/zookeeper_stats", "count=0,bytes=0"},
		{"/zookeeper/quota/q/x", ""}, {"/zookeeper/quota/q/x/zookeeper_limits", "count=7,bytes=-1"}, {"/zookeeper/quota/q/x/zookeeper_stats", "count=0,bytes=0"},
	} {
		r.send(request(int32(i), wire.OpCreate, record(&wire.CreateRequest{Path: n[0], Data: []byte(n[1]), ACL: world})))
		r.wantReply(int32(i), kv.CodeOK)
	}
	got := monitor(t, addr)
	for key, want := range map[string]string{"count_limit": "12", "bytes_limit": "300", "count_usage": "3", "bytes_usage": "8"} {
		if v := got["zk_q_quota_"+key+"_per_namespace"]; v != want {
			t.Errorf("%s: %q, want %s", key, v, want)
		}
	}
}

// The words' figures and the configuration node of an ensemble.
func TestConfigNode(t *testing.T) {
	tr := startTrio(t, allWords)
	tr.waitServing()
	for i := range 3 {
		r := dialRaw(t, tr.peers[i].ClientAddr)
		r.session()
		r.send(request(1, wire.OpGetData, record(&wire.PathWatchRequest{Path: "/zookeeper/config"})))
		_, body := r.wantReply(1, kv.CodeOK)
		var got wire.DataResponse
		if err := wire.Decode(body, &got); err != nil {
			t.Fatal(err)
		}
		if string(got.Data) != tr.membership() {
			t.Errorf("member %d: got\n%s\nwant\n%s", i+1, got.Data, tr.membership())
		}
		if s := got.Stat; s.Version != -1 || s.Aversion != -1 || s.DataLength != int32(len(got.Data)) || s.Czxid != 0 || s.Mzxid != 0 || s.Ctime != 0 || s.NumChildren != 0 {
			t.Errorf("member %d: %+v", i+1, s)
		}
	}
	_, addr := startSingle(t, nil)
	r := dialRaw(t, addr)
	r.session()
	r.send(request(1, wire.OpGetData, record(&wire.PathWatchRequest{Path: "/zookeeper/config"})))
	_, body := r.wantReply(1, kv.CodeOK)
	var got wire.DataResponse
	if err := wire.Decode(body, &got); err != nil || len(got.Data) != 0 || got.Stat.Version != 0 || got.Stat.Aversion != -1 {
		t.Errorf("single: %+v, %v", got, err)
	}
}

// srvr of a leader shows the sizes of its proposals, and every member's own lines come last.
func TestSrvrOfAnEnsemble(t *testing.T) {
	tr := startTrio(t, allWords)
	tr.waitServing()
	for i := range 3 {
		text := askWord(t, tr.peers[i].ClientAddr, "srvr")
		head, own, ok := strings.Cut(text, "Kvd version: ")
		leads := strings.Contains(head, "Mode: leader\n")
		if !ok || leads != strings.Contains(head, "\nProposal sizes last/min/max: ") || strings.Contains(own, "\nMode: ") {
			t.Errorf("member %d:\n%s", i+1, text)
		}
	}
}
