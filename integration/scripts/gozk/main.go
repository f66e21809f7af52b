// Command gozk is github.com/go-zookeeper/zk against three members, through proxies that cut. It prints one line of JSON for
// every check. It is a module of its own, so that kvd does not depend on this client.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"runtime/debug"
	"time"
)

// checkLimit ends a check that hangs.
const checkLimit = 60 * time.Second

var checks = []struct {
	name string
	ops  []string
	run  func()
}{
	{"every kind of node", []string{"create", "createContainer", "createTTL", "exists"}, kindsOfNodes},
	{"containers and nodes past their time go", []string{"createContainer", "createTTL", "exists", "delete", "watch events"}, reaped},
	{"get, set, exists, delete, and a megabyte", []string{"getData", "setData", "exists", "delete", "create", "sync"}, nodes},
	{"sequence numbers of three writers", []string{"create", "getChildren2"}, sequence},
	{"children", []string{"getChildren2", "create", "delete"}, children},
	{"sync", []string{"sync", "setData", "getData"}, syncing},
	{"multi: results and rollback", []string{"multi", "check", "create", "setData", "delete"}, multi},
	{"lists and credentials, also after a cut", []string{"auth", "getACL", "setACL", "create", "reconnect"}, acls},
	{"the configuration", []string{"getConfig", "reconfig"}, config},
	{"watches", []string{"watch events", "getData", "exists", "getChildren2", "setData", "create", "delete"}, watches},
	{"watches that a cut interrupts", []string{"setWatches", "watch events", "exists", "getData", "getChildren2", "reconnect"}, interruptedWatches},
	{"a session moves between members", []string{"createSession", "resume", "setWatches", "watch events", "exists", "reconnect"}, moves},
	{"the leader dies: session, ephemeral node and watches stay", []string{"leader death", "resume", "setWatches", "watch events", "exists"}, leaderOfSession},
	{"the leader dies under pipelined writes", []string{"leader death", "setData", "resume", "reconnect"}, leaderOfWrites},
	{"writes cut in the middle are there at most once", []string{"reconnect", "resume", "setData"}, cutWrites},
	{"an expired session says so, an idle one lives", []string{"expiry", "createSession", "ping", "exists", "reconnect"}, expiry},
	{"close", []string{"closeSession", "createSession", "create", "exists", "watch events"}, closing},
	{"Lock: cuts and the leader's death in the holder's hands", []string{"create", "delete", "getChildren2", "getData", "multi", "check", "sync", "setWatches", "watch events", "resume", "reconnect", "leader death"}, lockUnderFaults},
	{"Lock: an expired session gives it up", []string{"create", "delete", "getChildren2", "getData", "multi", "check", "expiry", "watch events"}, lockExpires},
}

// Usage: gozk [regular expression of checks].
func main() {
	only := regexp.MustCompile("")
	if len(os.Args) > 1 {
		only = regexp.MustCompile(os.Args[1])
	}
	failed := false
	for _, c := range checks {
		if !only.MatchString(c.name) {
			continue
		}
		started := time.Now()
		detail := runCheck(c.run)
		failed = failed || detail != ""
		line, err := json.Marshal(struct {
			Client string   `json:"client"`
			Name   string   `json:"check"`
			Ops    []string `json:"ops"`
			Pass   bool     `json:"pass"`
			Detail string   `json:"detail"`
		}{"go-zookeeper", c.name, c.ops, detail == "", detail})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Printf("%s\n", line)
		fmt.Fprintf(os.Stderr, "%s: %v\n", c.name, time.Since(started).Round(time.Millisecond))
	}
	if failed {
		os.Exit(1)
	}
}

// runCheck returns what was wrong, or nothing. Afterwards all members serve, and the sessions of the check are closed.
func runCheck(run func()) string {
	done := make(chan string, 1)
	go func() {
		detail := caught(run)
		if d := caught(finish); detail == "" {
			detail = d
		}
		done <- detail
	}()
	select {
	case detail := <-done:
		return detail
	case <-time.After(checkLimit):
		debug.SetTraceback("all")
		panic("a check hangs") // with the stacks of all goroutines
	}
}
