package client

import (
	"context"
	"iter"
	"strings"
	"sync"

	"kvd/kv/wire"
)

// The modes of addWatch, and the kinds of removeWatches (zookeeper-protocol 6.4).
const (
	addPersistent   = 0
	addRecursive    = 1
	removePersisted = 4
	removeRecursive = 5
)

// watcherBuffer is how many events a Watcher keeps for an owner who is slow.
const watcherBuffer = 1024

// Watcher tells of every change of a node, or of everything in a subtree, until it is closed or the session ends (ZooKeeper's persistent
// watches, since 3.6). It survives reconnections, but what happens while the client has no connection is not told: then, and when its
// owner has left more than 1,024 events unread, an EventGap takes the place of what may be missing. Its methods may be called from any goroutine.
type Watcher struct {
	c   *Client
	key watcherKey

	mu     sync.Mutex
	events []Event
	over   error         // not nil: no more events come
	more   chan struct{} // capacity 1: events or over may have changed
}

// watcherKey is one watch at the server, which several Watchers may share.
type watcherKey struct {
	path      string // as the server knows it
	recursive bool
}

// watchers are the Watchers of a client. Delivery is the reader goroutine's, setting and removing anybody's.
type watchers struct {
	// turn is held by who sets or removes one (capacity 1): a removal must not meet a watch that another Watcher is just about to share.
	turn chan struct{}

	mu sync.Mutex
	by map[watcherKey][]*Watcher
}

func (t *watchers) begin(ctx context.Context) error {
	select {
	case t.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *watchers) done() { <-t.turn }

// Watch sets a persistent watch at path, which need not exist: the Watcher tells of its creation, deletion, changes of its data and of its list
// of children. Recursive: of the creation, deletion and data of the node and of everything below it, not of lists. The caller closes it.
// A server that does not know it answers kv.ErrUnimplemented.
func (c *Client) Watch(ctx context.Context, path string, recursive bool) (*Watcher, error) {
	w := &Watcher{c: c, key: watcherKey{c.serverPath(path), recursive}, more: make(chan struct{}, 1)}
	mode := int32(addPersistent)
	if recursive {
		mode = addRecursive
	}
	if err := c.watchers.begin(ctx); err != nil {
		return nil, err
	}
	defer c.watchers.done()
	s := c.newCall(wire.OpAddWatch, path)
	defer c.release(s)
	s.request = &wire.PathKindRequest{Path: w.key.path, Kind: mode}
	s.watcher = w // the reader registers it with the answer, in front of the first event
	err := c.wait(ctx, s)
	if err != nil {
		w.forget()
		return nil, err
	}
	return w, nil
}

// Next returns the next event. It fails with ctx's error, or with why the watch is over.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	for {
		w.mu.Lock()
		if len(w.events) > 0 {
			e := w.events[0]
			w.events = w.events[1:]
			w.mu.Unlock()
			return e, nil
		}
		over := w.over
		w.mu.Unlock()
		if over != nil {
			w.wake() // for who else waits
			return Event{}, over
		}
		select {
		case <-w.more:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// All yields events until ctx ends or the watch is over; the error that ended it is in the last pair.
func (w *Watcher) All(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			e, err := w.Next(ctx)
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// Close ends the watch: Next fails with ErrClosed from then on, what was not read is dropped. The server is told if no other Watcher of the client
// shares the watch; that it could not be told is no error, the watch ends with the connection then.
func (w *Watcher) Close(ctx context.Context) error {
	if err := w.c.watchers.begin(ctx); err != nil {
		return err
	}
	defer w.c.watchers.done()
	if !w.forget() {
		return nil
	}
	s := w.c.newCall(wire.OpRemoveWatches, w.c.localPath(w.key.path))
	defer w.c.release(s)
	kind := int32(removePersisted)
	if w.key.recursive {
		kind = removeRecursive
	}
	s.request = &wire.PathKindRequest{Path: w.key.path, Kind: kind}
	_ = w.c.wait(ctx, s)
	return nil
}

// forget takes the watcher out of the client's hands. It reports whether it was the last of its watch.
func (w *Watcher) forget() (last bool) {
	t := &w.c.watchers
	t.mu.Lock()
	list := t.by[w.key]
	for i, o := range list {
		if o == w {
			list = append(list[:i:i], list[i+1:]...)
			last = len(list) == 0
			break
		}
	}
	if len(list) == 0 {
		delete(t.by, w.key)
	} else {
		t.by[w.key] = list
	}
	t.mu.Unlock()
	w.end(ErrClosed)
	return last
}

func (w *Watcher) wake() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// put queues an event. What a slow owner has not read gives way to one EventGap.
func (w *Watcher) put(e Event) {
	w.mu.Lock()
	if w.over == nil {
		if len(w.events) >= watcherBuffer {
			w.events = append(w.events[:0:0], Event{Type: EventGap, Path: w.c.localPath(w.key.path)})
		}
		w.events = append(w.events, e)
	}
	w.mu.Unlock()
	w.wake()
}

// gap notes that events may be missing, once until it is read.
func (w *Watcher) gap() {
	w.mu.Lock()
	n := len(w.events)
	known := n > 0 && w.events[n-1].Type == EventGap
	w.mu.Unlock()
	if !known {
		w.put(Event{Type: EventGap, Path: w.c.localPath(w.key.path)})
	}
}

// end closes the watcher; the first reason stays.
func (w *Watcher) end(err error) {
	w.mu.Lock()
	if w.over == nil {
		w.over = err
		if err == ErrClosed {
			w.events = nil
		}
	}
	w.mu.Unlock()
	w.wake()
}

// add registers a watcher that the server has set.
func (t *watchers) add(w *Watcher) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by == nil {
		t.by = make(map[watcherKey][]*Watcher)
	}
	t.by[w.key] = append(t.by[w.key], w)
}

// fire hands an event to the watchers whose watches cover it.
func (t *watchers) fire(path string, e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.by) == 0 {
		return
	}
	for _, w := range t.by[watcherKey{path, false}] {
		w.put(e)
	}
	if e.Type == EventChildrenChanged {
		return // lists are no matter of recursive watches
	}
	for above := path; ; above = above[:strings.LastIndexByte(above, '/')] {
		if above == "" {
			above = "/"
		}
		for _, w := range t.by[watcherKey{above, true}] {
			w.put(e)
		}
		if above == "/" {
			return
		}
	}
}

// each calls f for every watcher.
func (t *watchers) each(f func(*Watcher)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, list := range t.by {
		for _, w := range list {
			f(w)
		}
	}
}
