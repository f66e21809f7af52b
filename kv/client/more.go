package client

import (
	"context"
	"errors"
	"iter"
	"strings"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// CreateContainer makes a node that the servers remove once its last child is gone (zookeeper-protocol 9): the parent of locks and queues.
func (c *Client) CreateContainer(ctx context.Context, path string, data []byte, acl ...kv.ACL) (string, kv.Stat, error) {
	return c.create(ctx, wire.OpCreateContainer, path, &wire.CreateRequest{Path: c.serverPath(path), Data: data, ACL: orOpen(acl), Flags: kv.FlagContainer})
}

// CreateTTL makes a persistent node, with kv.FlagSequential a numbered one, that the servers remove when it has had no children and no change for ttl,
// counted in milliseconds. ZooKeeper needs extendedTypesEnabled for it.
func (c *Client) CreateTTL(ctx context.Context, path string, data []byte, flags int32, ttl time.Duration, acl ...kv.ACL) (string, kv.Stat, error) {
	switch flags {
	case kv.FlagPersistent:
		flags = kv.FlagTTL
	case kv.FlagSequential:
		flags = kv.FlagSequentialTTL
	default:
		return "", kv.Stat{}, &Error{Op: wire.OpCreateTTL, Path: path, Err: kv.ErrBadArguments}
	}
	q := &wire.CreateTTLRequest{TTL: ttl.Milliseconds(), CreateRequest: wire.CreateRequest{Path: c.serverPath(path), Data: data, ACL: orOpen(acl), Flags: flags}}
	return c.create(ctx, wire.OpCreateTTL, path, q)
}

func orOpen(acl []kv.ACL) []kv.ACL {
	if len(acl) == 0 {
		return openACL
	}
	return acl
}

func (c *Client) create(ctx context.Context, op wire.Op, path string, q wire.Record) (string, kv.Stat, error) {
	var r wire.CreateResponse
	if err := c.call(ctx, op, path, q, &r); err != nil {
		return "", kv.Stat{}, err
	}
	return c.localPath(r.Path), r.Stat, nil
}

// call carries out an operation of records.
func (c *Client) call(ctx context.Context, op wire.Op, path string, q, r wire.Record) error {
	if path != "" && !validStart(path) {
		return &Error{Op: op, Path: path, Err: kv.ErrBadArguments}
	}
	s := c.newCall(op, path)
	defer c.release(s)
	s.request, s.response = q, r
	return c.wait(ctx, s)
}

// GetACL returns who may do what with a node, and its Stat.
func (c *Client) GetACL(ctx context.Context, path string) ([]kv.ACL, kv.Stat, error) {
	var r wire.ACLResponse
	err := c.call(ctx, wire.OpGetACL, path, &wire.PathRequest{Path: c.serverPath(path)}, &r)
	return r.ACL, r.Stat, err
}

// SetACL says who may do what with a node, if its list has the version (Stat.Aversion); -1 matches every version.
func (c *Client) SetACL(ctx context.Context, path string, acl []kv.ACL, version int32) (kv.Stat, error) {
	var r wire.StatResponse
	err := c.call(ctx, wire.OpSetACL, path, &wire.SetACLRequest{Path: c.serverPath(path), ACL: acl, Version: version}, &r)
	return r.Stat, err
}

// Ephemerals returns the paths of the session's ephemeral nodes that begin with prefix.
func (c *Client) Ephemerals(ctx context.Context, prefix string) ([]string, error) {
	var r wire.NamesResponse
	if err := c.call(ctx, wire.OpGetEphemerals, prefix, &wire.SyncRecord{Path: c.serverPath(prefix)}, &r); err != nil {
		return nil, err
	}
	for i, name := range r.Names {
		r.Names[i] = c.localPath(name)
	}
	return r.Names, nil
}

// CountDescendants returns the number of nodes below path, at all depths.
func (c *Client) CountDescendants(ctx context.Context, path string) (int, error) {
	var r wire.NumberResponse
	err := c.call(ctx, wire.OpGetAllChildrenNumber, path, &wire.PathRequest{Path: c.serverPath(path)}, &r)
	return int(r.Number), err
}

// WhoAmI returns the identities of the present connection.
func (c *Client) WhoAmI(ctx context.Context) ([]wire.Identity, error) {
	var r wire.WhoAmIResponse
	err := c.call(ctx, wire.OpWhoAmI, "", &wire.Empty{}, &r)
	return r.Identities, err
}

// CreateAll makes the missing parents of path, persistent and empty, then the node itself as Create does. Parents that another client makes or removes meanwhile
// are no error; a parent that stays missing is.
func (c *Client) CreateAll(ctx context.Context, path string, data []byte, flags int32, acl ...kv.ACL) (string, kv.Stat, error) {
	for attempt := 0; ; attempt++ {
		name, stat, err := c.Create(ctx, path, data, flags, acl...)
		if !errors.Is(err, kv.ErrNoNode) || attempt == 10 {
			return name, stat, err
		}
		for i := 1; i < len(path); i++ {
			if path[i] != '/' {
				continue
			}
			if _, _, err := c.Create(ctx, path[:i], nil, kv.FlagPersistent, acl...); err != nil && !errors.Is(err, kv.ErrNodeExists) && !errors.Is(err, kv.ErrNoNode) {
				return "", kv.Stat{}, err
			}
		}
	}
}

// deleteBatch is how many nodes one transaction of DeleteAll removes.
const deleteBatch = 500

// DeleteAll removes a node and everything below it, children first. It is no transaction: what is created meanwhile may make it fail with kv.ErrNotEmpty after
// some tries, with a part removed. A node that is not there is kv.ErrNoNode.
func (c *Client) DeleteAll(ctx context.Context, path string) error {
	for attempt := 0; ; attempt++ {
		var paths []string
		for p, err := range c.Walk(ctx, path) {
			if err != nil {
				return err
			}
			paths = append(paths, p)
		}
		err := c.deleteAll(ctx, paths)
		if !errors.Is(err, kv.ErrNotEmpty) || attempt == 10 {
			return err
		}
	}
}

// deleteAll removes nodes that are listed parents first.
func (c *Client) deleteAll(ctx context.Context, paths []string) error {
	for len(paths) > 0 {
		n := min(deleteBatch, len(paths))
		batch := paths[len(paths)-n:]
		ops := make([]Op, 0, n)
		for i := n - 1; i >= 0; i-- {
			ops = append(ops, DeleteOp(batch[i], wire.AnyVersion))
		}
		_, err := c.Multi(ctx, ops...)
		if errors.Is(err, kv.ErrNoNode) { // somebody else removes too: one by one
			err = nil
			for i := n - 1; i >= 0 && err == nil; i-- {
				if err = c.Delete(ctx, batch[i], wire.AnyVersion); errors.Is(err, kv.ErrNoNode) {
					err = nil
				}
			}
		}
		if err != nil {
			return err
		}
		paths = paths[:len(paths)-n]
	}
	return nil
}

// Walk yields a node's path and those of everything below it, depth first, each node before its children and these in order of their names. It is no
// snapshot: each list of children is as of the time it was read. The error of a path that could not be read, kv.ErrNoNode for the first one among them, ends the
// walk; nodes below it that are gone by then are left out.
func (c *Client) Walk(ctx context.Context, path string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		var walk func(path string, first bool) bool
		walk = func(path string, first bool) bool {
			names, _, err := c.Children(ctx, path)
			switch {
			case errors.Is(err, kv.ErrNoNode) && !first:
				return true
			case err != nil:
				yield(path, err)
				return false
			}
			if !yield(path, nil) {
				return false
			}
			for _, name := range names {
				if !walk(strings.TrimSuffix(path, "/")+"/"+name, false) {
					return false
				}
			}
			return true
		}
		walk(path, true)
	}
}

