package ensemble

import (
	"net"
	"sync/atomic"
	"syscall"
)

// File descriptors. A process that has none left cannot write its log, and a log that cannot be written ends the
// member: clients that only connect must not be able to do that. So the highest descriptors that the process may open
// are kept for the members' own files and peers, and a client connection that got one of them is closed at once.
//
// The kernel gives a new socket the lowest number that is free. The number therefore says how many descriptors are
// open, whoever opened them: several members in one process and the program that embeds them are counted
// without being asked, as long as every member adds its share to what is kept.

// What one member keeps by default. The log's file cache is bounded at 256 tables.
const (
	ownFiles  = 288 // tables, journal and manifest of the log, snapshots being written, read and sent
	peerFiles = 8   // connections with one peer, old and new ones while they are replaced
)

// reservedFiles is what the running members of this process keep together.
var reservedFiles atomic.Int64

// defaultReservedFiles is a member's share. Where descriptors are scarce clients get half of them.
func defaultReservedFiles(limit, peers int) int {
	return max(min(ownFiles+peerFiles*peers, limit/2), 1)
}

// clientFiles is the first descriptor that clients do not get. However many members share the process, clients have
// a quarter of what there is: a server that cannot be reached is of no use either.
func clientFiles(limit int, reserved int64) int {
	return int(max(int64(limit)-reserved, int64(limit)/4))
}

// reserveFiles keeps this member's share until releaseFiles.
func (p *clientPort) reserveFiles() {
	limit := p.cfg.fileLimit
	if reserved := reservedFiles.Add(int64(p.cfg.ReservedFiles)); int64(limit)-reserved < int64(limit)/4 {
		p.log.Warn("few file descriptors: the log may run out of them; raise the limit (ulimit -n)", "limit", limit, "reserved", reserved)
	}
	p.reserved.Store(true)
}

// releaseFiles gives the share back. Calls after the first, or without reserveFiles, do nothing.
func (p *clientPort) releaseFiles() {
	if p.reserved.Swap(false) {
		reservedFiles.Add(-int64(p.cfg.ReservedFiles))
	}
}

// admit reports whether a connection just accepted leaves enough descriptors, and closes it if not.
func (p *clientPort) admit(nc net.Conn) bool {
	most := clientFiles(p.cfg.fileLimit, reservedFiles.Load())
	if descriptor(nc) < most {
		return true
	}
	p.mu.Lock()
	p.refused++
	p.mu.Unlock()
	remote := nc.RemoteAddr().String()
	_ = nc.Close()
	p.sayLimited("client refused: the other file descriptors are kept for the log and the peers", "client", remote, "connections", p.connections(),
		"limit", p.cfg.fileLimit, "for_clients", most)
	return false
}

// descriptor is the number of a connection's socket, -1 if it has none.
func descriptor(nc net.Conn) int {
	n := -1
	if s, ok := nc.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { n = int(fd) }) // fails if it is closed: then it holds none
		}
	}
	return n
}

// refusals is how many client connections a limit refused.
func (p *clientPort) refusals() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}
