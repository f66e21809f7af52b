// Package sim runs a whole ensemble in one thread from a seed: virtual time, a network that delays, breaks,
// doubles and cuts, disks that hang, fail and lose what was not synced, members that crash and pause, clients with
// sessions. Each member is a replica.Replica driven exactly as production drives it.
//
// Start with [Run] and [Schedule] (one random history), [New] and the verbs of [Sim] (directed scenarios in the vocabulary
// of zab-rules e), and ghost (the checkers). The catalogue of known failures, S01 to S62, is in testdata/catalogue as scripts of
// these verbs; docs/testing.md says how to write one.
//
//	r := sim.Run(sim.Schedule{Seed: 42})        // r.Err is the first broken property
//
//	s := sim.New(sim.Options{Seed: 1, Members: 3})
//	s.Given(sim.Disk{Accepted: 1, Current: 1, Log: []sim.Span{{Epoch: 1, Last: 5}}}, 1, 2, 3)
//	s.StartAll()
//	s.Until(100, func() bool { return s.Leader() != nil })
//
// # What is checked
//
// The properties P1 to P22, C1 to C4, L1, L2, L5 and L7 of zab-rules d, by name, where something changes that they speak
// of: after every step, in other words. A model of the tree that follows what clients asked for, not what
// transactions say, is compared with every answer and with the members' trees.
//
// # Determinism
//
// One source of randomness, one queue ordered by virtual time and sequence number, no map iterated where the order
// shows, no goroutine. The same seed gives the same trace, byte for byte; a test holds every change to that.
//
//	go test ./ensemble/sim -schedules 2000
//	go run ./ensemble/sim/run -schedules 10000
//	go run ./ensemble/sim/run -schedules 1 -seed 42 -trace
package sim
