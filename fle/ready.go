package fle

import "kvd/zab/quorum"

// Outbound is a notification for one member. The shell keeps at most one per peer; a newer one replaces it.
type Outbound struct {
	To           quorum.MemberID
	Notification Notification
}

// Decision ends an election.
type Decision struct {
	State  State // Leading, Following or Observing
	Leader quorum.MemberID
	Vote   Vote
	Round  Round
}

// Ready is what the steps since the last call produced. Send is valid until the next call.
type Ready struct {
	Send []Outbound
	// Decision is set once per election, with the step that ended it.
	Decision *Decision
	// Abdicate: this member leads, is not established, and so many voters elect or follow somebody else that
	// it cannot get a quorum. The caller gives up the role and calls Look.
	Abdicate bool
}

// HasReady reports whether Ready would return anything.
func (e *Election) HasReady() bool {
	if e.decision != nil || e.abdicate {
		return true
	}
	for _, p := range e.pending {
		if p {
			return true
		}
	}
	return false
}

// Ready returns and clears what is to be done. Notifications tell the state of this moment.
func (e *Election) Ready() Ready {
	e.send = e.send[:0]
	for i, p := range e.pending {
		if p {
			e.send = append(e.send, Outbound{To: e.members[i], Notification: e.notification()})
			e.pending[i] = false
		}
	}
	rd := Ready{Decision: e.decision, Abdicate: e.abdicate}
	if len(e.send) > 0 {
		rd.Send = e.send
	}
	e.decision, e.abdicate = nil, false
	return rd
}

// Status is a snapshot for people and tests.
type Status struct {
	TakingPart bool
	State      State
	Round      Round
	Vote       Vote
	Finalizing bool
}

// Status returns the present state.
func (e *Election) Status() Status {
	return Status{TakingPart: e.taking, State: e.state, Round: e.round, Vote: e.vote, Finalizing: e.finalizing}
}

func (e *Election) notification() Notification {
	return Notification{
		From: e.cfg.ID, State: e.state, Round: e.round, Vote: e.vote,
		SenderEpoch: e.own.Epoch, SenderZxid: e.own.Zxid, Unknown: e.own.Unknown, Sole: e.own.Sole,
		ConfigVersion: e.cfg.Members.Version, Established: e.established, Incarnation: e.incarnation,
		Protocol: e.cfg.Protocol, Format: e.cfg.Format,
	}
}

// notify makes a notification to id due.
func (e *Election) notify(id quorum.MemberID) {
	for i, m := range e.members {
		if m == id && id != e.cfg.ID {
			e.pending[i] = true
		}
	}
}

// answer replies to a member that asked by sending. A member that is in no tally never answers while it
// looks, and an observer never does: it has nothing to tell, and two answering sides would not stop.
func (e *Election) answer(to quorum.MemberID) {
	if e.cfg.Members.IsVoter(e.cfg.ID) && (e.state != Looking || e.votes()) {
		e.notify(to)
	}
}

// broadcast makes a notification to every voter due.
func (e *Election) broadcast() {
	for _, id := range e.cfg.Members.Voters {
		e.notify(id)
	}
}
