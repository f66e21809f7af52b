package ensemble

import "kvd/kv"

// configNode makes the answer to a read of /zookeeper/config: in an ensemble its data is the membership, its data
// version -1 (zookeeper-protocol 5.3). The record in the tree stays empty and is never looked at, so that members whose
// configuration differs for a while, as during a rolling restart, have the same tree. st is the node's Stat as the tree
// has it, data its data if the read returns it. For every other path, and with a single member, nothing happens.
func (p *clientPort) configNode(path string, data []byte, st *kv.Stat) []byte {
	if len(p.config) == 0 || path != kv.ConfigPath {
		return data
	}
	st.Version = -1
	st.DataLength = int32(len(p.config))
	st.Mtime = p.started.UnixMilli()
	return p.config
}
