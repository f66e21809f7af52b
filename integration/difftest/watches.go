package main

import "strings"

// Watch events (protocol 4.4).
const (
	nodeCreated         = 1
	nodeDeleted         = 2
	nodeDataChanged     = 3
	nodeChildrenChanged = 4
)

// Modes of a watch, a set.
const (
	oneShot    = 1
	persistent = 2
	recursive  = 4
)

// event is one that a connection gets.
type event struct {
	typ  int32
	path string
}

// watchTable holds the watches of one kind: path, connection, modes.
type watchTable map[string]map[*conn]int

// watchState is what a server holds of watches (protocol 6.1). It follows 3.8 or 3.9: before 3.9 a connection had one
// mode per path and table, the last one set.
type watchState struct {
	old         bool
	note        func(rule string)
	data, child watchTable
	// ever are the connections that have had a watch in the data table: 3.8 goes on naming them in its words.
	ever map[*conn]bool
}

func newWatchState(old bool) *watchState {
	return &watchState{old: old, note: func(string) {}, data: watchTable{}, child: watchTable{}, ever: map[*conn]bool{}}
}

func (s *watchState) addData(path string, c *conn, mode int) {
	s.ever[c] = true
	s.add(s.data, path, c, mode)
}

// key is the path that a watch is kept by: the root has two names, and in 3.8 a watch on "" is one that never fires (rule
// watch-on-empty-path).
func (s *watchState) key(path string) string {
	if s.old {
		return path
	}
	return builtinKey(path)
}

func (s *watchState) add(t watchTable, path string, c *conn, mode int) {
	if k := s.key(path); k != path {
		s.note("watch-on-empty-path")
		path = k
	}
	if t[path] == nil {
		t[path] = map[*conn]int{}
	}
	if s.old {
		t[path][c] = mode
	} else {
		t[path][c] |= mode
	}
}

func (t watchTable) drop(path string, c *conn, modes int) bool {
	had := t[path][c]
	if had&modes == 0 {
		return false
	}
	if had&^modes == 0 {
		delete(t[path], c)
		if len(t[path]) == 0 {
			delete(t, path)
		}
	} else {
		t[path][c] = had &^ modes
	}
	return true
}

// forget removes everything of a connection.
func (s *watchState) forget(c *conn) {
	delete(s.ever, c)
	for _, t := range []watchTable{s.data, s.child} {
		for p := range t {
			t.drop(p, c, oneShot|persistent|recursive)
		}
	}
}

// addWatch registers a persistent watch in both tables, a recursive one likewise in 3.8 and in the data table since.
func (s *watchState) addWatch(path string, c *conn, mode int) {
	s.addData(path, c, mode)
	if s.old || mode == persistent {
		s.add(s.child, path, c, mode)
	}
}

// parents are the path and everything above it.
func parents(path string) []string {
	all := []string{path}
	for path != "/" && path != "" {
		i := strings.LastIndexByte(path, '/')
		if i <= 0 {
			all = append(all, "/")
			break
		}
		path = path[:i]
		all = append(all, path)
	}
	return all
}

// trigger returns who is told, and consumes one-shot watches.
func (t watchTable) trigger(path string, typ int32) map[*conn]bool {
	told := map[*conn]bool{}
	for i, p := range parents(path) {
		for c, modes := range t[p] {
			if modes&recursive != 0 && typ != nodeChildrenChanged {
				told[c] = true
			}
			if i == 0 && modes&(oneShot|persistent) != 0 {
				told[c] = true
				t.drop(p, c, oneShot)
			}
		}
	}
	return told
}

// removable says which modes of which tables a watcher type means (protocol 4.6).
func (s *watchState) removable(typ int32) (data, child int) {
	any := oneShot | persistent | recursive
	switch {
	case typ == 3:
		return any, any
	case typ == 1 && s.old:
		return 0, any
	case typ == 2 && s.old:
		return any, 0
	case typ == 1:
		return 0, oneShot
	case typ == 2:
		return oneShot, 0
	case typ == 4 && !s.old:
		return persistent, persistent
	case typ == 5 && !s.old:
		return recursive, recursive
	}
	return 0, 0
}

// holds answers checkWatches. A persistent watch is one of both tables.
func (s *watchState) holds(path string, typ int32, c *conn) bool {
	path = s.key(path)
	data, child := s.removable(typ)
	return s.data[path][c]&data != 0 || s.child[path][c]&child != 0
}

// remove answers removeWatches.
func (s *watchState) remove(path string, typ int32, c *conn) bool {
	path = s.key(path)
	data, child := s.removable(typ)
	a := s.data.drop(path, c, data)
	b := s.child.drop(path, c, child)
	return a || b
}
