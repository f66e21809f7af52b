package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"kvd/cmd/internal/cliargs"
	"kvd/ensemble"
	"kvd/ensemble/zoocfg"
)

// handOver bounds an orderly stop: refuse new work, let outstanding writes commit, hand leadership over.
const handOver = 10 * time.Second

func serveCommand() *cli.Command {
	return &cli.Command{
		Name:  "serve",
		Usage: "run one member",
		Description: "Configured by a zoo.cfg (with myid in its dataDir), or by flags alone. A flag beats KVD_CONFIG, KVD_ID, KVD_DATA,\n" +
			"KVD_LISTEN, KVD_MEMBERS (separated by commas) and KVD_BOOTSTRAP in the environment; those beat the file.\n" +
			"--set KEY=VALUE says any key of a zoo.cfg and beats the file, as -Dzookeeper.KEY=VALUE does with ZooKeeper.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Usage: "configuration `FILE` in zoo.cfg's format"},
			&cli.StringFlag{Name: "id", Usage: "`ID` of this member, 1 to 255"},
			&cli.StringFlag{Name: "data", Usage: "`DIR` that the member owns"},
			&cli.StringFlag{Name: "listen", Usage: "client address, `[HOST]:PORT`; port 0 takes one from the kernel"},
			memberFlag(),
			setFlag(),
			&cli.BoolFlag{Name: "bootstrap", Usage: "found a new ensemble at once, without hearing the others; on one member only"},
			&cli.BoolFlag{Name: "lenient-config", Usage: "unknown keys in the file are warnings"},
			&cli.BoolFlag{Name: "ignore-zookeeper-data", Usage: "start empty beside ZooKeeper's own data"},
			&cli.StringFlag{Name: "metrics-listen", Usage: "serve /metrics (Prometheus) and /debug/pprof on `HOST:PORT`; off by default"},
			&cli.StringFlag{Name: "inherit", Hidden: true, Usage: "listeners handed in by kvd dev"},
		},
		Action: serve,
	}
}

func serve(c *cli.Context) error {
	if err := cliargs.NArgs(c, 0, 0); err != nil {
		return err
	}
	log, err := newLogger(c)
	if err != nil {
		return err
	}
	options := serveOptions(c)
	options.AddEnvironment(os.LookupEnv)
	settings, err := zoocfg.Load(options)
	if err != nil {
		return err
	}
	for _, w := range settings.Warnings {
		log.Warn(w)
	}
	for _, n := range settings.Notes {
		log.Info("differs from ZooKeeper's default: " + n)
	}
	cfg, err := memberConfig(settings)
	if err != nil {
		return err
	}
	cfg.Logger = log
	if cfg.Listeners, err = peerListeners(settings); err != nil {
		return err
	}
	if inherit := c.String("inherit"); inherit != "" {
		if cfg.Listeners, err = inheritListeners(inherit); err != nil {
			return err
		}
	}
	return serveMember(c.Context, cfg, c.String("metrics-listen"), c.App.Writer)
}

func serveOptions(c *cli.Context) zoocfg.Options {
	value := func(name string) zoocfg.Value {
		if !c.IsSet(name) {
			return zoocfg.Value{}
		}
		return zoocfg.Value{Text: c.String(name), From: "--" + name}
	}
	o := zoocfg.Options{
		Config: value("config"), ID: value("id"), Data: value("data"), Listen: value("listen"),
		Lenient: c.Bool("lenient-config"), IgnoreZooKeeperData: c.Bool("ignore-zookeeper-data"),
	}
	if members := c.Generic("member"); members != nil && len(members.(*listValues).all) > 0 {
		o.Members, o.MembersFrom = members.(*listValues).all, "--member"
	}
	if set := c.Generic("set"); set != nil {
		o.Set = set.(*listValues).all
	}
	if c.IsSet("bootstrap") {
		o.Bootstrap = zoocfg.Value{Text: strconv.FormatBool(c.Bool("bootstrap")), From: "--bootstrap"}
	}
	return o
}

