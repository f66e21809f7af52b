package transport

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"

	"kvd/zab"
	"kvd/zab/quorum"
)

var chaosSeed = flag.Uint64("seed", 0, "seed of TestChaos; 0: several fixed ones")

// cutter is a Dial whose connections the test can cut.
type cutter struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (c *cutter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
	}
	return conn, err
}

func (c *cutter) cut(pick func(n int) int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.conns) > 0 {
		i := pick(len(c.conns))
		_ = c.conns[i].Close()
		c.conns = slices.Delete(c.conns, i, i+1)
	}
}

// Random cuts, restarts, links opened and closed, under traffic; then peace. What each handler was told is well
// formed: ups and downs in turns, nothing on a link before its LinkUp or after its LinkDown, messages of a link
// in order and without holes. And in the end everybody has heard the newest vote of everybody.
func TestChaos(t *testing.T) {
	seeds := []uint64{1, 2, 3}
	if *chaosSeed != 0 {
		seeds = []uint64{*chaosSeed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("replay: go test ./ensemble/transport -run '^TestChaos$' -seed=%d", seed)
				}
			})
			chaos(t, rand.New(rand.NewPCG(seed, 2)))
		})
	}
}

func chaos(t *testing.T, rnd *rand.Rand) {
	n := newNet(t, 1, 2, 3)
	cuts := &cutter{}
	nodes := map[quorum.MemberID]*node{}
	var finished []*node
	start := func(id quorum.MemberID) {
		nodes[id] = n.start(id, func(o *Options) { o.Dial = cuts.dial })
	}
	votes := map[[2]quorum.MemberID]string{} // newest by sender and receiver
	vote := func(from, to quorum.MemberID, text string) {
		votes[[2]quorum.MemberID{from, to}] = text
		nodes[from].SendElection(to, KindNotification, []byte(text))
	}
	for id := quorum.MemberID(1); id <= 3; id++ {
		start(id)
	}
	sent := map[*node]map[zab.LinkID]int{}
	pick := func() quorum.MemberID { return quorum.MemberID(rnd.IntN(3) + 1) }
	for step := range 400 {
		id := pick()
		nd := nodes[id]
		switch rnd.IntN(12) {
		case 0:
			cuts.cut(rnd.IntN)
		case 1:
			from := len(nd.rec.all())
			nd.Connect(pick(), uint64(step)) // now and then to itself
			if rnd.IntN(4) > 0 {             // else the next one may replace it under way
				nd.rec.wait(t, from, "outcome of Connect", func(e event) bool { return e.kind == "failed" || e.kind == "linkup" && e.dialled })
			}
		case 2:
			if rnd.IntN(4) == 0 {
				_ = nd.Close()
				finished = append(finished, nd)
				n.reopen(id)
				start(id)
				for to := quorum.MemberID(1); to <= 3; to++ {
					if to != id {
						vote(id, to, fmt.Sprintf("%d after restart at %d", id, step))
					}
				}
			}
		case 3, 4, 5:
			if to := pick(); to != id {
				vote(id, to, fmt.Sprintf("%d at %d", id, step))
			}
		default:
			nd.mu.Lock()
			var links []zab.LinkID
			for l := range nd.links {
				links = append(links, l)
			}
			nd.mu.Unlock()
			slices.Sort(links)
			if len(links) == 0 {
				break
			}
			l := links[rnd.IntN(len(links))]
			if rnd.IntN(20) == 0 {
				nd.CloseLink(l, "chaos")
				break
			}
			if sent[nd] == nil {
				sent[nd] = map[zab.LinkID]int{}
			}
			for range rnd.IntN(20) {
				nd.Send([]zab.Outbound{request(l, fmt.Sprint(sent[nd][l]))})
				sent[nd][l]++
			}
		}
	}
	for pair, text := range votes {
		nodes[pair[1]].rec.wait(t, 0, "newest vote "+text, func(e event) bool {
			return e.kind == "vote" && e.peer == pair[0] && e.text == "1:"+text
		})
	}
	delivered := 0
	for _, nd := range nodes {
		_ = nd.Close()
		finished = append(finished, nd)
	}
	for _, nd := range finished {
		up := map[quorum.MemberID]string{}
		open, ended := map[zab.LinkID]bool{}, map[zab.LinkID]bool{}
		next := map[zab.LinkID]int{}
		for i, e := range nd.rec.all() {
			bad := func(why string) { t.Fatalf("member %d, event %d: %s: %v", nd.o.ID, i, why, e) }
			switch e.kind {
			case "up", "down":
				if up[e.peer] == e.kind {
					bad("twice in a row")
				}
				up[e.peer] = e.kind
			case "vote":
				if up[e.peer] != "up" {
					bad("while down")
				}
			case "linkup":
				if e.link == 0 || open[e.link] || ended[e.link] {
					bad("link id used before")
				}
				open[e.link] = true
			case "linkdown":
				if !open[e.link] || e.err == nil {
					bad("of a link that is not open, or without a cause")
				}
				delete(open, e.link)
				ended[e.link] = true
			case "msg":
				if !open[e.link] || text(e) != fmt.Sprint(next[e.link]) {
					bad(fmt.Sprintf("want message %d of an open link, got %s", next[e.link], text(e)))
				}
				next[e.link]++
				delivered++
			}
		}
		if len(open) > 0 {
			t.Errorf("member %d: links %v were never reported down", nd.o.ID, open)
		}
	}
	if delivered == 0 {
		t.Error("no message got through at all")
	}
}
