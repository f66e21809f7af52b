package ensemble

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A healthy member whose two peers were wiped, and those two, cannot form a quorum. Each says so, names who is missing
// and why, and does not go on about it.
func TestMembersWithoutAQuorumSayWhatIsMissing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var logs [3]logLines
	tr := startTrio(t, func(c *Config) { c.Logger = logs[c.ID-1].logger() })
	tr.serving(ctx, 0, 1, 2)
	for i, m := range tr.members {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if n := logs[i].count("no leader:"); n != 0 {
			t.Errorf("member %d, which had a quorum, said %d times that it has none:\n%s", i+1, n, &logs[i])
		}
	}
	tr.restart(2)
	eventually(t, "the lonely member names its peers", func() bool {
		return logs[2].count("1 of 3 voters can be counted, 2 are needed; not connected: 1, 2") == 1
	})
	if err := tr.members[2].Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		tr.dirs[i] = t.TempDir()
	}
	for i := range tr.members {
		tr.restart(i)
	}
	const forgot = "blank or without part of their history, which a leader has to bring back first: "
	for i, line := range []string{forgot + "1 (this member), 2", forgot + "1, 2 (this member)", forgot + "1, 2"} {
		eventually(t, fmt.Sprintf("member %d says what is missing", i+1), func() bool { return logs[i].count("no leader: 1 of 3 voters", line) == 1 })
	}
	if n := logs[2].count("no leader:"); n != 2 { // one in each of its two lonely runs
		t.Errorf("member 3 said it %d times:\n%s", n, &logs[2])
	}
	if _, err := os.Stat(filepath.Join(tr.dirs[0], identityFile)); err != nil {
		t.Errorf("the wiped member did not join: %v", err)
	}
}

// A second process with the id of a member of a serving ensemble: one line at each of the others and one at the second
// process; nobody's role changes.
func TestSecondProcessWithTheSameIDIsTold(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var logs [4]logLines
	tr := startTrio(t, func(c *Config) { c.Logger = logs[c.ID-1].logger() })
	tr.serving(ctx, 0, 1, 2)
	var roles [3]int
	for i := range roles {
		// A member serves before it has said what it is.
		eventually(t, fmt.Sprintf("member %d says that it serves", i+1), func() bool { return logs[i].count("msg=role", "stage=broadcast") > 0 })
		roles[i] = logs[i].count("msg=role")
	}
	ls := Listeners{Learner: listen(t), Election: listen(t)}
	peers := append([]Peer(nil), tr.peers...)
	peers[0].LearnerPort, peers[0].ElectionPort, peers[0].ClientAddr = port(ls.Learner), port(ls.Election), ""
	twin, err := Start(ctx, Config{ID: 1, DataDir: t.TempDir(), Members: peers, Listeners: ls, Logger: logs[3].logger()})
	if err != nil {
		t.Fatal(err)
	}
	defer twin.Close()
	eventually(t, "the second process is told", func() bool {
		return logs[3].count("peer connection refused", "duplicate id", "two processes run as member 1", "by_peer=true") == 1
	})
	for i := 1; i < 3; i++ {
		eventually(t, fmt.Sprintf("member %d says it", i+1), func() bool { return logs[i].count("duplicate id", "peer=1") == 1 })
	}
	eventually(t, "the second process says that it waits", func() bool { return logs[3].count("waiting:") == 1 })
	for i := range roles {
		if n := logs[i].count("msg=role"); n != roles[i] {
			t.Errorf("member %d changed its role because of the second process:\n%s", i+1, &logs[i])
		}
		if n := logs[i].count("duplicate id"); n > 1 || i == 0 && n > 0 {
			t.Errorf("member %d said it %d times", i+1, n)
		}
	}
	tr.serving(ctx, 0, 1, 2)
}
