package main

import (
	"context"
	"errors"
	"testing"
	"time"
)

// The command with few cuts: nothing is lost with syncs; without them the loss is seen within 20 cuts.
func TestPowerCutsLoseNothingUnlessSyncsAreFake(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	o := options{cuts: 6, writers: 4, checkEvery: 3, seed: 1, serveLimit: time.Minute}
	if err := run(ctx, o); err != nil {
		t.Fatal(err)
	}
	o.noSync, o.checkEvery, o.cuts = true, 1, 20
	if err := run(ctx, o); !errors.Is(err, errLost) {
		t.Fatalf("without syncs: %v", err)
	}
	o.accept = true
	if err := run(ctx, o); !errors.Is(err, errLost) {
		t.Fatalf("without syncs, and no member says what it knows: %v", err)
	}
}
