// Package identity decides how a member without a history becomes part of an ensemble: by forming a new one
// with the other voters, or by joining one that exists (design rule 8). It is what keeps a wiped member from
// voting as if it had never promised anything (S27).
//
// [Machine] is the pure state machine of one member: hellos, ticks and disk completions go in, hellos, a cluster
// id to persist and the phase come out. It has no goroutine, clock, socket or file; the member loop owns it.
//
// # The rule
//
//   - Blank: neither the identity file nor the log store knows a cluster id. Suspect: one is missing, they
//     differ, or the log fails its checks. Neither has a countable vote.
//   - The highest-id voter, blank, mints a cluster id after hearing in this run that every other voter is
//     blank. It persists the id, then announces it.
//   - A blank voter adopts an announced id after hearing in this run from every other voter, each blank or
//     {same id, accepted epoch 0, nothing logged}. Persisted, it is an ordinary voter.
//   - Whoever hears of a member that has promised or logged something knows that an ensemble exists: it joins
//     an established leader and votes once its NEWLEADER batch is durable.
//   - --bootstrap mints at once. A voter that is alone forms at once.
//
// A crash between any two steps is resumed by the same rule, because a step's only trace is the durable id.
//
// Why nothing can be forgotten: a voter that was wiped had promised only to leaders whose own accepted epoch
// was durable and positive before they asked. Each of them is among the voters that must be heard, so one
// hello after the wipe reveals it. "In this run" is therefore literal: a hello counts only if it echoes the
// number of the receiver's present run. The transport re-sends the newest hello after a reconnect, and one
// from before the wipe must not pass for news.
package identity
