package ensemble

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"kvd/ensemble/replica"
	"kvd/ensemble/transport"
	"kvd/kv"
	"kvd/snapshot"
	"kvd/zab/quorum"
)

// MemberID names a configured member: 1 to 255.
type MemberID = quorum.MemberID

// Peer is one line of the membership (server.N of a zoo.cfg).
type Peer struct {
	ID   MemberID
	Host string // name or address that the other members dial; resolved anew on every dial
	// LearnerPort is where the peer, when it leads, accepts its learners; ElectionPort where it accepts votes.
	LearnerPort  int
	ElectionPort int
	// ClientAddr is the host:port where clients reach the peer. Informational for other members; for the
	// member itself it is the default of Config.ClientListen. May be empty.
	ClientAddr string
	Observer   bool // follows without voting
}

// Listeners are sockets opened by the caller, who wants ports from the kernel or to bind before dropping
// privileges. A nil field is opened by Start. The member closes them in every case, also if Start fails.
type Listeners struct {
	Client   []net.Listener
	Learner  net.Listener
	Election net.Listener
}

// Config describes one member. The zero value of a field means its default unless said otherwise.
// Start fills the defaults and validates; all problems are reported in one error.
type Config struct {
	// ID is this member. 0: the only configured one, or 1 if Members is empty.
	ID MemberID
	// DataDir is the directory that the member owns: identity file, snapshots/, and log/ unless LogDir is
	// set. It is created if missing. Required.
	DataDir string
	// LogDir holds the log store. Default DataDir/log.
	LogDir string
	// Members is the whole ensemble, this member included. Empty: a single member that needs no network to
	// form, with Mode standalone.
	Members []Peer
	// ConfigVersion numbers the membership, for people: it stands in /zookeeper/config.
	ConfigVersion uint64
	// MembershipText is the server lines that /zookeeper/config shows, in canonical form, without the version. Default:
	// made of Members.
	MembershipText string

	// ClientListen are the addresses of the client port, host:port (":0" takes a port from the kernel).
	// Default: ClientAddr of this member's line. None at all is legal: Member.Client needs no socket.
	ClientListen []string
	// Listeners, if set, replace the addresses above and the member's own two peer ports.
	Listeners Listeners

	// TickTime is the unit of the next three and of session time-outs, as in ZooKeeper. Default 2s, 50ms to 1m.
	TickTime time.Duration
	// InitLimit, in TickTimes, bounds discovery and synchronization without progress. Default 10.
	InitLimit int
	// SyncLimit, in TickTimes, bounds how long a disk may stall before its member gives up its role, and how
	// long a learner may leave a proposal unacknowledged before its link is closed. Default 5.
	SyncLimit int
	// PingInterval is how often a leader pings its learners. Default 100ms.
	PingInterval time.Duration
	// LeaderTimeout is how long a learner waits for a silent leader, and a leader for a silent quorum, before
	// it elects anew. Default 1.2s, or SyncLimit*TickTime if that is less. At least 4 PingIntervals.
	// A leader whose process dies is noticed at once, by the reset of its connections.
	LeaderTimeout time.Duration
	// FinalizeWait is how long an election that has a quorum waits for a better vote. Default 200ms.
	FinalizeWait time.Duration

	// MinSessionTimeout and MaxSessionTimeout clamp what clients ask for. Default 2 and 20 TickTimes.
	MinSessionTimeout time.Duration
	MaxSessionTimeout time.Duration
	// MaxClientConns bounds the connections per client IP address; 0: unlimited.
	MaxClientConns int
	// ReservedFiles is how many of the process's file descriptors (RLIMIT_NOFILE) clients never get, for this member's
	// log, snapshots and peers: a client connection that would take one of them is closed at once. Members in one
	// process add theirs up; a program that embeds members and opens many files of its own beside them raises it.
	// Default 288 and 8 for each other member, at most half of the limit. Clients keep a quarter of the limit.
	ReservedFiles int
	// MaxFrameBytes bounds the body of a client's request (jute.maxbuffer). Default 1048575, 1 KiB to 64 MiB.
	MaxFrameBytes int
	// FourLetterWords are the words answered on the client port; "*" means all. Default srvr, isro, ruok, stat.
	FourLetterWords []string
	// SuperDigest is user:base64(sha1(user:password)) of the super user; empty: none.
	SuperDigest string
	// ExtendedTypes enables TTL nodes (extendedTypesEnabled).
	ExtendedTypes bool
	// DisableDigest switches the digest scheme off (DigestAuthenticationProvider.enabled=false). DigestAlgorithm is its
	// hash: SHA1 (default), SHA-224, SHA-256, SHA-384 or SHA-512.
	DisableDigest   bool
	DigestAlgorithm string
	// SkipACL lets everybody do everything (skipACL=yes). Lists are still stored and shown.
	SkipACL bool
	// EnforceAuthSchemes, if not empty, refuses every request (-124) of a connection that has an identity of none of
	// these schemes (enforce.auth.enabled, enforce.auth.schemes).
	EnforceAuthSchemes []string
	// EnforceQuota makes hard quotas refuse (enforceQuota).
	EnforceQuota bool
	// ContainerCheckInterval is how often the leader looks for containers and TTL nodes to remove, ContainerMaxPerMinute
	// how many it removes at most; a container that never had a child goes after ContainerMaxNeverUsed, 0: never.
	// Defaults 1m, 10000, 0.
	ContainerCheckInterval time.Duration
	ContainerMaxPerMinute  int
	ContainerMaxNeverUsed  time.Duration

	// LocalSessions keeps new sessions on the member that made them (localSessionsEnabled);
	// LocalSessionsUpgrading makes one global when it creates an ephemeral node.
	LocalSessions          bool
	LocalSessionsUpgrading bool
	// ReadOnlyMode serves reads to clients that allow it while no leader is established (readonlymode.enabled).
	ReadOnlyMode bool
	// ClientBacklog is the listen backlog of the client port (clientPortListenBacklog); 0: the system's.
	ClientBacklog int
	// MaxConns bounds all client connections (maxCnxns); 0: unlimited.
	MaxConns int
	// SessionlessTimeout bounds how long a connection may be without a session. Default 10s.
	SessionlessTimeout time.Duration
	// MaxReplyBytes bounds the body of a reply: a larger one is answered -5 without a body (kvd.maxReplyBytes).
	// Default 64 MiB.
	MaxReplyBytes int
	// ThrottleLimit bounds the requests in flight of this member's clients (requestThrottleLimit); 0: off. A request that
	// waited longer than ThrottledOpWait is answered -127; 0: off.
	ThrottleLimit   int
	ThrottledOpWait time.Duration
	// LargeRequestBytes: requests larger than this share LargeRequestMaxBytes (largeRequestThreshold,
	// largeRequestMaxBytes); a connection over the budget is closed. 0: off.
	LargeRequestBytes    int
	LargeRequestMaxBytes int64
	// ConnectionTokens limits how fast connections may come (connectionMaxTokens and its relatives); 0 tokens: off.
	ConnectionTokens         int
	ConnectionTokenFillTime  time.Duration
	ConnectionTokenFillCount int

	// SnapCount is the least number of transactions between two own snapshots. Default 100000.
	SnapCount int
	// SnapshotLogBytes is the least number of logged bytes between two own snapshots; a quarter of the last
	// full snapshot if that is more. Default 64 MiB.
	SnapshotLogBytes int64
	// SnapshotRetain is how many snapshot points are kept. Default 3, at least 1.
	SnapshotRetain int
	// LowSpaceBytes is the free space, beside the size of one snapshot, below which the member counts as low: when the voters
	// that are not are no quorum, operations that add data are refused. Default 256 MiB; negative: 0.
	LowSpaceBytes int64
	// BallastBytes is the size of a file that is allocated while there is room and removed when less than that is free; when
	// less than that is free without it the member ends with ErrNoSpace, before its log meets a full disk. It is started only
	// with twice that free, or with that and the file. Default 64 MiB; negative: none of this.
	BallastBytes int64
	// SelfCheckInterval is how often the member looks whether its tree, its snapshots and its log still are what they were
	// made to be, on a tenth of a core. Default 10 minutes; negative: never.
	SelfCheckInterval time.Duration
	// RetainEntries and RetainBytes say how much of the log below the newest snapshot is kept for learners
	// that were away: a purge leaves at least one of both. Defaults 500000 and 256 MiB.
	RetainEntries int
	RetainBytes   int64
	// DisablePurge keeps all snapshots and the whole log (autopurge switched off explicitly).
	DisablePurge bool

	// MaxOutstandingRequests and MaxOutstandingBytes bound the client requests that this member has taken in
	// and not answered; when they are reached it stops reading from its clients. Defaults 8192 and 64 MiB (or two frames).
	MaxOutstandingRequests int
	MaxOutstandingBytes    int64

	// Bootstrap lets a blank member mint the ensemble's identity at once, without hearing the others.
	Bootstrap bool
	// Version is what four-letter words print as the server's version. Default: that of the module as it was built.
	Version string
	// Logger gets transitions, never traffic: an idle member is silent. nil: discard.
	Logger *slog.Logger

	// FS is the file system of the log store and the identity file. nil: the operating system's.
	FS vfs.FS
	// Snapshots keeps the snapshot files. nil: bbolt files in DataDir/snapshots.
	Snapshots snapshot.Store
	// UnsafeNoSync acknowledges writes that a power cut can take back. For tests that must see loss.
	UnsafeNoSync bool

	// fileLimit is the process's limit of file descriptors; tests lower it. wordStall replaces how long a client may
	// take for a piece of the answer to a four-letter word.
	fileLimit int
	wordStall time.Duration
}

