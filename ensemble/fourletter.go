package ensemble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kvd/kv/wire"
	"kvd/zab"
)

// Four-letter words (zookeeper-protocol 1.8, 10.1, 10.2). A word is answered on the connection's own goroutine, which
// owns nothing else; however long the answer is, it leaves in pieces, and a client that does not take one in time
// is cut. Nothing is locked while a piece is written.

// Patience with a client that asked for a word.
const (
	// wordStall bounds how long one piece of an answer may take to leave.
	wordStall = 5 * time.Second
	// wordLinger bounds what is read after the answer: closing with unread bytes would reset the connection, and the
	// answer with it.
	wordLinger      = time.Second
	wordLingerBytes = 64 << 10
	// wordPiece is how much of an answer is gathered before it is written.
	wordPiece = 16 << 10
)

// defaultTraceMask is what gtmk shows until stmk changes it. The mask is kept and means nothing else here.
const defaultTraceMask = 306

// wordWriter sends an answer. After a failed write everything does nothing, and gone reports it.
type wordWriter struct {
	c   *conn
	buf []byte
	err error
}

// gone reports whether there is no point in going on.
func (w *wordWriter) gone() bool { return w.err != nil }

// printf adds to the answer. It reports false if the client is gone.
func (w *wordWriter) printf(format string, args ...any) bool {
	w.buf = fmt.Appendf(w.buf, format, args...)
	return w.room()
}

// text adds to the answer. It reports false if the client is gone.
func (w *wordWriter) text(s string) bool {
	w.buf = append(w.buf, s...)
	return w.room()
}

// room sends a full piece.
func (w *wordWriter) room() bool {
	if len(w.buf) >= wordPiece {
		w.flush()
	}
	return w.err == nil
}

// flush sends what has gathered.
func (w *wordWriter) flush() {
	if w.err != nil || len(w.buf) == 0 {
		w.buf = w.buf[:0]
		return
	}
	stall := wordStall
	if d := w.c.port.cfg.wordStall; d > 0 {
		stall = d
	}
	_ = w.c.nc.SetWriteDeadline(time.Now().Add(stall))
	_, w.err = w.c.nc.Write(w.buf)
	w.c.heard.Store(w.c.port.clock.now()) // it takes its answer: the janitor has no reason to complain
	w.buf = w.buf[:0]
}

// answerWord answers a four-letter word; the connection ends afterwards.
func (p *clientPort) answerWord(c *conn, word wire.Word) {
	if word == wire.WordTelnetQuit {
		return
	}
	c.word.Store(true)
	c.received.Add(1)
	w := &wordWriter{c: c}
	p.writeWord(w, word)
	w.flush()
	if w.gone() {
		if errors.Is(w.err, os.ErrDeadlineExceeded) {
			c.close("the answer to " + string(word) + " is not read")
		}
		return
	}
	c.sent.Add(1)
	p.leave(c) // who asks next must not find this one
	_ = c.nc.SetReadDeadline(time.Now().Add(wordLinger))
	if h, ok := c.nc.(interface{ CloseWrite() error }); ok && h.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, c.nc, wordLingerBytes)
	}
}

