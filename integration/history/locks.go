package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"kvd/kv"
)

// Hold is one time that a session had a lock, which is an ephemeral node. Its fencing token is the node's czxid.
type Hold struct {
	Lock           int
	Session        uint32
	Token          kv.Zxid
	Asked, Granted int64 // when its create was called and answered
	// Confirmed is the newest state in which a server showed the node as this session's.
	Confirmed kv.Zxid
	// GivenUp is when the delete was called, 0 if it never was: then the session was left to expire.
	GivenUp int64
	Gone    kv.Zxid // what the delete's answer said was applied; 0 if there was none
	// Contact is when the last call of the session began that was answered; it lives at least Timeout from then.
	Contact int64
	Timeout time.Duration
}

// Exclusive checks that no lock had two holders: in the order of tokens each holder was gone before the next one
// came, tokens grow in real time, and a session that never gave a lock up was not expired before its time.
func Exclusive(holds []Hold) []error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	byLock := map[int][]Hold{}
	for _, h := range holds {
		byLock[h.Lock] = append(byLock[h.Lock], h)
	}
	locks := make([]int, 0, len(byLock))
	for l := range byLock {
		locks = append(locks, l)
	}
	slices.Sort(locks)
	for _, l := range locks {
		all := byLock[l]
		slices.SortFunc(all, func(a, b Hold) int { return cmp.Compare(a.Token, b.Token) })
		for i := 1; i < len(all); i++ {
			a, b := all[i-1], all[i]
			if a.Token == b.Token {
				bad("lock %d: token %v was given to sessions %d and %d", l, a.Token, a.Session, b.Session)
			}
			if a.Confirmed >= b.Token {
				bad("lock %d: session %d held it at %v, session %d got it at %v", l, a.Session, a.Confirmed, b.Session, b.Token)
			}
			if a.Asked > b.Granted {
				bad("lock %d: token %v was asked for after the greater %v was granted", l, a.Token, b.Token)
			}
			switch {
			case a.GivenUp == 0 && b.Granted < a.Contact+int64(a.Timeout):
				bad("lock %d: session %d was expired early: heard at %d, time-out %v, next holder at %d", l, a.Session, a.Contact, a.Timeout, b.Granted)
			case a.GivenUp != 0 && a.Gone != 0 && a.Gone >= b.Token:
				bad("lock %d: session %d gave it up at %v, session %d had got it at %v", l, a.Session, a.Gone, b.Session, b.Token)
			case a.GivenUp != 0 && b.Granted < a.GivenUp:
				bad("lock %d: session %d got it before session %d gave it up", l, b.Session, a.Session)
			}
		}
	}
	return errs
}
