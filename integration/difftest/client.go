package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// patience ends what hangs; nothing is measured by it.
const patience = 20 * time.Second

// fenceXid is the xid of the request that ends every step on every connection. The generator stays below it.
const fenceXid = 0x7f000000

// raw is one connection to one server, without any knowledge of the protocol but its frames.
type raw struct {
	nc     net.Conn
	r      *bufio.Reader
	closed bool // the server has closed it
}

func dialRaw(addr string) (*raw, error) {
	d := net.Dialer{Timeout: patience}
	nc, err := d.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &raw{nc: nc, r: bufio.NewReaderSize(nc, 16<<10)}, nil
}

// write sends bytes. A peer that has closed is not an error here: the next read tells.
func (c *raw) write(b []byte) {
	_ = c.nc.SetWriteDeadline(time.Now().Add(patience))
	_, _ = c.nc.Write(b)
}

var errSilent = errors.New("no answer")

// frame reads the next frame. io.EOF is any end of the connection, errSilent the end of our patience.
func (c *raw) frame(wait time.Duration) ([]byte, error) {
	if c.closed {
		return nil, io.EOF
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(wait))
	var head [4]byte
	_, err := io.ReadFull(c.r, head[:])
	if err == nil {
		n := binary.BigEndian.Uint32(head[:])
		if n > 128<<20 {
			return nil, fmt.Errorf("frame of %d bytes", n)
		}
		b := make([]byte, n)
		if _, err = io.ReadFull(c.r, b); err == nil {
			return b, nil
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, errSilent
	}
	c.closed = true
	return nil, io.EOF
}

func (c *raw) close() {
	c.closed = true
	_ = c.nc.Close()
}

// isEvent tells a watch event from a reply.
func isEvent(body []byte) bool {
	return len(body) >= 16 && int32(binary.BigEndian.Uint32(body)) == -1
}

// collect reads until n replies are in or the server closes. Events come in between.
func (c *raw) collect(n int, wait time.Duration) ([][]byte, error) {
	var all [][]byte
	for n > 0 {
		b, err := c.frame(wait)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, b)
		if !isEvent(b) {
			n--
		}
	}
	return all, nil
}

// fence asks for a node that never exists; what was raised before the answer precedes it.
func (c *raw) sendFence() {
	if !c.closed {
		r := Request{Op: opExists, Xid: fenceXid, Path: ptr("/-fence-")}
		c.write(r.encode(0))
	}
}

// awaitFence returns the frames before the fence's answer and the server's last zxid in it.
// errSilent means that it has not come within wait; it may then be awaited again.
func (c *raw) awaitFence(wait time.Duration) (before [][]byte, zxid int64, err error) {
	for {
		b, err := c.frame(wait)
		if errors.Is(err, io.EOF) {
			return before, 0, nil
		}
		if err != nil {
			return before, 0, fmt.Errorf("fence: %w", err)
		}
		if len(b) >= 16 && int32(binary.BigEndian.Uint32(b)) == fenceXid {
			return before, int64(binary.BigEndian.Uint64(b[4:])), nil
		}
		before = append(before, b)
	}
}

// handshake sends a ConnectRequest and returns the answer's body, io.EOF if there is none.
func (c *raw) handshake(body []byte) ([]byte, error) {
	c.write(frame(body))
	return c.frame(patience)
}

// admin is a session of the tester's own, with all rights.
type admin struct {
	c *raw
}

func newAdmin(addr string) (*admin, error) {
	c, err := dialRaw(addr)
	if err != nil {
		return nil, err
	}
	var e enc
	e.int(0)
	e.long(0)
	e.int(1 << 30)
	e.long(0)
	e.buffer(make([]byte, 16))
	e.bool(false)
	b, err := c.handshake(e.b)
	if err != nil {
		return nil, fmt.Errorf("handshake with %s: %w", addr, err)
	}
	if decodeConnect(b).get("timeOut").num <= 0 {
		return nil, fmt.Errorf("no session at %s", addr)
	}
	a := &admin{c: c}
	_, err = a.do(Request{Op: opAuth, Scheme: ptr("digest"), Data: []byte("super:admin")})
	return a, err
}

// do sends a request and returns its answer.
func (a *admin) do(r Request) (item, error) {
	r.Xid = 1
	a.c.write(r.encode(0))
	b, err := a.c.frame(patience)
	if err != nil {
		return item{}, fmt.Errorf("%v: %w", r, err)
	}
	return decodeReply(&r, b), nil
}
