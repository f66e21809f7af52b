package ensemble

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvd/ensemble/replica"
	"kvd/kv"
	"kvd/kv/wire"
	"kvd/wal"
	"kvd/zab"
)

// The word mntr (zookeeper-protocol 10.3): the keys that have a meaning here, with their true values. monitorKeys and
// monitorSummaries are the whole of it; docs/operations.md is checked against them.

// monitorFacts is one reading of everything that mntr shows.
type monitorFacts struct {
	m      *Member
	mode   wire.Mode
	srvr   wire.ServerStats
	view   *kv.View
	rep    *replica.Status
	wal    wal.Stats
	counts *portCounters
	now    time.Time
}

// monitorKey is one line of mntr. The value is an int64, a float64 or a string; nil leaves the line out.
type monitorKey struct {
	name  string
	where string // which members show it: "" all, else as the documentation says it
	help  string
	value func(*monitorFacts) any
}

// always is the value of a key that names something which cannot happen here.
func always(v int64) func(*monitorFacts) any { return func(*monitorFacts) any { return v } }

// counter shows a counter of the client port.
func counter(get func(*portCounters) int64) func(*monitorFacts) any {
	return func(f *monitorFacts) any { return get(f.counts) }
}

// tally shows a counter of the member.
func tally(get func(*memberCounters) int64) func(*monitorFacts) any {
	return func(f *monitorFacts) any { return get(&f.m.counters) }
}

// leader shows a value on a leader of an ensemble.
func leader(get func(*monitorFacts) any) func(*monitorFacts) any {
	return func(f *monitorFacts) any {
		if f.mode != wire.ModeLeader {
			return nil
		}
		return get(f)
	}
}

// learners counts the learners of a leader.
func learners(want func(*zab.LearnerStatus) bool) func(*monitorFacts) any {
	return leader(func(f *monitorFacts) any {
		var n int64
		for i := range f.rep.Learners {
			if want(&f.rep.Learners[i]) {
				n++
			}
		}
		return n
	})
}

// Who shows a key.
const (
	ofEnsemble = "in an ensemble"
	ofLeader   = "leader"
	ofObserver = "observer"
)

