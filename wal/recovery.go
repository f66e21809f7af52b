package wal

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"kvd/kv"
)

// Report is the verdict of Open, for the line that start-up prints.
type Report struct {
	// Blank: there was nothing; a fresh store was created.
	Blank bool
	// Suspect is State.Suspect at open.
	Suspect string
	// Damaged: the store's content cannot be used. State shows an empty history, and the first Write moves the
	// store aside (log.damaged-N) and begins a new one.
	Damaged bool
	// Repaired lists what Open put right.
	Repaired []string
	// VerifiedThrough is the end of the history that passed all checks, also in a damaged store.
	VerifiedThrough kv.Zxid
	LogStart, Base  kv.Zxid
	// Acked is how far the ack watermark says this member acknowledged, 0 if it has nothing to say.
	Acked   kv.Zxid
	Entries int64
	Bytes   int64
	Took    time.Duration
}

// String is one line.
func (r Report) String() string {
	var b strings.Builder
	switch {
	case r.Blank:
		b.WriteString("log is empty: a new member")
	case r.Damaged:
		fmt.Fprintf(&b, "log is damaged: %s; verified through %v; it will be kept aside when this member is synced from the others", r.Suspect, r.VerifiedThrough)
	case r.Suspect != "":
		fmt.Fprintf(&b, "log may have lost something: %s; history held through %v", r.Suspect, r.VerifiedThrough)
	default:
		fmt.Fprintf(&b, "log is sound: history held through %v", r.VerifiedThrough)
	}
	if !r.Blank {
		fmt.Fprintf(&b, " (base %v, log from %v, %d entries, %d bytes, checked in %v)", r.Base, r.LogStart, r.Entries, r.Bytes, r.Took.Round(time.Millisecond))
	}
	for _, s := range r.Repaired {
		b.WriteString("; repaired: " + s)
	}
	return b.String()
}

// scanResult is what walking the whole retained log found.
type scanResult struct {
	last      kv.Zxid
	lastChain uint64
	entries   int64
	bytes     int64
	marks     []indexMark
}

// scan walks every retained entry, in order, and checks contiguity and digest chain from logStart on, and
// that the base lies where the meta record says (S30, S31). The error names the key; the result then holds
// what was verified before it.
func scan(db *pebble.DB, m *meta) (r scanResult, err error) {
	r = scanResult{last: m.LogStart, lastChain: m.LogStartChain}
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte{entryPrefix}, UpperBound: []byte{entryPrefixEnd}})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	baseSeen := m.Base == m.LogStart
	if baseSeen && m.BaseChain != m.LogStartChain {
		return r, fmt.Errorf("%w: base and log start are both %v with chain values %016x and %016x", ErrDamaged, m.Base, m.BaseChain, m.LogStartChain)
	}
	var index indexBuilder
	for ok := it.First(); ok; ok = it.Next() {
		first, err := entryKeyZxid(it.Key())
		if err != nil {
			return r, err
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return r, fmt.Errorf("group %v: %w", first, err)
		}
		g, err := decodeGroup(first, v)
		if err != nil {
			return r, err
		}
		// The first group may begin before logStart: it is dropped when all of it is old.
		straddles := r.entries == 0 && first <= m.LogStart
		if !straddles && (g.prev != r.last || g.prevChain != r.lastChain) {
			return r, fmt.Errorf("%w: group %v follows %v (chain %016x), but the log ends at %v (chain %016x): entries are missing between",
				ErrDamaged, first, g.prev, g.prevChain, r.last, r.lastChain)
		}
		index.group(&r, first)
		rd := g.reader()
		chain := g.prevChain
		for {
			before := rd.prev
			e, more, err := rd.next()
			if err != nil {
				return r, err
			}
			if !more {
				break
			}
			if chain = kv.ChainDigest(chain, e.Zxid, e.Payload); chain != e.Chain {
				return r, fmt.Errorf("%w: group %v: entry %v has chain %016x, computed %016x", ErrDamaged, first, e.Zxid, e.Chain, chain)
			}
			if e.Zxid <= m.LogStart {
				if e.Zxid == m.LogStart && e.Chain != m.LogStartChain {
					return r, fmt.Errorf("%w: group %v: log start %v has chain %016x, recorded %016x", ErrDamaged, first, e.Zxid, e.Chain, m.LogStartChain)
				}
				continue
			}
			if r.entries == 0 && straddles && before != m.LogStart {
				return r, fmt.Errorf("%w: group %v: the log starts after %v, but the first entry is %v", ErrDamaged, first, m.LogStart, e.Zxid)
			}
			if e.Zxid == m.Base {
				baseSeen = true
				if e.Chain != m.BaseChain {
					return r, fmt.Errorf("%w: group %v: base %v has chain %016x, recorded %016x", ErrDamaged, first, e.Zxid, e.Chain, m.BaseChain)
				}
			}
			r.last, r.lastChain = e.Zxid, e.Chain
			r.entries++
		}
		r.bytes += int64(len(v))
	}
	if err := it.Error(); err != nil {
		return r, fmt.Errorf("after %v: %w", r.last, err)
	}
	if !baseSeen {
		return r, fmt.Errorf("%w: the snapshot point %v is not in the log, which ends at %v", ErrDamaged, m.Base, r.last)
	}
	if r.last.Epoch() > m.Accepted {
		return r, fmt.Errorf("%w: the log ends at %v but the accepted epoch is %d", ErrDamaged, r.last, m.Accepted)
	}
	r.marks = index.marks
	return r, nil
}

