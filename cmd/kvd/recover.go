package main

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"kvd/cmd/internal/cliargs"
	"kvd/kv"
	"kvd/wal"
)

// errNotConfirmed: the cluster id that was typed is not that of the directory.
var errNotConfirmed = errors.New("not confirmed, nothing was changed")

func recoverCommand() *cli.Command {
	return &cli.Command{
		Name:      "recover",
		Usage:     "let a stopped member go on without what is lost for good",
		ArgsUsage: "DIR",
		Description: "While a quorum of the others is well no member needs this: start it, and it is synced from them.\n\n" +
			"--accept-up-to ZXID: the member's log is damaged or has lost its end. The verified history through ZXID (EPOCH:COUNTER, or 0x...)\n" +
			"becomes the whole of it, and the member votes on it. What is given up is printed, and kept beside the log.\n\n" +
			"--sole-survivor: so many voters have lost their disks that no quorum is left. The member, which must be sound, may lead\n" +
			"without one, only to bring the others up to date, which come back blank or suspect. Once a quorum holds what this member\n" +
			"held it serves, and the mark is gone. It gives up if it hears of a healthy voter that holds more.\n\n" +
			"DIR is the directory that the member owns, or the dataDir above it. Exit code 0: done; 1: failed, run it again; 2: refused, nothing was\n" +
			"changed. The cluster id has to be typed, or given by --yes.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "accept-up-to", Usage: "accept the verified history through `ZXID`"},
			&cli.BoolFlag{Name: "sole-survivor", Usage: "mark the member as the sole survivor"},
			&cli.StringFlag{Name: "log-dir", Usage: "`DIR` of the log, if dataLogDir was configured"},
			&cli.StringFlag{Name: "yes", Usage: "`ID` of the cluster, in place of typing it"},
		},
		Action: recoverMember,
	}
}

func recoverMember(c *cli.Context) error {
	if err := cliargs.NArgs(c, 1, 1); err != nil {
		return err
	}
	if c.IsSet("accept-up-to") == c.Bool("sole-survivor") {
		return cliargs.Usagef(c, "exactly one of --accept-up-to and --sole-survivor is needed")
	}
	dir, logDir, err := memberDirectories(c)
	if err != nil {
		return err
	}
	r := recovery{out: c.App.Writer, dir: dir, options: wal.Options{LogDir: logDir}}
	r.confirm = func(cluster [16]byte) error {
		return confirmCluster(os.Stdin, c.App.ErrWriter, hex.EncodeToString(cluster[:]), c.String("yes"))
	}
	if c.Bool("sole-survivor") {
		return r.soleSurvivor()
	}
	z, err := parseZxid(c.String("accept-up-to"))
	if err != nil {
		return cliargs.Usagef(c, "--accept-up-to: %v", err)
	}
	return r.accept(z)
}

// recovery is one run of the command on a directory.
type recovery struct {
	out     io.Writer
	dir     string
	options wal.Options
	confirm func(cluster [16]byte) error
}

func (r *recovery) print(format string, args ...any) { _, _ = fmt.Fprintf(r.out, format, args...) } // nobody may be reading

// accept is --accept-up-to.
func (r *recovery) accept(z kv.Zxid) error {
	plan, err := wal.PlanAccept(r.dir, r.options, z)
	if err != nil {
		return err
	}
	if err := r.snapshotsUsable(plan.Points, plan.LogStart); err != nil {
		return err
	}
	if plan.Finished {
		r.print("an interrupted recovery is to be finished: the history through %v\n", plan.Through)
	} else {
		r.print("%s", &plan)
	}
	if err := r.confirm(plan.Identity.ClusterID); err != nil {
		return err
	}
	done, err := wal.Accept(r.dir, r.options, z)
	if err != nil {
		return err
	}
	if !done.Finished {
		r.print("the log as it was is kept as %s\n", done.Aside)
	}
	r.print("done: start the member, it votes again\n")
	return nil
}

// soleSurvivor is --sole-survivor.
func (r *recovery) soleSurvivor() error {
	state, report, err := wal.Inspect(r.dir, r.options)
	if err != nil {
		return err
	}
	if state.Suspect == "" && !report.Damaged {
		if err := r.snapshotsUsable(state.Points, state.LogStart); err != nil {
			return err
		}
	}
	r.print("cluster %x member %d\n", state.ClusterID, state.Member)
	r.print("holds: the history through %v, current epoch %d\n", state.Last, state.Current)
	if state.Suspect == "" && state.ClusterID != [16]byte{} {
		r.print("given up: whatever other members held after that, or of a later epoch\n")
		if err := r.confirm(state.ClusterID); err != nil {
			return err
		}
	}
	state, marked, err := wal.MarkSole(r.dir, r.options)
	if err != nil {
		return err
	}
	if !marked {
		r.print("the member was marked already\n")
	}
	r.print("done: start it and the others; it leads when a quorum is connected, in an epoch above %d\n", state.Accepted)
	return nil
}

// snapshotsUsable refuses a directory whose log does not continue any snapshot that can be read: it cannot be started.
func (r *recovery) snapshotsUsable(points [][]byte, logStart kv.Zxid) error {
	findings, usable := checkPoints(r.dir, points, logStart)
	if usable {
		return nil
	}
	var damage []string
	for i := range findings {
		damage = append(damage, findings[i].Damage)
	}
	return fmt.Errorf("%w: the log begins after %v, and no snapshot that it continues can be read (%s)", wal.ErrNotAccepted, logStart, strings.Join(damage, "; "))
}

// confirmCluster wants the cluster id typed, unless it was given.
func confirmCluster(in io.Reader, prompt io.Writer, cluster, given string) error {
	if given == "" {
		_, _ = fmt.Fprintf(prompt, "type the cluster id to go on: ")
		line, err := bufio.NewReader(io.LimitReader(in, 4096)).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: %w", errNotConfirmed, err)
		}
		if given = strings.TrimSpace(line); given == "" {
			_, _ = fmt.Fprintln(prompt)
			return fmt.Errorf("%w: nothing was typed; the cluster id is %s", errNotConfirmed, cluster)
		}
	}
	if !strings.EqualFold(given, cluster) {
		return fmt.Errorf("%w: this directory belongs to cluster %s, not to %s", errNotConfirmed, cluster, given)
	}
	return nil
}

// parseZxid reads EPOCH:COUNTER in decimal, as logs and inspect print it, or 0x and 16 digits at most, as ZooKeeper's tools
// do.
func parseZxid(text string) (kv.Zxid, error) {
	if digits, ok := strings.CutPrefix(strings.ToLower(text), "0x"); ok {
		z, err := strconv.ParseUint(digits, 16, 64)
		if err != nil {
			return 0, fmt.Errorf("%q is no zxid", text)
		}
		return kv.Zxid(z), nil
	}
	epoch, counter, ok := strings.Cut(text, ":")
	e, eerr := strconv.ParseUint(epoch, 10, 32)
	n, nerr := strconv.ParseUint(counter, 10, 32)
	if !ok || eerr != nil || nerr != nil {
		return 0, fmt.Errorf("%q is no zxid: want EPOCH:COUNTER, as `kvd inspect` prints it, or 0x and digits", text)
	}
	return kv.Zxid(e<<32 | n), nil
}
