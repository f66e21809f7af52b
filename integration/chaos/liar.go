package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"

	"kvd/integration/history"
	"kvd/kv/client"
	"kvd/kv/wire"
)

// liar is a client's connection on which one kind of mistake is planted, as a broken server would make it. It turns a
// request into an exists, which the server answers from what it has, and the reply into that of the request:
//
//   - plantSync: every sync. The server need not be up to date, and a read behind the sync may be stale.
//   - plantWrite: every lieEvery-th setData. Its reply acknowledges the version behind the present one, and
//     nothing is written.
//
// Reading and writing are each for one goroutine, as client.Dialer has it.
type liar struct {
	net.Conn
	plant string

	out     []byte // of a frame that is not complete
	in      []byte // read, to be looked at
	ready   []byte // to be handed to the reader
	greeted [2]bool

	mu    sync.Mutex
	lies  map[int32]string // path, by xid
	count int
}

// What can be planted.
const (
	plantSync  = "sync"
	plantWrite = "write"
	lieEvery   = 50
)

// dialer returns how clients connect with the mistake planted.
func dialer(plant string) client.Dialer {
	return func(ctx context.Context, addr string) (io.ReadWriteCloser, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return &liar{Conn: conn, plant: plant, lies: map[int32]string{}}, nil
	}
}

// frame takes the first complete frame, with its length, off b.
func frame(b []byte) (whole, rest []byte) {
	if len(b) < 4 || len(b)-4 < int(binary.BigEndian.Uint32(b)) {
		return nil, b
	}
	n := 4 + binary.BigEndian.Uint32(b)
	return b[:n:n], b[n:]
}

// Write implements io.Writer.
func (l *liar) Write(p []byte) (int, error) {
	l.out = append(l.out, p...)
	var send []byte
	for {
		var f []byte
		if f, l.out = frame(l.out); f == nil {
			break
		}
		if l.greeted[0] {
			f = l.request(f)
		}
		l.greeted[0] = true
		send = append(send, f...)
	}
	if _, err := l.Conn.Write(send); err != nil {
		return 0, err
	}
	return len(p), nil
}

// request: length, xid, operation, path.
func (l *liar) request(f []byte) []byte {
	if len(f) < 16 {
		return f
	}
	op, n := wire.Op(binary.BigEndian.Uint32(f[8:])), int(int32(binary.BigEndian.Uint32(f[12:])))
	if n < 0 || 16+n > len(f) {
		return f
	}
	path := string(f[16 : 16+n])
	switch {
	case l.plant == plantSync && op == wire.OpSync:
	case l.plant == plantWrite && op == wire.OpSetData && len(path) > len(history.GroupsRoot) && path[:len(history.GroupsRoot)] == history.GroupsRoot:
		if l.count++; l.count%lieEvery != 0 {
			return f
		}
	default:
		return f
	}
	l.mu.Lock()
	l.lies[int32(binary.BigEndian.Uint32(f[4:]))] = path
	l.mu.Unlock()
	exists := binary.BigEndian.AppendUint32(nil, uint32(8+4+n+1))
	exists = append(exists, f[4:8]...)
	exists = binary.BigEndian.AppendUint32(exists, uint32(wire.OpExists))
	exists = append(exists, f[12:16+n]...)
	return append(exists, 0)
}

// Read implements io.Reader.
func (l *liar) Read(p []byte) (int, error) {
	for len(l.ready) == 0 {
		var buf [16 << 10]byte
		n, err := l.Conn.Read(buf[:])
		l.in = append(l.in, buf[:n]...)
		for {
			var f []byte
			if f, l.in = frame(l.in); f == nil {
				break
			}
			if l.greeted[1] {
				f = l.reply(f)
			}
			l.greeted[1] = true
			l.ready = append(l.ready, f...)
		}
		if err != nil && len(l.ready) == 0 {
			return 0, err
		}
	}
	n := copy(p, l.ready)
	l.ready = l.ready[n:]
	return n, nil
}

// reply: length, xid, zxid, error, Stat: czxid, mzxid, ctime, mtime, version, ...
func (l *liar) reply(f []byte) []byte {
	const header, mzxid, version = 4 + 4 + 8 + 4, 20 + 8, 20 + 32
	if len(f) < header {
		return f
	}
	xid := int32(binary.BigEndian.Uint32(f[4:]))
	l.mu.Lock()
	path, lie := l.lies[xid]
	delete(l.lies, xid)
	l.mu.Unlock()
	switch {
	case !lie || len(f) < version+4:
		return f
	case l.plant == plantSync:
		answer := binary.BigEndian.AppendUint32(nil, uint32(header-4+4+len(path)))
		answer = append(answer, f[4:header]...)
		answer = binary.BigEndian.AppendUint32(answer, uint32(len(path)))
		return append(answer, path...)
	default:
		binary.BigEndian.PutUint64(f[mzxid:], binary.BigEndian.Uint64(f[8:]))
		binary.BigEndian.PutUint32(f[version:], binary.BigEndian.Uint32(f[version:])+1)
		return f
	}
}

// planted returns the options of clients for a run with a mistake.
func planted(plant string) ([]client.Option, error) {
	switch plant {
	case "":
		return nil, nil
	case plantSync, plantWrite:
		return []client.Option{client.WithDialer(dialer(plant))}, nil
	}
	return nil, fmt.Errorf("--plant %s: it is %s or %s", plant, plantSync, plantWrite)
}