// writeWord writes the answer to a word.
func (p *clientPort) writeWord(w *wordWriter, word wire.Word) {
	if !p.wordAllowed(word) {
		w.text(wire.AnswerNotAllowed(word))
		return
	}
	m := p.member
	mode := p.mode()
	serving := mode != wire.ModeLooking
	if !serving && !word.AlwaysAnswered() && word != wire.WordSrvr && word != wire.WordStat { // those have lines of their own
		w.text(wire.AnswerNotServing)
		return
	}
	switch word {
	case wire.WordRuok:
		w.text(wire.AnswerRuok)
	case wire.WordIsro:
		w.text(map[wire.Mode]string{wire.ModeLooking: wire.AnswerIsroNone, wire.ModeReadOnly: wire.AnswerIsroRO}[mode])
		if serving && mode != wire.ModeReadOnly {
			w.text(wire.AnswerIsroRW)
		}
	case wire.WordSrvr:
		s := m.serverStats(mode)
		w.buf = wire.AppendSrvr(w.buf, &s)
	case wire.WordStat:
		m.writeStat(w, mode)
	case wire.WordCons:
		m.writeCons(w)
	case wire.WordConf:
		m.writeConf(w)
	case wire.WordCrst:
		p.each(func(c *conn) { c.resetStats() })
		w.text(wire.AnswerCrst)
	case wire.WordSrst:
		received, sent := p.packets()
		p.latency.reset(received, sent)
		w.text(wire.AnswerSrst)
	case wire.WordDirs:
		data, log := m.directorySizes()
		w.printf("datadir_size: %d\nlogdir_size: %d\n", data, log)
	case wire.WordDump:
		m.writeDump(w, mode)
	case wire.WordEnvi:
		m.writeEnvironment(w)
	case wire.WordGtmk:
		w.printf("%d", p.traceMask.Load())
	case wire.WordStmk:
		b, err := w.c.frames.Peek(len(word) + wire.StmkBytes)
		if err != nil {
			w.err = err // the client ended before it said the mask
			return
		}
		p.traceMask.Store(int64(binary.BigEndian.Uint64(b[len(word):])))
		w.printf("%d", p.traceMask.Load())
	case wire.WordWchs:
		watchers, paths, watches := p.tree.WatchStats()
		w.printf("%d connections watching %d paths\nTotal watches:%d\n", watchers, paths, watches)
	case wire.WordWchc:
		m.writeWatchesBySession(w)
	case wire.WordWchp:
		m.writeWatchesByPath(w)
	case wire.WordHash:
		m.writeDigests(w)
	case wire.WordMntr:
		m.writeMonitor(w, mode)
	}
}

func (p *clientPort) wordAllowed(w wire.Word) bool {
	words := p.cfg.FourLetterWords
	return slices.Contains(words, "*") || slices.Contains(words, string(w)) || w == wire.WordIsro && p.cfg.ReadOnlyMode
}

// mode is what words call this member now; ModeLooking if it does not serve.
func (p *clientPort) mode() wire.Mode {
	switch p.portMode() {
	case portShut:
		return wire.ModeLooking
	case portReadOnly:
		return wire.ModeReadOnly
	case portServing:
	}
	return p.roleMode(p.member.Status().Role)
}

// packets are the packets received from and sent to all clients since the start.
func (p *clientPort) packets() (received, sent int64) {
	received, sent = p.latency.received.Load(), p.latency.sent.Load()
	p.each(func(c *conn) {
		received += c.received.Load()
		sent += c.sent.Load()
	})
	return received, sent
}

// buildTime is when this program was built, as far as it knows: the time of the commit, else of its file.
var buildTime = sync.OnceValue(func() time.Time {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if t, err := time.Parse(time.RFC3339, s.Value); s.Key == "vcs.time" && err == nil {
				return t
			}
		}
	}
	if path, err := os.Executable(); err == nil {
		if info, err := os.Stat(path); err == nil {
			return info.ModTime()
		}
	}
	return time.Time{}
})

// unreleased is the version of a build that knows none.
const unreleased = "0.1.0-dev"

// buildVersion is the version of this module as it was built, alone or in another program.
var buildVersion = sync.OnceValue(func() string {
	const module = "kvd"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unreleased
	}
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == module && m.Version != "" && m.Version != "(devel)" {
			return strings.TrimPrefix(m.Version, "v")
		}
	}
	return unreleased
})

// serverStats gathers what srvr and stat show beside the list of clients.
func (m *Member) serverStats(mode wire.Mode) wire.ServerStats {
	p := m.port
	st := m.Status()
	view := m.tree.View()
	s := wire.ServerStats{
		Serving: mode != wire.ModeLooking, Version: wire.ProtocolVersion(m.cfg.Version), Built: buildTime(), KvdVersion: m.cfg.Version,
		Connections: int64(st.Connections), Outstanding: int64(st.Outstanding), Mode: mode,
		Zxid: view.Zxid(), NodeCount: nodeCount(view), Digest: view.Digest(), DigestZxid: view.Zxid(),
		Member: uint64(m.cfg.ID), Pid: pid, Leader: uint64(st.Leader), Epoch: st.Epoch, Health: "ok", Role: p.roleMode(st.Role),
	}
	switch {
	case st.Suspect != "":
		s.Health = "does not vote: " + st.Suspect
	case mode == wire.ModeReadOnly:
		s.Health = "no leader established, serves reads"
	case !s.Serving:
		s.Health = "no leader established"
	}
	s.LatencyMin, s.LatencyAvg, s.LatencyMax = p.latency.read()
	s.Received, s.Sent = p.latency.since(p.packets())
	s.ProposalLast, s.ProposalMin, s.ProposalMax = m.counters.proposalSize.read()
	for _, other := range m.cfg.Members {
		s.Members = append(s.Members, wire.MemberAddr{ID: uint64(other.ID), Addr: other.ClientAddr, Observer: other.Observer})
	}
	return s
}

