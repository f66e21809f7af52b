package snapshot

// Trigger says when a member wants a new snapshot point of its own (design 5): when the log has grown enough to be
// worth it, measured in bytes, so that neither many small nor few large transactions make it write all the time.
type Trigger struct {
	MinLogBytes  int64  // log bytes since the last point that are always needed; default 64 MiB
	FullFraction int64  // and at least 1/FullFraction of the last full file; default 4
	MinEntries   uint64 // minimum distance in entries (snapCount); default 100,000
}

// EnsureDefaults fills zero fields.
func (t *Trigger) EnsureDefaults() {
	if t.MinLogBytes == 0 {
		t.MinLogBytes = 64 << 20
	}
	if t.FullFraction == 0 {
		t.FullFraction = 4
	}
	if t.MinEntries == 0 {
		t.MinEntries = 100_000
	}
}

// Due reports whether a new point is due: logBytes and entries were logged since the last point last (zero:
// none yet).
func (t Trigger) Due(logBytes int64, entries uint64, last Point) bool {
	return entries >= t.MinEntries && logBytes >= max(t.MinLogBytes, last.FullBytes()/t.FullFraction)
}

// NeedFull reports whether the point after last must be a full file: there is none yet, the deltas exceed half of
// the full one (what is loaded and streamed stays within 1.5 times the content), or there are too many to merge.
func NeedFull(last Point) bool {
	return last.IsZero() || last.DeltaBytes() > last.FullBytes()/2 || len(last.Files) >= maxChain
}

// maxChain is the number of files at which NeedFull asks for a full one; loading merges that many cursors.
const maxChain = 16
