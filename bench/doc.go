// Command bench measures kvd: `go run ./bench targets` runs every speed and memory target of the project against
// real member processes on this machine and prints target, measured value and verdict; it exits 1 if one is missed.
//
// The figures mean something on a machine that is otherwise quiet. Absolute numbers depend on its disk and
// processor; compare runs on one machine only.
package main
