// Package client is the Go client of kvd and of ZooKeeper: one session over one connection at a time, many
// requests outstanding on it from many goroutines.
//
//	c, err := client.Dial(ctx, "h1:2181,h2:2181,h3:2181/app")
//	data, stat, err := c.Get(ctx, "/config")
//	stat, err = c.Set(ctx, "/config", data, stat.Version)
//
// # What a caller is told
//
// Every error of a call says what is known about its effect. A result of the server matches a sentinel of
// package kv (kv.ErrNoNode, kv.ErrBadVersion, ...). [ErrUnavailable]: nothing was sent, nothing happened.
// [ErrUnknownOutcome]: a write was sent and no reply came; it may have been applied, now or never.
// [ErrSessionExpired] and [ErrClosed]: the client is finished; its ephemeral nodes are gone or going.
//
// # What is retried
//
// When the connection breaks, the client resumes its session on another server, with jitter between the
// attempts, as long as the session lives. Requests that were not sent wait for that, and so do reads
// and syncs, within the caller's context. A write that was sent is never sent again.
//
// # Watches
//
// One-shot watches (GetWatch, ExistsWatch, ChildrenWatch) and Watchers (Watch) belong to the session: the next connection sets them again. A one-shot
// whose node changed in between fires then, with the net effect (Event.CaughtUp). A Watcher is not told of that time by any server; it gets an
// EventGap, as it does when its owner is slow. EventLost is the end of the session.
//
// # Whether the session lives
//
// SessionContext ends when the session does, and at the latest when it may have: one negotiated time-out after the client sent the last request that
// was answered. Work that must not go on without the session, such as under a lock, belongs under it.
//
// # Order
//
// Requests are sent in the order in which they were submitted and are answered in that order. Reads never go
// back behind what the session has seen, also across servers: a server that lags behind refuses the session.
//
// # Goroutines
//
// Each Client has two: the reader, which also reconnects, and the writer of the present connection. What has
// been submitted while the writer was busy goes out in one write. Both end before Close returns. Callbacks
// run on the reader and must not block.
package client
