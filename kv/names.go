package kv

import "strings"

// Names are the names of a node's children as they stand in a view: nothing is copied or collected, however many there
// are. A value to be passed and thrown away; it keeps its view alive.
type Names struct {
	v     *View
	path  string
	count int32
}

// Names returns the names of the node's children and its Stat. Errors: ErrNoNode; ErrNoAuth without READ.
func (r Reader) Names(path string) (Names, Stat, error) {
	var n node
	if err := r.node(path, &n, PermRead); err != nil {
		return Names{}, Stat{}, err
	}
	f := r.v.family(path, &n)
	return Names{r.v, path, f.children}, n.stat(f), nil
}

// Len is the number of names.
func (n Names) Len() int { return int(n.count) }

// Each calls yield with every name, in byte order, until it returns false. The names share memory with the view: clone
// those that are kept.
func (n Names) Each(yield func(name string) bool) {
	if n.count == 0 {
		return
	}
	prefix := childPrefix(n.path)
	n.v.nodes.ascend(prefix, func(rec string) bool {
		key := recKey(rec)
		return strings.HasPrefix(key, prefix) && yield(key[len(prefix):])
	})
}

// EachEphemeralWithPrefix calls yield with what EphemeralsWithPrefix collects, in the same order, until it returns false.
// Each path is a new string.
func (v *View) EachEphemeralWithPrefix(id SessionID, prefix string, yield func(path string) bool) {
	if text := strings.TrimSpace(prefix); text == "" || text == RootPath {
		prefix = ""
	}
	v.eachEphemeral(id, func(key string) bool {
		return !keyHasPathPrefix(key, prefix) || yield(pathOfKey(key))
	})
}
