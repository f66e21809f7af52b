package ensemble

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"kvd/ensemble/zoocfg"
)

var update = flag.Bool("update", false, "rewrite the generated tables of docs/operations.md")

// monitorAbsent are keys of ZooKeeper's mntr that have no meaning here, by reason. Names ending in * stand for a group.
var monitorAbsent = []struct{ why, keys string }{
	{"there is no Java virtual machine", "jvm_pause_time_ms"},
	{"the stages of ZooKeeper's request processors do not exist here", `prep_processor_request_queued outstanding_changes_queued outstanding_changes_removed
		request_commit_queued sync_processor_request_queued skip_learner_request_to_next_processor_count requests_not_forwarded_to_commit_processor
		prep_processor_queue_size prep_process_time proposal_process_time requests_in_session_queue pending_session_queue_size reads_after_write_in_session_queue
		reads_issued_from_session_queue session_queues_drained time_waiting_empty_pool_in_commit_processor_read_ms write_batch_time_in_commit_processor
		concurrent_request_processing_in_commit_processor read_commit_proc_req_queued write_commit_proc_req_queued commit_commit_proc_req_queued
		read_commit_proc_issued write_commit_proc_issued commit_process_time sync_processor_queue_size sync_process_time learner_request_processor_queue_size
		prep_processor_queue_time_ms close_session_prep_time read_commitproc_time_ms write_commitproc_time_ms local_write_committed_time_ms
		server_write_committed_time_ms read_final_proc_time_ms write_final_proc_time_ms sync_processor_queue_and_flush_time_ms sync_processor_queue_time_ms
		sync_processor_queue_flush_time_ms request_throttle_queue_time_ms om_proposal_process_time_ms om_commit_process_time_ms`},
	{"not measured", `propagation_latency proposal_latency proposal_ack_creation_latency commit_propagation_latency quorum_ack_latency learner_handler_qp_size
		learner_handler_qp_time_ms ack_latency write_per_namespace read_per_namespace inflight_snap_count inflight_diff_count startup_txns_loaded
		startup_txns_load_time startup_snap_load_time socket_closing_time connection_token_deficit N_quota_exceeded_error_per_namespace op_count_*`},
	{"watches go with their connection", "dead_watchers_cleaner_latency"},
	{"there is no TLS and no Netty", "non_mtls_remote_conn_count non_mtls_local_conn_count netty_queued_buffer_capacity"},
	{"snapshots are not taken or restored on demand", "snapshot_rate_limited_count restore_rate_limited_count restore_time"},
	{"newer than 3.9", "ttl_node_deleted_count ttl_node_created_count"},
}

// referenceMonitorKeys are those of zookeeper-protocol 10.3 beside the absent ones.
const referenceMonitorKeys = `
version server_state peer_state observer_master_id avg_latency max_latency min_latency packets_received packets_sent num_alive_connections outstanding_requests
uptime znode_count watch_count ephemerals_count approximate_data_size global_sessions local_sessions open_file_descriptor_count max_file_descriptor_count
connection_drop_probability last_client_response_size max_client_response_size min_client_response_size outstanding_tls_handshake auth_failed_count
quorum_size learners synced_followers synced_non_voting_followers synced_observers pending_syncs leader_uptime last_proposal_size max_proposal_size
min_proposal_size snapshot_error_count restore_error_count looking_count diff_count snap_count commit_count connection_request_count connection_rejected
bytes_received_count unrecoverable_error_count add_dead_watcher_stall_time dead_watchers_queued dead_watchers_cleared response_packet_cache_hits
response_packet_cache_misses response_packet_get_children_cache_hits response_packet_get_children_cache_misses ensemble_auth_success ensemble_auth_fail
ensemble_auth_skip revalidate_count connection_drop_count connection_revalidate_count sessionless_connections_expired stale_sessions_expired throttled_ops
learner_proposal_received_count learner_commit_received_count proposal_count quit_leading_due_to_disloyal_voter stale_requests stale_requests_dropped
stale_replies request_throttle_wait_count large_requests_rejected digest_mismatches_count unsuccessful_handshake insecure_admin_count tls_handshake_exceeded
cnxn_closed_without_zk_server_running response_bytes watch_bytes
fsynctime snapshottime dbinittime follower_sync_time observer_sync_time election_time node_created_watch_count node_deleted_watch_count
node_changed_watch_count node_children_watch_count unavailable_time leader_unavailable_time sync_processor_batch_size readlatency updatelatency`

// Every key of the reference is shown or listed as absent, and none is both.
func TestMonitorCoversTheReference(t *testing.T) {
	shown := map[string]bool{}
	for _, k := range monitorKeys {
		if shown[k.name] {
			t.Errorf("%s is there twice", k.name)
		}
		shown[k.name] = true
	}
	for _, s := range monitorSummaries {
		shown[s.name] = true
	}
	want := strings.Fields(referenceMonitorKeys)
	for _, name := range want {
		if !shown[name] {
			t.Errorf("%s is not shown", name)
		}
	}
	if len(want) != len(shown) {
		t.Errorf("%d keys are shown, the reference has %d", len(shown), len(want))
	}
	for _, a := range monitorAbsent {
		for _, name := range strings.Fields(a.keys) {
			if shown[name] {
				t.Errorf("%s is shown and listed as absent", name)
			}
		}
	}
}

// The tables of docs/operations.md are those of the code. `go test ./ensemble -run OperationsTables -update` renews them.
func TestOperationsTables(t *testing.T) {
	const path = "../docs/operations.md"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := replaceGenerated(t, string(b), "zoo.cfg keys", keyTable())
	text = replaceGenerated(t, text, "mntr keys", monitorTable())
	if text == string(b) {
		return
	}
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s is stale: run this test with -update", path)
}

// replaceGenerated puts content between the two markers of a generated part.
func replaceGenerated(t *testing.T, text, name, content string) string {
	t.Helper()
	begin, end := "<!-- generated: "+name+" -->\n", "<!-- end of generated: "+name+" -->\n"
	head, rest, ok := strings.Cut(text, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("no part %q", name)
	}
	return head + begin + content + end + tail
}

func keyTable() string {
	var b strings.Builder
	b.WriteString("\n| key | standing | meaning, or why | silent with |\n|---|---|---|---|\n")
	for _, k := range zoocfg.Keys() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Name, k.Standing, escapeCell(k.Meaning), escapeCell(k.Silent))
	}
	b.WriteString("\n")
	return b.String()
}

func escapeCell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

func monitorTable() string {
	var b strings.Builder
	b.WriteString("\n| key | shown by | meaning |\n|---|---|---|\n")
	for _, k := range monitorKeys {
		where := k.where
		if where == "" {
			where = "all"
		}
		fmt.Fprintf(&b, "| `zk_%s` | %s | %s |\n", k.name, where, escapeCell(k.help))
	}
	for _, s := range monitorSummaries {
		names := "avg, min, max, cnt, sum"
		if s.quantiles {
			names += ", p50, p95, p99, p999"
		}
		fmt.Fprintf(&b, "| `zk_*_%s` (%s) | all | %s |\n", s.name, names, escapeCell(s.help))
	}
	b.WriteString("| `zk_N_quota_{count,bytes}_{limit,usage}_per_namespace` | all | of the quotas below the top-level node N, added up |\n")
	b.WriteString("\nNot shown, because the value would not be true:\n\n")
	for _, a := range monitorAbsent {
		fmt.Fprintf(&b, "* %s: `%s`\n", a.why, strings.Join(strings.Fields(a.keys), "`, `"))
	}
	b.WriteString("\n")
	return b.String()
}
