package zab

import (
	"kvd/kv"
	"kvd/zab/quorum"
)

// Members compare the digests of their trees in PINGs. The core only carries them: what they mean, and who is wrong, is the
// replica's to say.

// Divergence is where a member's tree is known to be wrong: it was another one than a quorum's right after At, and was last
// seen to agree right after After (0: not known).
type Divergence struct{ After, At kv.Zxid }

// SetDigests gives the function that yields the digest of the tree right after a transaction, if it is known. A learner
// answers its leader from it.
func (p *Peer) SetDigests(fn func(kv.Zxid) (uint64, bool)) { p.digest = fn }

// AskDigests has the next PINGs of an established leader ask for the digest right after z, until another is asked for; 0 ends
// it. Answers are in Ready.Reports.
func (p *Peer) AskDigests(z kv.Zxid) {
	if p.leader != nil {
		p.leader.digestAt = z
	}
}

// TellDiverged has the next PING to a learner say that its tree is wrong.
func (p *Peer) TellDiverged(id quorum.MemberID, d Divergence) {
	if p.leader != nil {
		if pr := p.leader.find(id); pr != nil {
			pr.diverged = d
		}
	}
}
