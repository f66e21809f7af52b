package wal

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"kvd/kv"
)

// RecoveryEpochs is by how much a recovery raises the accepted epoch. What was forgotten may include promises, and the
// members that were lost may have elected leaders this member never heard of: no epoch of theirs reaches the ones that
// follow a recovery, so nothing that was promised or logged in them is taken for what comes after it.
const RecoveryEpochs kv.Epoch = 1 << 20

// ErrNotAccepted is wrapped by the refusals of Accept and MarkSole: the directory is as it was.
var ErrNotAccepted = errors.New("wal: cannot be recovered like this")

func refusal(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrNotAccepted, fmt.Sprintf(format, args...))
}

// The store that a recovery has built waits under the first name until it takes the place of the old one, which is kept
// under the second. Part of the format.
const (
	recoveredSuffix = ".recovered"
	givenUpSuffix   = ".given-up"
)

// Acceptance says what accepting a prefix of a suspect log keeps and what it gives up.
type Acceptance struct {
	Identity Identity
	Suspect  string // why the log is suspect
	// Through is the end of the history from now on, Verified the end of what passed all checks before.
	Through, Verified kv.Zxid
	Base, LogStart    kv.Zxid
	Kept              int64 // entries that stay in the log
	// GivenUp counts the entries after Through that could be read: they are whole, and are given up all the same.
	GivenUp                     int64
	GivenUpFrom, GivenUpThrough kv.Zxid
	// Acked is how far the ack watermark says this member had acknowledged, 0 if that is not known. What lies between
	// Verified and Acked cannot be read, and is given up too.
	Acked kv.Zxid
	// Accepted is the accepted epoch after the recovery, Current the current one.
	Accepted, Current kv.Epoch
	Points            [][]byte
	// Aside is the path under which the old store is kept whole; its name with .txt is this text.
	Aside string
	// Finished: nothing was left to do but the last steps of an acceptance that had been interrupted.
	Finished bool
}

// String is what is kept and what is given up, in lines.
func (a *Acceptance) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cluster %x member %d\n", a.Identity.ClusterID, a.Identity.Member)
	fmt.Fprintf(&b, "found: %s\n", a.Suspect)
	fmt.Fprintf(&b, "accepted: the history through %v (base %v, %d entries in the log)\n", a.Through, a.Base, a.Kept)
	if a.GivenUp > 0 {
		fmt.Fprintf(&b, "given up: %d readable entries, %v to %v\n", a.GivenUp, a.GivenUpFrom, a.GivenUpThrough)
	}
	switch {
	case a.Acked > a.Verified && a.Acked.Epoch() == a.Verified.Epoch():
		fmt.Fprintf(&b, "given up: %d entries that were acknowledged and cannot be read, after %v through %v\n", a.Acked-a.Verified, a.Verified, a.Acked)
	case a.Acked > a.Verified:
		fmt.Fprintf(&b, "given up: the entries that were acknowledged and cannot be read, after %v through %v\n", a.Verified, a.Acked)
	case a.Acked == 0:
		fmt.Fprintf(&b, "given up: whatever was written after %v; how much that is cannot be told\n", a.Verified)
	case a.GivenUp == 0:
		b.WriteString("given up: no entry that this member had acknowledged\n")
	}
	fmt.Fprintf(&b, "epochs: current %d, accepted %d\n", a.Current, a.Accepted)
	return b.String()
}

// PlanAccept says what Accept would do, and changes nothing.
func PlanAccept(dir string, o Options, z kv.Zxid) (Acceptance, error) {
	p, err := prepareAccept(dir, o, z, true)
	if err != nil {
		return Acceptance{}, err
	}
	return p.plan, p.close()
}

