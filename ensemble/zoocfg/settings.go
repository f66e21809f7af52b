package zoocfg

import (
	"fmt"
	"strings"
	"time"
)

// Settings configure one member. A zero value means kvd's default unless said otherwise.
type Settings struct {
	ID uint64
	// Servers is the ensemble, by id. Empty: a single member, Mode standalone.
	Servers []Server
	// ConfigVersion is the version of the membership, from the dynamic file's name.
	ConfigVersion uint64
	// DataDir is kvd's own directory (dataDir/kvd with a zoo.cfg); LogDir holds the log store, empty: DataDir/log.
	DataDir, LogDir string
	// Listen is the client address; empty: none was given and the member has no client port.
	Listen string
	// ListenAllPeers binds the two peer ports on all interfaces (quorumListenOnAllIPs).
	ListenAllPeers bool

	TickTime             time.Duration
	InitLimit, SyncLimit int
	MinSessionTimeout    time.Duration
	MaxSessionTimeout    time.Duration

	MaxClientConns  int      // per IP address; 0: unlimited
	MaxFrameBytes   int      // jute.maxbuffer
	FourLetterWords []string // nil: kvd's default
	ExtendedTypes   bool
	SuperDigest     string

	// The rest of what a client port can be told; see ensemble.Config.
	MaxConns, ClientBacklog               int
	SessionlessTimeout                    time.Duration
	LocalSessions, LocalSessionsUpgrading bool
	ReadOnlyMode                          bool
	EnforceQuota, SkipACL, DisableDigest  bool
	DigestAlgorithm                       string
	EnforceAuthSchemes                    []string
	ContainerCheckInterval                time.Duration
	ContainerMaxPerMinute                 int
	ContainerMaxNeverUsed                 time.Duration
	ThrottleLimit                         int
	ThrottledOpWait                       time.Duration
	LargeRequestBytes                     int
	LargeRequestMaxBytes                  int64
	ConnectionTokens                      int
	ConnectionTokenFillTime               time.Duration
	ConnectionTokenFillCount              int

	SnapCount    int
	SnapRetain   int
	DisablePurge bool

	Bootstrap bool

	// From kvd.* keys.
	PingInterval, LeaderTimeout, FinalizeWait time.Duration
	LowSpaceBytes, BallastBytes               int64         // negative: 0
	SelfCheckInterval                         time.Duration // negative: never
	SnapshotLogBytes, RetainBytes             int64
	RetainEntries                             int
	ReservedFiles                             int
	MaxOutstandingRequests                    int
	MaxOutstandingBytes                       int64
	MaxReplyBytes                             int

	// Warnings are one line each, for the log. Notes are what a person who knows ZooKeeper should be told once.
	Warnings, Notes []string
}

// Value is one setting with the place it came from, for messages. From "" means that it was not given.
type Value struct{ Text, From string }

// Given reports whether somebody said it.
func (v Value) Given() bool { return v.From != "" }

// Options are what flags and environment said.
type Options struct {
	Config, ID, Data, Listen Value
	// Members are N=host:port:port... values.
	Members     []string
	MembersFrom string
	Bootstrap   Value // a boolean
	// Set are KEY=VALUE settings of any key that a zoo.cfg may have, stronger than the file; the last one of a key counts.
	Set []string
	// Lenient makes unknown keys warnings; IgnoreZooKeeperData starts empty beside ZooKeeper's data.
	Lenient, IgnoreZooKeeperData bool
}

// flagPrefix tells a flag from an environment variable in Value.From.
const flagPrefix = "--"

// AddEnvironment fills what no flag gave from KVD_CONFIG, KVD_ID, KVD_DATA, KVD_LISTEN, KVD_MEMBERS (separated
// by commas) and KVD_BOOTSTRAP. lookup is os.LookupEnv. An empty variable counts as not set.
func (o *Options) AddEnvironment(lookup func(string) (string, bool)) {
	get := func(name string, v *Value) {
		if text, ok := lookup(name); ok && text != "" && !v.Given() {
			*v = Value{text, name}
		}
	}
	get("KVD_CONFIG", &o.Config)
	get("KVD_ID", &o.ID)
	get("KVD_DATA", &o.Data)
	get("KVD_LISTEN", &o.Listen)
	get("KVD_BOOTSTRAP", &o.Bootstrap)
	if text, ok := lookup("KVD_MEMBERS"); ok && text != "" && o.MembersFrom == "" {
		o.MembersFrom = "KVD_MEMBERS"
		for _, m := range strings.Split(text, ",") {
			if m = strings.TrimSpace(m); m != "" {
				o.Members = append(o.Members, m)
			}
		}
	}
}

// Error lists everything that is wrong with a configuration. Nothing was touched; the program exits with 2.
type Error struct{ Problems []string }

func (e *Error) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0]
	}
	return fmt.Sprintf("%d problems with the configuration:\n  %s", len(e.Problems), strings.Join(e.Problems, "\n  "))
}
