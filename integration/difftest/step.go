package main

import (
	"fmt"
	"strings"
)

// Step is one thing that is done to both servers. A step whose session or connection is not there does nothing, so
// that any step can be left out of a sequence.
type Step struct {
	Kind   string // connect, requests, cut, raw, word
	Slot   int    `json:",omitempty"` // which session
	Member int    `json:",omitempty"` // where to connect

	Connect  *Connect  `json:",omitempty"`
	Requests []Request `json:",omitempty"` // sent in one write
	Stale    bool      `json:",omitempty"` // over the session's former connection
	// Split sends the requests in two pieces, at this offset, with a fence of the other connections in between.
	Split int `json:",omitempty"`
	// Half sends only Split bytes and then cuts the connection.
	Half bool   `json:",omitempty"`
	Raw  []byte `json:",omitempty"` // first bytes on a new connection
	Word string `json:",omitempty"`
}

// Connect is a handshake.
type Connect struct {
	Protocol int32   `json:",omitempty"`
	LastSeen ZxidRef `json:",omitempty"`
	Timeout  int32
	Session  string `json:",omitempty"` // "": a new one. "own": resume. "unknown": an id nobody has
	Password string // zero, null, empty, short, right, wrong
	ReadOnly int    `json:",omitempty"` // -1: the byte is left out
	Extra    []byte `json:",omitempty"`
	Cut      int    `json:",omitempty"`
}

// String is how a step looks in a report.
func (s Step) String() string {
	var b strings.Builder
	switch s.Kind {
	case "connect":
		fmt.Fprintf(&b, "session %d connects to member %d: %+v", s.Slot, s.Member, *s.Connect)
	case "requests":
		fmt.Fprintf(&b, "session %d", s.Slot)
		if s.Stale {
			b.WriteString(" (former connection)")
		}
		if s.Split > 0 {
			fmt.Fprintf(&b, " (split at %d, half=%v)", s.Split, s.Half)
		}
		for i := range s.Requests {
			fmt.Fprintf(&b, "\n      %v", s.Requests[i])
		}
	case "cut":
		fmt.Fprintf(&b, "session %d is cut", s.Slot)
	case "raw":
		fmt.Fprintf(&b, "first bytes to member %d: %s", s.Member, shortBytes(s.Raw))
	case "word":
		fmt.Fprintf(&b, "member %d: %s", s.Member, s.Word)
	default:
		fmt.Fprintf(&b, "%+v", struct{ Kind string }{s.Kind})
	}
	return b.String()
}
