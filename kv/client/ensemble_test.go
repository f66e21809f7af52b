package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"kvd/ensemble"
	"kvd/ensemble/ensembletest"
	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/client/clienttest"
)

func TestConformanceOfAnEnsemble(t *testing.T) {
	e := ensembletest.Start(t, 3)
	clienttest.Conformance(t, e.Servers())
}

func TestSurfaceOfAnEnsemble(t *testing.T) {
	e := ensembletest.Start(t, 3, func(c *ensemble.Config) { c.MinSessionTimeout, c.ExtendedTypes = time.Second, true })
	clienttest.Surface(t, e.Servers())
}

// Members go away and come back one after the other, the leader among them; a session with an ephemeral node and
// a writer live through it.
func TestSessionOutlivesRestarts(t *testing.T) {
	e := ensembletest.Start(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, e.Servers())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	id := c.Session()
	for _, n := range []struct {
		path  string
		flags int32
	}{{"/w", kv.FlagPersistent}, {"/e", kv.FlagEphemeral}} {
		if _, _, err := c.Create(ctx, n.path, nil, n.flags); err != nil {
			t.Fatal(err)
		}
	}
	stop, wrote := make(chan struct{}), make(chan struct{})
	var ok, unknown int32
	go func() {
		defer close(wrote)
		for {
			select {
			case <-stop:
				return
			default:
			}
			stat, err := c.Set(ctx, "/w", fmt.Append(nil, ok), -1)
			switch {
			case err == nil:
				ok++
				if stat.Version < ok || stat.Version > ok+unknown {
					t.Errorf("version %d after %d ok and %d unknown", stat.Version, ok, unknown)
				}
			case errors.Is(err, client.ErrUnknownOutcome):
				unknown++
			default:
				t.Error(err)
				return
			}
		}
	}()
	for i := range 3 {
		e.CloseMember(t, i)
		e.Leader(t) // of the other two
		e.RestartMember(t, i)
		e.WaitServing(t, i)
	}
	close(stop)
	<-wrote
	if c.Session() != id {
		t.Error("the session did not survive")
	}
	if err := c.Sync(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	stat, err := c.Exists(ctx, "/w")
	if err != nil || stat.Version < ok || stat.Version > ok+unknown || ok == 0 {
		t.Errorf("version %d after %d ok and %d unknown; %v", stat.Version, ok, unknown, err)
	}
	if stat, err := c.Exists(ctx, "/e"); err != nil || stat.EphemeralOwner != id {
		t.Errorf("%+v %v", stat, err)
	}
	t.Logf("%d ok, %d unknown", ok, unknown)
}
