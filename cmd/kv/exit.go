package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"kvd/cmd/internal/cliargs"
	"kvd/kv"
	"kvd/kv/client"
)

// The exit codes, beside 0, cliargs.ExitUsage and 128+n.
const (
	exitFailed      = 1
	exitNoNode      = 3
	exitConflict    = 4
	exitNotAllowed  = 5
	exitUnavailable = 6
	exitUnknown     = 7
	exitSessionLost = 8
)

// failure is an error with what was tried: "set", "/a", on which server.
type failure struct {
	what   string
	path   string
	server string
	err    error
	usage  bool
}

func (f *failure) Error() string {
	var b strings.Builder
	b.WriteString("cannot " + f.what)
	if f.path != "" {
		b.WriteString(" " + f.path)
	}
	if f.server != "" {
		b.WriteString(" on " + f.server)
	}
	// The client's own error would repeat operation and path.
	err := f.err
	var of *client.Error
	if errors.As(err, &of) && (f.path == "" || of.Path == "" || of.Path == f.path) {
		err = of.Err
	}
	fmt.Fprintf(&b, ": %v", err)
	return b.String()
}

func (f *failure) Unwrap() error { return f.err }

// outcomes lists what an error means, the first match counts.
var outcomes = []struct {
	err  error
	exit int
	code string // in JSON
	hint string
}{
	{client.ErrUnknownOutcome, exitUnknown, "outcome-unknown", "read the node to see whether it was applied"},
	{client.ErrSessionExpired, exitSessionLost, "session-expired", "ephemeral nodes of the session are gone"},
	{client.ErrTooLarge, exitFailed, "too-large", "servers take requests up to 1 MiB"},
	{client.ErrUnavailable, exitUnavailable, "unavailable", "is a majority of the servers running? 'kv status' shows them; --server or KV_SERVER names them"},
	{kv.ErrNoNode, exitNoNode, "no-node", ""},
	{kv.ErrNodeExists, exitConflict, "node-exists", "'kv set' overwrites"},
	{kv.ErrBadVersion, exitConflict, "bad-version", "'kv stat' shows the present version"},
	{kv.ErrNotEmpty, exitConflict, "not-empty", "'kv rm -r' removes it with everything below it"},
	{kv.ErrNoAuth, exitNotAllowed, "no-auth", ""},
	{kv.ErrAuthFailed, exitNotAllowed, "auth-failed", ""},
	{kv.ErrNoChildrenForEphemerals, exitFailed, "no-children-for-ephemerals", ""},
	{kv.ErrBadArguments, exitFailed, "bad-arguments", "paths have no empty, '.' or '..' component and no control characters"},
	{kv.ErrUnimplemented, exitFailed, "unimplemented", "the server does not support this"},
	{client.ErrClosed, exitFailed, "closed", ""},
}

// exitCode is the exit code of a command's error.
func exitCode(err error) int {
	var f *failure
	if errors.As(err, &f) && f.usage {
		return cliargs.ExitUsage
	}
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o.exit
		}
	}
	return exitFailed
}

// report prints a command's error. Wrong usage it prints in JSON only.
func (p *program) report(w io.Writer, err error) bool {
	var usage *cliargs.UsageError
	if errors.As(err, &usage) && !p.json {
		return false
	}
	var f *failure
	_ = errors.As(err, &f)
	code, hint := "failed", ""
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			code, hint = o.code, o.hint
			break
		}
	}
	if usage != nil || f != nil && f.usage {
		code = "usage"
	}
	if p.json {
		line := struct {
			Error string `json:"error"`
			Code  string `json:"code"`
			Path  string `json:"path,omitempty"`
		}{Error: err.Error(), Code: code}
		if f != nil {
			line.Path = f.path
		}
		_ = json.NewEncoder(w).Encode(line)
		return true
	}
	_, _ = fmt.Fprintf(w, "kv: %v\n", err)
	if hint != "" {
		_, _ = fmt.Fprintf(w, "    %s\n", hint)
	}
	return true
}