// Accept makes the verified history through z the whole history of a suspect member that nobody runs, which votes again
// from then on. z is an entry or the base, not below the base, not beyond what passes all checks. The old store stays
// beside the new one, whole, under a name of its own.
//
// A crash leaves the old log or the new one: the new store is complete before the old one moves away, and Open finishes
// an exchange that was begun. Accept may then be called again. Errors that match ErrNotAccepted, ErrLocked and
// ErrNewerFormat leave the directory as it was.
func Accept(dir string, o Options, z kv.Zxid) (Acceptance, error) {
	p, err := prepareAccept(dir, o, z, false)
	if err != nil {
		return Acceptance{}, err
	}
	if !p.plan.Finished {
		err = p.carryOut()
	}
	if err == nil {
		err = p.writeIdentity()
	}
	if err = errors.Join(err, p.close()); err != nil {
		return p.plan, fmt.Errorf("wal: accept %s: %w", dir, err)
	}
	return p.plan, nil
}

// acceptor is one run of Accept. The old store is open for reading.
type acceptor struct {
	dir string
	o   Options
	fs  *fence
	old *store
	// closed: old is closed, or abandoned with its disk.
	closed bool
	meta   meta // of the old store
	wm     mark
	plan   Acceptance
}

// prepareAccept examines the directory as Open does, but keeps the verified part of a damaged store in reach.
func prepareAccept(dir string, o Options, z kv.Zxid, dry bool) (_ *acceptor, err error) {
	o.ensureDefaults(dir)
	p := &acceptor{dir: dir, o: o, fs: &fence{FS: o.FS, health: newHealth(), locks: &lockSet{}}}
	if _, err := p.fs.Stat(dir); err != nil {
		return nil, fmt.Errorf("wal: %w", err)
	}
	if _, err := p.fs.Lock(p.fs.PathJoin(dir, lockName)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	exists, err := storeExists(p.fs, o.LogDir)
	if err != nil {
		return nil, err
	}
	waits, err := storeExists(p.fs, o.LogDir+recoveredSuffix)
	switch {
	case err != nil:
		return nil, err
	case !exists && !waits:
		return nil, refusal("the log store %s is missing: nothing of a history can be verified", o.LogDir)
	case !exists && dry:
		p.o.LogDir += recoveredSuffix
	case !exists:
		if err := finishExchange(p.fs, o.LogDir); err != nil {
			return nil, err
		}
	}
	p.plan.Finished = !exists
	if err := p.judge(); err != nil {
		return nil, err
	}
	if p.plan.Finished {
		if z != p.plan.Verified {
			return nil, refusal("an earlier acceptance, through %v, was interrupted; it has to be finished first, with that zxid", p.plan.Verified)
		}
		p.plan.Through = z
		return p, nil
	}
	return p, p.choose(z)
}

// judge fills the plan with what is there.
func (p *acceptor) judge() error {
	id, idFound, idErr := readIdentity(p.fs, p.fs.PathJoin(p.dir, identityName))
	if _, err := classify(idErr); err != nil {
		return err
	}
	readOnly := p.o
	readOnly.readOnly = true
	db, err := openStore(p.fs, p.o.LogDir, &readOnly)
	if bad, err := classify(err); err != nil {
		return err
	} else if bad != nil {
		return refusal("the log store %s cannot be read at all (%s), so no part of its history can be verified", p.o.LogDir, shortReason(bad))
	}
	p.old = db
	m, found, err := readMeta(db.DB)
	if bad, err := classify(err); err != nil {
		return err
	} else if bad != nil || !found {
		return refusal("the log store %s has lost its own description (%v), so no part of its history can be verified", p.o.LogDir, bad)
	}
	p.meta = m
	var reasons []string
	scanned, err := scan(db.DB, &m)
	bad, err := classify(err)
	if err != nil {
		return err
	}
	if bad != nil {
		reasons = append(reasons, shortReason(bad))
	}
	switch note, err := readSmallFile(p.fs, p.fs.PathJoin(p.o.LogDir, damagedName), 4096); {
	case err == nil:
		reasons = append(reasons, "an earlier run found: "+string(note))
	case !isNotExist(err):
		return err
	}
	wm, err := openWatermark(p.fs, p.fs.PathJoin(p.o.LogDir, watermarkName), true)
	wmBad, err := classify(err)
	switch {
	case err != nil:
		return err
	case wmBad != nil:
		reasons = append(reasons, shortReason(wmBad))
	default:
		p.wm = wm.last
		if err := wm.file.Close(); err != nil {
			return err
		}
		if p.wm.generation > m.Generation || p.wm.meta > m.Version {
			reasons = append(reasons, "acknowledged state is missing")
		}
		if p.wm.generation == m.Generation {
			p.plan.Acked = p.wm.zxid
			if p.wm.zxid > scanned.last {
				reasons = append(reasons, fmt.Sprintf("acknowledged entries are missing: acknowledged through %v, readable through %v", p.wm.zxid, scanned.last))
			}
		}
	}
	p.plan.Identity = m.Identity
	switch {
	case idErr == nil && idFound && !m.Identity.IsZero() && id != m.Identity:
		return refusal("the identity file says cluster %x member %d, the log store cluster %x member %d: whose history this is cannot be told",
			id.ClusterID, id.Member, m.Identity.ClusterID, m.Identity.Member)
	case m.Identity.IsZero() && (!idFound || idErr != nil):
		return refusal("neither the log store nor an identity file says whose history this is")
	case m.Identity.IsZero():
		p.plan.Identity = id
		reasons = append(reasons, "the log store knows no identity")
	case idErr != nil:
		reasons = append(reasons, shortReason(idErr))
	case !idFound:
		reasons = append(reasons, "the identity file is missing")
	}
	if m.Suspect != "" {
		reasons = append(reasons, m.Suspect)
	}
	if len(reasons) == 0 && !m.Trusted {
		reasons = append(reasons, "the member has never been synced from a leader")
	}
	p.plan.Suspect = strings.Join(reasons, "; ")
	p.plan.Verified, p.plan.Base, p.plan.LogStart, p.plan.Current = scanned.last, m.Base, m.LogStart, m.Current
	p.plan.Kept, p.plan.Accepted, p.plan.Points = scanned.entries, m.Accepted, m.Points
	return nil
}

// choose checks z and counts what lies after it.
func (p *acceptor) choose(z kv.Zxid) error {
	a := &p.plan
	switch {
	case a.Suspect == "":
		return refusal("the log is sound, through %v: there is nothing to accept, and nothing of it is given up", a.Verified)
	case a.Verified == 0:
		return refusal("no entry and no snapshot of it can be verified")
	case z > a.Verified:
		return refusal("%v is beyond the verified history, which ends at %v", z, a.Verified)
	case z < a.Base:
		return refusal("%v is below the base %v, the snapshot that this member's state starts from; the verified history ends at %v", z, a.Base, a.Verified)
	case a.Accepted > ^kv.Epoch(0)-RecoveryEpochs:
		return refusal("epochs are exhausted")
	}
	a.Through, a.Accepted = z, a.Accepted+RecoveryEpochs
	a.Kept = 0
	seen := z == p.meta.LogStart
	err := p.walk(func(e *kv.Entry) bool {
		switch {
		case e.Zxid <= z:
			a.Kept++
			seen = seen || e.Zxid == z
		case a.GivenUp == 0:
			a.GivenUpFrom = e.Zxid
			fallthrough
		default:
			a.GivenUp++
			a.GivenUpThrough = e.Zxid
		}
		return true
	})
	switch {
	case err != nil:
		return err
	case !seen:
		return refusal("%v is no entry of this log", z)
	}
	a.Aside, err = freeName(p.fs, p.o.LogDir+givenUpSuffix)
	return err
}

// walk calls f for the verified entries after the log start, until f says false.
func (p *acceptor) walk(f func(*kv.Entry) bool) (err error) {
	if p.plan.Verified == p.meta.LogStart {
		return nil
	}
	it, err := p.old.NewIter(&pebble.IterOptions{LowerBound: []byte{entryPrefix}, UpperBound: entryKey(p.plan.Verified + 1)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		first, err := entryKeyZxid(it.Key())
		if err != nil {
			return err
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		g, err := decodeGroup(first, v)
		if err != nil {
			return err
		}
		for rd := g.reader(); ; {
			e, more, err := rd.next()
			if err != nil {
				return err
			}
			if !more {
				break
			}
			if e.Zxid > p.plan.Verified {
				return nil
			}
			if e.Zxid > p.meta.LogStart && !f(&e) {
				return nil
			}
		}
	}
	return it.Error()
}

// carryOut builds the new store, writes down what is done, and exchanges the two.
func (p *acceptor) carryOut() error {
	if err := p.build(); err != nil {
		return err
	}
	text := p.plan.String() + fmt.Sprintf("the log as it was: %s\n", p.fs.PathBase(p.plan.Aside))
	if err := writeFileAtomically(p.fs, p.plan.Aside+".txt", []byte(text)); err != nil {
		return err
	}
	old := p.old
	p.old = nil
	if err := closeStore(p.fs.health, old); err != nil {
		return err
	}
	if err := p.fs.Rename(p.o.LogDir, p.plan.Aside); err != nil {
		return err
	}
	if err := syncDir(p.fs, p.fs.PathDir(p.o.LogDir)); err != nil {
		return err
	}
	return finishExchange(p.fs, p.o.LogDir)
}

// finishExchange puts a store that waits in the place of the one that has been moved away.
func finishExchange(fs *fence, logDir string) error {
	if err := fs.Rename(logDir+recoveredSuffix, logDir); err != nil {
		return err
	}
	return syncDir(fs, fs.PathDir(logDir))
}

// build makes the new store under its waiting name. Whatever an earlier run left under it is worth nothing while the old
// store is in its place.
func (p *acceptor) build() error {
	waiting := p.o.LogDir + recoveredSuffix
	for _, left := range []string{waiting, waiting + ".new"} {
		if err := p.fs.RemoveAll(left); err != nil && !isNotExist(err) {
			return err
		}
	}
	if err := createStore(p.fs, waiting+".new", &p.o); err != nil {
		return err
	}
	db, err := openStore(p.fs, waiting+".new", &p.o)
	if err != nil {
		return err
	}
	_, err = guard(p.fs.health, func() (struct{}, error) { return struct{}{}, p.fill(db) })
	if err = errors.Join(err, closeStore(p.fs.health, db)); err != nil {
		return err
	}
	if err := p.fs.Rename(waiting+".new", waiting); err != nil {
		return err
	}
	return syncDir(p.fs, p.fs.PathDir(waiting))
}

// fill copies the entries through the chosen one and writes the new description, in this order: without it the store
// holds nothing.
func (p *acceptor) fill(db *store) error {
	var group []kv.Entry
	bytes := 0
	prev, chain := p.meta.LogStart, p.meta.LogStartChain
	batch := db.NewBatch()
	flush := func() error {
		if len(group) == 0 {
			return nil
		}
		v := make([]byte, groupBytes(prev, group))
		encodeGroup(v, prev, chain, group)
		if err := batch.Set(entryKey(group[0].Zxid), v, nil); err != nil {
			return err
		}
		last := &group[len(group)-1]
		prev, chain, group, bytes = last.Zxid, last.Chain, nil, 0
		if batch.Len() < p.o.MaxBatchBytes {
			return nil
		}
		if err := errors.Join(db.Apply(batch, pebble.NoSync), batch.Close()); err != nil {
			return err
		}
		batch = db.NewBatch()
		return p.fs.health.failure()
	}
	var failed error
	err := p.walk(func(e *kv.Entry) bool {
		if e.Zxid > p.plan.Through {
			return false
		}
		c := *e
		c.Payload = append([]byte(nil), e.Payload...)
		group = append(group, c)
		if bytes += len(c.Payload) + 16; bytes >= p.o.GroupBytes {
			failed = flush()
		}
		return failed == nil
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	if err := flush(); err != nil {
		return err
	}
	m := p.meta
	m.Identity, m.Trusted, m.Suspect, m.Sole = p.plan.Identity, true, "", false
	m.Accepted, m.PromisedTo = p.plan.Accepted, 0
	m.Generation = max(m.Generation, p.wm.generation) + 1
	m.Version = max(m.Version, p.wm.meta) + 1
	rec, err := encodeMeta(&m)
	if err != nil {
		return err
	}
	if err := batch.Set([]byte(metaKey), rec, nil); err != nil {
		return err
	}
	if err := db.ApplyNoSyncWait(batch, pebble.Sync); err != nil {
		return err
	}
	return errors.Join(batch.SyncWait(), batch.Close(), p.fs.health.failure())
}

// writeIdentity puts the file right. It comes after the exchange: until then the member stays suspect.
func (p *acceptor) writeIdentity() error {
	path := p.fs.PathJoin(p.dir, identityName)
	if id, found, err := readIdentity(p.fs, path); err == nil && found && id == p.plan.Identity {
		return nil
	}
	return writeFileAtomically(p.fs, path, encodeIdentity(p.plan.Identity))
}

func (p *acceptor) close() error {
	var err error
	// p.old stays: when the disk has died, a goroutine that guard has abandoned may still read from it.
	if p.old != nil && !p.closed {
		p.closed = true
		p.old.watch.retire()
		err = closeStore(p.fs.health, p.old)
	}
	return errors.Join(err, p.fs.locks.release())
}

// freeName is the first of prefix-1, prefix-2, ... that nothing has.
func freeName(fs vfs.FS, prefix string) (string, error) {
	for n := 1; ; n++ {
		name := fmt.Sprintf("%s-%d", prefix, n)
		if _, err := fs.Stat(name); isNotExist(err) {
			return name, nil
		} else if err != nil {
			return "", err
		}
	}
}

// MarkSole makes a sound member that nobody runs the sole survivor of its ensemble: at its next start it may lead without
// a quorum of voters, but only to bring blank and suspect members up to date (State.Sole). The accepted epoch rises by
// RecoveryEpochs in the same batch. It reports false, and changes nothing, if the mark was there already.
func MarkSole(dir string, o Options) (State, bool, error) {
	if _, err := markable(Inspect(dir, o)); err != nil { // before anything is opened for writing
		return State{}, false, err
	}
	done := make(chan error, 1)
	o.Completed = func(c Completion) {
		select {
		case done <- c.Err:
		default:
		}
	}
	l, r, err := Open(dir, o)
	if err != nil {
		return State{}, false, err
	}
	st, err := markable(l.State(), r, nil)
	if err != nil || st.Sole {
		return st, false, errors.Join(err, l.Close())
	}
	yes := true
	l.Submit(Write{Seq: 1, Accepted: &Promise{Epoch: st.Accepted + RecoveryEpochs}, Sole: &yes})
	err = <-done
	st = l.State()
	return st, err == nil, errors.Join(err, l.Close())
}

func markable(st State, r Report, err error) (State, error) {
	switch {
	case err != nil:
		return st, err
	case st.Suspect != "" || r.Damaged:
		return st, refusal("this member may have lost a part of its history itself (%s); accept what is verified first, with --accept-up-to %v", st.Suspect, r.VerifiedThrough)
	case st.ClusterID == [16]byte{}:
		return st, refusal("this member is blank: it has survived nothing")
	case !st.Trusted:
		return st, refusal("this member has never been synced from a leader: what it holds may be a part of a history")
	case st.Last == 0 && st.Accepted == 0:
		return st, refusal("this member holds nothing")
	case st.Accepted > ^kv.Epoch(0)-RecoveryEpochs:
		return st, refusal("epochs are exhausted")
	}
	return st, nil
}
