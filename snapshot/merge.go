package snapshot

import (
	"bytes"
	"fmt"
)

// run is one sorted sequence of records or deletions, as merge sees it.
type run struct {
	file       string
	rank       int          // of several runs at the same key the one of the greatest rank, the newest file, counts
	next       func() error // moves key, value and deleted to the next record; key nil: the end
	key, value []byte       // key begins with the table byte
	deleted    bool
}

func (r *run) step() error {
	prev := r.key
	if err := r.next(); err != nil {
		return err
	}
	if prev != nil && r.key != nil && bytes.Compare(prev, r.key) >= 0 {
		return &DamageError{File: r.file, Offset: -1, Err: fmt.Errorf("not in key order at %.64q", r.key)}
	}
	return nil
}

// merge yields the newest state of every key, in key order, without the deleted ones. There are few runs
// (NeedFull), so the least key is found by looking at all of them; a single run, the common case, costs no
// comparison but its own order check.
func merge(runs []*run, yield func(Record) error) error {
	for _, r := range runs {
		if err := r.step(); err != nil {
			return err
		}
	}
	for {
		var least *run
		for _, r := range runs {
			if r.key == nil {
				continue
			}
			if least == nil {
				least = r
			} else if c := bytes.Compare(r.key, least.key); c < 0 || c == 0 && r.rank > least.rank {
				least = r
			}
		}
		if least == nil {
			return nil
		}
		if !least.deleted {
			if err := yield(Record{Table: least.key[0], Key: least.key[1:], Value: least.value}); err != nil {
				return err
			}
		}
		for _, r := range runs {
			if r != least && r.key != nil && bytes.Equal(r.key, least.key) {
				if err := r.step(); err != nil {
					return err
				}
			}
		}
		if err := least.step(); err != nil {
			return err
		}
	}
}
