package zab

import (
	"fmt"
	"testing"

	"kvd/zab/quorum"
)

func testConfig() Config {
	return Config{
		InitTicks: 20, SyncTicks: 10, PingTicks: 2,
		Protocol: VersionRange{Min: 1, Max: 1}, Format: VersionRange{Min: 1, Max: 1}, Levels: Levels{Protocol: 1, Format: 1},
	}
}

func ok(t *testing.T, c *cluster) {
	t.Helper()
	if c.violation != "" {
		t.Fatal(c.violation)
	}
}

// TestOrdinaryPath: elect, synchronize, broadcast, with 1 to 5 voters and an observer.
func TestOrdinaryPath(t *testing.T) {
	for voters := 1; voters <= 5; voters++ {
		t.Run(fmt.Sprint(voters), func(t *testing.T) {
			c := newCluster(voters, 1, testConfig())
			var by []quorum.MemberID
			for id := 2; id <= voters+1; id++ {
				by = append(by, quorum.MemberID(id))
			}
			c.elect(1, by...)
			c.stabilize()
			ok(t, c)
			lead := c.nodes[1].p
			for i := range 10 {
				if _, err := lead.Propose([]byte(fmt.Sprint("w", i))); err != nil {
					t.Fatal(err)
				}
			}
			c.stabilize()
			ok(t, c)
			for id, n := range c.nodes {
				if n.role.Stage != Broadcast || len(n.applied) != 10 {
					t.Errorf("member %d: stage %s, applied %d, want broadcast, 10", id, n.role.Stage, len(n.applied))
				}
			}
		})
	}
}
