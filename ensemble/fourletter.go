package ensemble

import (
	"io"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"kvd/kv/wire"
	"kvd/zab"
)

// protocolVersion is what srvr and stat print as the version of the protocol spoken.
const protocolVersion = "3.9.0-kvd"

// answerWord answers a four-letter word; the connection ends afterwards.
func (p *clientPort) answerWord(c *conn, w wire.Word) {
	if w == wire.WordTelnetQuit {
		return
	}
	c.received.Add(1)
	var text []byte
	serving := p.gate.isOpen()
	switch {
	case !p.wordAllowed(w) || !w.Served():
		text = []byte(wire.AnswerNotAllowed(w))
	case w == wire.WordRuok:
		text = []byte(wire.AnswerRuok)
	case w == wire.WordIsro && serving:
		text = []byte(wire.AnswerIsroRW)
	case w == wire.WordIsro:
		text = []byte(wire.AnswerIsroNone)
	case w == wire.WordSrvr:
		s := p.serverStats(false)
		text = wire.AppendSrvr(nil, &s)
	default:
		s := p.serverStats(true)
		text = wire.AppendStatWord(nil, &s)
	}
	_ = c.nc.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.nc.Write(text); err != nil {
		return
	}
	// Closing with unread bytes would reset the connection, and the answer with it: say that no more comes, then
	// read what the client still has to say.
	if h, ok := c.nc.(interface{ CloseWrite() error }); ok && h.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, c.nc, 1<<10)
	}
}

func (p *clientPort) wordAllowed(w wire.Word) bool {
	return slices.Contains(p.cfg.FourLetterWords, "*") || slices.Contains(p.cfg.FourLetterWords, string(w))
}

// serverStats gathers what srvr and stat show.
func (p *clientPort) serverStats(clients bool) wire.ServerStats {
	st := p.status()
	view := p.tree.View()
	s := wire.ServerStats{
		Serving: p.gate.isOpen(), Version: protocolVersion, KvdVersion: p.cfg.Version,
		Connections: int64(p.connections()), Outstanding: int64(p.intake.outstanding()),
		Zxid: view.Zxid(), NodeCount: int64(view.NodeCount()), Digest: view.Digest(), DigestZxid: view.Zxid(),
		ProposalLast: -1, ProposalMin: -1, ProposalMax: -1,
		Member: uint64(p.cfg.ID), Pid: os.Getpid(), Leader: uint64(st.Leader), Epoch: st.Epoch, Health: "ok",
	}
	s.Role = p.mode(st.Role)
	s.Mode = s.Role
	switch {
	case st.Suspect != "":
		s.Health = "does not vote: " + st.Suspect
	case !s.Serving:
		s.Health = "no leader established"
	}
	s.LatencyMin, s.LatencyAvg, s.LatencyMax = p.latency.read()
	s.Received, s.Sent = p.latency.received.Load(), p.latency.sent.Load()
	p.each(func(c *conn) {
		recv, sent := c.received.Load(), c.sent.Load()
		s.Received += recv
		s.Sent += sent
		if clients {
			interest := 1
			if c.sessionID() == 0 {
				interest = 0
			}
			s.Clients = append(s.Clients, wire.ClientStats{Addr: c.remote, Interest: interest, Received: recv, Sent: sent})
		}
	})
	slices.SortFunc(s.Clients, func(a, b wire.ClientStats) int {
		if a.Addr < b.Addr {
			return -1
		}
		return 1
	})
	for _, m := range p.cfg.Members {
		s.Members = append(s.Members, wire.MemberAddr{ID: uint64(m.ID), Addr: m.ClientAddr, Observer: m.Observer})
	}
	return s
}

func (p *clientPort) mode(r zab.Role) wire.Mode {
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

// latencyStats are the member's request latencies and the packet counts of connections that have ended.
type latencyStats struct {
	received, sent      atomic.Int64
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
	for hi := b.max.Microseconds(); ; {
		old := l.max.Load()
		if hi <= old || l.max.CompareAndSwap(old, hi) {
			break
		}
	}
	for lo := b.min.Microseconds() + 1; ; { // kept plus one, so that 0 says "none yet"
		old := l.min.Load()
		if old != 0 && lo >= old || l.min.CompareAndSwap(old, lo) {
			break
		}
	}
	l.sum.Add(b.sum.Microseconds())
	l.seen.Add(b.n)
}

func (l *latencyStats) read() (lo, avg, hi time.Duration) {
	if n := l.seen.Load(); n > 0 {
		avg = time.Duration(l.sum.Load()/n) * time.Microsecond
	}
	return time.Duration(max(l.min.Load()-1, 0)) * time.Microsecond, avg, time.Duration(l.max.Load()) * time.Microsecond
}
