// Package integration holds the tests that need real processes: members are started, killed and stopped, and
// other people's clients talk to them. The harness is integration/cluster; the long-running commands are
// integration/chaos, integration/powerloss and integration/patroni.
//
// A test whose program is not installed (kazoo, java, zkCli.sh) is skipped, unless KVD_NEED is set: then it fails.
package integration
