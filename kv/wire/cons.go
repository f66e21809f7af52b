package wire

import (
	"fmt"
	"time"

	"kvd/kv"
)

// ConnStats is one connection in the answer to `cons`. A connection without a session has only what ClientStats has.
type ConnStats struct {
	ClientStats
	Session     kv.SessionID // 0: none, and the rest is not shown
	LastOp      Op           // 0: none yet, or one that failed as a write
	Established time.Time
	TimeoutMs   int32
	LastXid     int32   // of the last request with an ordinary xid; negative: none, and not shown
	LastZxid    kv.Zxid // of the last reply; NoZxid: none
	// LastReply is when the last reply was written, by a clock of the server's own; shown in milliseconds.
	LastReply                                       time.Duration
	LatencyLast, LatencyMin, LatencyAvg, LatencyMax time.Duration
}

// NoZxid is what `cons` prints for a connection without a reply.
const NoZxid = ^kv.Zxid(0)

// AppendCons appends the line of one connection. The answer is one line for each and an empty line.
func AppendCons(dst []byte, c *ConnStats) []byte {
	dst = fmt.Appendf(dst, " /%s[%x](queued=%d,recved=%d,sent=%d", c.Addr, c.Interest, c.Queued, c.Received, c.Sent)
	if c.Session == 0 {
		return append(dst, ")\n"...)
	}
	dst = fmt.Appendf(dst, ",sid=0x%x,lop=%s,est=%d,to=%d", uint64(c.Session), c.LastOp.Short(), c.Established.UnixMilli(), c.TimeoutMs)
	if c.LastXid >= 0 {
		dst = fmt.Appendf(dst, ",lcxid=0x%x", c.LastXid)
	}
	return fmt.Appendf(dst, ",lzxid=0x%x,lresp=%d,llat=%d,minlat=%d,avglat=%d,maxlat=%d)\n", uint64(c.LastZxid), c.LastReply.Milliseconds(),
		c.LatencyLast.Milliseconds(), c.LatencyMin.Milliseconds(), c.LatencyAvg.Milliseconds(), c.LatencyMax.Milliseconds())
}
