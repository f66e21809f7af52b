package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"kvd/cmd/internal/cliargs"
	"kvd/kv"
	"kvd/kv/client"
)

// watch prints what happens to a node: its creation, changes of its data, changes of its list of children, its
// deletion. It reads the node, leaves one-shot watches, and on a wake-up reads again and prints the
// difference. Nothing is missed, also over a lost connection; but several changes between two readings are one
// line.
func (p *program) watch(c *cli.Context) error {
	path, err := pathArg(c, 1, 1)
	if err != nil {
		return err
	}
	count := c.Int("count")
	if c.IsSet("count") && count <= 0 {
		return cliargs.Usagef(c, "--count %d: want at least 1", count)
	}
	s, err := dial(c)
	if err != nil {
		return err
	}
	defer s.Close()

	var last nodeState
	for first := true; ; first = false {
		now, wakes, err := s.look(c.Context, path)
		if err != nil {
			return s.fail(c.Context, "watch", path, err)
		}
		if first {
			if _, err := fmt.Fprintf(p.stderr, "watching %s (%v)\n", path, now); err != nil {
				return p.written(err)
			}
		} else {
			for _, ev := range last.changes(now) {
				if err := p.printEvent(ev, path); err != nil {
					return err
				}
				if count--; count == 0 {
					return nil
				}
			}
		}
		last = now
		select {
		case <-wakes[0]:
		case <-wakes[1]:
		case <-s.Done():
			return s.fail(c.Context, "watch", path, s.Err())
		case <-c.Context.Done():
			return context.Cause(c.Context)
		}
	}
}

// nodeState is a node as seen by one reading.
type nodeState struct {
	exists bool
	stat   kv.Stat
}

func (n nodeState) String() string {
	if !n.exists {
		return "does not exist"
	}
	return fmt.Sprintf("version %d", n.stat.Version)
}

// look reads a node and leaves watches for its data and its children. The second channel is nil for a node
// that does not exist.
func (s *session) look(ctx context.Context, path string) (nodeState, [2]<-chan client.Event, error) {
	var wakes [2]<-chan client.Event
	limited, cancel := s.limit(ctx)
	defer cancel()
	stat, wake, err := s.ExistsWatch(limited, path)
	wakes[0] = wake
	if errors.Is(err, kv.ErrNoNode) {
		return nodeState{}, wakes, nil
	}
	if err != nil {
		return nodeState{}, wakes, err
	}
	_, later, wake, err := s.ChildrenWatch(limited, path)
	switch {
	case errors.Is(err, kv.ErrNoNode) || err == nil && later.Czxid != stat.Czxid:
		// Deleted (and made anew) since: the first watch knows.
		return nodeState{exists: true, stat: stat}, wakes, nil
	case err != nil:
		return nodeState{}, wakes, err
	}
	wakes[1] = wake
	return nodeState{exists: true, stat: later}, wakes, nil
}

type change struct {
	typ  client.EventType
	zxid kv.Zxid // 0: not known
}

// changes lists what must have happened between two readings, oldest first.
func (n nodeState) changes(now nodeState) []change {
	var list []change
	same := n.exists && now.exists && n.stat.Czxid == now.stat.Czxid
	if n.exists && !same {
		list = append(list, change{client.EventDeleted, 0})
	}
	if !now.exists {
		return list
	}
	var later []change
	base := n.stat
	if !same {
		later = append(later, change{client.EventCreated, now.stat.Czxid})
		base = kv.Stat{Mzxid: now.stat.Czxid, Pzxid: now.stat.Czxid}
	}
	if now.stat.Mzxid != base.Mzxid {
		later = append(later, change{client.EventDataChanged, now.stat.Mzxid})
	}
	if now.stat.Pzxid != base.Pzxid {
		later = append(later, change{client.EventChildrenChanged, now.stat.Pzxid})
	}
	slices.SortStableFunc(later, func(a, b change) int { return cmp.Compare(a.zxid, b.zxid) })
	return append(list, later...)
}

func (p *program) printEvent(ev change, path string) error {
	if p.json {
		line := struct {
			Type string   `json:"type"`
			Path string   `json:"path"`
			Zxid *hexZxid `json:"zxid,omitempty"`
		}{Type: ev.typ.String(), Path: path}
		if ev.zxid != 0 {
			z := hexZxid(ev.zxid)
			line.Zxid = &z
		}
		return p.printJSON(line)
	}
	if ev.zxid == 0 {
		return p.println(fmt.Sprintf("%v %s", ev.typ, path))
	}
	return p.println(fmt.Sprintf("%v %s 0x%x", ev.typ, path, uint64(ev.zxid)))
}
