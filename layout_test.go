package kvd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The rules of docs/architecture.md about who may import whom. Imports run one way:
//
//	cmd/kvd -> ensemble -> {fle, zab, wal, snapshot, kv/client, kv/wire} -> kv
//	cmd/kv, bench, integration -> kv/recipe -> kv/client -> kv/wire -> kv
//
// A path ending in /... means the room and everything below it. Only direct imports of non-test files
// count: a test may import ensemble from an external test package.
var forbidden = []struct {
	room   string
	bans   []string
	reason string
}{
	{"kvd/fle", []string{"net", "os", "time", "context", "log", "log/slog", "sync", "math/rand", "crypto/rand"}, "the election is a pure state machine: messages and ticks in, messages and decisions out"},
	{"kvd/zab", []string{"net", "os", "time", "context", "log", "log/slog", "math/rand", "crypto/rand"}, "the broadcast is a pure state machine: messages, ticks and completions in, effects out"},
	{"kvd/zab/quorum", []string{"net", "os", "time", "context", "log", "log/slog", "kvd/..."}, "quorum is a leaf for all"},
	{"kvd/ensemble/identity", []string{"net", "os", "time", "context", "log", "log/slog", "sync", "math/rand", "crypto/rand"}, "pure, so that the simulator runs it"},
	{"kvd/ensemble/replica", []string{"net", "os", "time", "context", "log", "log/slog", "sync", "math/rand", "crypto/rand", "kvd/wal", "kvd/kv/client", "kvd/ensemble"}, "pure, so that the simulator runs it"},
	{"kvd/kv", []string{"net", "os", "context", "log", "log/slog", "math/rand", "kvd/..."}, "the tree knows no network, no disk and no other room"},
	{"kvd/fle", []string{"kvd/ensemble/...", "kvd/wal", "kvd/snapshot", "kvd/zab", "kvd/kv/...", "kvd/cmd/..."}, "the middle rooms do not import each other"},
	{"kvd/zab", []string{"kvd/ensemble/...", "kvd/wal", "kvd/snapshot", "kvd/fle", "kvd/kv/...", "kvd/cmd/..."}, "the middle rooms do not import each other"},
	{"kvd/wal", []string{"kvd/ensemble/...", "kvd/zab", "kvd/snapshot", "kvd/fle", "kvd/kv/...", "kvd/cmd/..."}, "the middle rooms do not import each other"},
	{"kvd/snapshot", []string{"kvd/ensemble/...", "kvd/zab", "kvd/wal", "kvd/fle", "kvd/kv/...", "kvd/cmd/..."}, "the middle rooms do not import each other"},
	{"kvd/kv/wire", []string{"kvd/ensemble/...", "kvd/zab/...", "kvd/wal", "kvd/snapshot", "kvd/fle", "kvd/kv/client", "kvd/cmd/..."}, "the wire format knows only the tree's types"},
	{"kvd/kv/client", []string{"kvd/ensemble/...", "kvd/zab/...", "kvd/wal", "kvd/snapshot", "kvd/fle", "kvd/cmd/..."}, "a program that only talks to kvd does not inherit a member"},
	{"kvd/cmd/kv", []string{"kvd/ensemble/...", "kvd/zab/...", "kvd/wal", "kvd/snapshot", "kvd/fle"}, "kv talks to any ZooKeeper server; it embeds none"},
	{"kvd/ensemble/...", []string{"kvd/cmd/..."}, "commands are on top"},
}

// rooms that a kvd/kv/... ban on the middle rooms does not mean: kv itself is everyone's leaf.
func banned(ban, imp string) bool {
	if prefix, ok := strings.CutSuffix(ban, "/..."); ok {
		if prefix == "kvd/kv" {
			return strings.HasPrefix(imp, "kvd/kv/")
		}
		return imp == prefix || strings.HasPrefix(imp, prefix+"/")
	}
	return imp == ban
}

func inRoom(room, pkg string) bool {
	if prefix, ok := strings.CutSuffix(room, "/..."); ok {
		return pkg == prefix || strings.HasPrefix(pkg, prefix+"/")
	}
	return pkg == room
}

type listedPackage struct {
	ImportPath string
	Doc        string
	Imports    []string
	GoFiles    []string
}

func listPackages(t *testing.T) []listedPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,Imports,GoFiles", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var pkgs []listedPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func TestImportsRunOneWay(t *testing.T) {
	pkgs := listPackages(t)
	for _, rule := range forbidden {
		matched := false
		for _, p := range pkgs {
			if !inRoom(rule.room, p.ImportPath) {
				continue
			}
			matched = true
			for _, imp := range p.Imports {
				if slices.ContainsFunc(rule.bans, func(ban string) bool { return banned(ban, imp) }) {
					t.Errorf("%s imports %s: %s", p.ImportPath, imp, rule.reason)
				}
			}
		}
		if !matched {
			t.Errorf("the rule about %s matches no package", rule.room)
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range listPackages(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}