// Limits that Validate enforces.
const (
	minFrameBytes = 1 << 10
	maxFrameBytes = 64 << 20
)

// EnsureDefaults fills the zero fields. Start does it on its own copy.
func (c *Config) EnsureDefaults() {
	if c.ID == 0 {
		switch len(c.Members) {
		case 0:
			c.ID = 1
		case 1:
			c.ID = c.Members[0].ID
		}
	}
	if len(c.ClientListen) == 0 && len(c.Listeners.Client) == 0 {
		if p, ok := c.peer(c.ID); ok && p.ClientAddr != "" {
			c.ClientListen = []string{p.ClientAddr}
		}
	}
	def(&c.TickTime, 2*time.Second)
	def(&c.InitLimit, 10)
	def(&c.SyncLimit, 5)
	ownPing := c.PingInterval == 0
	def(&c.PingInterval, 100*time.Millisecond)
	if c.LeaderTimeout == 0 {
		c.LeaderTimeout = min(1200*time.Millisecond, time.Duration(c.SyncLimit)*c.TickTime)
		c.PingInterval = min(c.PingInterval, max(c.LeaderTimeout/4, tick))
	}
	def(&c.FinalizeWait, 200*time.Millisecond)
	def(&c.MinSessionTimeout, 2*c.TickTime)
	if ownPing {
		c.PingInterval = min(c.PingInterval, max(c.MinSessionTimeout/2, tick))
	}
	def(&c.MaxSessionTimeout, max(20*c.TickTime, c.MinSessionTimeout))
	def(&c.MaxFrameBytes, 0xfffff)
	def(&c.fileLimit, openFileLimit())
	def(&c.ReservedFiles, defaultReservedFiles(c.fileLimit, max(len(c.Members)-1, 0)))
	if c.FourLetterWords == nil {
		c.FourLetterWords = []string{"srvr", "isro", "ruok", "stat"}
	}
	def(&c.SnapCount, 100_000)
	def(&c.SnapshotLogBytes, 64<<20)
	def(&c.SnapshotRetain, 3)
	def(&c.RetainEntries, 500_000)
	def(&c.RetainBytes, 256<<20)
	def(&c.MaxOutstandingRequests, 8192)
	def(&c.MaxOutstandingBytes, max(64<<20, 2*int64(c.MaxFrameBytes)))
	def(&c.DigestAlgorithm, "SHA1")
	def(&c.ContainerCheckInterval, time.Minute)
	def(&c.SelfCheckInterval, 10*time.Minute)
	if c.LowSpaceBytes == 0 {
		c.LowSpaceBytes = 256 << 20
	}
	if c.BallastBytes == 0 {
		c.BallastBytes = 64 << 20
	}
	def(&c.ContainerMaxPerMinute, 10_000)
	def(&c.SessionlessTimeout, 10*time.Second)
	def(&c.MaxReplyBytes, 64<<20)
	def(&c.LargeRequestMaxBytes, 100<<20)
	def(&c.ConnectionTokenFillTime, time.Millisecond)
	def(&c.ConnectionTokenFillCount, 1)
	def(&c.Version, buildVersion())
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.Level(100)}))
	}
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.LogDir == "" && c.DataDir != "" {
		c.LogDir = c.FS.PathJoin(c.DataDir, "log")
	}
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// peer finds the line of a member.
func (c *Config) peer(id MemberID) (Peer, bool) {
	for _, p := range c.Members {
		if p.ID == id {
			return p, true
		}
	}
	return Peer{}, false
}

