package ensembletest_test

import (
	"context"
	"testing"
	"time"

	"kvd/ensemble/ensembletest"
	"kvd/kv/client"
)

func TestEnsembleServesInProcessAndOverTCP(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	e := ensembletest.Start(t, 3)
	in := e.Client(t, e.Leader(t))
	if _, _, err := in.Create(ctx, "/x", []byte("hello"), 0); err != nil {
		t.Fatal(err)
	}
	out, err := client.Dial(ctx, e.Servers())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := out.Sync(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	data, _, err := out.Get(ctx, "/x")
	if err != nil || string(data) != "hello" {
		t.Fatalf("get = %q, %v", data, err)
	}
}
