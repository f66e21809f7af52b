package kv

import "encoding/binary"

// EphemeralOwners calls yield with every session that has an ephemeral node, in the order of the ids taken as
// unsigned, until it returns false. Its cost follows the number of sessions.
func (v *View) EphemeralOwners(yield func(SessionID) bool) {
	var buf [8]byte
	for next := uint64(0); ; {
		found := false
		v.ephemerals.ascend(stringOf(binary.BigEndian.AppendUint64(buf[:0], next)), func(rec string) bool {
			next, found = binary.BigEndian.Uint64(bytesOf(recKey(rec))), true
			return false
		})
		if !found || !yield(SessionID(next)) || next == ^uint64(0) {
			return
		}
		next++
	}
}