// standalone reports whether the member is alone by configuration.
func (c *Config) standalone() bool { return len(c.Members) == 0 }

// alone reports whether there is nobody to talk to.
func (c *Config) alone() bool { return len(c.Members) <= 1 }

// addresses are the peers' for the transport.
func (c *Config) addresses() map[MemberID]transport.Address {
	all := make(map[MemberID]transport.Address, len(c.Members))
	for _, p := range c.Members {
		all[p.ID] = transport.Address{Host: p.Host, LearnerPort: p.LearnerPort, ElectionPort: p.ElectionPort}
	}
	return all
}

// ticks rounds a duration up to ticks of the loop.
func ticks(d time.Duration) int { return max(1, int((d+tick-1)/tick)) }

// tailBytes is how much of the newest history is kept in memory for learners; who lags further is served from the log.
const tailBytes = 8 << 20

// replicaConfig translates durations into ticks.
func (c *Config) replicaConfig(members quorum.Config) replica.Config {
	return replica.Config{
		ID: c.ID, Members: members, Rand: newRand(), Incarnation: newIncarnation,
		TickMs:    int(tick / time.Millisecond),
		InitTicks: ticks(time.Duration(c.InitLimit) * c.TickTime), SyncTicks: ticks(c.LeaderTimeout), PingTicks: ticks(c.PingInterval),
		StallTicks:     ticks(time.Duration(c.SyncLimit) * c.TickTime),
		FinalizeTicks:  ticks(c.FinalizeWait),
		TailBytes:      tailBytes,
		ContainerTicks: ticks(c.ContainerCheckInterval), ContainerMaxPerMinute: c.ContainerMaxPerMinute,
		ContainerNeverUsedMs: c.ContainerMaxNeverUsed.Milliseconds(),
		Preparer: kv.PreparerOptions{
			ExtendedTypes: c.ExtendedTypes, EnforceQuota: c.EnforceQuota, SkipACL: c.SkipACL, DigestDisabled: c.DisableDigest, Ensemble: len(c.Members) > 1,
		},
		Protocol: protocolVersions, Format: formatVersions,
		MinSessionTimeoutMs: int32(c.MinSessionTimeout.Milliseconds()), MaxSessionTimeoutMs: int32(c.MaxSessionTimeout.Milliseconds()),
		// The member's own intake is the tighter bound: the replica never refuses what it let in.
		MaxQueuedOps: 2 * c.MaxOutstandingRequests, MaxQueuedBytes: int(2 * c.MaxOutstandingBytes),
		MaxPayloadBytes: c.maxPayloadBytes(), MaxForwardedBytes: max(16<<20, c.maxPayloadBytes()),
	}
}

