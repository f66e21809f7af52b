package history

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"kvd/kv"
	"kvd/kv/client"
)

// Dial opens a client for a writer; it is called again whenever a session is gone.
type Dial func(ctx context.Context) (*client.Client, error)

// Writer drives one client with writes and records each outcome. One goroutine runs it.
type Writer struct {
	Name string // unique among the writers of a Recorder; no slashes
	Rec  *Recorder
	Dial Dial
	// CallTimeout bounds one write; then it counts as what the client says (unknown if it was sent).
	CallTimeout time.Duration
	// LastOK, if set, is called after every acknowledged write.
	LastOK func()
	// Pace is the least time between two turns (a set and a create); 0 is none.
	Pace time.Duration

	seq atomic.Int64
}

// Root is the parent of everything the writers make; Prepare creates it.
const Root = "/history"

// Prepare creates the parents. It may be called again.
func Prepare(ctx context.Context, c *client.Client) error {
	for _, p := range []string{Root, Root + "/sets", Root + "/creates", GroupsRoot, LocksRoot} {
		if _, _, err := c.Create(ctx, p, nil, kv.FlagPersistent); err != nil && !errors.Is(err, kv.ErrNodeExists) {
			return err
		}
	}
	return nil
}

// Run writes until ctx ends: versioned sets of its own key and sequential creates, in turn. What fails is
// recorded and tried anew; whether the failures were justified is for Check to say.
func (w *Writer) Run(ctx context.Context) {
	key := Root + "/sets/" + w.Name
	prefix := Root + "/creates/" + w.Name + "-"
	var c *client.Client
	defer func() {
		if c != nil {
			c.Cut()
		}
	}()
	version := int32(-1) // -1: not known, look first
	p := newPacer(w.Pace)
	for ctx.Err() == nil {
		if p.wait(ctx) != nil {
			return
		}
		if c == nil {
			var err error
			if c, err = w.Dial(ctx); err != nil {
				c = nil
				continue
			}
			version = -1
		}
		w.turn(ctx, c, key, prefix, &version)
		if c.Err() != nil { // the session expired
			c.Cut()
			c = nil
		}
	}
}

func (w *Writer) value() string { return fmt.Sprintf("%s-%d", w.Name, w.seq.Add(1)) }

func (w *Writer) call(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, w.CallTimeout)
	defer cancel()
	return f(ctx)
}

// turn does one set and one create. *version is the version the key is known to have, -1 if unknown.
func (w *Writer) turn(ctx context.Context, c *client.Client, key, prefix string, version *int32) {
	if *version < 0 {
		if err := w.call(ctx, func(ctx context.Context) error { return w.look(ctx, c, key, version) }); err != nil {
			return
		}
	}
	s := Set{Path: key, Value: w.value(), Expected: *version}
	err := w.call(ctx, func(ctx context.Context) error {
		stat, err := c.Set(ctx, key, []byte(s.Value), s.Expected)
		s.Version = stat.Version
		return err
	})
	s.Outcome = outcomeOf(err)
	w.Rec.Set(s)
	if s.Outcome == OK {
		*version = s.Version
		w.ok()
	} else {
		*version = -1
		if c.Err() != nil {
			return
		}
	}

	cr := Create{Prefix: prefix, Value: w.value()}
	err = w.call(ctx, func(ctx context.Context) error {
		path, _, err := c.Create(ctx, prefix, []byte(cr.Value), kv.FlagSequential)
		cr.Path = path
		return err
	})
	cr.Outcome = outcomeOf(err)
	w.Rec.Create(cr)
	if cr.Outcome == OK {
		w.ok()
	}
}

func (w *Writer) ok() {
	if w.LastOK != nil {
		w.LastOK()
	}
}

// look makes the key if needed and learns its version, fresh.
func (w *Writer) look(ctx context.Context, c *client.Client, key string, version *int32) error {
	if err := c.Sync(ctx, key); err != nil {
		return err
	}
	_, stat, err := c.Get(ctx, key)
	if errors.Is(err, kv.ErrNoNode) {
		_, stat, err = c.Create(ctx, key, nil, kv.FlagPersistent)
	}
	if err != nil {
		return err
	}
	*version = stat.Version
	return nil
}

// outcomeOf sorts an error of a write: what was not sent, or refused, did not happen.
func outcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return OK
	case errors.Is(err, client.ErrUnknownOutcome):
		return Unknown
	default:
		return Failed
	}
}

// Read collects what one member holds of the writers' nodes. c must be connected to that member alone; the
// content is as new as a sync at the beginning.
func Read(ctx context.Context, c *client.Client) (map[string]Node, error) {
	if err := c.Sync(ctx, Root); err != nil {
		return nil, err
	}
	nodes := map[string]Node{}
	for _, parent := range []string{Root + "/sets", Root + "/creates"} {
		names, _, err := c.Children(ctx, parent)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", parent, err)
		}
		if err := readAll(ctx, c, parent, names, nodes); err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

// readAll gets the children, many at a time.
func readAll(ctx context.Context, c *client.Client, parent string, names []string, nodes map[string]Node) error {
	const workers = 64
	type result struct {
		path string
		node Node
		err  error
	}
	work := make(chan string)
	results := make(chan result, workers)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(work)
		for _, n := range names {
			select {
			case work <- parent + "/" + n:
			case <-ctx.Done():
				return
			}
		}
	}()
	for range workers {
		go func() {
			for path := range work {
				data, stat, err := c.Get(ctx, path)
				select {
				case results <- result{path, Node{Value: strings.Clone(string(data)), Version: stat.Version, Mzxid: stat.Mzxid}, err}:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	for range names {
		select {
		case r := <-results:
			if r.err != nil {
				return fmt.Errorf("read %s: %w", r.path, r.err)
			}
			nodes[r.path] = r.node
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
