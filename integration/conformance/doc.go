// Package conformance collects what the client programs of the integration tests report, and keeps docs/conformance.md,
// the table operation × client, equal to it.
//
// A program prints one JSON object a line for every check:
//
//	{"client":"kazoo","check":"Lock","ops":["create","delete"],"pass":true,"detail":""}
//
// "ops" are the operations of the protocol that the check depends on, by the names in Operations; "detail" says why it
// failed. Every other line of output is for the log.
package conformance
