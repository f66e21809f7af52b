package replica

import (
	"kvd/kv"
	"kvd/zab/quorum"
)

// reaper is the established leader's care for containers and nodes with a time to live (zookeeper-protocol 4.9): now and
// then it looks which of them are to go, and proposes their removal a few at a time, so that clients' writes do not
// wait behind it. Time is ticks of the leader's own loop and the stamps of its transactions, neither of which
// goes back.
type reaper struct {
	ticks  int      // since the last look
	due    []string // found by it and not yet proposed
	more   bool     // it found as many as it may: look again at once when they are done
	credit int      // removals allowed now, in sixty-thousandths
}

// oneRemoval is what a removal costs of reaper.credit: a minute's worth of milliseconds, at one removal a minute.
const oneRemoval = 60_000

// maxReapDue bounds what one look notes.
const maxReapDue = 10_000

// tickReaper moves the reaper by one tick. The term is open, so the preparer knows everything in flight.
func (r *Replica) tickReaper() {
	p := &r.lead.reaper
	if r.cfg.ContainerTicks == 0 || r.stopping {
		return
	}
	p.ticks++
	if len(p.due) == 0 && (p.more || p.ticks >= r.cfg.ContainerTicks) {
		p.ticks, p.due, p.more = 0, nil, false
		r.view().Reapable(r.stamp(), r.cfg.ContainerNeverUsedMs, func(path string) bool {
			p.due = append(p.due, path)
			p.more = len(p.due) == maxReapDue
			return !p.more
		})
		p.credit = oneRemoval
	}
	if len(p.due) == 0 {
		return
	}
	perTick := r.cfg.ContainerMaxPerMinute * r.cfg.TickMs
	p.credit = min(p.credit+perTick, oneRemoval+perTick)
	for len(p.due) > 0 && p.credit >= oneRemoval {
		// Looked at again: a client may have written it, or made a child, since it was found, applied or not.
		if r.lead.prep.StillReapable(p.due[0], r.stamp(), r.cfg.ContainerNeverUsedMs) || r.cfg.Mutations.ReapBlindly {
			// Origin 0: no client waits for the result.
			if _, ok := r.propose(0, &ClientOp{Op: int32(kv.OpDeleteContainer), Body: []byte(p.due[0])}); !ok {
				return // no room, clients use it; at the next tick
			}
			p.credit -= oneRemoval
			r.reaped++
		}
		p.due = p.due[1:]
	}
}

// decodeReap accepts the leader's own OpDeleteContainer, from nobody else.
func (r *Replica) decodeReap(op *ClientOp, origin quorum.MemberID) kv.Code {
	if origin != 0 || op.Session != 0 {
		return kv.CodeUnimplemented
	}
	if r.cfg.Mutations.ReapBlindly {
		r.lead.request.Op, r.lead.request.Version = kv.OpDelete, -1
	}
	r.lead.request.Path, r.lead.request.TTL = string(op.Body), r.cfg.ContainerNeverUsedMs
	return kv.CodeOK
}
