package sim

// Mutant is one deliberate mistake that the checkers must catch (zab-rules d, mutation list).
type Mutant struct {
	Name string
	// Budget is how many random seeds may pass before one catches it. How many are needed is a measure of the
	// simulator's quality.
	Budget int
	Apply  func(*Schedule)
}

// Mutants returns the mistakes, the six of the project's first proof first.
func Mutants() []Mutant {
	return []Mutant{
		{"ack before sync", 200, func(c *Schedule) { c.ZabMutations.AckBeforeSync = true }},
		{"ack of NEWLEADER before its batch", 200, func(c *Schedule) { c.ZabMutations.AckNewLeaderBeforeBatch = true }},
		{"current epoch before the history", 3000, func(c *Schedule) { c.ZabMutations.CurrentEpochBeforeHistory = true }},
		{"votes and recency by zxid only", 3000, func(c *Schedule) {
			c.ElectionMutations.VotesByZxidOnly = true
			c.ZabMutations.RecencyByZxidOnly = true
		}},
		{"truncation against the committed part", 3000, func(c *Schedule) { c.ZabMutations.TruncateAgainstCommitted = true }},
		{"a hole accepted on append", 500, func(c *Schedule) { c.ZabMutations.AcceptHoles = true; c.LoseProposals = 20 }},
		{"already promised still counted", 3000, func(c *Schedule) { c.ZabMutations.CountAlreadyPromised = true }},
		{"registration kept across links", 3000, func(c *Schedule) { c.ZabMutations.RegistrationKeptAcrossLinks = true }},
		{"a lost write does not hold back the next", 3000, func(c *Schedule) { c.ReplicaMutations.SendBehindFailure = true }},
		{"a node is removed that was renewed since it was found", 3000, func(c *Schedule) { c.ReplicaMutations.ReapBlindly = true }},
		{"a session resumed with any password", 3000, func(c *Schedule) { c.ReplicaMutations.AnyPassword = true }},
		{"a resume decided by a follower", 3000, func(c *Schedule) { c.ReplicaMutations.ResumeUnasked = true }},
		{"writes from a member that the session has left", 3000, func(c *Schedule) { c.ReplicaMutations.KeepMoved = true }},
		{"a new leader does not give full time-outs", 3000, func(c *Schedule) { c.ReplicaMutations.NoFullTimeout = true }},
		{"what is in flight is ignored", 3000, func(c *Schedule) { c.TreeMutations.IgnoreInFlight = true }},
		{"a snapshot one entry ahead of its label", 3000, func(c *Schedule) { c.ShellMutations.SnapshotAhead = true }},
		{"a snapshot referred to before its files are synced", 3000, func(c *Schedule) { c.ShellMutations.ReferUnsynced = true }},
		{"an event behind the reply that shows the change", 3000, func(c *Schedule) { c.ShellMutations.EventsBehindReplies = true }},
		{"what a client missed is not told when it reconnects", 3000, func(c *Schedule) { c.ShellMutations.NoCatchUp = true }},
	}
}

// Hunt runs seeds until one catches the mutant. It returns the number of seeds used and what was found, nil if
// the budget ran out.
func (m Mutant) Hunt(first uint64, steps int) (seeds int, found *Result) {
	for i := range m.Budget {
		c := Schedule{Seed: first + uint64(i), Steps: steps}
		m.Apply(&c)
		if r := Run(c); r.Err != nil {
			return i + 1, &r
		}
	}
	return m.Budget, nil
}
