package main

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/urfave/cli/v2"

	"kvd/cmd/internal/cliargs"
	"kvd/kv"
	"kvd/snapshot"
	"kvd/wal"
)

// errNothingThere: the directory holds no member.
var errNothingThere = errors.New("no member's data")

// errUnsound: the directory holds a member that lost something.
var errUnsound = errors.New("not sound")

func inspectCommand() *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "say what a stopped member's directory holds, and whether it is sound",
		ArgsUsage: "DIR",
		Description: "DIR is the directory that the member owns, or the dataDir above it. Exit code 0: sound; 1: damaged, or something is missing;\n" +
			"2: not a member's directory, in use, or of a newer version. Nothing is changed.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "log-dir", Usage: "`DIR` of the log, if dataLogDir was configured"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text", Usage: "`FORMAT`: text or json"},
		},
		Action: inspect,
	}
}

// finding is what inspect prints.
type finding struct {
	Dir       string            `json:"dir"`
	Cluster   string            `json:"cluster"`
	Member    uint64            `json:"member"`
	Format    uint32            `json:"format"`
	Accepted  uint32            `json:"acceptedEpoch"`
	Current   uint32            `json:"currentEpoch"`
	Base      string            `json:"base"`
	LogStart  string            `json:"logStart"`
	Last      string            `json:"last"`
	LastChain string            `json:"lastDigest"`
	Entries   int64             `json:"entries"`
	Bytes     int64             `json:"bytes"`
	Votes     bool              `json:"votes"`
	Sole      bool              `json:"soleSurvivor,omitempty"`
	Suspect   string            `json:"suspect,omitempty"`
	Snapshots []snapshotFinding `json:"snapshots"`
	Verdict   string            `json:"verdict"`
	Sound     bool              `json:"sound"`
}

// snapshotFinding is one snapshot point; Damage is empty if its files are what was written.
type snapshotFinding struct {
	Zxid   string `json:"zxid"`
	Files  int    `json:"files"`
	Bytes  int64  `json:"bytes"`
	Damage string `json:"damage,omitempty"`
}

func inspect(c *cli.Context) error {
	if err := cliargs.NArgs(c, 1, 1); err != nil {
		return err
	}
	format := c.String("output")
	if format != "text" && format != "json" {
		return cliargs.Usagef(c, "--output: %q is neither text nor json", format)
	}
	dir, logDir, err := memberDirectories(c)
	if err != nil {
		return err
	}
	state, report, err := wal.Inspect(dir, wal.Options{LogDir: logDir})
	if err != nil {
		return err
	}
	f := describe(dir, &state, &report)
	if format == "json" {
		e := json.NewEncoder(c.App.Writer)
		e.SetIndent("", "  ")
		err = e.Encode(f)
	} else {
		_, err = io.WriteString(c.App.Writer, f.text())
	}
	if err == nil && !f.Sound {
		err = fmt.Errorf("%s is %w: %s", dir, errUnsound, f.Verdict)
	}
	return err
}

// memberDirectories are the directories of a stopped member that the command line names.
func memberDirectories(c *cli.Context) (dir, logDir string, err error) {
	dir = c.Args().First()
	if below := filepath.Join(dir, "kvd"); isDir(below) {
		dir = below
	}
	if !isDir(dir) {
		return "", "", fmt.Errorf("%s is no directory: %w", dir, errNothingThere)
	}
	logDir = c.String("log-dir")
	if logDir != "" {
		if below := filepath.Join(logDir, "kvd", "log"); isDir(below) {
			logDir = below
		}
	} else {
		logDir = filepath.Join(dir, "log")
	}
	if !isDir(logDir) && !isFile(filepath.Join(dir, "identity")) {
		return "", "", fmt.Errorf("%s has neither a log nor an identity file: %w", dir, errNothingThere)
	}
	return dir, logDir, nil
}

