// Package cluster runs kvd members as real processes for the integration tests, the chaos command and the
// benchmark. It knows only the binaries: it builds them, writes the arguments, sends signals by process id
// and reads what the processes print.
//
// Every member of a Cluster listens on a loopback address of its own (127.0.x.y), with ports taken from the
// kernel: the source ports of other connections, which the kernel draws from the same range but on
// 127.0.0.1, can then never sit on a port that a killed member has to come back to.
//
// A Cluster is owned by one goroutine unless a method says otherwise.
package cluster
