package sim

import (
	"kvd/wal"
	"kvd/zab"
	"kvd/zab/quorum"
)

// SoleSurvivor is `kvd recover --sole-survivor` on the directory of a member that is down.
func (s *Sim) SoleSurvivor(id quorum.MemberID) {
	m := s.member(id)
	switch {
	case m.Up:
		panic("sim: recovery of a running member")
	case m.disk.unknown:
		panic("sim: a suspect member is no survivor")
	case m.disk.sole:
		return
	}
	s.logf("recover %d --sole-survivor", id)
	m.disk.sole = true
	m.disk.accepted = zab.Promise{Epoch: m.disk.accepted.Epoch + wal.RecoveryEpochs}
}
