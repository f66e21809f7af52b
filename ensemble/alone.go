package ensemble

import (
	"errors"
	"fmt"
)

// ErrNeedsRecovery says that the directory may have lost something, and nobody is there who could bring it back. What to do is in
// the message; kvd refuses to start with exit 2.
var ErrNeedsRecovery = errors.New("data directory refused")

// onlyVoter reports whether this member is the only voter: it would wait for ever for a leader to be synced from.
func (c *Config) onlyVoter() bool {
	members, err := c.membership()
	return err == nil && len(members.Voters) == 1 && members.Voters[0] == c.ID
}

// refuseAlone refuses a suspect only voter. Its log is as it was found.
func (c *Config) refuseAlone(st *storage) error {
	s := st.log.State()
	if s.Suspect == "" || !c.onlyVoter() {
		return nil
	}
	if z := st.report.VerifiedThrough; z != 0 {
		return fmt.Errorf("%w: %s; this is the only voter, so nobody can bring back what is missing. The history through %v is sound: "+
			"`kvd recover %s --accept-up-to %v` makes the member go on with that", ErrNeedsRecovery, s.Suspect, z, c.DataDir, z)
	}
	return fmt.Errorf("%w: %s; this is the only voter, so nobody can bring back what is missing, and no part of a history can be verified for "+
		"`kvd recover`: put a copy of %s in its place, or begin anew in an empty directory", ErrNeedsRecovery, s.Suspect, c.DataDir)
}
