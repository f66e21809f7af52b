package fle_test

import (
	"fmt"

	"kvd/fle"
	"kvd/kv"
	"kvd/zab/quorum"
)

// Three members elect the one with the longest history, in one screen.
func ExampleElection() {
	members, _ := quorum.NewConfig(1, []quorum.MemberID{1, 2, 3}, nil)
	elections := map[quorum.MemberID]*fle.Election{}
	var wire []fle.Outbound
	handle := func(id quorum.MemberID) {
		rd := elections[id].Ready()
		wire = append(wire, rd.Send...)
		if d := rd.Decision; d != nil {
			fmt.Printf("%d is %s in round %d, the leader is %d\n", id, d.State, d.Round, d.Leader)
		}
	}
	for i, last := range []kv.Zxid{kv.MakeZxid(1, 10), kv.MakeZxid(1, 11), kv.MakeZxid(1, 10)} {
		id := quorum.MemberID(i + 1)
		elections[id] = fle.New(fle.Config{ID: id, Members: members})
		elections[id].Look(fle.Candidate{Epoch: 1, Zxid: last})
		handle(id)
	}
	for len(wire) > 0 { // a perfect network
		m := wire[0]
		wire = wire[1:]
		elections[m.To].Step(m.Notification)
		handle(m.To)
	}
	// Output:
	// 3 is FOLLOWING in round 1, the leader is 2
	// 1 is FOLLOWING in round 1, the leader is 2
	// 2 is LEADING in round 1, the leader is 2
}
