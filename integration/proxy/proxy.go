package proxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Direction is one half of a connection.
type Direction uint8

// The two directions.
const (
	Up   Direction = iota // from the client to the member
	Down                  // from the member to the client
)

// dialLimit bounds the connect to the member; on loopback it is answered or refused at once.
const dialLimit = 5 * time.Second

// Proxy listens on a loopback port and passes every connection on to one target.
type Proxy struct {
	target   string
	listener net.Listener
	done     sync.WaitGroup

	mu      sync.Mutex
	links   map[*link]struct{}
	refuse  bool
	closed  bool
	stalled [2]bool
	flow    sync.Cond // stalled[d] became false, or a link ended
	armed   [2]bool   // CutAfter waits for left[d] more bytes
	left    [2]int64
}

// link is one connection of a client with its counterpart.
type link struct {
	client, member *net.TCPConn
	cut            bool
}

// New listens on a port of 127.0.0.1 taken from the kernel. The target (host:port) is dialled anew for every connection,
// so it may be dead in between; a client is then cut at once.
func New(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, listener: l, links: make(map[*link]struct{})}
	p.flow.L = &p.mu
	p.done.Add(1)
	go p.accept()
	return p, nil
}

// Addr is the host:port that clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Conns is the number of connections that pass at present.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Cut resets all connections, on both sides, and returns how many there were. New ones are taken.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cutLocked()
}

func (p *Proxy) cutLocked() int {
	n := len(p.links)
	for l := range p.links {
		l.reset()
		delete(p.links, l)
	}
	p.flow.Broadcast()
	return n
}

// reset ends both halves with an RST, so that neither side sees an orderly end. Called with mu held.
func (l *link) reset() {
	l.cut = true
	for _, c := range []*net.TCPConn{l.client, l.member} {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// CutAfter lets n more bytes pass in direction d, over all connections together, and then cuts all connections, which
// may be in the middle of a frame. It happens once; a later CutAfter of the same direction replaces it, and n < 0
// takes it back.
func (p *Proxy) CutAfter(d Direction, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed[d], p.left[d] = n >= 0, n
	if n == 0 {
		p.armed[d] = false
		p.cutLocked()
	}
}

// Pending reports whether a CutAfter of direction d has not happened yet.
func (p *Proxy) Pending(d Direction) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.armed[d]
}

// Stall stops (or lets flow again) what goes in direction d, on present and new connections. What was stalled is kept and
// passed on later, unless its connection is cut meanwhile; the sender sees only that its socket fills up.
func (p *Proxy) Stall(d Direction, stalled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled[d] = stalled
	p.flow.Broadcast()
}

// Refuse makes the proxy reset new connections as soon as they are accepted, or take them again. Present ones go on.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// Close ends the listener and all connections, and waits for the goroutines.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	_ = p.listener.Close()
	p.cutLocked()
	p.mu.Unlock()
	p.done.Wait()
}

func (p *Proxy) accept() {
	defer p.done.Done()
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p.done.Add(1)
		go p.serve(conn.(*net.TCPConn))
	}
}

// serve connects one client and copies in both directions until one of them ends.
func (p *Proxy) serve(client *net.TCPConn) {
	defer p.done.Done()
	l := &link{client: client}
	p.mu.Lock()
	refuse := p.refuse || p.closed
	p.mu.Unlock()
	var member net.Conn
	err := net.ErrClosed
	if !refuse {
		member, err = net.DialTimeout("tcp", p.target, dialLimit)
	}
	if err != nil {
		_ = client.SetLinger(0)
		_ = client.Close()
		return
	}
	l.member = member.(*net.TCPConn)
	p.mu.Lock()
	if p.refuse || p.closed {
		l.reset()
		p.mu.Unlock()
		return
	}
	p.links[l] = struct{}{}
	p.done.Add(1)
	p.mu.Unlock()
	go func() {
		defer p.done.Done()
		p.copy(l, l.member, l.client, Up)
	}()
	p.copy(l, l.client, l.member, Down)
}

// copy passes bytes on until the source ends. An orderly end is passed on as one of this direction only, the rest goes
// on until the other direction has ended too.
func (p *Proxy) copy(l *link, to, from *net.TCPConn, d Direction) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		pass, cut := p.admit(l, d, n)
		if pass > 0 {
			if _, werr := to.Write(buf[:pass]); werr != nil && err == nil {
				err = werr
			}
		}
		if cut {
			p.Cut()
			return
		}
		if err == nil {
			continue
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if errors.Is(err, io.EOF) && !l.cut {
			_ = to.CloseWrite()
			if d == Up {
				return // the member may still answer; it closes
			}
		}
		if !l.cut {
			// The member has closed (what it sent before was passed on), or one side was reset.
			l.cut = true
			_ = l.client.Close()
			_ = l.member.Close()
			delete(p.links, l)
			p.flow.Broadcast()
		}
		return
	}
}

// admit waits while d is stalled, then says how many of n bytes may pass and whether all is to be cut behind them.
func (p *Proxy) admit(l *link, d Direction, n int) (pass int, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.stalled[d] && !l.cut {
		p.flow.Wait()
	}
	if l.cut {
		return 0, false
	}
	if !p.armed[d] || int64(n) < p.left[d] {
		p.left[d] -= int64(n)
		return n, false
	}
	pass = int(p.left[d])
	p.armed[d] = false
	return pass, true
}
