package ensemble

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

func TestClientFiles(t *testing.T) {
	for _, c := range []struct {
		limit    int
		reserved int64
		want     int
	}{{1024, 304, 720}, {120, 60, 60}, {1024, 1000, 256}, {1024, 5000, 256}, {20000, 3 * 304, 19088}} {
		if got := clientFiles(c.limit, c.reserved); got != c.want {
			t.Errorf("limit %d, reserved %d: got %d, want %d", c.limit, c.reserved, got, c.want)
		}
	}
	for _, c := range []struct{ limit, peers, want int }{{20000, 0, 288}, {20000, 2, 304}, {1024, 2, 304}, {120, 2, 60}, {1, 0, 1}} {
		if got := defaultReservedFiles(c.limit, c.peers); got != c.want {
			t.Errorf("limit %d, %d peers: got %d, want %d", c.limit, c.peers, got, c.want)
		}
	}
}

// Clients that connect and do nothing get only the descriptors that are not reserved. The member goes on writing, and
// takes clients again when they are gone. The member's share is given back when it ends.
func TestIdleConnectionsLeaveDescriptors(t *testing.T) {
	before := reservedFiles.Load()
	const reserved, spare = 16, 60 // the test's own ends of the connections are in this process too
	logs := &logLines{}
	m, addr := startSingle(t, func(c *Config) {
		c.Logger = logs.logger()
		c.ReservedFiles = reserved
		c.fileLimit = openFiles(t) + int(before) + reserved + spare
	})
	if got := reservedFiles.Load() - before; got != reserved {
		t.Errorf("%d descriptors are reserved, want %d", got, reserved)
	}
	var idle []net.Conn
	for range spare {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = nc.Close() }()
		idle = append(idle, nc)
	}
	eventually(t, "every connection to be judged", func() bool {
		s := m.Status()
		return s.Connections+int(s.Refused) == spare
	})
	s := m.Status()
	if s.Connections == 0 || s.Refused == 0 {
		t.Errorf("%d of %d connections are served, %d refused", s.Connections, spare, s.Refused)
	}
	if n := logs.count("client refused", "file descriptors are kept"); n == 0 || n >= int(s.Refused) {
		t.Errorf("%d log lines about %d refusals", n, s.Refused)
	}
	ctx, cancel := context.WithTimeout(t.Context(), rawLimit)
	defer cancel()
	c, err := m.Client(ctx) // takes no descriptor
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	write(t, ctx, c, "/written")
	for _, nc := range idle {
		_ = nc.Close()
	}
	eventually(t, "room for a client", func() bool {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = nc.Close() }()
		_ = nc.SetDeadline(time.Now().Add(rawLimit))
		if _, err := nc.Write([]byte("ruok")); err != nil {
			return false
		}
		answer := make([]byte, 4)
		n, _ := nc.Read(answer)
		return strings.HasPrefix(string(answer[:n]), "imok")
	})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if got := reservedFiles.Load(); got != before {
		t.Errorf("%d descriptors stay reserved", got-before)
	}
}
