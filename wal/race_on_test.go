//go:build race

package wal

// raceDetector: Pebble's invariants are on as well, and everything takes ten times as long.
const raceDetector = true
