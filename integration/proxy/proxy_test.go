package proxy

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// echo answers every connection with what it sends, until its end.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func start(t *testing.T) *Proxy {
	t.Helper()
	p, err := New(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func connect(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute)) // only ends what hangs
	return c
}

func exchange(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	back := make([]byte, len(text))
	if _, err := io.ReadFull(c, back); err != nil || string(back) != text {
		t.Fatalf("%q %v", back, err)
	}
}

func wantReset(t *testing.T, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 16)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("%d bytes, %v; want a reset", n, err)
	}
}

func TestCut(t *testing.T) {
	p := start(t)
	a, b := connect(t, p), connect(t, p)
	exchange(t, a, "one")
	exchange(t, b, "two")
	if n := p.Conns(); n != 2 {
		t.Fatalf("%d connections", n)
	}
	if n := p.Cut(); n != 2 {
		t.Fatalf("%d cut", n)
	}
	wantReset(t, a)
	wantReset(t, b)
	exchange(t, connect(t, p), "again")
}

func TestCutAfter(t *testing.T) {
	p := start(t)
	c := connect(t, p)
	exchange(t, c, "before")
	p.CutAfter(Down, 3)
	if _, err := io.WriteString(c, "abcdef"); err != nil {
		t.Fatal(err)
	}
	// A reset may overtake what was sent before it, never the other way round.
	got, err := io.ReadAll(c)
	if len(got) > 3 || string(got) != "abcdef"[:len(got)] || !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("%q %v", got, err)
	}
	if p.Pending(Down) {
		t.Fatal("still armed")
	}
	exchange(t, connect(t, p), "more than three bytes")

	p.CutAfter(Up, 100)
	p.CutAfter(Up, -1)
	exchange(t, connect(t, p), string(make([]byte, 200)))
}

func TestStall(t *testing.T) {
	p := start(t)
	c := connect(t, p)
	exchange(t, c, "x")
	for _, d := range []Direction{Up, Down} {
		p.Stall(d, true)
		if _, err := io.WriteString(c, "later"); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if n, err := c.Read(make([]byte, 5)); n != 0 || err == nil {
			t.Fatalf("%d bytes passed: %v", n, err)
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		p.Stall(d, false)
		back := make([]byte, 5)
		if _, err := io.ReadFull(c, back); err != nil || string(back) != "later" {
			t.Fatalf("%q %v", back, err)
		}
	}
	p.Stall(Down, true)
	if _, err := io.WriteString(c, "lost"); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	wantReset(t, c)
	p.Stall(Down, false)
}

func TestRefuse(t *testing.T) {
	p := start(t)
	old := connect(t, p)
	exchange(t, old, "x")
	p.Refuse(true)
	exchange(t, old, "still")
	c, err := net.Dial("tcp", p.Addr())
	if err == nil {
		_, err = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) { // it may come before Dial returns
		t.Fatal(err)
	}
	p.Refuse(false)
	exchange(t, connect(t, p), "back")
}

// An orderly end passes: a probe that shuts down its write side still gets the answer.
func TestHalfClose(t *testing.T) {
	p := start(t)
	c := connect(t, p)
	if _, err := io.WriteString(c, "ruok"); err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	if back, err := io.ReadAll(c); err != nil || string(back) != "ruok" {
		t.Fatalf("%q %v", back, err)
	}
	for p.Conns() != 0 {
		time.Sleep(time.Millisecond) // until the last copy has returned
	}
}

// A client of a member that is dead is cut at once.
func TestDeadTarget(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_ = l.Close()
	c, err := net.Dial("tcp", p.Addr())
	if err == nil {
		_, err = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) { // it may come before Dial returns
		t.Fatal(err)
	}
}
