// Package history records what writers were told about each write, and checks a member's final tree
// against it: every acknowledged write is there, no failed one is, an unknown one at most once, and
// versions count exactly the writes that were applied.
//
// Two kinds of writes are enough to see each way of losing or repeating one:
//
//   - versioned sets: a key has one writer, which always names the version it expects, and never uses a value
//     twice. Then version n of a key was made by exactly one write, and that write is known unless
//     its outcome is.
//   - sequential creates: each with a value of its own, so that a node can be traced to the one call that
//     made it.
//
// A Recorder may be used by many goroutines; Check must not run beside them.
package history

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"kvd/kv"
)

// Outcome is what the caller was told.
type Outcome uint8

// The outcomes.
const (
	OK      Outcome = iota + 1
	Failed          // a definite refusal: the write must not be there
	Unknown         // the connection broke after it was sent: it may be there, once
)

// String names the outcome.
func (o Outcome) String() string { return [...]string{"none", "ok", "failed", "unknown"}[o] }

// Set is one versioned setData.
type Set struct {
	Path     string
	Value    string
	Expected int32 // version it named
	Version  int32 // resulting version, if OK
	Outcome  Outcome
}

// Create is one sequential create.
type Create struct {
	Prefix  string
	Value   string
	Path    string // what it was told it made, if OK
	Outcome Outcome
}

// Node is what a member holds at a path in the end.
type Node struct {
	Value   string
	Version int32
	Mzxid   kv.Zxid
}

// Counts sums a recording up.
type Counts struct{ OK, Failed, Unknown int }

// Recorder collects writes.
type Recorder struct {
	mu      sync.Mutex
	sets    map[string][]Set // by path
	creates []Create
	counts  Counts
}

// NewRecorder returns an empty one.
func NewRecorder() *Recorder { return &Recorder{sets: map[string][]Set{}} }

// Set records a versioned set after its outcome is known. The node must have been made at version 0.
func (r *Recorder) Set(s Set) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sets[s.Path] = append(r.sets[s.Path], s)
	r.count(s.Outcome)
}

// Create records a sequential create after its outcome is known.
func (r *Recorder) Create(c Create) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.creates = append(r.creates, c)
	r.count(c.Outcome)
}

func (r *Recorder) count(o Outcome) {
	switch o {
	case OK:
		r.counts.OK++
	case Failed:
		r.counts.Failed++
	case Unknown:
		r.counts.Unknown++
	}
}

// Counts returns the totals so far.
func (r *Recorder) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}

// Paths returns the keys that were set, sorted.
func (r *Recorder) Paths() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for p := range r.sets {
		all = append(all, p)
	}
	slices.Sort(all)
	return all
}

// Check compares the recording with the final content of one member: every recorded key, and every node
// below the prefixes of the recorded creates. It returns all contradictions, in a stable order.
func (r *Recorder) Check(nodes map[string]Node) []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, path := range sortedKeys(r.sets) {
		checkSets(path, r.sets[path], nodes, bad)
	}
	r.checkCreates(nodes, bad)
	return errs
}

func checkSets(path string, sets []Set, nodes map[string]Node, bad func(string, ...any)) {
	node, ok := nodes[path]
	if !ok {
		bad("%s: the node is gone", path)
		return
	}
	acked := map[int32]Set{}     // by resulting version
	maybe := map[int32][]Set{}   // unknown ones, by the version they would have made
	byValue := map[string]*Set{} // every value ever sent
	for i, s := range sets {
		if other := byValue[s.Value]; other != nil {
			bad("%s: value %q was used twice: the recording is no good", path, s.Value)
		}
		byValue[s.Value] = &sets[i]
		switch s.Outcome {
		case OK:
			if s.Version != s.Expected+1 {
				bad("%s: set of %q on version %d was acknowledged as version %d", path, s.Value, s.Expected, s.Version)
			}
			if other, twice := acked[s.Version]; twice {
				bad("%s: version %d was acknowledged to %q and to %q", path, s.Version, other.Value, s.Value)
			}
			acked[s.Version] = s
		case Unknown:
			maybe[s.Expected+1] = append(maybe[s.Expected+1], s)
		}
	}
	// Every version up to the last was made by one write: an acknowledged one, or one unknown one.
	for v := int32(1); v <= node.Version; v++ {
		if _, ok := acked[v]; !ok && len(maybe[v]) == 0 {
			bad("%s: version %d was made by no write that was acknowledged or unknown", path, v)
		}
	}
	for v, s := range acked {
		if v > node.Version {
			bad("%s: LOST: %q was acknowledged as version %d, the node is at version %d", path, s.Value, v, node.Version)
		}
	}
	// The value tells which write made the last version.
	if node.Version == 0 {
		return
	}
	last := byValue[node.Value]
	switch {
	case last == nil:
		bad("%s: value %q at version %d was never written", path, node.Value, node.Version)
	case last.Outcome == Failed:
		bad("%s: %q is there although its write was refused", path, node.Value)
	case last.Expected+1 != node.Version:
		bad("%s: %q made version %d but is there at version %d", path, node.Value, last.Expected+1, node.Version)
	default:
		if s, ok := acked[node.Version]; ok && s.Value != node.Value {
			bad("%s: LOST: version %d was acknowledged to %q and holds %q", path, node.Version, s.Value, node.Value)
		}
	}
}

func (r *Recorder) checkCreates(nodes map[string]Node, bad func(string, ...any)) {
	byValue := map[string]*Create{}
	prefixes := map[string]bool{}
	for i := range r.creates {
		c := &r.creates[i]
		if byValue[c.Value] != nil {
			bad("value %q was used twice: the recording is no good", c.Value)
		}
		byValue[c.Value] = c
		prefixes[c.Prefix] = true
		if c.Outcome != OK {
			continue
		}
		if node, ok := nodes[c.Path]; !ok {
			bad("LOST: create of %s (%q) was acknowledged, the node is not there", c.Path, c.Value)
		} else if node.Value != c.Value {
			bad("%s: acknowledged with %q, holds %q", c.Path, c.Value, node.Value)
		}
	}
	madeBy := map[string]string{} // value -> path
	for _, path := range sortedKeys(nodes) {
		if !ofPrefix(path, prefixes) {
			continue
		}
		node := nodes[path]
		c := byValue[node.Value]
		if c == nil {
			bad("%s: holds %q, which no create sent", path, node.Value)
			continue
		}
		if first, twice := madeBy[node.Value]; twice {
			bad("%q was applied twice: %s and %s", node.Value, first, path)
		}
		madeBy[node.Value] = path
		switch {
		case c.Outcome == Failed:
			bad("%s: is there although its create was refused", path)
		case c.Outcome == OK && c.Path != path:
			bad("%q was acknowledged as %s and is at %s", node.Value, c.Path, path)
		case !strings.HasPrefix(path, c.Prefix):
			bad("%q was created below %s and is at %s", node.Value, c.Prefix, path)
		}
	}
}

// ofPrefix reports whether path is prefix plus a sequence number.
func ofPrefix(path string, prefixes map[string]bool) bool {
	const digits = 10
	return len(path) > digits && prefixes[path[:len(path)-digits]]
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
