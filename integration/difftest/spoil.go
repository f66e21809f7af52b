package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// spoiler stands between the tester and a side and changes one thing in one answer of a run: what a tester is worth
// shows when its servers lie.
type spoiler struct {
	kind string // error, event or stat
	skip int    // so many that could be spoiled are let through

	mu      sync.Mutex
	spoiled bool
	wg      sync.WaitGroup
	open    map[net.Conn]bool
	ended   bool
}

var spoilKinds = map[string]bool{"error": true, "event": true, "stat": true}

// front puts a proxy before every member of a side. The function that it returns ends them.
func (p *spoiler) front(s *side) (func(), error) {
	p.open = map[net.Conn]bool{}
	var listeners []net.Listener
	end := func() {
		p.mu.Lock()
		p.ended = true
		for c := range p.open {
			_ = c.Close()
		}
		p.mu.Unlock()
		for _, l := range listeners {
			_ = l.Close()
		}
		p.wg.Wait()
	}
	for i, addr := range s.addrs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			end()
			return nil, err
		}
		listeners = append(listeners, l)
		s.addrs[i] = l.Addr().String()
		p.wg.Go(func() { p.accept(l, addr) })
	}
	return end, nil
}

// hold registers a connection, unless the proxy has ended.
func (p *spoiler) hold(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		_ = c.Close()
		return false
	}
	p.open[c] = true
	return true
}

func (p *spoiler) accept(l net.Listener, addr string) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", addr)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.hold(client) || !p.hold(server) {
			_ = client.Close()
			_ = server.Close()
			return
		}
		w := &spoiledConn{p: p, ops: map[int32]int32{}}
		p.wg.Go(func() {
			w.up(client, server)
			_ = server.Close()
		})
		p.wg.Go(func() {
			w.down(server, client)
			_ = client.Close()
			p.mu.Lock()
			delete(p.open, client)
			delete(p.open, server)
			p.mu.Unlock()
		})
	}
}

// spoiledConn follows one connection's requests, to know which answers hold a Stat.
type spoiledConn struct {
	p    *spoiler
	mu   sync.Mutex
	ops  map[int32]int32 // op by xid
	word bool            // no frames on this connection
}

const longestFrame = 64 << 20

// up copies requests. Bytes that are no frames are copied as they are.
func (w *spoiledConn) up(from io.Reader, to io.Writer) {
	var head [4]byte
	for {
		if n, err := io.ReadFull(from, head[:]); err != nil {
			_, _ = to.Write(head[:n])
			return
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > longestFrame {
			w.mu.Lock()
			w.word = true
			w.mu.Unlock()
			if _, err := to.Write(head[:]); err != nil {
				return
			}
			_, _ = io.Copy(to, from)
			return
		}
		body := make([]byte, n)
		got, err := io.ReadFull(from, body)
		if got >= 8 {
			w.mu.Lock()
			w.ops[int32(binary.BigEndian.Uint32(body))] = int32(binary.BigEndian.Uint32(body[4:]))
			w.mu.Unlock()
		}
		if _, e := to.Write(append(head[:], body[:got]...)); err != nil || e != nil {
			return
		}
	}
}

// down copies answers and spoils one of them. The first frame is the handshake's.
func (w *spoiledConn) down(from io.Reader, to io.Writer) {
	var head [4]byte
	for first := true; ; first = false {
		n, err := io.ReadFull(from, head[:])
		w.mu.Lock()
		word := w.word
		w.mu.Unlock()
		if err != nil || word {
			_, _ = to.Write(head[:n])
			if err == nil {
				_, _ = io.Copy(to, from)
			}
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[:]))
		if _, err := io.ReadFull(from, body); err != nil {
			return
		}
		if !first {
			w.spoil(body)
		}
		if _, err := to.Write(append(head[:], body...)); err != nil {
			return
		}
	}
}

// spoil changes an answer if it is the one.
func (w *spoiledConn) spoil(b []byte) {
	if len(b) < 16 {
		return
	}
	xid, code := int32(binary.BigEndian.Uint32(b)), int32(binary.BigEndian.Uint32(b[12:]))
	w.mu.Lock()
	op := w.ops[xid]
	w.mu.Unlock()
	at := -1
	switch {
	case xid >= fenceXid:
	case w.p.kind == "event" && xid == -1:
		at = 19 // the low byte of the type
	case xid == -1:
	case w.p.kind == "error" && code != 0:
		at = 15
	case w.p.kind == "stat" && code == 0 && (op == opExists || op == opSetData) && len(b) == 16+68:
		at = 16 + 4*8 + 3 // the low byte of version
	}
	if at < 0 {
		return
	}
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if w.p.skip > 0 {
		w.p.skip--
		return
	}
	if !w.p.spoiled {
		w.p.spoiled = true
		b[at] ^= 1
	}
}

// newSpoiler makes a spoiler of a kind that there is.
func newSpoiler(kind string, skip int) (*spoiler, error) {
	if !spoilKinds[kind] {
		return nil, fmt.Errorf("unknown kind of spoiling %q: error, event or stat", kind)
	}
	return &spoiler{kind: kind, skip: skip}, nil
}

// verdict turns the result of a spoiled run around: it must have failed with a difference.
func (p *spoiler) verdict(err error) error {
	var d *difference
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.spoiled:
		return errors.Join(fmt.Errorf("nothing was spoiled (%s)", p.kind), err)
	case err == nil:
		return fmt.Errorf("a spoiled %s was not noticed", p.kind)
	case !errors.As(err, &d) || d.model:
		return fmt.Errorf("a spoiled %s failed otherwise: %w", p.kind, err)
	}
	return nil
}