var monitorKeys = []monitorKey{
	{"version", "", "as in srvr", func(f *monitorFacts) any { return f.srvr.FullVersion() }},
	{"server_state", "", "standalone, leader, follower, observer or read-only", func(f *monitorFacts) any { return string(f.mode) }},
	{"peer_state", ofEnsemble, "role and stage", func(f *monitorFacts) any { return f.peerState() }},
	{"observer_master_id", ofObserver, "the leader, which observers follow here", func(f *monitorFacts) any {
		if f.mode != wire.ModeObserver {
			return nil
		}
		return int64(f.srvr.Leader)
	}},

	{"avg_latency", "", "milliseconds from frame to reply, since the start or srst", func(f *monitorFacts) any { return millis(f.srvr.LatencyAvg) }},
	{"max_latency", "", "", func(f *monitorFacts) any { return f.srvr.LatencyMax.Milliseconds() }},
	{"min_latency", "", "", func(f *monitorFacts) any { return f.srvr.LatencyMin.Milliseconds() }},
	{"packets_received", "", "", func(f *monitorFacts) any { return f.srvr.Received }},
	{"packets_sent", "", "", func(f *monitorFacts) any { return f.srvr.Sent }},
	{"num_alive_connections", "", "the asking one included", func(f *monitorFacts) any { return f.srvr.Connections }},
	{"outstanding_requests", "", "taken in and not answered", func(f *monitorFacts) any { return f.srvr.Outstanding }},
	{"uptime", "", "milliseconds", func(f *monitorFacts) any { return f.now.Sub(f.m.started).Milliseconds() }},
	{"znode_count", "", "the root counts twice, as in ZooKeeper", func(f *monitorFacts) any { return f.srvr.NodeCount }},
	{"watch_count", "", "of all kinds", func(f *monitorFacts) any { return int64(f.m.tree.WatchCount()) }},
	{"ephemerals_count", "", "", func(f *monitorFacts) any { return int64(f.view.EphemeralCount()) }},
	{"approximate_data_size", "", "bytes of all paths and data", func(f *monitorFacts) any { return f.view.DataBytes() + int64(len(f.m.port.config)) }},
	{"global_sessions", "", "", func(f *monitorFacts) any { return int64(f.view.SessionCount()) }},
	{"local_sessions", "", "of this member", func(f *monitorFacts) any { return f.m.port.localSessionCount() }},
	{"open_file_descriptor_count", "", "of the process; Linux", func(*monitorFacts) any {
		if n, ok := openDescriptors(); ok {
			return int64(n)
		}
		return nil
	}},
	{"max_file_descriptor_count", "", "of the process", func(f *monitorFacts) any { return int64(f.m.cfg.fileLimit) }},
	{"connection_drop_probability", "", "new connections are dropped by tokens, never by chance", func(*monitorFacts) any { return 0.0 }},
	{"last_client_response_size", "", "bytes of a reply; -1: none yet", func(f *monitorFacts) any { last, _, _ := f.counts.responseSize.read(); return last }},
	{"max_client_response_size", "", "", func(f *monitorFacts) any { _, _, most := f.counts.responseSize.read(); return most }},
	{"min_client_response_size", "", "", func(f *monitorFacts) any { _, least, _ := f.counts.responseSize.read(); return least }},
	{"outstanding_tls_handshake", "", "always 0: no TLS", always(0)},
	{"auth_failed_count", "", "", counter(func(c *portCounters) int64 { return c.authFailed.Load() })},

	{"quorum_size", ofEnsemble, "voting members", func(f *monitorFacts) any {
		if f.m.cfg.standalone() {
			return nil
		}
		var n int64
		for _, p := range f.m.cfg.Members {
			if !p.Observer {
				n++
			}
		}
		return n
	}},
	{"learners", ofLeader, "connected", learners(func(*zab.LearnerStatus) bool { return true })},
	{"synced_followers", ofLeader, "", learners(func(l *zab.LearnerStatus) bool { return l.Synced && l.Voter })},
	{"synced_non_voting_followers", ofLeader, "always 0: who does not vote is an observer", leader(always(0))},
	{"synced_observers", ofLeader, "", learners(func(l *zab.LearnerStatus) bool { return l.Synced && !l.Voter })},
	{"pending_syncs", ofLeader, "sync requests of its clients that wait for a quorum", leader(func(f *monitorFacts) any { return int64(f.rep.Syncs) })},
	{"leader_uptime", ofLeader, "milliseconds", leader(func(f *monitorFacts) any {
		since := f.m.counters.leadingSince.Load()
		if since == 0 {
			return nil
		}
		return max(f.now.UnixMilli()-since, 0)
	})},
	{"last_proposal_size", ofLeader, "bytes; -1: none in this term", leader(func(f *monitorFacts) any { return f.srvr.ProposalLast })},
	{"max_proposal_size", ofLeader, "", leader(func(f *monitorFacts) any { return f.srvr.ProposalMax })},
	{"min_proposal_size", ofLeader, "", leader(func(f *monitorFacts) any { return f.srvr.ProposalMin })},

	{"looking_count", "", "elections begun", tally(func(c *memberCounters) int64 { return c.looking.Load() })},
	{"diff_count", "", "learners synced from the log", tally(func(c *memberCounters) int64 { return c.diffs.Load() })},
	{"snap_count", "", "learners synced from a snapshot", tally(func(c *memberCounters) int64 { return c.snaps.Load() })},
	{"proposal_count", "", "transactions proposed as leader", tally(func(c *memberCounters) int64 { return c.proposals.Load() })},
	{"commit_count", "", "transactions committed as leader", tally(func(c *memberCounters) int64 { return c.commits.Load() })},
	{"learner_proposal_received_count", "", "", tally(func(c *memberCounters) int64 { return c.learnerProposals.Load() })},
	{"learner_commit_received_count", "", "", tally(func(c *memberCounters) int64 { return c.learnerCommits.Load() })},
	{"connection_request_count", "", "handshakes", counter(func(c *portCounters) int64 { return c.connectRequests.Load() })},
	{"connection_rejected", "", "by a limit", func(f *monitorFacts) any { return f.m.port.refusals() }},
	{"connection_revalidate_count", "", "sessions resumed here", counter(func(c *portCounters) int64 { return c.revalidated.Load() })},
	{"revalidate_count", "", "the same", counter(func(c *portCounters) int64 { return c.revalidated.Load() })},
	{"connection_drop_count", "", "new connections without a token", counter(func(c *portCounters) int64 { return c.dropped.Load() })},
	{"sessionless_connections_expired", "", "", counter(func(c *portCounters) int64 { return c.sessionlessExpired.Load() })},
	{"stale_sessions_expired", "", "by this member as leader", counter(func(c *portCounters) int64 { return c.sessionsExpired.Load() })},
	{"cnxn_closed_without_zk_server_running", "", "no leader was established", counter(func(c *portCounters) int64 { return c.notServing.Load() })},
	{"bytes_received_count", "", "of requests", counter(func(c *portCounters) int64 { return c.bytesReceived.Load() })},
	{"response_bytes", "", "", counter(func(c *portCounters) int64 { return c.responseBytes.Load() })},
	{"watch_bytes", "", "of events", counter(func(c *portCounters) int64 { return c.watchBytes.Load() })},
	{"throttled_ops", "", "answered -127", counter(func(c *portCounters) int64 { return c.throttledOps.Load() })},
	{"request_throttle_wait_count", "", "", counter(func(c *portCounters) int64 { return c.throttleWaits.Load() })},
	{"large_requests_rejected", "", "", counter(func(c *portCounters) int64 { return c.largeRejected.Load() })},
	{"stale_requests_dropped", "", "", counter(func(c *portCounters) int64 { return c.staleDropped.Load() })},
	{"stale_requests", "", "the same", counter(func(c *portCounters) int64 { return c.staleDropped.Load() })},
	{"stale_replies", "", "", counter(func(c *portCounters) int64 { return c.staleReplies.Load() })},
	{"digest_mismatches_count", "", "trees that differed from the leader's, as this member found when it led", func(f *monitorFacts) any { return int64(f.rep.Mismatches) }},

	// What cannot happen here.
	{"snapshot_error_count", "", "always 0: no snapshots on demand", always(0)},
	{"restore_error_count", "", "always 0: no restore", always(0)},
	{"unrecoverable_error_count", "", "always 0: such an error ends the member", always(0)},
	{"quit_leading_due_to_disloyal_voter", "", "always 0", always(0)},
	{"response_packet_cache_hits", "", "always 0: no cache", always(0)},
	{"response_packet_cache_misses", "", "always 0: no cache", always(0)},
	{"response_packet_get_children_cache_hits", "", "always 0: no cache", always(0)},
	{"response_packet_get_children_cache_misses", "", "always 0: no cache", always(0)},
	{"add_dead_watcher_stall_time", "", "always 0: watches go with their connection", always(0)},
	{"dead_watchers_queued", "", "always 0: watches go with their connection", always(0)},
	{"dead_watchers_cleared", "", "always 0: watches go with their connection", always(0)},
	{"ensemble_auth_success", "", "always 0: no such check", always(0)},
	{"ensemble_auth_fail", "", "always 0: no such check", always(0)},
	{"ensemble_auth_skip", "", "always 0: no such check", always(0)},
	{"insecure_admin_count", "", "always 0: no admin server", always(0)},
	{"tls_handshake_exceeded", "", "always 0: no TLS", always(0)},
	{"unsuccessful_handshake", "", "always 0: no TLS", always(0)},
}