// readMeta returns found=false for a store that never held a record.
func readMeta(db *pebble.DB) (m meta, found bool, err error) {
	v, closer, err := db.Get([]byte(metaKey))
	if errors.Is(err, pebble.ErrNotFound) {
		return emptyMeta(), false, nil
	}
	if err != nil {
		return emptyMeta(), false, fmt.Errorf("meta record: %w", err)
	}
	m, err = decodeMeta(v)
	return m, true, errors.Join(err, closer.Close())
}

// recover fills cur from the directory. On return either the store is open and usable (possibly suspect),
// or l.damaged is set, the store is closed and cur is an empty history.
func (l *Log) recover() (Report, error) {
	start := time.Now()
	done := make(chan struct{})
	defer close(done)
	go l.sayExamining(done)
	r, err := l.examine()
	r.Took = time.Since(start)
	return r, err
}

// sayExamining logs that Open is still reading the log, after a while and then now and then, until done. A large log
// takes its time, and so does a damaged block: Pebble looks for the flipped bit with 327,680 checksums, each time that it
// reads the block.
func (l *Log) sayExamining(done <-chan struct{}) {
	wait := l.opts.sayAfter
	for {
		timer := time.NewTimer(wait)
		select {
		case <-done:
			timer.Stop()
			return
		case <-timer.C:
			l.opts.Logger.Info("checking the log", "path", l.opts.LogDir)
		}
		wait = sayAgain
	}
}

// When Open says that it is still checking: first, then again.
const (
	sayFirst = 2 * time.Second
	sayAgain = 30 * time.Second
)