// memberConfig translates settings; what they leave open, ensemble fills.
func memberConfig(s zoocfg.Settings) (ensemble.Config, error) {
	cfg := ensemble.Config{
		ID: ensemble.MemberID(s.ID), DataDir: s.DataDir, LogDir: s.LogDir, ConfigVersion: s.ConfigVersion,
		ClientListen: []string{s.Listen},
		TickTime:     s.TickTime, InitLimit: s.InitLimit, SyncLimit: s.SyncLimit,
		SelfCheckInterval: s.SelfCheckInterval, LowSpaceBytes: s.LowSpaceBytes, BallastBytes: s.BallastBytes, PingInterval: s.PingInterval, LeaderTimeout: s.LeaderTimeout, FinalizeWait: s.FinalizeWait,
		MinSessionTimeout: s.MinSessionTimeout, MaxSessionTimeout: s.MaxSessionTimeout,
		MaxClientConns: s.MaxClientConns, MaxFrameBytes: s.MaxFrameBytes, FourLetterWords: s.FourLetterWords,
		ExtendedTypes: s.ExtendedTypes, SuperDigest: s.SuperDigest,
		SnapCount: s.SnapCount, SnapshotLogBytes: s.SnapshotLogBytes, SnapshotRetain: s.SnapRetain, DisablePurge: s.DisablePurge,
		RetainEntries: s.RetainEntries, RetainBytes: s.RetainBytes,
		ReservedFiles:          s.ReservedFiles,
		MaxOutstandingRequests: s.MaxOutstandingRequests, MaxOutstandingBytes: s.MaxOutstandingBytes,
		Bootstrap: s.Bootstrap,

		MaxConns: s.MaxConns, ClientBacklog: s.ClientBacklog, SessionlessTimeout: s.SessionlessTimeout, MaxReplyBytes: s.MaxReplyBytes,
		LocalSessions: s.LocalSessions, LocalSessionsUpgrading: s.LocalSessionsUpgrading, ReadOnlyMode: s.ReadOnlyMode,
		EnforceQuota: s.EnforceQuota, SkipACL: s.SkipACL, DisableDigest: s.DisableDigest, DigestAlgorithm: s.DigestAlgorithm,
		EnforceAuthSchemes:     s.EnforceAuthSchemes,
		ContainerCheckInterval: s.ContainerCheckInterval, ContainerMaxPerMinute: s.ContainerMaxPerMinute, ContainerMaxNeverUsed: s.ContainerMaxNeverUsed,
		ThrottleLimit: s.ThrottleLimit, ThrottledOpWait: s.ThrottledOpWait,
		LargeRequestBytes: s.LargeRequestBytes, LargeRequestMaxBytes: s.LargeRequestMaxBytes,
		ConnectionTokens: s.ConnectionTokens, ConnectionTokenFillTime: s.ConnectionTokenFillTime, ConnectionTokenFillCount: s.ConnectionTokenFillCount,
	}
	var text strings.Builder
	for _, m := range s.Servers {
		text.WriteString(m.String())
		text.WriteByte('\n')
	}
	cfg.MembershipText = text.String()
	for _, m := range s.Servers {
		p := ensemble.Peer{ID: ensemble.MemberID(m.ID), Host: m.Host, LearnerPort: m.LearnerPort, ElectionPort: m.ElectionPort, Observer: m.Observer}
		if m.ClientPort != 0 {
			host := m.ClientHost
			if wildcard(host) { // clients cannot connect to that
				host = m.Host
			}
			p.ClientAddr = net.JoinHostPort(host, strconv.Itoa(m.ClientPort))
		}
		cfg.Members = append(cfg.Members, p)
	}
	// Validated on a copy: what Start fills in later depends on what is still open here.
	check := cfg
	check.EnsureDefaults()
	return cfg, check.Validate()
}

