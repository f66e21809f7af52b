// Package wal is one member's durable log: transactions by zxid, the promised and joined epochs, the
// snapshot points, and who the member is. It stands on one Pebble store and does what it can to make lost
// acknowledged writes impossible, or at least noticed.
package wal
