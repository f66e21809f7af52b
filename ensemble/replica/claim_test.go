package replica

import (
	"slices"
	"testing"

	"kvd/kv"
)

// succeed ends the leader and runs until another one is open and everybody left follows it. It returns the new leader.
func (l *lab) succeed() *node {
	l.t.Helper()
	old := l.leader()
	for _, nd := range l.running() {
		if nd.r.lead != nil {
			old = nd
		}
	}
	old.down = true
	l.breakLinks(old)
	for range 300 {
		l.tick(false)
		var leader *node
		open := 0
		for _, nd := range l.running() {
			if nd.serving.Open {
				open++
			}
			if nd.r.lead != nil && nd.r.lead.open {
				leader = nd
			}
		}
		if leader != nil && open == len(l.running()) {
			return leader
		}
	}
	l.t.Fatal("no new leader")
	return nil
}

// resume moves session 100 to nd and returns the answer.
func (nd *node) resume(token uint64, timeoutMs int32) Revalidated {
	nd.lab.t.Helper()
	nd.r.Revalidate(token, token, 100, [16]byte{7}, timeoutMs)
	nd.lab.run()
	v := nd.answers[len(nd.answers)-1]
	if v.Request != token || v.Validity != Valid || v.TimeoutMs != timeoutMs || v.Claim == 0 {
		nd.lab.t.Fatalf("resumed as %+v", v)
	}
	return v
}

// A time-out that was agreed on resume, longer or shorter than that of the session's creation, is what the next leader
// goes by, once the member has told it: it expires the session neither before that nor much later.
func TestTimeoutAgreedOnResumeSurvivesTheLeader(t *testing.T) {
	for _, timeoutMs := range []int32{20_000, 1000} { // created with 4,000
		l := newLab(t, 3, nil)
		nd := l.nodes[0]
		nd.open(1, 100)
		v := nd.resume(2, timeoutMs)
		leader := l.succeed()
		nd.r.Touch(100, v.TimeoutMs, v.Claim) // as the shell does when the term opens
		ticks := 0
		for ; ticks < 1000 && leader.tree.View().SessionCount() > 0; ticks++ {
			l.tick(false)
		}
		if want := int(timeoutMs) / 50; ticks < want || ticks > want+10 {
			t.Errorf("time-out %d ms: expired after %d ticks, want %d", timeoutMs, ticks, want)
		}
	}
}

// A new leader learns who spoke for a session last, in whatever order the members report, and also against a write of a
// straggler that came before the report.
func TestOwnerSurvivesTheLeader(t *testing.T) {
	const stale, fresh, write = 0, 1, 2
	for name, order := range map[string][]int{
		"the stale report first": {stale, fresh},
		"the newer report first": {fresh, stale},
		"a stale write first":    {write, stale, fresh},
		"only the newer report":  {fresh},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 5, nil)
			p, q := l.nodes[0], l.nodes[1]
			p.open(1, 100)
			first := p.resume(2, 4000)
			second := q.resume(3, 4000)
			if second.Claim <= first.Claim || first.Claim <= BirthClaim(kv.MakeZxid(1, 1)) {
				t.Fatalf("claims %x and %x", first.Claim, second.Claim)
			}
			l.succeed()
			for _, what := range order {
				switch what {
				case stale:
					p.r.Touch(100, 4000, first.Claim)
				case fresh:
					q.r.Touch(100, 4000, second.Claim)
				case write:
					p.submit(on(900, create(10, 100, "/straggler")))
				}
				l.ticks(4)
			}
			before := len(q.results)
			q.submit(on(901, create(20, 100, "/mine")))
			l.run()
			if got := q.results[before:]; !slices.Equal(got, []kv.Code{kv.CodeOK}) {
				t.Errorf("the owner's write: %v", got)
			}
			before = len(p.results)
			p.submit(on(902, create(30, 100, "/late")))
			l.run()
			if got := p.results[before:]; !slices.Equal(got, []kv.Code{kv.CodeSessionMoved}) {
				t.Errorf("the write of the member that the session left: %v", got)
			}
		})
	}
}

// Claims of one session only grow, over leaders and within a term.
func TestClaimsGrow(t *testing.T) {
	l := newLab(t, 5, nil)
	nd := l.nodes[0]
	nd.open(1, 100)
	last := BirthClaim(kv.MakeZxid(1, 1))
	token := uint64(2)
	for term := range 3 {
		for i := range 3 {
			v := l.nodes[i%2].resume(token, 4000)
			if token++; v.Claim <= last {
				t.Fatalf("term %d: claim %x after %x", term, v.Claim, last)
			}
			last = v.Claim
		}
		if term < 2 {
			l.succeed()
		}
	}
}