func wildcard(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// peerListeners binds the peer ports on all interfaces if that was asked for.
func peerListeners(s zoocfg.Settings) (l ensemble.Listeners, err error) {
	if !s.ListenAllPeers {
		return l, nil
	}
	for _, m := range s.Servers {
		if m.ID != s.ID {
			continue
		}
		if l.Learner, err = net.Listen("tcp", fmt.Sprintf(":%d", m.LearnerPort)); err != nil {
			return l, err
		}
		if l.Election, err = net.Listen("tcp", fmt.Sprintf(":%d", m.ElectionPort)); err != nil {
			_ = l.Learner.Close()
			return ensemble.Listeners{}, err
		}
	}
	return l, nil
}

// runningMember is what the commands do with an *ensemble.Keeper, or with a member alone.
type runningMember interface {
	ID() ensemble.MemberID
	Status() ensemble.Status
	WaitServing(context.Context) error
	Done() <-chan struct{}
	Err() error
	Shutdown(context.Context) error
	Close() error
}

var _ runningMember = (*ensemble.Keeper)(nil)

// serveMember runs one member until a signal or its failure.
func serveMember(ctx context.Context, cfg ensemble.Config, metrics string, stdout io.Writer) error {
	signals, release := stopSignals()
	defer release()
	if os.Getenv("GOGC") == "" {
		defer ensemble.TuneGC()()
	}
	ln, err := listenMetrics(metrics)
	if err != nil {
		return err
	}
	var m *ensemble.Keeper
	early, err := untilSignal(ctx, signals, func(ctx context.Context) (err error) {
		m, err = ensemble.Keep(ctx, cfg)
		return err
	})
	if err != nil {
		if ln != nil {
			_ = ln.Close()
		}
		if early != nil && errors.Is(err, context.Canceled) {
			return nil // while it waited for disk space
		}
		return err
	}
	defer serveMetrics(ln, []runningMember{m}, cfg.Logger)()
	if early != nil {
		return stopMembers([]runningMember{m}, early, signals, cfg.Logger)
	}
	serving := make(chan struct{})
	waitCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		if m.WaitServing(waitCtx) == nil {
			close(serving)
		}
	}()
	for {
		select {
		case <-serving:
			serving = nil
			printReady(stdout, clientAddrs(m.Member()))
		case <-m.Done():
			return memberEnd(m)
		case s := <-signals:
			return stopMembers([]runningMember{m}, s, signals, cfg.Logger)
		}
	}
}

// memberEnd is the error of a member that ended by itself.
func memberEnd(m runningMember) error {
	if err := m.Err(); err != nil {
		return err
	}
	return fmt.Errorf("member %d ended", m.ID())
}

// stopMembers ends members in order: leadership is handed over, outstanding writes commit. It returns nil: the
// process was stopped by a signal.
func stopMembers(members []runningMember, s os.Signal, again <-chan os.Signal, log *slog.Logger) error {
	return orderly(s, again, log, func(ctx context.Context) {
		for _, m := range members {
			if err := m.Shutdown(ctx); err != nil {
				log.Warn("not an orderly stop", "member", uint64(m.ID()), "error", err)
			}
		}
	})
}

// orderly runs stop; a second signal cuts that short: what was acknowledged is on disk, and the process ends
// when its command returns.
func orderly(s os.Signal, again <-chan os.Signal, log *slog.Logger, stop func(context.Context)) error {
	log.Info("stopping", "signal", s.String())
	ctx, cancel := context.WithTimeout(context.Background(), handOver)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		stop(ctx)
	}()
	select {
	case <-done:
	case s := <-again:
		log.Warn("stopping at once", "signal", s.String())
	}
	return nil
}

// clientAddrs are the addresses at which clients of this machine reach the member.
func clientAddrs(m *ensemble.Member) string {
	text := ""
	for i, a := range m.ClientAddrs() {
		if i > 0 {
			text += ","
		}
		host, port, err := net.SplitHostPort(a.String())
		if err == nil && wildcard(host) {
			text += net.JoinHostPort("127.0.0.1", port)
			continue
		}
		text += a.String()
	}
	return text
}
