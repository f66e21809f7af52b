// Command kvd is the daemon: one member of a replicated key-value store that speaks ZooKeeper's client
// protocol, or several of them on the loopback interface for development.
//
//	kvd dev --processes                three members, one process each
//	kvd serve --config zoo.cfg         one member, configured by ZooKeeper's own file
//	kvd inspect DIR                    what a stopped member's directory holds
//
// On stdout stands one line, "ready HOST:PORT[,HOST:PORT...]", when writes are served. Logs go to stderr.
// Exit codes: 0 stopped by a signal, 1 failed, 2 configuration or data directory refused.
package main
