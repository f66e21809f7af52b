package transport

import "sync/atomic"

// counters are read by Stats.
type counters struct {
	dials, dialsFailed                  atomic.Uint64
	handshakesFailed, handshakesDropped atomic.Uint64
	refused                             [verdictCount]atomic.Uint64
	linksOpened, linksOverflowed        atomic.Uint64
	framesSent, framesEncoded           atomic.Uint64
	bytesSent, flushes                  atomic.Uint64
	badFrames, dialsOvertaken           atomic.Uint64
}

// Stats are totals since New.
type Stats struct {
	Dials, DialsFailed     uint64
	HandshakesFailed       uint64            // ended without a hello or without an answer
	HandshakesDropped      uint64            // too many at once
	DialsOvertaken         uint64            // accepted late, when a newer one of the same peer was there already
	Refused                map[string]uint64 // by cause (Verdict.String), in both directions
	LinksOpened, LinksOpen uint64
	LinksOverflowed        uint64 // closed because their queue was full
	FramesSent             uint64 // on links; a frame shared by n links counts n times
	FramesEncoded          uint64 // and here once
	BytesSent, Flushes     uint64 // on links
	BadFrames              uint64
}

// Stats returns the totals.
func (t *Transport) Stats() Stats {
	c := &t.counters
	s := Stats{
		Dials: c.dials.Load(), DialsFailed: c.dialsFailed.Load(), HandshakesFailed: c.handshakesFailed.Load(),
		HandshakesDropped: c.handshakesDropped.Load(), Refused: map[string]uint64{}, LinksOpened: c.linksOpened.Load(),
		LinksOverflowed: c.linksOverflowed.Load(), FramesSent: c.framesSent.Load(), FramesEncoded: c.framesEncoded.Load(),
		BytesSent: c.bytesSent.Load(), Flushes: c.flushes.Load(), BadFrames: c.badFrames.Load(), DialsOvertaken: c.dialsOvertaken.Load(),
	}
	for v := range c.refused {
		if n := c.refused[v].Load(); n > 0 {
			s.Refused[Verdict(v).String()] = n
		}
	}
	t.mu.Lock()
	s.LinksOpen = uint64(len(t.links))
	t.mu.Unlock()
	return s
}
