// Command difftest compares kvd with ZooKeeper: the same bytes go to both, in seeded random sequences of every
// operation of the client protocol, valid and not, from several sessions, and every answer is compared.
//
//	go run ./integration/difftest --seeds 1-200 --steps 500 --members both
//
// A sequence is a list of steps (step.go), made while it runs by a generator (generator.go) that looks at a
// compact model of the tree and the watches (model.go, watches.go). After each step every connection is fenced,
// so that all events that the step raised are in. ZooKeeper's answers drive the model, and its events must be the
// ones that the model predicts: a wrong model is a difference like any other.
//
// What must differ is mapped field by field (compare.go): zxids by an order-preserving bijection, session ids and
// passwords by session, times by transaction; lists without an order are sorted. What may differ is a named rule
// (rules.go): a function from the request, the model and ZooKeeper's answer to the one answer that kvd must give.
// docs/divergence.md is made from the rules (--write-divergence).
//
// On a difference the seed, the step and both answers are printed, then the shortest sequence that still differs;
// it can be run again with --replay.
package main