func describe(dir string, s *wal.State, r *wal.Report) finding {
	f := finding{
		Dir: dir, Cluster: hex.EncodeToString(s.ClusterID[:]), Member: s.Member, Format: s.FormatVersion,
		Accepted: uint32(s.Accepted), Current: uint32(s.Current), Base: s.Base.String(), LogStart: s.LogStart.String(), Last: s.Last.String(),
		LastChain: fmt.Sprintf("%016x", s.LastChain), Entries: r.Entries, Bytes: r.Bytes,
		Votes: s.Trusted && s.Suspect == "", Sole: s.Sole, Suspect: s.Suspect, Verdict: r.String(), Snapshots: []snapshotFinding{},
	}
	if s.ClusterID == [16]byte{} {
		f.Cluster = "none"
	}
	f.Sound = s.Suspect == "" && !r.Damaged
	findings, usable := checkPoints(dir, s.Points, s.LogStart)
	f.Snapshots = append(f.Snapshots, findings...)
	for _, sf := range f.Snapshots {
		if sf.Damage != "" {
			f.Sound = false
			f.Verdict += "; a snapshot is damaged"
			if !usable {
				f.Verdict += " and the log does not reach back to the beginning: the member must be synced from the others"
			}
			break
		}
	}
	return f
}

// checkPoints looks at the files of snapshot points. usable: the log, which begins after logStart, continues one of them, or
// reaches back to the beginning.
func checkPoints(dir string, points [][]byte, logStart kv.Zxid) (found []snapshotFinding, usable bool) {
	usable = logStart == 0
	for _, b := range points {
		p, err := snapshot.DecodePoint(b)
		if err != nil {
			found = append(found, snapshotFinding{Zxid: "unknown", Damage: err.Error()})
			continue
		}
		sf := snapshotFinding{Zxid: p.Zxid.String(), Files: len(p.Files), Bytes: p.TotalBytes()}
		for _, file := range p.Files {
			if err := checkFile(filepath.Join(dir, "snapshots", file.Name), file); err != nil {
				sf.Damage = err.Error()
				break
			}
		}
		usable = usable || sf.Damage == "" && p.Zxid >= logStart
		found = append(found, sf)
	}
	return found, usable
}

// checkFile compares length and hash by ordinary reads. bbolt maps its files, and must not see a damaged one.
func checkFile(path string, want snapshot.File) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // opened for reading
	h := xxhash.New()
	n, err := io.Copy(h, file)
	switch {
	case err != nil:
		return fmt.Errorf("%s: offset %d: %w", path, n, err)
	case n != want.Bytes:
		return fmt.Errorf("%s: %d bytes, %d were written", path, n, want.Bytes)
	case h.Sum64() != want.Hash:
		return fmt.Errorf("%s: the bytes hash to %016x, %016x were written", path, h.Sum64(), want.Hash)
	}
	return nil
}

func (f *finding) text() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-15s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("directory", "%s", f.Dir)
	line("cluster", "%s", f.Cluster)
	line("member", "%d", f.Member)
	line("format", "%d", f.Format)
	line("accepted epoch", "%d", f.Accepted)
	line("current epoch", "%d", f.Current)
	line("log", "after %s through %s, %d entries, %d bytes", f.LogStart, f.Last, f.Entries, f.Bytes)
	line("last digest", "%s", f.LastChain)
	line("base", "%s", f.Base)
	for _, s := range f.Snapshots {
		state := "sound"
		if s.Damage != "" {
			state = s.Damage
		}
		line("snapshot", "%s, %d files, %d bytes: %s", s.Zxid, s.Files, s.Bytes, state)
	}
	votes := "yes"
	if !f.Votes {
		votes = "no, until it is synced from a leader"
	}
	line("votes", "%s", votes)
	if f.Sole {
		line("recovery", "marked as the sole survivor")
	}
	line("verdict", "%s", f.Verdict)
	return b.String()
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
