// Package proxy puts a TCP proxy between a client and one member, which cuts, stalls and refuses on command: what a
// network does to a client that was not written by us. It knows no protocol.
//
// A Proxy lives for one test. Its methods may be called from any goroutine.
package proxy