// monitorSummary is a group of lines: avg_, min_, max_, cnt_ and sum_, with quantiles also p50_, p95_, p99_ and p999_.
type monitorSummary struct {
	name      string
	help      string
	quantiles bool
	micros    bool // recorded in microseconds, shown in milliseconds
	value     func(*monitorFacts) summaryValues
}

// recorded shows a summary of the member.
func recorded(get func(*memberCounters) *summary) func(*monitorFacts) summaryValues {
	return func(f *monitorFacts) summaryValues { return get(&f.m.counters).read() }
}

// fired shows how many watchers the changes of a kind had, those without any not counted.
func fired(e kv.EventType) func(*monitorFacts) summaryValues {
	return func(f *monitorFacts) summaryValues {
		changes, watchers, least, most := f.m.tree.Fired(e)
		return summaryValues{n: changes, sum: watchers, min: least, max: most}
	}
}

var monitorSummaries = []monitorSummary{
	{"fsynctime", "one sync of the log, ms", false, true, func(f *monitorFacts) summaryValues {
		return summaryValues{n: f.wal.Batches, sum: f.wal.SyncTime.Microseconds(), min: f.wal.SyncMin.Microseconds(), max: f.wal.SyncMax.Microseconds()}
	}},
	{"sync_processor_batch_size", "transactions that one sync carried", false, false, func(f *monitorFacts) summaryValues {
		return summaryValues{n: f.wal.EntryBatches, sum: f.wal.Entries, min: f.wal.EntriesMin, max: f.wal.EntriesMax}
	}},
	{"snapshottime", "writing a snapshot, ms", false, true, recorded(func(c *memberCounters) *summary { return &c.snapshot })},
	{"dbinittime", "opening log and snapshot at the start, ms", false, true, recorded(func(c *memberCounters) *summary { return &c.open })},
	{"election_time", "from looking to a leader, ms", false, true, recorded(func(c *memberCounters) *summary { return &c.election })},
	{"unavailable_time", "clients were not answered, ms", false, true, recorded(func(c *memberCounters) *summary { return &c.unavailable })},
	{"leader_unavailable_time", "the same, of a member that then led", false, true, recorded(func(c *memberCounters) *summary { return &c.leaderUnavailable })},
	{"follower_sync_time", "from finding the leader to answering clients, ms", false, true, recorded(func(c *memberCounters) *summary { return &c.followerSync })},
	{"observer_sync_time", "the same, of an observer", false, true, recorded(func(c *memberCounters) *summary { return &c.observerSync })},
	{"node_created_watch_count", "watchers told of one creation", false, false, fired(kv.EventNodeCreated)},
	{"node_deleted_watch_count", "", false, false, fired(kv.EventNodeDeleted)},
	{"node_changed_watch_count", "", false, false, fired(kv.EventNodeDataChanged)},
	{"node_children_watch_count", "", false, false, fired(kv.EventNodeChildrenChanged)},
	{"readlatency", "reads, from frame to reply, ms", true, true, func(f *monitorFacts) summaryValues { return f.counts.reads.read() }},
	{"updatelatency", "writes and syncs, from frame to reply, ms", true, true, func(f *monitorFacts) summaryValues { return f.counts.updates.read() }},
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// peerState is role and stage in ZooKeeper's words; nil for a single member.
func (f *monitorFacts) peerState() any {
	stages := map[zab.Stage]string{zab.Discovery: "discovery", zab.Synchronization: "synchronization", zab.Broadcast: "broadcast"}
	roles := map[zab.Role]string{zab.Leading: "leading", zab.Following: "following", zab.Observing: "observing", zab.Looking: "looking"}
	if f.m.cfg.standalone() {
		return nil
	}
	if f.rep.Role == zab.Looking {
		return "looking - election"
	}
	return roles[f.rep.Role] + " - " + stages[f.rep.Stage]
}

// monitorFacts reads everything once.
func (m *Member) monitorFacts(mode wire.Mode) *monitorFacts {
	return &monitorFacts{
		m: m, mode: mode, srvr: m.serverStats(mode), view: m.tree.View(), rep: m.freshStatus(), wal: m.wal.Stats(),
		counts: &m.port.counters, now: time.Now(),
	}
}

// writeMonitor writes the answer to mntr.
func (m *Member) writeMonitor(w *wordWriter, mode wire.Mode) {
	f := m.monitorFacts(mode)
	for i := range monitorKeys {
		k := &monitorKeys[i]
		switch v := k.value(f).(type) {
		case nil:
		case float64:
			w.printf("zk_%s\t%s\n", k.name, wire.FormatDecimal(v))
		default:
			w.printf("zk_%s\t%v\n", k.name, v)
		}
	}
	for i := range monitorSummaries {
		monitorSummaries[i].write(w, f)
	}
	for _, q := range quotaUsage(f.view) {
		w.printf("zk_%s_quota_count_limit_per_namespace\t%d\n", q.namespace, q.countLimit)
		w.printf("zk_%s_quota_bytes_limit_per_namespace\t%d\n", q.namespace, q.bytesLimit)
		w.printf("zk_%s_quota_count_usage_per_namespace\t%d\n", q.namespace, q.count)
		w.printf("zk_%s_quota_bytes_usage_per_namespace\t%d\n", q.namespace, q.bytes)
	}
}

func (s *monitorSummary) write(w *wordWriter, f *monitorFacts) {
	v := s.value(f)
	unit := int64(1)
	if s.micros {
		unit = 1000
	}
	avg := 0.0
	if v.n > 0 {
		avg = float64(v.sum) / float64(unit) / float64(v.n)
	}
	w.printf("zk_avg_%s\t%s\n", s.name, wire.FormatDecimal(avg))
	for _, l := range []struct {
		name  string
		value int64
	}{{"min", v.min / unit}, {"max", v.max / unit}, {"cnt", v.n}, {"sum", v.sum / unit}} {
		w.printf("zk_%s_%s\t%d\n", l.name, s.name, l.value)
	}
	if !s.quantiles {
		return
	}
	for _, l := range []struct {
		name  string
		value int64
	}{{"p50", v.p50}, {"p95", v.p95}, {"p99", v.p99}, {"p999", v.p999}} {
		w.printf("zk_%s_%s\t%d\n", l.name, s.name, l.value/unit)
	}
}

// quota adds up the quotas below one top-level node; a limit that is not set does not count, -1 if none is.
type quota struct {
	namespace              string
	countLimit, bytesLimit int64
	count, bytes           int64
}

// Names below /zookeeper/quota (zookeeper-protocol 5.4).
const (
	quotaRoot   = "/zookeeper/quota"
	quotaLimits = "zookeeper_limits"
	quotaStats  = "zookeeper_stats"
)

// quotaUsage reads the quotas of a view by top-level node, in order of their names. Its cost follows their number.
func quotaUsage(v *kv.View) []quota {
	namespaces, _, err := v.Children(quotaRoot, nil)
	if err != nil {
		return nil
	}
	var all []quota
	for _, name := range namespaces {
		q := quota{namespace: name, countLimit: -1, bytesLimit: -1}
		if found := q.gather(v, quotaRoot+"/"+name); found {
			all = append(all, q)
		}
	}
	slices.SortFunc(all, func(a, b quota) int { return cmp.Compare(a.namespace, b.namespace) })
	return all
}

// gather adds the quotas at path and below. It reports whether there is one.
func (q *quota) gather(v *kv.View, path string) (found bool) {
	names, _, err := v.Children(path, nil)
	if err != nil {
		return false
	}
	for _, name := range names {
		child := path + "/" + name
		switch name {
		case quotaLimits:
			data, _, err := v.Get(child)
			if err != nil {
				continue
			}
			found = true
			f := quotaFields(data)
			q.countLimit = addLimit(q.countLimit, f, "countHardLimit", "count")
			q.bytesLimit = addLimit(q.bytesLimit, f, "byteHardLimit", "bytes")
		case quotaStats:
			data, _, err := v.Get(child)
			if err != nil {
				continue
			}
			f := quotaFields(data)
			q.count += f["count"]
			q.bytes += f["bytes"]
		default:
			found = q.gather(v, child) || found
		}
	}
	return found
}

// addLimit adds the hard limit if there is one, else the soft one.
func addLimit(sum int64, f map[string]int64, hard, soft string) int64 {
	n, ok := f[hard]
	if !ok || n < 0 {
		n, ok = f[soft]
	}
	switch {
	case !ok || n < 0:
		return sum
	case sum < 0:
		return n
	}
	return sum + n
}

// quotaFields reads key=value pairs between commas, semicolons and the odd '='.
func quotaFields(data []byte) map[string]int64 {
	fields := map[string]int64{}
	for _, part := range bytes.FieldsFunc(data, func(c rune) bool { return c == ',' || c == ';' }) {
		key, value, _ := strings.Cut(strings.Trim(string(part), "= "), "=")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			fields[key] = n
		}
	}
	return fields
}
