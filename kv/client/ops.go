package client

import (
	"context"
	"slices"

	"kvd/kv"
	"kvd/kv/wire"
)

// Create makes a node and returns its real path, which differs from path for the sequential flags. flags is
// kv.FlagPersistent, kv.FlagEphemeral, kv.FlagSequential or kv.FlagEphemeralSequential. Without acl everybody may do everything.
func (c *Client) Create(ctx context.Context, path string, data []byte, flags int32, acl ...kv.ACL) (string, kv.Stat, error) {
	s := c.newCall(wire.OpCreate2, path)
	defer c.release(s)
	s.Data, s.Flags, s.ACL = data, flags, acl
	err := c.wait(ctx, s)
	return s.Name, s.Stat, err
}

// Set replaces a node's data if it has the version; wire.AnyVersion (-1) matches every version.
func (c *Client) Set(ctx context.Context, path string, data []byte, version int32) (kv.Stat, error) {
	s := c.newCall(wire.OpSetData, path)
	defer c.release(s)
	s.Data, s.Version = data, version
	err := c.wait(ctx, s)
	return s.Stat, err
}

// Delete removes a node without children if it has the version.
func (c *Client) Delete(ctx context.Context, path string, version int32) error {
	s := c.newCall(wire.OpDelete, path)
	defer c.release(s)
	s.Version = version
	return c.wait(ctx, s)
}

// Exists returns a node's Stat; kv.ErrNoNode if it does not exist.
func (c *Client) Exists(ctx context.Context, path string) (kv.Stat, error) {
	stat, _, err := c.exists(ctx, path, false)
	return stat, err
}

// ExistsWatch is Exists with a one-shot watch, which is also left when the node does not exist (the error is
// kv.ErrNoNode then): it sees the node's creation, change or deletion.
func (c *Client) ExistsWatch(ctx context.Context, path string) (kv.Stat, <-chan Event, error) {
	return c.exists(ctx, path, true)
}

func (c *Client) exists(ctx context.Context, path string, watch bool) (kv.Stat, <-chan Event, error) {
	s := c.newCall(wire.OpExists, path)
	defer c.release(s)
	s.Watch = watch
	err := c.wait(ctx, s)
	return s.Stat, s.Watched, err
}

// Get returns a node's data, which is the caller's, and its Stat. Null data is nil.
func (c *Client) Get(ctx context.Context, path string) ([]byte, kv.Stat, error) {
	data, stat, _, err := c.get(ctx, path, false)
	return data, stat, err
}

// GetWatch is Get with a one-shot watch of the node's data: it sees the next change or the deletion.
func (c *Client) GetWatch(ctx context.Context, path string) ([]byte, kv.Stat, <-chan Event, error) {
	return c.get(ctx, path, true)
}

func (c *Client) get(ctx context.Context, path string, watch bool) ([]byte, kv.Stat, <-chan Event, error) {
	s := c.newCall(wire.OpGetData, path)
	defer c.release(s)
	s.Watch = watch
	err := c.wait(ctx, s)
	return s.Value, s.Stat, s.Watched, err
}

// Children returns the names of a node's children, sorted, and its Stat.
func (c *Client) Children(ctx context.Context, path string) ([]string, kv.Stat, error) {
	names, stat, _, err := c.children(ctx, path, false)
	return names, stat, err
}

// ChildrenWatch is Children with a one-shot watch: it sees the next creation or deletion of a child, or the
// deletion of the node.
func (c *Client) ChildrenWatch(ctx context.Context, path string) ([]string, kv.Stat, <-chan Event, error) {
	return c.children(ctx, path, true)
}

func (c *Client) children(ctx context.Context, path string, watch bool) ([]string, kv.Stat, <-chan Event, error) {
	s := c.newCall(wire.OpGetChildren2, path)
	defer c.release(s)
	s.Watch = watch
	err := c.wait(ctx, s)
	slices.Sort(s.Names) // servers answer in any order
	return s.Names, s.Stat, s.Watched, err
}

// Sync waits until the server has applied everything that was committed before the call: a read behind it
// is not stale.
func (c *Client) Sync(ctx context.Context, path string) error {
	s := c.newCall(wire.OpSync, path)
	defer c.release(s)
	return c.wait(ctx, s)
}

// Multi applies all operations as one transaction, or none of them. When one fails, the error is a *MultiError
// (within an *Error) and matches the server's reason; the results then say what each operation met.
func (c *Client) Multi(ctx context.Context, ops ...Op) ([]Result, error) {
	s := c.newCall(wire.OpMulti, "")
	defer c.release(s)
	s.Ops = ops
	err := c.wait(ctx, s)
	return s.Results, err
}
