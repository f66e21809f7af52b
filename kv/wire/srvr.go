package wire

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"kvd/kv"
)

// Mode is what `srvr` calls a member's role.
type Mode string

// The modes of ZooKeeper. A member that is not serving shows none of them.
const (
	ModeStandalone Mode = "standalone"
	ModeLeader     Mode = "leader"
	ModeFollower   Mode = "follower"
	ModeObserver   Mode = "observer"
	ModeReadOnly   Mode = "read-only"
	ModeLooking    Mode = "looking" // kvd's own, only in its Role line
)

// ServerStats is the content of the answers to `srvr` and `stat`.
//
// The first part is ZooKeeper's. The second is kvd's own and stands in lines of their own behind
// ZooKeeper's, so that tools that look for ZooKeeper's lines find them unchanged:
//
//	Kvd version: 0.1.0
//	Member: 2
//	Pid: 4711
//	Role: follower              leader, follower, observer, standalone or looking
//	Leader: 3                   0: none known
//	Epoch: 5
//	Health: ok                  or what is wrong, in words
//	Digest: 0x00c0ffee00c0ffee at 0x300000007      of the tree, for comparing members
//	Members: 1=h1:2181 2=h2:2181 3=h3:2181 4=h4:2181:observer
//
// A member that is not serving answers with AnswerNotServing, as ZooKeeper does, and the same lines of its
// own plus its Zxid: `kv status` shows it with its process id all the same.
type ServerStats struct {
	Serving     bool
	Version     string    // as ProtocolVersion makes it; letters, digits, dots and dashes
	Built       time.Time // zero: the epoch
	Clients     []ClientStats
	LatencyMin  time.Duration // shown in milliseconds
	LatencyAvg  time.Duration
	LatencyMax  time.Duration
	Received    int64
	Sent        int64
	Connections int64 // the asking connection included
	Outstanding int64
	Zxid        kv.Zxid
	Mode        Mode
	NodeCount   int64

	// Sizes of proposals in bytes, shown by a leader; -1 if there was none.
	ProposalLast, ProposalMin, ProposalMax int64

	KvdVersion string // empty: the server is no kvd
	Member     uint64
	Pid        int
	Role       Mode
	Leader     uint64
	Epoch      kv.Epoch
	Health     string // "ok", or a reason without line breaks
	Digest     uint64 // of the tree at DigestZxid
	DigestZxid kv.Zxid
	Members    []MemberAddr
}

// ClientStats is one connection in the answer to `stat`.
type ClientStats struct {
	Addr     string // ip:port
	Interest int    // 0 no session or closed, 1 reading, 5 reading and writing
	Queued   int64
	Received int64
	Sent     int64
}

// MemberAddr is one member's client address in the Members line.
type MemberAddr struct {
	ID       uint64
	Addr     string // host:port; empty if it is not configured
	Observer bool
}

// builtLayout is the form that every known parser takes; ZooKeeper has printed ISO dates since 3.5, which
// go-zookeeper refuses.
const builtLayout = "01/02/2006 15:04 GMT"

// ProtocolVersion is what a server of kvd's version says it is: the ZooKeeper whose behaviour it has, then its own
// version. Characters that parsers do not expect in a version become dashes.
func ProtocolVersion(version string) string {
	return "3.9.5-kvd." + strings.Map(func(c rune) rune {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '.', c == '-':
			return c
		}
		return '-'
	}, version)
}

// FullVersion is the version with the time of the build, as srvr, envi and mntr show it.
func (s *ServerStats) FullVersion() string {
	built := s.Built
	if built.IsZero() {
		built = time.Unix(0, 0)
	}
	return s.Version + ", built on " + built.UTC().Format(builtLayout)
}

// AppendSrvr appends the answer to `srvr`.
func AppendSrvr(dst []byte, s *ServerStats) []byte { return appendStats(dst, s, false) }

// AppendStatWord appends the answer to `stat`.
func AppendStatWord(dst []byte, s *ServerStats) []byte { return appendStats(dst, s, true) }

func appendStats(dst []byte, s *ServerStats, clients bool) []byte {
	if !s.Serving {
		dst = append(dst, AnswerNotServing...)
		if s.KvdVersion != "" {
			dst = fmt.Appendf(dst, "Zxid: 0x%x\n", uint64(s.Zxid))
		}
		return appendOwnLines(dst, s)
	}
	dst = AppendStatHead(dst, s)
	if clients {
		dst = append(dst, "Clients:\n"...)
		for i := range s.Clients {
			dst = AppendStatClient(dst, &s.Clients[i])
		}
		dst = append(dst, '\n')
	}
	return AppendStatTail(dst, s)
}

// AppendStatHead appends what srvr and stat have in front of the list of clients. A server with many clients streams
// them between AppendStatHead and AppendStatTail: the line "Clients:", AppendStatClient for each, an empty line.
func AppendStatHead(dst []byte, s *ServerStats) []byte {
	dst = fmt.Appendf(dst, "Zookeeper version: %s\n", s.FullVersion())
	if s.Mode == ModeReadOnly {
		dst = append(dst, "READ-ONLY mode; serving only read-only clients\n"...)
	}
	return dst
}

// AppendStatClient appends the line of one client.
func AppendStatClient(dst []byte, c *ClientStats) []byte {
	return fmt.Appendf(dst, " /%s[%x](queued=%d,recved=%d,sent=%d)\n", c.Addr, c.Interest, c.Queued, c.Received, c.Sent)
}

