package replica

import "kvd/kv"

// Deadline says when a session expires if nothing more is heard of it.
type Deadline struct {
	Session kv.SessionID
	Ticks   int64 // from now; 0: overdue
}

// Deadlines appends the deadlines of all sessions to dst, in no order. Only a leader that takes operations has them.
// For operators (the word dump): its cost follows the number of sessions.
func (r *Replica) Deadlines(dst []Deadline) []Deadline {
	if r.lead == nil || r.lead.sessions == nil {
		return dst
	}
	s := r.lead.sessions
	for id, n := range s.all {
		dst = append(dst, Deadline{id, max(n.deadline-s.now, 0)})
	}
	return dst
}