// maxPayloadBytes bounds a transaction: the replica takes requests of up to half of it.
func (c *Config) maxPayloadBytes() int { return max(16<<20, 2*c.MaxFrameBytes+1<<20) }

// transportLimits has room for one transaction of the largest size in a frame, and for a few in a queue.
func (c *Config) transportLimits() transport.Limits {
	frame := max(64<<20, 2*c.maxPayloadBytes())
	return transport.Limits{MaxFrameBytes: frame, MaxQueueBytes: 2 * frame}
}

// openClientListeners opens what was not handed in.
func (c *Config) openClientListeners() error {
	if len(c.Listeners.Client) > 0 {
		return nil
	}
	for _, addr := range c.ClientListen {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("client port: %w", err)
		}
		if c.ClientBacklog > 0 {
			if err := setBacklog(l, c.ClientBacklog); err != nil {
				_ = l.Close()
				return fmt.Errorf("client port: listen backlog %d: %w", c.ClientBacklog, err)
			}
		}
		c.Listeners.Client = append(c.Listeners.Client, l)
	}
	return nil
}

// close closes all listeners that are there.
func (l *Listeners) close() {
	for _, c := range l.Client {
		_ = c.Close()
	}
	if l.Learner != nil {
		_ = l.Learner.Close()
	}
	if l.Election != nil {
		_ = l.Election.Close()
	}
}

