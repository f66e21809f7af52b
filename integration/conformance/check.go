package conformance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Operations are the rows of the table, in the order of zookeeper-protocol 3.1, followed by what is not an operation
// but what clients live by.
var Operations = []string{
	"createSession", "resume", "ping", "closeSession",
	"create", "create2", "createContainer", "createTTL", "delete", "exists", "getData", "setData", "getACL", "setACL",
	"getChildren", "getChildren2", "sync", "multi", "check", "multiRead", "reconfig", "auth", "sasl",
	"setWatches", "setWatches2", "addWatch", "checkWatches", "removeWatches", "watch events",
	"getEphemerals", "getAllChildrenNumber", "whoAmI", "getConfig",
	"expiry", "reconnect", "leader death",
}

// Check is one line of a client program: something that an application relies on, and whether it held.
type Check struct {
	Client string   `json:"client"` // a column of the table
	Name   string   `json:"check"`  // unique within the client
	Ops    []string `json:"ops"`    // members of Operations
	Pass   bool     `json:"pass"`
	Detail string   `json:"detail"`
}

// ParseOutput returns the checks in a program's output. Lines that do not begin with `{"client"` are not meant for it. A
// line that does, but is no complete check, is an error, and so is a name that comes twice.
func ParseOutput(output []byte) ([]Check, error) {
	var checks []Check
	seen := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(output))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		compact := bytes.ReplaceAll(line[:min(len(line), 16)], []byte(" "), nil)
		if !bytes.HasPrefix(compact, []byte(`{"client"`)) {
			continue
		}
		var c Check
		d := json.NewDecoder(bytes.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&c); err != nil {
			return checks, fmt.Errorf("%s: %w", line, err)
		}
		if err := c.validate(); err != nil {
			return checks, fmt.Errorf("%s: %w", line, err)
		}
		if key := c.Client + "\x00" + c.Name; seen[key] {
			return checks, fmt.Errorf("%s: reported twice", line)
		} else {
			seen[key] = true
		}
		checks = append(checks, c)
	}
	return checks, lines.Err()
}

func (c Check) validate() error {
	switch {
	case c.Client == "" || c.Name == "":
		return fmt.Errorf("no client or no name")
	case strings.ContainsAny(c.Client+c.Name, "|\n"):
		return fmt.Errorf("client and name are cells of a table")
	case len(c.Ops) == 0:
		return fmt.Errorf("names no operation")
	}
	for _, op := range c.Ops {
		if !slices.Contains(Operations, op) {
			return fmt.Errorf("unknown operation %q", op)
		}
	}
	return nil
}
