package ensemble

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestDefaultsAreValid(t *testing.T) {
	c := Config{DataDir: "x"}
	c.EnsureDefaults()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if c.ID != 1 || c.MinSessionTimeout != 4*time.Second || c.MaxSessionTimeout != 40*time.Second || c.LogDir != "x/log" {
		t.Errorf("defaults: %+v", c)
	}
	before := c.LeaderTimeout
	c.EnsureDefaults()
	if c.LeaderTimeout != before {
		t.Error("filling defaults twice changes something")
	}
}

func TestSmallTicksKeepTheirRelations(t *testing.T) {
	for _, tickTime := range []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond, time.Second} {
		c := Config{DataDir: "x", TickTime: tickTime}
		c.EnsureDefaults()
		if err := c.Validate(); err != nil {
			t.Errorf("TickTime %v: %v", tickTime, err)
		}
	}
}

func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	c := Config{
		ID: 9, Members: []Peer{
			{ID: 1, Host: "h", LearnerPort: 2888, ElectionPort: 3888},
			{ID: 2, Host: "h", LearnerPort: 2888, ElectionPort: 70000},
			{ID: 2, LearnerPort: 1, ElectionPort: 2},
			{ID: 300, Host: "g", LearnerPort: 1, ElectionPort: 2, Observer: true},
		},
		ClientListen: []string{"nonsense"}, TickTime: time.Millisecond, SnapCount: -1, MaxClientConns: -1,
		LeaderTimeout: time.Second, PingInterval: time.Second, FinalizeWait: 2 * time.Second,
		MinSessionTimeout: 1500 * time.Millisecond, MaxSessionTimeout: time.Second, MaxFrameBytes: 5,
		FourLetterWords: []string{"ruok", "toolong"}, SuperDigest: "nocolon",
		MaxConns: -2, ThrottledOpWait: -time.Second, ContainerMaxPerMinute: -3, MaxReplyBytes: 7, DigestAlgorithm: "MD5", ClientBacklog: -1,
	}
	c.EnsureDefaults()
	err := c.Validate()
	var ce *ConfigError
	if !errors.As(err, &ce) {
		t.Fatalf("error %v", err)
	}
	for _, want := range []string{
		"DataDir", "ID 9 is not among", "Members: ", "which is also the learner port of member 1", "70000", "member 2 has no host",
		"nonsense", "TickTime 1ms", "SnapCount", "MaxClientConns", "four PingIntervals", "two PingIntervals", "FinalizeWait 2s", "MaxSessionTimeout 1s",
		"MaxFrameBytes 5", "toolong", "SuperDigest",
		"MaxConns", "ThrottledOpWait", "ContainerMaxPerMinute", "MaxReplyBytes 7", "MD5", "ClientBacklog",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not reported in:\n%v", want, err)
		}
	}
}

func TestStartRefusesBadConfigurationAndTouchesNothing(t *testing.T) {
	dir := t.TempDir() + "/new"
	l := listen(t)
	_, err := Start(t.Context(), Config{DataDir: dir, ID: 300, Listeners: Listeners{Client: []net.Listener{l}}})
	var ce *ConfigError
	if !errors.As(err, &ce) {
		t.Fatalf("error %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener was not closed: %v", err)
	}
	if matches, _ := filepath.Glob(dir); len(matches) > 0 {
		t.Errorf("the directory was made: %v", matches)
	}
}