// membership is the configured ensemble as the cores see it.
func (c *Config) membership() (quorum.Config, error) {
	if c.standalone() {
		return quorum.NewConfig(max(c.ConfigVersion, 1), []MemberID{c.ID}, nil)
	}
	var voters, observers []MemberID
	for _, p := range c.Members {
		if p.Observer {
			observers = append(observers, p.ID)
		} else {
			voters = append(voters, p.ID)
		}
	}
	return quorum.NewConfig(max(c.ConfigVersion, 1), voters, observers) // 1 is what members of all versions send without one
}

// Validate checks a configuration whose defaults are filled. All problems are joined in one error, a
// *ConfigError; nothing on disk or network is touched.
func (c *Config) Validate() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }

	if c.DataDir == "" {
		bad("DataDir is not set")
	}
	if c.ID < 1 || c.ID > 255 {
		bad("ID %d is outside 1..255", c.ID)
	}
	if len(c.Members) > 0 {
		if _, ok := c.peer(c.ID); !ok {
			bad("ID %d is not among the configured members", c.ID)
		}
	}
	if _, err := c.membership(); err != nil {
		bad("Members: %w", err)
	}
	addrs := map[string]string{}
	for _, p := range c.Members {
		if len(c.Members) == 1 {
			break // nobody dials
		}
		if p.Host == "" {
			bad("member %d has no host", p.ID)
		}
		for _, port := range []struct {
			name string
			n    int
		}{{"learner", p.LearnerPort}, {"election", p.ElectionPort}} {
			who := fmt.Sprintf("the %s port of member %d", port.name, p.ID)
			if port.n < 1 || port.n > 65535 {
				bad("%s is %d, outside 1..65535", who, port.n)
				continue
			}
			addr := net.JoinHostPort(p.Host, fmt.Sprint(port.n))
			if other, taken := addrs[addr]; taken {
				bad("%s is %s, which is also %s", who, addr, other)
			}
			addrs[addr] = who
		}
	}
	for _, a := range c.ClientListen {
		if _, _, err := net.SplitHostPort(a); err != nil {
			bad("client address %q: %w", a, err)
		}
	}
	if c.TickTime < tick || c.TickTime > time.Minute {
		bad("TickTime %v is outside %v..1m", c.TickTime, tick)
	}
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"InitLimit", int64(c.InitLimit)}, {"SyncLimit", int64(c.SyncLimit)}, {"SnapCount", int64(c.SnapCount)},
		{"SnapshotLogBytes", c.SnapshotLogBytes}, {"SnapshotRetain", int64(c.SnapshotRetain)},
		{"RetainEntries", int64(c.RetainEntries)}, {"RetainBytes", c.RetainBytes},
		{"MaxOutstandingRequests", int64(c.MaxOutstandingRequests)},
		{"PingInterval", int64(c.PingInterval)}, {"FinalizeWait", int64(c.FinalizeWait)},
		{"MinSessionTimeout", int64(c.MinSessionTimeout)},
	} {
		if f.v < 1 {
			bad("%s must be positive", f.name)
		}
	}
	if c.ClientBacklog < 0 {
		bad("ClientBacklog is negative; 0 means the system's")
	}
	if c.MaxClientConns < 0 {
		bad("MaxClientConns is negative; 0 means unlimited")
	}
	if c.ReservedFiles < 1 {
		bad("ReservedFiles %d is not positive", c.ReservedFiles)
	}
	if c.LeaderTimeout < 4*c.PingInterval {
		bad("LeaderTimeout %v is less than four PingIntervals of %v", c.LeaderTimeout, c.PingInterval)
	}
	if c.MinSessionTimeout < 2*c.PingInterval { // members tell their leader of clients in answers to its PINGs
		bad("MinSessionTimeout %v is less than two PingIntervals of %v", c.MinSessionTimeout, c.PingInterval)
	}
	if limit := time.Duration(c.SyncLimit) * c.TickTime; c.LeaderTimeout > limit {
		bad("LeaderTimeout %v exceeds SyncLimit*TickTime %v", c.LeaderTimeout, limit)
	}
	if c.FinalizeWait > c.LeaderTimeout {
		bad("FinalizeWait %v exceeds LeaderTimeout %v", c.FinalizeWait, c.LeaderTimeout)
	}
	if c.MaxSessionTimeout < c.MinSessionTimeout {
		bad("MaxSessionTimeout %v is less than MinSessionTimeout %v", c.MaxSessionTimeout, c.MinSessionTimeout)
	}
	if c.MaxSessionTimeout > math.MaxInt32*time.Millisecond {
		bad("MaxSessionTimeout %v does not fit the protocol", c.MaxSessionTimeout)
	}
	if c.MaxFrameBytes < minFrameBytes || c.MaxFrameBytes > maxFrameBytes {
		bad("MaxFrameBytes %d is outside %d..%d", c.MaxFrameBytes, minFrameBytes, maxFrameBytes)
	}
	if c.MaxOutstandingBytes < 2*int64(c.MaxFrameBytes) {
		bad("MaxOutstandingBytes %d is less than two frames of %d", c.MaxOutstandingBytes, c.MaxFrameBytes)
	}
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"MaxConns", int64(c.MaxConns)}, {"ThrottleLimit", int64(c.ThrottleLimit)}, {"ThrottledOpWait", int64(c.ThrottledOpWait)},
		{"LargeRequestBytes", int64(c.LargeRequestBytes)}, {"ConnectionTokens", int64(c.ConnectionTokens)},
		{"ContainerMaxNeverUsed", int64(c.ContainerMaxNeverUsed)},
	} {
		if f.v < 0 {
			bad("%s is negative; 0 switches it off", f.name)
		}
	}
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"SessionlessTimeout", int64(c.SessionlessTimeout)}, {"ContainerCheckInterval", int64(c.ContainerCheckInterval)},
		{"ContainerMaxPerMinute", int64(c.ContainerMaxPerMinute)}, {"LargeRequestMaxBytes", c.LargeRequestMaxBytes},
		{"ConnectionTokenFillTime", int64(c.ConnectionTokenFillTime)}, {"ConnectionTokenFillCount", int64(c.ConnectionTokenFillCount)},
	} {
		if f.v < 1 {
			bad("%s must be positive", f.name)
		}
	}
	if c.MaxReplyBytes < minFrameBytes {
		bad("MaxReplyBytes %d is less than %d", c.MaxReplyBytes, minFrameBytes)
	}
	switch strings.ToUpper(c.DigestAlgorithm) { // those that kv.DigestIdentity knows
	case "SHA1", "SHA-1", "SHA-224", "SHA-256", "SHA-384", "SHA-512":
	default:
		bad("DigestAlgorithm %q is not known", c.DigestAlgorithm)
	}
	for _, w := range c.FourLetterWords {
		if w != "*" && len(w) != 4 {
			bad("%q is no four-letter word", w)
		}
	}
	if c.SuperDigest != "" && !strings.Contains(c.SuperDigest, ":") {
		bad("SuperDigest is not of the form user:hash")
	}
	if len(problems) == 0 {
		return nil
	}
	return &ConfigError{Problems: problems}
}

// ConfigError lists everything that is wrong with a Config.
type ConfigError struct{ Problems []error }

// Error prints one problem a line.
func (e *ConfigError) Error() string {
	return "invalid configuration:\n  " + strings.ReplaceAll(errors.Join(e.Problems...).Error(), "\n", "\n  ")
}

// Unwrap gives errors.Is and errors.As the single problems.
func (e *ConfigError) Unwrap() []error { return e.Problems }
