package replica

import (
	"fmt"

	"kvd/ensemble/identity"
	"kvd/kv"
	"kvd/zab"
	"kvd/zab/quorum"
)

// forming joins the machine of design rule 8 to the rest: until it says otherwise the member takes no part in
// elections, and until its NEWLEADER batch is durable a joining one takes part as unknown.
type forming struct {
	machine *identity.Machine
	phase   identity.Phase
	// accepted and logged are what the machine knows of the disk.
	accepted kv.Epoch
	logged   bool
	told     bool // the machine knows that the NEWLEADER batch is durable
	trusting bool // the identity being written makes this member trusted
	warnLeft int  // ticks without a leader to the next line about that
}

func (r *Replica) startForming(st Start) {
	d := st.Durable
	r.forming.warnLeft = identity.WarnTicks
	r.forming.accepted, r.forming.logged = d.Accepted.Epoch, d.Last != 0
	r.forming.machine = identity.New(identity.Config{
		ID: r.cfg.ID, Members: r.cfg.Members,
		Cluster: st.Identity.ClusterID, Suspect: st.Identity.Suspect, Trusted: !d.Unknown,
		Accepted: d.Accepted.Epoch, Last: d.Last,
		Bootstrap: st.Identity.Bootstrap, Run: st.Identity.Run, Mint: st.Identity.Mint,
	})
	r.advanceForming()
}

// formed reports whether this member may take part in elections.
func (r *Replica) formed() bool { return r.forming.phase != identity.Waiting }

func (r *Replica) formingStatus() string { return r.forming.machine.WaitingFor() }

func (r *Replica) tickForming() {
	r.forming.machine.Tick()
	r.tickWaiting()
	r.advanceForming()
}

// tickWaiting says what keeps this member from finding a leader: once after a while, and rarely after that. While it
// waits to be formed the machine says so instead.
func (r *Replica) tickWaiting() {
	f := &r.forming
	if f.phase == identity.Waiting || r.serving.Open || r.stopping {
		f.warnLeft = identity.WarnTicks
		return
	}
	if f.warnLeft--; f.warnLeft <= 0 && r.role.Role == zab.Looking {
		f.warnLeft = identity.RepeatTicks
		r.event("waiting", "no leader: "+f.machine.Quorum())
	}
}

func (r *Replica) formingDown(id quorum.MemberID) { r.forming.machine.PeerGone(id) }

func (r *Replica) formingUp(id quorum.MemberID) {
	r.forming.machine.PeerConnected(id)
	r.advanceForming()
}

func (r *Replica) formingMessage(from quorum.MemberID, payload []byte) {
	h, err := identity.DecodeHello(payload)
	if err != nil || h.From != from {
		r.event("hello-dropped", fmt.Sprintf("from=%d err=%q", from, errText(err, "sender differs from the connection's peer")))
		return
	}
	r.forming.machine.Step(h)
	r.advanceForming()
}

// IdentityPersisted reports that Ready.Identity is durable, in the log store and in the file.
func (r *Replica) IdentityPersisted() {
	if r.forming.trusting {
		// The disk says now that there is nothing to forget. Nothing has happened in the broadcast yet: a waiting
		// member neither elects nor is elected.
		r.forming.trusting = false
		d := r.zab.Durable()
		d.Unknown = false
		if err := r.startBroadcast(d); err != nil {
			panic("replica: the broadcast cannot start from the state it had: " + err.Error())
		}
	}
	r.forming.machine.Persisted()
	r.advanceForming()
	r.advanceElection()
}

// formingDurable keeps the machine's picture of the disk current. It is called when writes were completed.
func (r *Replica) formingDurable() {
	f := &r.forming
	d := r.zab.Durable()
	// Hellos must say truthfully whether anything was promised or logged; how much is logged matters to nobody.
	if d.Accepted.Epoch != f.accepted || (d.Last != 0 && !f.logged) {
		f.accepted, f.logged = d.Accepted.Epoch, d.Last != 0
		f.machine.SetDurable(d.Accepted.Epoch, d.Last)
	}
	if f.phase == identity.Joining && !d.Unknown && !f.told {
		f.told = true
		f.machine.Joined()
		r.advanceForming()
	}
}

// advanceForming carries out what the machine wants.
func (r *Replica) advanceForming() {
	rd := r.forming.machine.Ready()
	o := r.out()
	for i := range rd.Send {
		o.Elections = append(o.Elections, ElectionSend{To: rd.Send[i].To, Kind: KindIdentity, Payload: identity.AppendHello(nil, rd.Send[i].Hello)})
	}
	if rd.Persist != nil {
		o.Identity = &IdentityWrite{ClusterID: rd.Persist.Cluster, Trusted: rd.Persist.Trusted}
		r.forming.trusting = rd.Persist.Trusted
	}
	if rd.Phase != nil {
		r.forming.phase = *rd.Phase
	}
	for _, e := range rd.Events {
		r.event("identity", e)
	}
}
