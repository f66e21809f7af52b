package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/client"
	"kvd/kv/client/clienttest"
	"kvd/kv/wire"
)

// asCommand in the environment makes this test binary be kv.
const asCommand = "KV_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(run(os.Args))
	}
	os.Exit(m.Run())
}

// command is kv with arguments, to be started. server is what KV_SERVER says.
func command(t *testing.T, server string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	// The race detector's run time would sleep for a second at the end of every process.
	cmd.Env = append(os.Environ(), asCommand+"=1", "KV_SERVER="+server, "KV_TIMEOUT=10s", "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	return cmd
}

type result struct {
	stdout, stderr string
	code           int
}

func kvRun(t *testing.T, server, stdin string, args ...string) result {
	t.Helper()
	cmd := command(t, server, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, ok := err.(*exec.ExitError); err != nil && !ok {
		t.Fatal(err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

func serve(t *testing.T) (*clienttest.Server, string) {
	t.Helper()
	s := clienttest.NewServer()
	t.Cleanup(s.Close)
	addr, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	s.SetStats(wire.ServerStats{
		Serving: true, Version: "3.9.0-kvd", Mode: wire.ModeLeader, KvdVersion: "test", Member: 3, Pid: 4711,
		Role: wire.ModeLeader, Leader: 3, Epoch: 1, Health: "ok",
	})
	return s, addr
}

// Every command, with each of its flags before the command, before its arguments, and after them. The three
// must do the same; -o and --timeout, which every command has, are moved around with them.
func TestFlagsBeforeAndAfterTheArguments(t *testing.T) {
	type line struct {
		command string
		flags   []string
		args    []string
		setup   [][]string
		stdin   string
		want    string // a part of stdout
		code    int
	}
	for _, l := range []line{
		{command: "get", flags: []string{"-o", "json"}, args: []string{"/a"}, setup: [][]string{{"set", "/a", "x"}}, want: `"value":"x"`},
		{command: "set", flags: []string{"--version", "0"}, args: []string{"/a", "y"}, setup: [][]string{{"set", "/a", "x"}}},
		{command: "set", flags: []string{"--version=7"}, args: []string{"/a", "y"}, setup: [][]string{{"set", "/a", "x"}}, code: exitConflict},
		{command: "set", flags: []string{"--existing"}, args: []string{"/none", "y"}, code: exitNoNode},
		{command: "set", flags: []string{"-o", "json"}, args: []string{"/new/deep", "-"}, stdin: "bytes", want: `"dataLength":5`},
		{command: "create", flags: []string{"-s"}, args: []string{"/s-", "x"}, want: "/s-0000000000"},
		{command: "create", flags: []string{"--sequential", "-o=json"}, args: []string{"/s-"}, want: `"path":"/s-0000000000"`},
		{command: "rm", flags: []string{"-r"}, args: []string{"/a"}, setup: [][]string{{"set", "/a/b/c", "x"}}},
		{command: "rm", flags: []string{"-r", "-f"}, args: []string{"/a"}},
		{command: "rm", flags: []string{"-f"}, args: []string{"/a"}},
		{command: "rm", flags: []string{"--version", "9"}, args: []string{"/a"}, setup: [][]string{{"set", "/a", "x"}}, code: exitConflict},
		{command: "ls", flags: []string{"-R"}, args: []string{"/a"}, setup: [][]string{{"set", "/a/b/c", "x"}, {"set", "/a/a", ""}}, want: "/a\n/a/a\n/a/b\n/a/b/c\n"},
		{command: "ls", flags: []string{"-R", "-o", "json"}, args: []string{"/a"}, setup: [][]string{{"set", "/a/b", "x"}}, want: `"paths":["/a","/a/b"]`},
		{command: "ls", flags: []string{"--output", "json"}, args: []string{"/a"}, setup: [][]string{{"set", "/a", "x"}}, want: `"children":[]`},
		{command: "stat", flags: []string{"-o", "json"}, args: []string{"/a"}, setup: [][]string{{"set", "/a", "x"}, {"set", "/a", "y"}}, want: `"version":1`},
		{command: "status", flags: []string{"-o", "json"}, want: `"pid":4711`},
		{command: "watch", flags: []string{"--count", "0"}, args: []string{"/a"}, code: 2},
	} {
		flags := append([]string{"--timeout", "5s"}, l.flags...)
		for _, place := range []struct {
			name string
			args []string
		}{
			{"before the command", slices.Concat(flags, []string{l.command}, l.args)},
			{"before the arguments", slices.Concat([]string{l.command}, flags, l.args)},
			{"after the arguments", slices.Concat([]string{l.command}, l.args, flags)},
		} {
			t.Run(strings.Join(append([]string{l.command}, l.flags...), " ")+" "+place.name, func(t *testing.T) {
				t.Parallel()
				_, addr := serve(t)
				for _, args := range l.setup {
					if r := kvRun(t, addr, "", args...); r.code != 0 {
						t.Fatalf("kv %v: %+v", args, r)
					}
				}
				r := kvRun(t, addr, l.stdin, place.args...)
				if r.code != l.code || !strings.Contains(r.stdout, l.want) {
					t.Errorf("kv %v: exit %d, want %d; stdout %q, want %q in it; stderr %q", place.args, r.code, l.code, r.stdout, l.want, r.stderr)
				}
			})
		}
	}
}

func TestValuesByteForByte(t *testing.T) {
	_, addr := serve(t)
	binary := "\x00\xff\n\r\x80 tail\n"
	for _, c := range []struct {
		args  []string
		stdin string
		want  string
	}{
		{[]string{"set", "/a", "hello"}, "", "hello"},
		{[]string{"set", "/a", ""}, "", ""},
		{[]string{"set", "/a", "-"}, binary, binary},
		{[]string{"set", "/a", "-"}, "", ""},
		{[]string{"set", "/a", "-5"}, "", "-5"},
		{[]string{"set", "/a", "--", "--version"}, "", "--version"},
		{[]string{"set", "--", "/a", "-"}, "piped", "piped"},
	} {
		if r := kvRun(t, addr, c.stdin, c.args...); r.code != 0 || r.stdout != "" || r.stderr != "" {
			t.Fatalf("kv %q: %+v", c.args, r)
		}
		if r := kvRun(t, addr, "", "get", "/a"); r.code != 0 || r.stdout != c.want {
			t.Errorf("after kv %q: %+v, want %q", c.args, r, c.want)
		}
	}
	if r := kvRun(t, addr, binary, "set", "/a", "-"); r.code != 0 {
		t.Fatal(r)
	}
	r := kvRun(t, addr, "", "get", "-o", "json", "/a")
	var node nodeJSON
	if err := json.Unmarshal([]byte(r.stdout), &struct {
		Path, Encoding *string
		Value          **string
	}{&node.Path, &node.Encoding, &node.Value}); err != nil || node.Encoding != "base64" || *node.Value != "AP8KDYAgdGFpbAo=" {
		t.Errorf("%q: %+v %v", r.stdout, node, err)
	}
	if strings.Count(r.stdout, "\n") != 1 || !strings.Contains(r.stdout, `"mzxid":"0x1`) {
		t.Errorf("%q", r.stdout)
	}
}

func TestExitCodesAndMessages(t *testing.T) {
	s, addr := serve(t)
	for _, args := range [][]string{{"set", "/a/b", "x"}, {"set", "/v", "x"}} {
		if r := kvRun(t, addr, "", args...); r.code != 0 {
			t.Fatal(r)
		}
	}
	for _, c := range []struct {
		args   []string
		code   int
		stderr string // a part
	}{
		{nil, 2, "no command"},
		{[]string{"frob"}, 2, "frob"},
		{[]string{"get"}, 2, "missing argument"},
		{[]string{"get", "/a", "/b"}, 2, `surplus argument "/b"`},
		{[]string{"set", "/a"}, 2, "missing argument"},
		{[]string{"set", "/a", "1", "2"}, 2, `surplus argument "2"`},
		{[]string{"get", "a"}, 2, "slash"},
		{[]string{"get", "/a/"}, 2, "slash"},
		{[]string{"get", "--frob", "/a"}, 2, "frob"},
		{[]string{"get", "/a", "--server"}, 2, "server"},
		{[]string{"get", "/a", "--timeout", "soon"}, 2, "soon"},
		{[]string{"get", "/a", "--timeout", "-1s"}, 2, "time-out"},
		{[]string{"get", "/a", "-o", "yaml"}, 2, "yaml"},
		{[]string{"get", "/a", "--server", "/chroot-only"}, 2, "no address"},
		{[]string{"set", "/a", "1", "--version", "-2"}, 2, "-2"},
		{[]string{"rm", "/"}, 2, "root"},
		{[]string{"rm", "/a", "-r", "--version", "1"}, 2, "contradict"},
		{[]string{"status", "extra"}, 2, "surplus"},
		{[]string{"ls", "/a", "/b"}, 2, "surplus"},
		{[]string{"get", "/none"}, 3, "cannot get /none on " + addr + ": no such node"},
		{[]string{"stat", "/none"}, 3, "no such node"},
		{[]string{"ls", "/none"}, 3, "no such node"},
		{[]string{"ls", "-R", "/none"}, 3, "no such node"},
		{[]string{"rm", "/none"}, 3, "no such node"},
		{[]string{"rm", "-r", "/none"}, 3, "no such node"},
		{[]string{"create", "/none/child"}, 3, "no such node"},
		{[]string{"set", "/none", "x", "--version", "3"}, 3, "no such node"},
		{[]string{"create", "/v"}, 4, "node exists"},
		{[]string{"set", "/v", "x", "--version", "5"}, 4, "kv stat"},
		{[]string{"rm", "/a"}, 4, "kv rm -r"},
		{[]string{"set", "/x/../y", "1"}, 2, "no path"},
		{[]string{"get", "/x/../y"}, 2, "no path"},
		{[]string{"get", "//x"}, 2, "no path"},
		{[]string{"rm", "/x/."}, 2, "no path"},
		{[]string{"create", "/x\x01"}, 2, "no path"},
		{[]string{"create", "-s", "//"}, 2, "no path"},
		{[]string{"get", "/v", "--server", "127.0.0.1:99999"}, 2, "port"},
		{[]string{"get", "/v", "--server", "127.0.0.1:0"}, 2, "port"},
		{[]string{"set", "/big", "-"}, 1, "larger"},
	} {
		stdin := ""
		if slices.Contains(c.args, "/big") {
			stdin = strings.Repeat("x", 1<<20)
		}
		r := kvRun(t, addr, stdin, c.args...)
		if r.code != c.code || !strings.Contains(r.stderr, c.stderr) || r.stdout != "" {
			t.Errorf("kv %q: %+v, want exit %d and %q", c.args, r, c.code, c.stderr)
		}
	}
	if r := kvRun(t, addr, "", "get", "/none", "-o", "json"); r.code != 3 || !strings.HasPrefix(r.stderr, `{"error":"cannot get /none`) || !strings.HasSuffix(r.stderr, `"code":"no-node","path":"/none"}`+"\n") {
		t.Errorf("%+v", r)
	}

	for _, args := range [][]string{{"frob", "-o", "json"}, {"-o=json"}, {"get", "/a/", "--output", "json"}, {"get", "--frob", "/a", "-o", "json"}, {"get", "/a", "-o", "json", "--server", "h:0"}} {
		r := kvRun(t, addr, "", args...)
		var line struct{ Error, Code string }
		if err := json.Unmarshal([]byte(r.stderr), &line); err != nil || r.code != 2 || r.stdout != "" || line.Code != "usage" || line.Error == "" {
			t.Errorf("kv %q: %v, %+v", args, err, r)
		}
	}

	// A write that was sent and not answered.
	s.SetHook(func(h wire.RequestHeader, _ []byte) clienttest.Action {
		if h.Op == wire.OpSetData {
			return clienttest.DropAfter
		}
		return clienttest.Answer
	})
	if r := kvRun(t, addr, "", "set", "/v", "z"); r.code != 7 || !strings.Contains(r.stderr, "outcome unknown") {
		t.Errorf("%+v", r)
	}
	if n := s.Requests(wire.OpSetData); n == 0 {
		t.Error("the write was not sent")
	}
	s.SetHook(nil)
	if r := kvRun(t, addr, "", "get", "/v"); r.stdout != "z" {
		t.Errorf("%+v", r)
	}

	// A server that answers nobody, and none at all.
	s.Refuse(true)
	if r := kvRun(t, addr, "", "get", "/v", "--timeout", "200ms"); r.code != 6 || !strings.Contains(r.stderr, "not serving") {
		t.Errorf("%+v", r)
	}
	if r := kvRun(t, "127.0.0.1:1", "", "status"); r.code != 6 || !strings.Contains(r.stdout, "unreachable: connection refused") {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{{"--help"}, {"get", "--help"}, {"help", "get"}} {
		if r := kvRun(t, addr, "", args...); r.code != 0 || !strings.Contains(r.stdout, "kv") {
			t.Errorf("kv %q: %+v", args, r)
		}
	}
}

// process is a command that goes on until it is told to stop.
type process struct {
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr *bufio.Reader
}

func start(t *testing.T, server string, args ...string) *process {
	t.Helper()
	cmd := command(t, server, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	guard := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		guard.Stop()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &process{cmd, bufio.NewReader(out), bufio.NewReader(errs)}
}

func (p *process) line(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	line, err := r.ReadString('\n')
	if err != nil {
		rest, _ := io.ReadAll(p.stderr)
		t.Fatalf("no line: %v; stderr %q", err, rest)
	}
	return strings.TrimSuffix(line, "\n")
}

func (p *process) end(t *testing.T, sig os.Signal) int {
	t.Helper()
	if sig != nil {
		if err := p.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = io.Copy(io.Discard, p.stdout)
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

func TestCreateEphemeralHoldsTheSession(t *testing.T) {
	s, addr := serve(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		p := start(t, addr, "create", "-e", "-s", "/lock-", "me")
		name := p.line(t, p.stdout)
		if !strings.HasPrefix(name, "/lock-000000000") {
			t.Fatalf("%q", name)
		}
		if r := kvRun(t, addr, "", "get", name); r.stdout != "me" {
			t.Fatalf("%+v", r)
		}
		if code := p.end(t, sig); code != 128+int(sig) {
			t.Errorf("exit %d after signal %d", code, sig)
		}
		if r := kvRun(t, addr, "", "get", name); r.code != 3 {
			t.Errorf("after signal %d the node is still there: %+v", sig, r)
		}
	}
	p := start(t, addr, "create", "-e", "/e")
	p.line(t, p.stdout)
	s.Expire(s.Sessions()[0])
	if code := p.end(t, nil); code != exitSessionLost {
		t.Errorf("exit %d after the session expired", code)
	}
}

func TestWatch(t *testing.T) {
	s, addr := serve(t)
	p := start(t, addr, "watch", "/w")
	if got := p.line(t, p.stderr); got != "watching /w (does not exist)" {
		t.Fatalf("%q", got)
	}
	step := func(want string, args ...string) {
		t.Helper()
		if len(args) > 0 {
			if r := kvRun(t, addr, "", args...); r.code != 0 {
				t.Fatalf("%+v", r)
			}
		}
		if got := p.line(t, p.stdout); !strings.HasPrefix(got, want) {
			t.Errorf("after kv %q: %q, want %q", args, got, want)
		}
	}
	step("NodeCreated /w 0x1", "set", "/w", "1")
	step("NodeDataChanged /w 0x1", "set", "/w", "2")
	step("NodeChildrenChanged /w 0x1", "set", "/w/child", "")
	s.CutAll() // a lost connection loses no change
	step("NodeDataChanged /w 0x1", "set", "/w", "3")
	step("NodeChildrenChanged /w 0x1", "rm", "/w/child")
	step("NodeDeleted /w", "rm", "/w")
	step("NodeCreated /w 0x1", "create", "/w")
	if code := p.end(t, syscall.SIGINT); code != 130 {
		t.Errorf("exit %d", code)
	}

	p = start(t, addr, "watch", "/w", "--count", "2", "-o", "json")
	p.line(t, p.stderr)
	step(`{"type":"NodeDataChanged","path":"/w","zxid":"0x1`, "set", "/w", "x")
	step(`{"type":"NodeDeleted","path":"/w"}`, "rm", "/w")
	if code := p.end(t, nil); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// Changes that both readings do not show one by one.
func TestChangesBetweenTwoReadings(t *testing.T) {
	node := func(c, m, p kv.Zxid) nodeState { return nodeState{true, kv.Stat{Czxid: c, Mzxid: m, Pzxid: p}} }
	for _, c := range []struct {
		before, after nodeState
		want          []change
	}{
		{nodeState{}, nodeState{}, nil},
		{node(1, 1, 1), node(1, 1, 1), nil},
		{nodeState{}, node(5, 5, 5), []change{{client.EventCreated, 5}}},
		{nodeState{}, node(5, 7, 6), []change{{client.EventCreated, 5}, {client.EventChildrenChanged, 6}, {client.EventDataChanged, 7}}},
		{node(1, 2, 3), nodeState{}, []change{{client.EventDeleted, 0}}},
		{node(1, 2, 3), node(1, 9, 8), []change{{client.EventChildrenChanged, 8}, {client.EventDataChanged, 9}}},
		{node(1, 2, 3), node(9, 9, 9), []change{{client.EventDeleted, 0}, {client.EventCreated, 9}}},
	} {
		if got := c.before.changes(c.after); !slices.Equal(got, c.want) {
			t.Errorf("%v -> %v: %v, want %v", c.before, c.after, got, c.want)
		}
	}
}

func TestStatus(t *testing.T) {
	a, addrA := serve(t)
	b, addrB := serve(t)
	gone := "127.0.0.1:1"
	members := []wire.MemberAddr{{ID: 1, Addr: gone}, {ID: 2, Addr: addrB}, {ID: 3, Addr: addrA}}
	a.SetStats(wire.ServerStats{Serving: true, Version: "3.9.0-kvd", Mode: wire.ModeLeader, KvdVersion: "test", Member: 3, Pid: 4711, Role: wire.ModeLeader, Leader: 3, Epoch: 1, Health: "ok", Members: members})
	b.SetStats(wire.ServerStats{Version: "3.9.0-kvd", KvdVersion: "test", Member: 2, Pid: 4712, Role: wire.ModeLooking, Epoch: 1, Health: "no quorum", Members: members})
	for range 3 { // three transactions ahead of b
		if r := kvRun(t, addrA, "", "set", "/x", "1"); r.code != 0 {
			t.Fatal(r)
		}
	}
	// One address is enough to find all, and an address given twice shows once.
	for _, server := range []string{addrA, addrB, addrA + "," + addrA + "," + addrB} {
		r := kvRun(t, server, "", "status")
		lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
		if r.code != 0 || len(lines) != 4 {
			t.Fatalf("%+v", r)
		}
		for i, want := range [][]string{
			{"SERVER", "MEMBER", "ROLE", "PID", "EPOCH", "ZXID", "LAG", "HEALTH"},
			{gone, "1", "-", "-", "-", "-", "-", "unreachable:", "connection", "refused"},
			{addrB, "2", "looking", "4712", "1", "0x100000000", "", "no", "quorum"},
			{addrA, "3", "leader", "4711", "1", "", "0", "ok"},
		} {
			got := strings.Fields(lines[i])
			ok := len(got) == len(want)
			for j := range want {
				ok = ok && (want[j] == "" || got[j] == want[j])
			}
			if !ok {
				t.Errorf("line %d: %q, want %q", i, got, want)
			}
		}
	}
	r := kvRun(t, addrA, "", "status", "-o", "json")
	var out struct{ Members []map[string]any }
	if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || len(out.Members) != 3 {
		t.Fatalf("%+v %v", r, err)
	}
	if m := out.Members[2]; m["role"] != "leader" || m["pid"] != 4711.0 || m["lag"] != 0.0 || m["serving"] != true || m["member"] != 3.0 {
		t.Errorf("%v", m)
	}
	if m := out.Members[1]; m["role"] != "looking" || m["serving"] != false || m["lag"].(float64) < 3 {
		t.Errorf("%v", m)
	}
	if m := out.Members[0]; m["health"] != "unreachable: connection refused" || m["member"] != 1.0 {
		t.Errorf("%v", m)
	}
}

func TestParseConfig(t *testing.T) {
	text := "server.1=h1:2888:3888:participant;0.0.0.0:2181\nserver.2=h2:2888:3888:observer;10.0.0.2:2182\nserver.3=[::1]:2888:3888;2183\nserver.4=h4:1:2\nversion=100000000"
	want := []string{"h1:2181", "10.0.0.2:2182", "[::1]:2183"}
	if got := parseConfig(text); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A missing chroot is a missing node, not something to create, and costs a handful of requests. Within it
// set creates parents as anywhere.
func TestMissingChroot(t *testing.T) {
	s, addr := serve(t)
	for _, p := range []string{"/x", "/x/y/z"} {
		r := kvRun(t, addr+"/ch/deep", "", "set", p, "v")
		if r.code != exitNoNode || !strings.Contains(r.stderr, "cannot set "+p) || !strings.Contains(r.stderr, "the chroot /ch/deep does not exist: no such node") {
			t.Errorf("%+v", r)
		}
	}
	if n := s.Requests(wire.OpCreate2); n > 2 {
		t.Errorf("%d creates were sent", n)
	}
	for _, args := range [][]string{{"get", "/x"}, {"ls"}, {"stat", "/"}, {"create", "/x"}, {"rm", "/x"}, {"rm", "-r", "/x"}, {"set", "/x", "v", "--existing"}} {
		if r := kvRun(t, addr+"/ch/deep", "", args...); r.code != exitNoNode {
			t.Errorf("kv %q: %+v", args, r)
		}
	}
	if r := kvRun(t, addr, "", "set", "/ch/deep", ""); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if r := kvRun(t, addr+"/ch/deep", "", "set", "/x/y/z", "v"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if r := kvRun(t, addr, "", "get", "/ch/deep/x/y/z"); r.stdout != "v" {
		t.Errorf("%+v", r)
	}
}

// Somebody who removes what set creates, as fast as it does, ends it with a plain failure after some rounds.
func TestSetAgainstARemover(t *testing.T) {
	s, addr := serve(t)
	s.SetHook(func(h wire.RequestHeader, body []byte) clienttest.Action {
		var q kv.Request
		if h.Op == wire.OpCreate2 && wire.DecodeRequest(h.Op, body, &q) == nil && q.Path == "/r/x" {
			return clienttest.NoNode // its parent is gone again
		}
		return clienttest.Answer
	})
	r := kvRun(t, addr, "", "set", "/r/x", "v")
	if r.code != exitNoNode || !strings.Contains(r.stderr, "removed as fast as they are created") {
		t.Errorf("%+v", r)
	}
	if n := s.Requests(wire.OpCreate2); n != 2*createRounds {
		t.Errorf("%d creates were sent, want %d", n, 2*createRounds)
	}
}

// A removal of many nodes goes in rounds if others create nodes meanwhile.
func TestRemoveTree(t *testing.T) {
	s, addr := serve(t)
	for i := range 40 {
		if r := kvRun(t, addr, "", "set", fmt.Sprintf("/t/%d/x", i), ""); r.code != 0 {
			t.Fatal(r)
		}
	}
	c, err := client.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	late := false
	s.SetHook(func(h wire.RequestHeader, _ []byte) clienttest.Action {
		if h.Op == wire.OpDelete && !late {
			late = true
			call := &client.Call{Op: wire.OpCreate, Path: "/t/0/late", Done: func(*client.Call) {}}
			if err := c.Do(call); err != nil {
				t.Error(err)
			}
		}
		return clienttest.Answer
	})
	if r := kvRun(t, addr, "", "rm", "-r", "/t"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	if r := kvRun(t, addr, "", "ls", "/"); r.stdout != "zookeeper\n" {
		t.Errorf("%+v", r)
	}
}