// AppendStatTail appends what follows the list of clients.
func AppendStatTail(dst []byte, s *ServerStats) []byte {
	dst = fmt.Appendf(dst, "Latency min/avg/max: %d/%s/%d\n", s.LatencyMin.Milliseconds(), FormatMillis(s.LatencyAvg), s.LatencyMax.Milliseconds())
	dst = fmt.Appendf(dst, "Received: %d\nSent: %d\nConnections: %d\nOutstanding: %d\n", s.Received, s.Sent, s.Connections, s.Outstanding)
	dst = fmt.Appendf(dst, "Zxid: 0x%x\nMode: %s\nNode count: %d\n", uint64(s.Zxid), s.Mode, s.NodeCount)
	if s.Mode == ModeLeader {
		dst = fmt.Appendf(dst, "Proposal sizes last/min/max: %d/%d/%d\n", s.ProposalLast, s.ProposalMin, s.ProposalMax)
	}
	return appendOwnLines(dst, s)
}

// FormatMillis prints a duration in milliseconds with one to four decimals, as ZooKeeper does averages.
func FormatMillis(d time.Duration) string {
	return FormatDecimal(float64(d) / float64(time.Millisecond))
}

// FormatDecimal prints a number with one to four decimals.
func FormatDecimal(f float64) string {
	text := strings.TrimRight(strconv.FormatFloat(f, 'f', 4, 64), "0")
	if strings.HasSuffix(text, ".") {
		text += "0"
	}
	return text
}

func appendOwnLines(dst []byte, s *ServerStats) []byte {
	if s.KvdVersion == "" {
		return dst
	}
	health := strings.Map(func(c rune) rune {
		if c == '\n' || c == '\r' {
			return ' '
		}
		return c
	}, s.Health)
	dst = fmt.Appendf(dst, "Kvd version: %s\nMember: %d\nPid: %d\nRole: %s\nLeader: %d\nEpoch: %d\nHealth: %s\nDigest: 0x%016x at 0x%x\nMembers:",
		s.KvdVersion, s.Member, s.Pid, s.Role, s.Leader, s.Epoch, health, s.Digest, uint64(s.DigestZxid))
	for _, m := range s.Members {
		dst = fmt.Appendf(dst, " %d=%s", m.ID, m.Addr)
		if m.Observer {
			dst = append(dst, ":observer"...)
		}
	}
	return append(dst, '\n')
}

// ParseSrvr reads an answer to `srvr`, from kvd or from any ZooKeeper since 3.4. Lines it does not know are
// skipped; it fails if the text is no such answer at all. Mode is also what Role is for a server that is no
// kvd.
func ParseSrvr(text []byte) (ServerStats, error) {
	var s ServerStats
	known := bytes.HasPrefix(text, []byte(strings.TrimSuffix(AnswerNotServing, "\n")))
	for line := range strings.Lines(string(text)) {
		key, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		var err error
		switch key {
		case "Zookeeper version":
			s.Version, _, _ = strings.Cut(value, ",")
			s.Serving, known = true, true
		case "Received":
			s.Received, err = strconv.ParseInt(value, 10, 64)
		case "Sent":
			s.Sent, err = strconv.ParseInt(value, 10, 64)
		case "Connections":
			s.Connections, err = strconv.ParseInt(value, 10, 64)
		case "Outstanding":
			s.Outstanding, err = strconv.ParseInt(value, 10, 64)
		case "Zxid":
			var z uint64
			z, err = strconv.ParseUint(value, 0, 64)
			s.Zxid = kv.Zxid(z)
		case "Mode":
			s.Mode, s.Role = Mode(value), Mode(value)
			s.Epoch = s.Zxid.Epoch()
		case "Node count":
			s.NodeCount, err = strconv.ParseInt(value, 10, 64)
		case "Kvd version":
			s.KvdVersion = value
		case "Member":
			s.Member, err = strconv.ParseUint(value, 10, 64)
		case "Pid":
			s.Pid, err = strconv.Atoi(value)
		case "Role":
			s.Role = Mode(value)
		case "Leader":
			s.Leader, err = strconv.ParseUint(value, 10, 64)
		case "Epoch":
			var e uint64
			e, err = strconv.ParseUint(value, 10, 32)
			s.Epoch = kv.Epoch(e)
		case "Health":
			s.Health = value
		case "Digest":
			digest, at, _ := strings.Cut(value, " at ")
			if s.Digest, err = strconv.ParseUint(digest, 0, 64); err == nil {
				var z uint64
				z, err = strconv.ParseUint(at, 0, 64)
				s.DigestZxid = kv.Zxid(z)
			}
		case "Members":
			s.Members, err = parseMembers(value)
		}
		if err != nil {
			return s, fmt.Errorf("wire: answer to srvr: line %q: %w", strings.TrimSpace(line), err)
		}
	}
	if !known {
		return s, fmt.Errorf("wire: this is no answer to srvr: %.60q", text)
	}
	return s, nil
}

func parseMembers(list string) ([]MemberAddr, error) {
	var members []MemberAddr
	for field := range strings.FieldsSeq(list) {
		id, addr, ok := strings.Cut(field, "=")
		n, err := strconv.ParseUint(id, 10, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("member %q is not ID=HOST:PORT", field)
		}
		addr, observer := strings.CutSuffix(addr, ":observer")
		members = append(members, MemberAddr{ID: n, Addr: addr, Observer: observer})
	}
	return members, nil
}
