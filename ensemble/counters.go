package ensemble

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// portCounters count what `mntr` shows of the client port and of the member (zookeeper-protocol 10.3). All of them
// only grow, except gauges, and may be changed from any goroutine. On the hot path they are touched once a batch.
type portCounters struct {
	connectRequests    atomic.Int64 // connection_request_count: handshakes begun
	rejected           atomic.Int64 // connection_rejected: by a limit on connections or on their rate
	revalidated        atomic.Int64 // connection_revalidate_count: sessions resumed here
	sessionlessExpired atomic.Int64 // sessionless_connections_expired: no handshake in time
	dropped            atomic.Int64 // connection_drop_count: clients that went away without closing their session
	notServing         atomic.Int64 // cnxn_closed_without_zk_server_running: came while no leader was established
	authFailed         atomic.Int64 // auth_failed_count

	bytesReceived atomic.Int64 // bytes_received_count: bodies of requests
	responseBytes atomic.Int64 // response_bytes: bodies of replies
	watchBytes    atomic.Int64 // watch_bytes: events

	throttledOps  atomic.Int64 // throttled_ops: answered -127
	throttleWaits atomic.Int64 // request_throttle_wait_count: times that a reader waited
	largeRejected atomic.Int64 // large_requests_rejected
	staleDropped  atomic.Int64 // stale_requests_dropped: taken in, and the connection was gone when their turn came
	staleReplies  atomic.Int64 // stale_replies: results of connections that had gone

	sessionsExpired atomic.Int64 // stale_sessions_expired: by this member as leader

	responseSize sizeGauge // last_, max_, min_client_response_size

	reads   summary // readlatency, µs
	updates summary // updatelatency, µs

}

// sizeGauge keeps the last, least and greatest of some sizes in bytes; -1 if there was none.
type sizeGauge struct {
	lastP, minP, maxP atomic.Int64 // plus one, so that 0 says "none yet"
}

func (g *sizeGauge) note(n int64) {
	g.lastP.Store(n + 1)
	raise(&g.maxP, n+1)
	lower(&g.minP, n+1)
}

// noteBatch records a batch by its last, least and greatest value.
func (g *sizeGauge) noteBatch(last, least, most int64) {
	g.lastP.Store(last + 1)
	raise(&g.maxP, most+1)
	lower(&g.minP, least+1)
}

// noteSizes takes over the lengths of a batch of replies.
func (p *clientPort) noteSizes(r *replySizes) {
	if r.n > 0 {
		p.counters.responseBytes.Add(r.sum)
		p.counters.responseSize.noteBatch(r.last, r.least, r.most)
		*r = replySizes{}
	}
}

func (g *sizeGauge) read() (last, least, most int64) {
	return g.lastP.Load() - 1, g.minP.Load() - 1, g.maxP.Load() - 1
}

func (g *sizeGauge) reset() {
	g.lastP.Store(0)
	g.minP.Store(0)
	g.maxP.Store(0)
}

// raise makes a at least v.
func raise(a *atomic.Int64, v int64) {
	for old := a.Load(); v > old; old = a.Load() {
		if a.CompareAndSwap(old, v) {
			return
		}
	}
}

// lower makes a at most v; 0 stands for "none yet".
func lower(a *atomic.Int64, v int64) {
	for old := a.Load(); old == 0 || v < old; old = a.Load() {
		if a.CompareAndSwap(old, v) {
			return
		}
	}
}

// Buckets of a summary: values 0..7, then four to each doubling, so that a quantile is off by a quarter at most.
const (
	exactBuckets   = 8
	bucketsDoubled = 4
	summaryBuckets = exactBuckets + (40-3)*bucketsDoubled // up to 2^40, half a million seconds in µs
)

// summary gathers values that are not negative: number, sum, extremes and a histogram. Adding is a few atomic
// operations; it never blocks and never allocates.
type summary struct {
	n, sum, minP, max atomic.Int64 // minP plus one
	buckets           [summaryBuckets]atomic.Uint32
}

// add records n equal values.
func (s *summary) add(v, n int64) {
	v = max(v, 0)
	s.n.Add(n)
	s.sum.Add(v * n)
	raise(&s.max, v)
	lower(&s.minP, v+1)
	s.buckets[bucketOf(v)].Add(uint32(n))
}

// addDuration records one duration in microseconds.
func (s *summary) addDuration(d time.Duration) { s.add(d.Microseconds(), 1) }

func bucketOf(v int64) int {
	if v < exactBuckets {
		return int(v)
	}
	log := bits.Len64(uint64(v)) - 1 // at least 3
	return min(exactBuckets+(log-3)*bucketsDoubled+int(v>>(log-2))&3, summaryBuckets-1)
}

// bucketTop is the greatest value of a bucket.
func bucketTop(i int) int64 {
	if i < exactBuckets {
		return int64(i)
	}
	i -= exactBuckets
	log := 3 + i/bucketsDoubled
	return int64(i%bucketsDoubled+5)<<(log-2) - 1
}

// summaryValues is one reading of a summary. The parts are read one after the other: under load they may differ by
// what came meanwhile.
type summaryValues struct {
	n, sum, min, max int64
	p50, p95, p99    int64
	p999             int64
}

func (s *summary) read() summaryValues {
	v := summaryValues{n: s.n.Load(), sum: s.sum.Load(), min: max(s.minP.Load()-1, 0), max: s.max.Load()}
	var counts [summaryBuckets]uint64
	var total uint64
	for i := range counts {
		counts[i] = uint64(s.buckets[i].Load())
		total += counts[i]
	}
	quantile := func(permille uint64) int64 {
		rank, seen := (total*permille+999)/1000, uint64(0)
		for i, n := range counts {
			if seen += n; n > 0 && seen >= rank {
				return min(bucketTop(i), v.max)
			}
		}
		return 0
	}
	v.p50, v.p95, v.p99, v.p999 = quantile(500), quantile(950), quantile(990), quantile(999)
	return v
}