func (l *Log) examine() (Report, error) {
	var r Report
	id, idFound, idErr := readIdentity(l.fs, l.identityPath)
	idDamage, err := classify(idErr)
	if err != nil {
		return r, err
	}
	l.identityStale = idDamage != nil || !idFound
	exists, err := storeExists(l.fs, l.opts.LogDir)
	if err != nil {
		return r, err
	}
	if exists, err = l.settleExchange(exists, &r); err != nil {
		return r, err
	}
	if !exists && l.opts.readOnly {
		l.cur = durable{meta: emptyMeta(), lastChain: kv.ChainSeed()}
		if r.Blank = !idFound; idFound {
			l.cur.Identity = id
			l.cur.Suspect = fmt.Sprintf("the log store %s is missing", l.opts.LogDir)
			r.Suspect = l.cur.Suspect
		}
		return r, nil
	}
	if !exists {
		if err := createStore(l.fs, l.opts.LogDir, &l.opts); err != nil {
			return r, err
		}
		r.Blank = !idFound
	}
	damage := func(cause error) (Report, error) {
		r.Damaged, r.Suspect = true, shortReason(cause)
		return r, l.setDamaged(id, r.Suspect)
	}
	db, err := openStore(l.fs, l.opts.LogDir, &l.opts)
	if bad, err := classify(err); err != nil {
		return r, err
	} else if bad != nil {
		return damage(fmt.Errorf("log store %s: %w", l.opts.LogDir, bad))
	}
	l.setStore(db, nil)
	if note, err := readSmallFile(l.fs, l.fs.PathJoin(l.opts.LogDir, damagedName), 4096); err == nil {
		return damage(fmt.Errorf("log store %s: an earlier run found: %s", l.opts.LogDir, note))
	} else if !isNotExist(err) {
		return r, err
	}
	m, metaFound, err := readMeta(db.DB)
	if bad, err := classify(err); err != nil {
		return r, err
	} else if bad != nil {
		return damage(fmt.Errorf("log store %s: %w", l.opts.LogDir, bad))
	}
	found, err := scan(db.DB, &m)
	r.VerifiedThrough, r.LogStart, r.Base, r.Entries, r.Bytes = found.last, m.LogStart, m.Base, found.entries, found.bytes
	if bad, err := classify(err); err != nil {
		return r, err
	} else if bad != nil {
		return damage(fmt.Errorf("log store %s: %w", l.opts.LogDir, bad))
	}
	l.cur = durable{meta: m, last: found.last, lastChain: found.lastChain}
	l.index.reset(found)

	wm, err := openWatermark(l.fs, l.fs.PathJoin(l.opts.LogDir, watermarkName), l.opts.readOnly)
	wmDamage, err := classify(err)
	if err != nil {
		return r, err
	}
	l.setStore(db, wm)
	if wm != nil {
		r.Acked = wm.last.zxid
	}
	if err := l.judge(&r, id, idFound, idDamage, metaFound, wmDamage); err != nil || l.damaged {
		return r, err
	}
	if err := db.watch.settle(); err != nil {
		return damage(fmt.Errorf("log store %s: %w", l.opts.LogDir, err))
	}
	return r, nil
}

// settleExchange ends what a crash left of Accept. With the log in its place nothing has been exchanged, and the store that
// waits is worth nothing: it must not be found one day beside a log that was lost. Without the log the exchange had begun.
func (l *Log) settleExchange(exists bool, r *Report) (bool, error) {
	waiting := l.opts.LogDir + recoveredSuffix
	waits, err := storeExists(l.fs, waiting)
	switch {
	case err != nil || !waits:
		return exists, err
	case l.opts.readOnly:
		if !exists {
			l.opts.LogDir = waiting
		}
		return true, nil
	case exists:
		if err := l.fs.RemoveAll(waiting); err != nil {
			return true, err
		}
		return true, syncDir(l.fs, l.fs.PathDir(waiting))
	}
	r.Repaired = append(r.Repaired, "finished an interrupted kvd recover --accept-up-to")
	return true, finishExchange(l.fs, l.opts.LogDir)
}

