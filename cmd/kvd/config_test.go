package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"kvd/ensemble"
	"kvd/ensemble/zoocfg"
)

// Every setting reaches the member: each field of Settings with a namesake in ensemble.Config arrives there unchanged,
// and the others are named here.
func TestEverySettingReachesTheMember(t *testing.T) {
	elsewhere := map[string]string{
		"Servers": "Members", "Listen": "ClientListen", "ListenAllPeers": "Listeners", "MaxClientConns": "", "SnapRetain": "SnapshotRetain",
		"Warnings": "", "Notes": "",
	}
	s := zoocfg.Settings{}
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int, reflect.Int64:
			f.SetInt(int64(1000 + i))
			if f.Type() == reflect.TypeFor[time.Duration]() {
				f.SetInt(int64(time.Duration(1000+i) * time.Millisecond))
			}
		case reflect.Uint64:
			f.SetUint(uint64(1 + i))
		case reflect.String:
			f.SetString(fmt.Sprintf("text:%d", i))
		case reflect.Slice:
			if f.Type() == reflect.TypeFor[[]string]() {
				f.Set(reflect.ValueOf([]string{"ruok"}))
			}
		}
	}
	s.Servers = []zoocfg.Server{{ID: s.ID, Host: "h", LearnerPort: 1, ElectionPort: 2, ClientHost: "0.0.0.0", ClientPort: 2181}, {ID: 200, Host: "::1", LearnerPort: 1, ElectionPort: 2, Observer: true}}
	cfg, _ := memberConfig(s) // whether the values fit together does not matter here
	got := reflect.ValueOf(cfg)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		to := name
		if other, ok := elsewhere[name]; ok {
			if to = other; to == "" || name == "Servers" || name == "Listen" || name == "ListenAllPeers" {
				continue
			}
		}
		f := got.FieldByName(to)
		if !f.IsValid() {
			t.Errorf("ensemble.Config has no field for %s", name)
			continue
		}
		if fmt.Sprint(f.Interface()) != fmt.Sprint(v.Field(i).Interface()) {
			t.Errorf("%s is %v, set to %v", to, f.Interface(), v.Field(i).Interface())
		}
	}
	if cfg.MaxClientConns != s.MaxClientConns || cfg.ClientListen[0] != s.Listen || len(cfg.Members) != 2 || cfg.Members[0].ClientAddr != "h:2181" {
		t.Errorf("got %+v", cfg)
	}
	want := fmt.Sprintf("server.%d=h:1:2:participant;0.0.0.0:2181\nserver.200=[::1]:1:2:observer\n", s.ID)
	if cfg.MembershipText != want {
		t.Errorf("membership %q, want %q", cfg.MembershipText, want)
	}
	var _ ensemble.Config = cfg
}

// word asks a four-letter word.
func word(t *testing.T, addr, w string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, w); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(bufio.NewReader(conn))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What a zoo.cfg and --set say is in effect: conf shows it.
func TestServeShowsWhatIsInEffect(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "zoo.cfg")
	text := "tickTime=1000\ndataDir=" + dir + "\nclientPort=1\nmaxClientCnxns=7\nextendedTypesEnabled=true\nzookeeper.maxCnxns=100\nskipACL=no\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	p := start(t, kvdCommand("serve", "--config", file, "--listen", "127.0.0.1:0", "--set", "zookeeper.4lw.commands.whitelist=*", "--set", "skipACL=yes", "--set", "maxCnxns=200", "--set", "jute.maxbuffer=0x200000"))
	addr := p.ready()
	conf := word(t, addr, "conf")
	for _, want := range []string{
		"tickTime=1000", "maxClientCnxns=7", "minSessionTimeout=2000", "maxCnxns=200", "skipACL=yes", "jute.maxbuffer=2097152",
		"extendedTypesEnabled=true", "4lw.commands.whitelist=*", "dataDir=" + filepath.Join(dir, "kvd"),
	} {
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(want) + `$`).MatchString(conf) {
			t.Errorf("no line %s in\n%s", want, conf)
		}
	}
	if srvr := word(t, addr, "srvr"); !strings.HasPrefix(srvr, "Zookeeper version: 3.9.5-kvd.") {
		t.Errorf("srvr: %s", srvr)
	}
	code, stdout, stderr := run(t, "serve", "--config", file, "--set", "maxCnxs=1", "--set", "tickTime=0")
	if code != exitRefused || stdout != "" || !strings.Contains(stderr, "the nearest known one is maxCnxns") || !strings.Contains(stderr, "--set tickTime") {
		t.Errorf("exit code %d, stdout %q, stderr %s", code, stdout, stderr)
	}
}