// roleMode is ZooKeeper's name of a role.
func (p *clientPort) roleMode(r zab.Role) wire.Mode {
	switch r {
	case zab.Leading:
		if p.cfg.standalone() {
			return wire.ModeStandalone
		}
		return wire.ModeLeader
	case zab.Following:
		return wire.ModeFollower
	case zab.Observing:
		return wire.ModeObserver
	}
	return wire.ModeLooking
}

// latencyStats are the member's request latencies and packet counts.
type latencyStats struct {
	received, sent      atomic.Int64 // of connections that have ended
	receivedBefore      atomic.Int64 // of all connections, at the last srst
	sentBefore          atomic.Int64
	min, max, sum, seen atomic.Int64 // microseconds
}

// latencyBatch gathers the latencies of what one flush answered, from frame to reply.
type latencyBatch struct {
	min, max, sum time.Duration
	n             int64
}

func (b *latencyBatch) add(d time.Duration) {
	d = max(d, 0)
	if b.n == 0 || d < b.min {
		b.min = d
	}
	b.max = max(b.max, d)
	b.sum += d
	b.n++
}

// answeredBatch gathers what one flush answered. The requests of a batch came in together, mostly, so that equal
// latencies are added up before they reach the member's histograms.
type answeredBatch struct {
	latencyBatch
	reads, updates latencyRun
}

// latencyRun is a number of requests of equal latency.
type latencyRun struct {
	d time.Duration
	n int64
}

// add records one request of a slot's kind.
func (b *answeredBatch) add(p *clientPort, d time.Duration, kind slotKind) {
	b.latencyBatch.add(d)
	switch kind {
	case slotRead:
		b.reads.add(&p.counters.reads, d)
	case slotWrite, slotSync:
		b.updates.add(&p.counters.updates, d)
	case slotCreate, slotResume, slotRefused:
	}
}

func (r *latencyRun) add(to *summary, d time.Duration) {
	if r.n > 0 && d != r.d {
		r.flush(to)
	}
	r.d = d
	r.n++
}

func (r *latencyRun) flush(to *summary) {
	if r.n > 0 {
		to.add(r.d.Microseconds(), r.n)
		r.n = 0
	}
}

// noteAnswered takes over a batch.
func (p *clientPort) noteAnswered(b *answeredBatch) {
	b.reads.flush(&p.counters.reads)
	b.updates.flush(&p.counters.updates)
	p.latency.note(&b.latencyBatch)
}

// note adds a batch.
func (l *latencyStats) note(b *latencyBatch) {
	if b.n == 0 {
		return
	}
	raise(&l.max, b.max.Microseconds())
	lower(&l.min, b.min.Microseconds()+1) // kept plus one, so that 0 says "none yet"
	l.sum.Add(b.sum.Microseconds())
	l.seen.Add(b.n)
}

func (l *latencyStats) read() (lo, avg, hi time.Duration) {
	if n := l.seen.Load(); n > 0 {
		avg = time.Duration(l.sum.Load()/n) * time.Microsecond
	}
	return time.Duration(max(l.min.Load()-1, 0)) * time.Microsecond, avg, time.Duration(l.max.Load()) * time.Microsecond
}

// reset is srst. received and sent are the present counts of all connections. What is answered meanwhile may be
// counted or not.
func (l *latencyStats) reset(received, sent int64) {
	l.receivedBefore.Store(received)
	l.sentBefore.Store(sent)
	l.min.Store(0)
	l.max.Store(0)
	l.sum.Store(0)
	l.seen.Store(0)
}

// since takes off what was before the last srst.
func (l *latencyStats) since(received, sent int64) (int64, int64) {
	return max(received-l.receivedBefore.Load(), 0), max(sent-l.sentBefore.Load(), 0)
}