// judge compares the independent witnesses (identity file, store, ack watermark) with each other.
func (l *Log) judge(r *Report, id Identity, idFound bool, idDamage error, metaFound bool, wmDamage error) error {
	cur := &l.cur
	stored := cur.Identity
	var reasons []string
	switch {
	case idDamage != nil:
		reasons = append(reasons, idDamage.Error())
	case idFound && !stored.IsZero() && id != stored:
		// Whose history this is cannot be told: none of it may be used.
		r.Damaged = true
		r.Suspect = fmt.Sprintf("the identity file %s says cluster %x member %d, the log store says cluster %x member %d",
			l.identityPath, id.ClusterID, id.Member, stored.ClusterID, stored.Member)
		return l.setDamaged(id, r.Suspect)
	case idFound && stored.IsZero():
		reasons = append(reasons, fmt.Sprintf("the log store %s knows no identity, the identity file says cluster %x member %d", l.opts.LogDir, id.ClusterID, id.Member))
		cur.Identity = id
	case !idFound && !stored.IsZero():
		if cur.Accepted == 0 && cur.last == 0 && cur.Generation == 0 {
			// The identity batch was durable and a crash came before the file was written. Nothing was promised
			// or logged yet, so nothing can have been forgotten.
			if l.opts.readOnly {
				break
			}
			if err := writeFileAtomically(l.fs, l.identityPath, encodeIdentity(stored)); err != nil {
				return err
			}
			r.Repaired = append(r.Repaired, "wrote the identity file after a crash during forming")
			break
		}
		reasons = append(reasons, fmt.Sprintf("the identity file %s is missing", l.identityPath))
	}
	switch {
	case wmDamage != nil:
		reasons = append(reasons, wmDamage.Error())
	case wmDamage == nil && (l.watermark.last.generation > cur.Generation || l.watermark.last.meta > cur.Version):
		reasons = append(reasons, fmt.Sprintf("acknowledged state is missing: the ack watermark is of generation %d and meta version %d, the store of %d and %d",
			l.watermark.last.generation, l.watermark.last.meta, cur.Generation, cur.Version))
	case l.watermark.last.generation == cur.Generation && l.watermark.last.zxid > cur.last:
		reasons = append(reasons, fmt.Sprintf("acknowledged entries are missing: acknowledged through %v, the log ends at %v", l.watermark.last.zxid, cur.last))
	}
	if !metaFound && cur.last != 0 {
		r.Damaged, r.Suspect = true, fmt.Sprintf("log store %s: entries without a meta record", l.opts.LogDir)
		return l.setDamaged(id, r.Suspect)
	}
	if cur.Suspect == "" && len(reasons) > 0 {
		cur.Suspect = strings.Join(reasons, "; ")
		l.metaDirty = true // the first batch makes the finding durable, before it overwrites what shows it
	}
	if cur.Suspect != "" {
		cur.Trusted, cur.Sole = false, false
		r.Suspect = cur.Suspect
	}
	return nil
}

// setDamaged closes what is open and shows an empty history under the identity of the file.
func (l *Log) setDamaged(id Identity, reason string) error {
	var err error
	db, wm := l.db, l.watermark
	l.setStore(nil, nil)
	if wm != nil {
		err = wm.file.Close()
	}
	if db != nil {
		db.watch.retire()
		err = errors.Join(err, closeStore(l.fs.health, db))
	}
	l.damaged = true
	l.cur = durable{meta: emptyMeta(), lastChain: kv.ChainSeed()}
	l.cur.Identity = id
	l.cur.Suspect = reason
	l.metaDirty = true
	l.index.reset(scanResult{})
	if err != nil {
		l.opts.Logger.Warn("closing the damaged log store", "error", err)
	}
	return l.fs.health.failure()
}

// replaceDamaged runs before the first batch of a damaged log: evidence aside, fresh store.
func (l *Log) replaceDamaged() error {
	kept, err := MoveAside(l.fs, l.opts.LogDir)
	if err != nil {
		return err
	}
	if err := createStore(l.fs, l.opts.LogDir, &l.opts); err != nil {
		return err
	}
	db, err := openStore(l.fs, l.opts.LogDir, &l.opts)
	if err != nil {
		return err
	}
	wm, err := openWatermark(l.fs, l.fs.PathJoin(l.opts.LogDir, watermarkName), false)
	if err != nil {
		return errors.Join(err, closeStore(l.fs.health, db))
	}
	l.setStore(db, wm)
	_ = db.watch.settle() // a store this young has nothing to find
	l.damaged = false
	l.opts.Logger.Warn("damaged log store kept aside", "path", kept, "reason", l.cur.Suspect)
	return nil
}