// Txn builds a multi step by step.
//
//	results, err := c.Txn().Check("/a", 3).Set("/a", data, 3).Create("/b", nil, kv.FlagPersistent).Commit(ctx)
type Txn struct {
	c   *Client
	ops []Op
}

// Txn begins a transaction: its operations are applied all together, in their order, or not at all.
func (c *Client) Txn() *Txn { return &Txn{c: c} }

// Create adds the creation of a node.
func (t *Txn) Create(path string, data []byte, flags int32, acl ...kv.ACL) *Txn {
	return t.add(CreateOp(path, data, flags, acl...))
}

// Set adds a change of a node's data.
func (t *Txn) Set(path string, data []byte, version int32) *Txn {
	return t.add(SetOp(path, data, version))
}

// Delete adds the removal of a node.
func (t *Txn) Delete(path string, version int32) *Txn { return t.add(DeleteOp(path, version)) }

// Check adds the condition that a node has a version.
func (t *Txn) Check(path string, version int32) *Txn { return t.add(CheckOp(path, version)) }

func (t *Txn) add(o Op) *Txn {
	t.ops = append(t.ops, o)
	return t
}

// Commit sends the transaction, as Multi does.
func (t *Txn) Commit(ctx context.Context) ([]Result, error) { return t.c.Multi(ctx, t.ops...) }
