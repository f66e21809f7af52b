package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A data directory that cannot be written, a log directory that cannot be made and an address that is none are refused with
// exit 2, all in one message, and nothing is written.
func TestWhatCannotBeUsedIsRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	config, dataDir := zooCfg(t, "clientPort=2181", "clientPortAddress=999.1.1.1", "dataLogDir="+filepath.Join(file, "log"))
	code, stdout, stderr := run(t, "serve", "--config", config)
	if code != exitRefused || stdout != "" || !strings.Contains(stderr, "999.1.1.1") || !strings.Contains(stderr, "LogDir "+filepath.Join(file, "log")) {
		t.Errorf("exit code %d, stdout %q, stderr %s", code, stdout, stderr)
	}
	if left, err := os.ReadDir(dataDir); err != nil || len(left) != 0 {
		t.Errorf("the data directory was touched: %v, %v", left, err)
	}
}

// A peer port that is taken is found before the data directory is touched.
func TestTakenPeerPortLeavesNothingBehind(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	taken, free := l.Addr().(*net.TCPAddr).Port, freePort(t, "127.0.0.1")
	for _, ports := range [][2]int{{taken, free}, {free, taken}} {
		dir := t.TempDir()
		code, _, stderr := run(t, "serve", "--id", "1", "--data", dir, "--listen", "127.0.0.1:0",
			"--member", fmt.Sprintf("1=127.0.0.1:%d:%d", ports[0], ports[1]), "--member", "2=127.0.0.2:2888:3888")
		if code != exitRefused || !strings.Contains(stderr, "address already in use") {
			t.Errorf("exit code %d, %s", code, stderr)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

// nobody is a user that owns nothing here.
const nobody = 65534

func TestReadOnlyDataDirectoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	cmd := kvdCommand("serve", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0")
	if os.Geteuid() == 0 { // may write everywhere: another user runs a copy of the program
		cmd.Path = copyProgram(t, dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(dir, 0o755) })
	d := start(t, cmd)
	if code := d.exit(); code != exitRefused || !strings.Contains(d.stderr.text(), "DataDir") || !strings.Contains(d.stderr.text(), "permission denied") {
		t.Errorf("exit code %d, stderr %s", code, d.stderr.text())
	}
}

// copyProgram copies this test binary to where everybody can run it.
func copyProgram(t *testing.T, dir string) string {
	t.Helper()
	from, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = from.Close() }()
	path := filepath.Join(dir, "kvd")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}
