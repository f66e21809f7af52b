package zoocfg

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// class says what kvd does with a key.
type class uint8

const (
	honoured class = iota
	ignored        // with one warning
	refused        // exit 2
)

// key is one row of the table of everything that zookeeper-protocol section 11 (and 10.4, 10.5) knows.
type key struct {
	name  string
	class class
	// set takes the value of an honoured key.
	set func(b *builder, value string) error
	// why completes "KEY is ignored: ..." or "KEY is refused: ..."; of an honoured key it says what it means here.
	why string
	// moot are values (lower case) with which an ignored or refused key asks for what kvd does anyway: no message.
	moot []string
	// mootIf says the same for a key of a family.
	mootIf func(value string) bool
}

// family is a set of keys with a common prefix.
type family struct {
	prefix string
	class  class
	why    string
	// moot reports whether key and value ask for what kvd does anyway; nil: never.
	moot func(key, value string) bool
}

var no = []string{"false", "no", "0", ""}

// keys is the table. Order is that of the reference's sections.
var keys = []key{
	// Core
	{name: "tickTime", why: "milliseconds, 50 to 60000; default 2000 (ZooKeeper's code: 3000)", set: duration(func(b *builder) *time.Duration { return &b.s.TickTime }, 1)},
	{name: "dataDir", why: "kvd's files lie in its kvd/, myid in it", set: text(func(b *builder) *string { return &b.dataDir })},
	{name: "dataLogDir", why: "the log lies in its kvd/log/", set: text(func(b *builder) *string { return &b.dataLogDir })},
	{name: "clientPort", why: "the client port", set: func(b *builder, v string) (err error) { b.clientPort, err = parsePort(v); return err }},
	{name: "clientPortAddress", why: "the address it listens on; needs clientPort", set: text(func(b *builder) *string { return &b.clientPortAddress })},
	{name: "maxClientCnxns", why: "connections of one address; 0 and the default: unlimited (ZooKeeper: 60)", set: number(func(b *builder) *int { return &b.s.MaxClientConns }, 0)},
	{name: "minSessionTimeout", why: "milliseconds; -1 and the default: 2 ticks", set: sessionBound(func(b *builder) *time.Duration { return &b.s.MinSessionTimeout })},
	{name: "maxSessionTimeout", why: "milliseconds; -1 and the default: 20 ticks", set: sessionBound(func(b *builder) *time.Duration { return &b.s.MaxSessionTimeout })},
	{name: "extendedTypesEnabled", why: "nodes with a time to live", set: boolean(func(b *builder) *bool { return &b.s.ExtendedTypes })},
	{name: "maxCnxns", why: "all connections; 0: unlimited", set: number(func(b *builder) *int { return &b.s.MaxConns }, 0)},
	{name: "clientPortListenBacklog", why: "listen backlog of the client port; -1: the system's (ZooKeeper: 50)", set: setBacklog},
	{name: "globalOutstandingLimit", why: "requests taken in and not answered, after which reading stops; the same as kvd.maxOutstandingRequests, which wins", set: setOutstandingLimit},
	{name: "serverCnxnFactory", class: ignored, why: "kvd has one transport"},
	{name: "clientCnxnSocket", class: ignored, why: "it configures Java clients"},
	{name: "localSessionsEnabled", why: "new sessions stay on their member", set: boolean(func(b *builder) *bool { return &b.s.LocalSessions })},
	{name: "localSessionsUpgradingEnabled", why: "and become global when they create an ephemeral node", set: boolean(func(b *builder) *bool { return &b.s.LocalSessionsUpgrading })},
	{name: "readonlymode.enabled", why: "reads without a leader, for clients that ask for them", set: boolean(func(b *builder) *bool { return &b.s.ReadOnlyMode })},
	{name: "emulate353TTLNodes", class: ignored, why: "the TTL encoding of ZooKeeper 3.5.3 is not supported", moot: no},
	{name: "znode.container.checkIntervalMs", why: "how often the leader looks for containers and TTL nodes to remove", set: duration(func(b *builder) *time.Duration { return &b.s.ContainerCheckInterval }, 1)},
	{name: "znode.container.maxPerMinute", why: "and how many it removes", set: number(func(b *builder) *int { return &b.s.ContainerMaxPerMinute }, 1)},
	{name: "znode.container.maxNeverUsedIntervalMs", why: "a container that never had a child goes after this; 0: never", set: duration(func(b *builder) *time.Duration { return &b.s.ContainerMaxNeverUsed }, 0)},

	// Log, snapshots, purge
	{name: "snapCount", why: "least number of transactions between two snapshots", set: number(func(b *builder) *int { return &b.s.SnapCount }, 2)},
	{name: "autopurge.snapRetainCount", why: "at least 3, as in ZooKeeper", set: setSnapRetain},
	{name: "autopurge.purgeInterval", why: "0 keeps all snapshots and the whole log; any other value and the default purge as snapshots are taken", set: setPurgeInterval},
	{name: "snapSizeLimitInKb", class: ignored, why: "kvd.snapshotLogBytes says after how many logged bytes a snapshot is due", moot: []string{"4194304"}},
	{name: "txnLogSizeLimitInKb", class: ignored, why: "kvd's log is one store, not a series of files", moot: []string{"-1"}},
	{name: "preAllocSize", class: ignored, why: "kvd's log is not preallocated"},
	{name: "forceSync", class: ignored, why: "kvd always syncs before it acknowledges", moot: []string{"yes", "true"}},
	{name: "fsync.warningthresholdms", class: ignored, why: "kvd reports slow disks by its own threshold"},
	{name: "commitLogCount", class: ignored, why: "kvd.retainEntries and kvd.retainBytes say how much log is kept for members that were away"},
	{name: "flushDelay", class: ignored, why: "kvd batches what has gathered and never waits for more", moot: []string{"0"}},
	{name: "maxWriteQueuePollTime", class: ignored, why: "kvd batches what has gathered and never waits for more"},
	{name: "maxBatchSize", class: ignored, why: "kvd bounds batches in bytes by itself"},
	{name: "snapshot.trust.empty", class: ignored, why: "kvd does not read ZooKeeper's data", moot: no},
	{name: "snapshot.compression.method", class: ignored, why: "kvd's snapshots are not compressed", moot: []string{""}},
	{name: "serializeLastProcessedZxid.enabled", class: ignored, why: "kvd's snapshots always name their zxid", moot: []string{"true"}},
	{name: "syncEnabled", class: ignored, why: "kvd's observers always keep log and snapshots", moot: []string{"true"}},
	{name: "digest.enabled", class: ignored, why: "kvd always checks digests", moot: []string{"true"}},

	// Ensemble
	{name: "initLimit", why: "ticks; mandatory in an ensemble", set: number(func(b *builder) *int { return &b.s.InitLimit }, 1)},
	{name: "syncLimit", why: "ticks; mandatory in an ensemble", set: number(func(b *builder) *int { return &b.s.SyncLimit }, 1)},
	{name: "peerType", why: "must agree with the server line, which wins", set: setPeerType},
	{name: "electionAlg", why: "only 3 exists", set: setElectionAlg},
	{name: "quorumListenOnAllIPs", why: "the two peer ports listen on all interfaces", set: boolean(func(b *builder) *bool { return &b.s.ListenAllPeers })},
	{name: "standaloneEnabled", why: "false: one server line is an ensemble of one", set: boolean(func(b *builder) *bool { return &b.standaloneEnabled })},
	{name: "dynamicConfigFile", why: "file with the server lines; the version is its suffix", set: text(func(b *builder) *string { return &b.dynamicFile })},
	{name: "connectToLearnerMasterLimit", class: ignored, why: "initLimit bounds connecting too"},
	{name: "leaderServes", class: ignored, why: "kvd's leader always serves clients", moot: []string{"yes", "true"}},
	{name: "cnxTimeout", class: ignored, why: "kvd connects to each peer on its own and has its own time-out"},
	{name: "quorumCnxnTimeoutMs", class: ignored, why: "kvd has its own election time-outs", moot: []string{"-1"}},
	{name: "electionPortBindRetry", class: ignored, why: "kvd reports an address that it cannot bind and stops"},
	{name: "reconfigEnabled", class: ignored, why: "changing the membership at run time comes with a later version; clients are answered -123, as when it is off", moot: no},
	{name: "skipACL", why: "everybody may do everything", set: boolean(func(b *builder) *bool { return &b.s.SkipACL })},
	{name: "observerMasterPort", class: ignored, why: "observers follow the leader itself"},
	{name: "observer.reconnectDelayMs", class: ignored, why: "kvd has its own back-off"},
	{name: "observer.election.DelayMs", class: ignored, why: "kvd has its own back-off"},
	{name: "leader.maxConcurrentSnapSyncs", class: ignored, why: "kvd bounds each link by itself"},
	{name: "leader.maxConcurrentDiffSyncs", class: ignored, why: "kvd bounds each link by itself"},
	{name: "leader.maxTimeToWaitForEpoch", class: ignored, why: "initLimit bounds discovery", moot: []string{"-1"}},
	{name: "leader.closeSocketAsync", class: ignored, why: "kvd never waits for a socket"},
	{name: "learner.closeSocketAsync", class: ignored, why: "kvd never waits for a socket"},
	{name: "learner.asyncSending", class: ignored, why: "kvd always sends asynchronously"},
	{name: "fastleader.minNotificationInterval", class: ignored, why: "kvd has its own back-off"},
	{name: "fastleader.maxNotificationInterval", class: ignored, why: "kvd has its own back-off, capped at two seconds"},
	{name: "multiAddress.enabled", class: ignored, why: "one address per member is supported", moot: no},
	{name: "multiAddress.reachabilityCheckEnabled", class: ignored, why: "one address per member is supported"},
	{name: "multiAddress.reachabilityCheckTimeoutMs", class: ignored, why: "one address per member is supported"},
	{name: "tcpKeepAlive", class: ignored, why: "kvd's peers ping each other"},
	{name: "clientTcpKeepAlive", class: ignored, why: "sessions ping"},
	{name: "version", class: refused, why: "ZooKeeper refuses it as well; the version of a dynamic file is in its name"},
	{name: "oraclePath", class: refused, why: "an external oracle would decide instead of a quorum, which kvd does not support"},

	// TLS
	{name: "secureClientPort", class: refused, why: "TLS is not supported yet, and clients that expect it must not be served in clear text"},
	{name: "secureClientPortAddress", class: refused, why: "TLS is not supported yet"},
	{name: "sslQuorum", class: refused, why: "TLS between members is not supported yet, and traffic must not go in clear text unnoticed", moot: no},
	{name: "portUnification", class: ignored, why: "TLS is not supported yet", moot: no},
	{name: "sslQuorumReloadCertFiles", class: ignored, why: "TLS is not supported yet", moot: no},
	{name: "client.portUnification", class: ignored, why: "TLS is not supported yet", moot: no},
	{name: "client.certReload", class: ignored, why: "TLS is not supported yet", moot: no},
	{name: "client.secure", class: ignored, why: "it configures clients", moot: no},
	{name: "fips-mode", class: ignored, why: "TLS is not supported yet"},

	// Auth and ACL
	{name: "DigestAuthenticationProvider.superDigest", why: "user:base64(digest(user:password)) of the super user", set: setSuperDigest},
	{name: "DigestAuthenticationProvider.enabled", why: "false: the digest scheme is unknown", set: setDigestEnabled},
	{name: "DigestAuthenticationProvider.digestAlg", why: "SHA1, SHA-224, SHA-256, SHA-384 or SHA-512; the same on all members", set: setDigestAlg},
	{name: "sessionRequireClientSASLAuth", class: refused, why: "SASL is not supported, and clients without it would be let in", moot: no},
	{name: "enforce.auth.enabled", why: "requests without an identity of one of these schemes are answered -124", set: boolean(func(b *builder) *bool { return &b.enforceAuth })},
	{name: "enforce.auth.schemes", why: "digest, ip; separated by commas", set: setAuthSchemes},
	{name: "X509AuthenticationProvider.superUser", class: ignored, why: "X.509 authentication is not supported: there is no such super user"},
	{name: "superUser", class: ignored, why: "SASL is not supported: there is no such super user"},
	{name: "allowSaslFailedClients", class: ignored, why: "SASL is not supported", moot: no},
	{name: "enableEagerACLCheck", class: ignored, why: "the leader checks access once", moot: no},
	{name: "IPAuthenticationProvider.usexforwardedfor", class: ignored, why: "there is no admin server", moot: no},
	{name: "IPAuthenticationProvider.skipx", class: ignored, why: "there is no admin server", moot: no},
	{name: "kerberos.removeHostFromPrincipal", class: ignored, why: "Kerberos is not supported", moot: no},
	{name: "kerberos.removeRealmFromPrincipal", class: ignored, why: "Kerberos is not supported", moot: no},
	{name: "audit.enable", class: ignored, why: "there is no audit log yet", moot: no},
	{name: "audit.impl.class", class: ignored, why: "there is no audit log yet"},

	// Throttling and limits
	{name: "jute.maxbuffer", why: "largest request, 1024 to 67108864; default 1048575", set: setMaxBuffer},
	{name: "jute.maxbuffer.extrasize", class: ignored, why: "kvd reads back whatever it has logged"},
	{name: "enforceQuota", why: "hard quotas refuse", set: boolean(func(b *builder) *bool { return &b.s.EnforceQuota })},
	{name: "requestThrottleLimit", why: "requests in flight of the member's clients; 0: off", set: number(func(b *builder) *int { return &b.s.ThrottleLimit }, 0)},
	{name: "request_throttle_max_requests", why: "the same", set: number(func(b *builder) *int { return &b.s.ThrottleLimit }, 0)},
	{name: "requestThrottleStallTime", class: ignored, why: stall, moot: []string{"100"}},
	{name: "request_throttle_stall_time", class: ignored, why: stall, moot: []string{"100"}},
	{name: "requestThrottleDropStale", class: ignored, why: "requests of connections that have gone are always dropped", moot: []string{"true"}},
	{name: "throttled_op_wait_time", why: "milliseconds after which a waiting request is answered -127; 0: off", set: duration(func(b *builder) *time.Duration { return &b.s.ThrottledOpWait }, 0)},
	{name: "largeRequestThreshold", why: "bytes from which a request is large; -1: off", set: setLargeThreshold},
	{name: "largeRequestMaxBytes", why: "large requests in flight; a connection over it is closed", set: bytes(func(b *builder) *int64 { return &b.s.LargeRequestMaxBytes })},
	{name: "connectionMaxTokens", why: "new connections that may come at once; 0: off", set: number(func(b *builder) *int { return &b.s.ConnectionTokens }, 0)},
	{name: "connectionTokenFillTime", why: "milliseconds after which tokens come back", set: duration(func(b *builder) *time.Duration { return &b.s.ConnectionTokenFillTime }, 1)},
	{name: "connectionTokenFillCount", why: "and how many", set: number(func(b *builder) *int { return &b.s.ConnectionTokenFillCount }, 1)},
	{name: "connectionFreezeTime", class: ignored, why: chance, moot: []string{"-1"}},
	{name: "connectionDropIncrease", class: ignored, why: chance, moot: []string{"0.02"}},
	{name: "connectionDropDecrease", class: ignored, why: chance, moot: []string{"0.002"}},
	{name: "connectionDecreaseRatio", class: ignored, why: chance, moot: []string{"0"}},
	{name: "nio.sessionlessCnxnTimeout", why: "milliseconds that a connection may be without a session", set: duration(func(b *builder) *time.Duration { return &b.s.SessionlessTimeout }, 1)},
	{name: "nio.numSelectorThreads", class: ignored, why: threads},
	{name: "nio.numWorkerThreads", class: ignored, why: threads},
	{name: "nio.directBufferBytes", class: ignored, why: threads},
	{name: "nio.shutdownTimeout", class: ignored, why: threads},
	{name: "commitProcessor.numWorkerThreads", class: ignored, why: threads},
	{name: "maxResponseCacheSize", class: ignored, why: "kvd has no response cache"},
	{name: "maxGetChildrenResponseCacheSize", class: ignored, why: "kvd has no response cache"},

	// What ZooKeeper's start scripts pass as properties
	{name: "log.dir", class: ignored, why: logs},
	{name: "log.file", class: ignored, why: logs},
	{name: "log.threshold", class: ignored, why: logs},
	{name: "root.logger", class: ignored, why: logs},
	{name: "console.threshold", class: ignored, why: logs},
	{name: "tracelog.dir", class: ignored, why: logs},
	{name: "tracelog.file", class: ignored, why: logs},
	{name: "jmx.log4j.disable", class: ignored, why: "there is no JMX"},

	// Words, admin server, metrics
	{name: "4lw.commands.whitelist", why: "words that are answered, or *; default srvr, isro, ruok, stat", set: setWhitelist},
	{name: "admin.enableServer", class: ignored, why: "the admin HTTP server comes with a later version", moot: no},
	{name: "metricsProvider.className", class: ignored, why: "kvd serve --metrics-listen serves Prometheus metrics"},
	{name: "initialConfig", class: ignored, why: "it belongs to the admin HTTP server"},

	// kvd's own
	{name: "kvd.pingInterval", why: "how often a leader pings; milliseconds or 150ms, 1.5s", set: ownDuration(func(b *builder) *time.Duration { return &b.s.PingInterval })},
	{name: "kvd.leaderTimeout", why: "silence after which a leader is given up; at least four pings", set: ownDuration(func(b *builder) *time.Duration { return &b.s.LeaderTimeout })},
	{name: "kvd.finalizeWait", why: "how long an election waits for a better vote", set: ownDuration(func(b *builder) *time.Duration { return &b.s.FinalizeWait })},
	{name: "kvd.selfCheckInterval", why: "how often a member reads back its tree, snapshots and log; default 10m, 0 is never", set: selfCheckInterval},
	{name: "kvd.lowSpaceBytes", why: "free space beside one snapshot below which a member is low on disk space; default 256 MiB", set: space(func(b *builder) *int64 { return &b.s.LowSpaceBytes })},
	{name: "kvd.ballastBytes", why: "size of the file that is given up when less than that is free; without it a member stops there; default 64 MiB, 0 is none", set: space(func(b *builder) *int64 { return &b.s.BallastBytes })},
	{name: "kvd.snapshotLogBytes", why: "logged bytes after which a snapshot is due", set: bytes(func(b *builder) *int64 { return &b.s.SnapshotLogBytes })},
	{name: "kvd.retainBytes", why: "log kept for members that were away", set: bytes(func(b *builder) *int64 { return &b.s.RetainBytes })},
	{name: "kvd.retainEntries", why: "the same in transactions", set: number(func(b *builder) *int { return &b.s.RetainEntries }, 1)},
	{name: "kvd.reservedFiles", why: "file descriptors that clients never get", set: number(func(b *builder) *int { return &b.s.ReservedFiles }, 1)},
	{name: "kvd.maxOutstandingRequests", why: "requests taken in and not answered, after which reading stops", set: number(func(b *builder) *int { return &b.s.MaxOutstandingRequests }, 1)},
	{name: "kvd.maxReplyBytes", why: "largest reply; a larger one is answered -5 and the connection kept; default 64 MiB", set: number(func(b *builder) *int { return &b.s.MaxReplyBytes }, 1024)},
	{name: "kvd.maxOutstandingBytes", why: "the same in bytes", set: bytes(func(b *builder) *int64 { return &b.s.MaxOutstandingBytes })},
}

const (
	logs    = "kvd's log goes to stderr"
	stall   = "a request that waits goes on as soon as there is room"
	chance  = "new connections are dropped by tokens alone, never by chance"
	threads = "it sizes thread pools that kvd does not have"
)

// families are matched when no single key was. server.N is taken by the builder.
var families = []family{
	{prefix: "group.", class: refused, why: "hierarchical quorums are not supported, and a majority would be another quorum"},
	{prefix: "weight.", class: refused, why: "weighted quorums are not supported, and a majority would be another quorum"},
	{prefix: "ssl.", class: refused, why: "TLS is not supported yet, and traffic must not go in clear text unnoticed"},
	{prefix: "quorum.auth.", class: refused, why: "SASL between members is not supported, and members would not be authenticated", moot: saslSwitchedOff},
	{prefix: "quorum.cnxn.", class: ignored, why: threads},
	{prefix: "authProvider.", class: refused, why: "foreign authentication providers cannot be loaded", moot: builtinProvider},
	{prefix: "superUser.", class: ignored, why: "SASL is not supported: there is no such super user"},
	{prefix: "admin.", class: ignored, why: "the admin HTTP server comes with a later version"},
	{prefix: "metricsProvider.", class: ignored, why: "kvd serve --metrics-listen serves Prometheus metrics"},
}

func saslSwitchedOff(k, v string) bool {
	switch k {
	case "quorum.auth.enableSasl", "quorum.auth.serverRequireSasl", "quorum.auth.learnerRequireSasl":
		return slices.Contains(no, v)
	}
	return false
}

func builtinProvider(_, v string) bool {
	return slices.Contains([]string{"org.apache.zookeeper.server.auth.digestauthenticationprovider",
		"org.apache.zookeeper.server.auth.ipauthenticationprovider"}, v)
}

func text(field func(*builder) *string) func(*builder, string) error {
	return func(b *builder, v string) error {
		if v == "" {
			return fmt.Errorf("the value is empty")
		}
		*field(b) = v
		return nil
	}
}

func number(field func(*builder) *int, least int) func(*builder, string) error {
	return func(b *builder, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > math.MaxInt32 {
			return fmt.Errorf("%q is no number of at least %d", v, least)
		}
		*field(b) = n
		return nil
	}
}

func bytes(field func(*builder) *int64) func(*builder, string) error {
	return func(b *builder, v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is no positive number of bytes", v)
		}
		*field(b) = n
		return nil
	}
}

func boolean(field func(*builder) *bool) func(*builder, string) error {
	return func(b *builder, v string) error {
		switch strings.ToLower(v) {
		case "true", "yes":
			*field(b) = true
		case "false", "no":
			*field(b) = false
		default:
			return fmt.Errorf("%q is neither true nor false", v)
		}
		return nil
	}
}

// space is a number of bytes of which 0 means none.
func space(field func(*builder) *int64) func(*builder, string) error {
	return func(b *builder, v string) error {
		if v == "0" {
			*field(b) = -1
			return nil
		}
		return bytes(field)(b, v)
	}
}

// selfCheckInterval is an own duration of which 0 means never.
func selfCheckInterval(b *builder, v string) error {
	if v == "0" {
		b.s.SelfCheckInterval = -1
		return nil
	}
	return ownDuration(func(b *builder) *time.Duration { return &b.s.SelfCheckInterval })(b, v)
}

// duration takes milliseconds.
func duration(field func(*builder) *time.Duration, least int) func(*builder, string) error {
	return func(b *builder, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > math.MaxInt32 {
			return fmt.Errorf("%q is no number of milliseconds of at least %d", v, least)
		}
		*field(b) = time.Duration(n) * time.Millisecond
		return nil
	}
}

// sessionBound takes milliseconds; -1 is the default.
func sessionBound(field func(*builder) *time.Duration) func(*builder, string) error {
	return func(b *builder, v string) error {
		if v == "-1" {
			return nil
		}
		return duration(field, 1)(b, v)
	}
}

// ownDuration takes milliseconds, or Go's form (150ms, 1.5s).
func ownDuration(field func(*builder) *time.Duration) func(*builder, string) error {
	return func(b *builder, v string) error {
		if d, err := time.ParseDuration(v); err == nil && d > 0 {
			*field(b) = d
			return nil
		}
		return duration(field, 1)(b, v)
	}
}

func setSnapRetain(b *builder, v string) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		return fmt.Errorf("%q is no positive number", v)
	}
	b.s.SnapRetain = max(n, 3) // as ZooKeeper does
	if n < 3 {
		b.warn("autopurge.snapRetainCount is raised from %d to 3, as ZooKeeper does", n)
	}
	return nil
}

// setPurgeInterval: kvd purges as snapshots are taken, not by the clock; 0 switches that off.
func setPurgeInterval(b *builder, v string) error {
	digits := strings.TrimRight(v, "smhd")
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 {
		return fmt.Errorf("%q is no number of hours", v)
	}
	b.s.DisablePurge = n == 0
	return nil
}

func setPeerType(b *builder, v string) error {
	switch strings.ToLower(v) {
	case "participant", "observer":
		b.peerType = strings.ToLower(v)
		return nil
	}
	return fmt.Errorf("%q is neither participant nor observer", v)
}

func setElectionAlg(_ *builder, v string) error {
	if v != "3" {
		return fmt.Errorf("only algorithm 3 exists")
	}
	return nil
}

func setSuperDigest(b *builder, v string) error {
	user, hash, ok := strings.Cut(v, ":")
	if !ok || user == "" || hash == "" {
		return fmt.Errorf("it is not user:base64(sha1(user:password))") // the value is a secret of sorts and not repeated
	}
	b.s.SuperDigest = v
	return nil
}

// setBacklog takes the listen backlog; -1 is the system's.
func setBacklog(b *builder, v string) error {
	if v == "-1" {
		b.s.ClientBacklog = 0
		return nil
	}
	return number(func(b *builder) *int { return &b.s.ClientBacklog }, 1)(b, v)
}

// setOutstandingLimit is overridden by kvd's own key.
func setOutstandingLimit(b *builder, v string) error {
	return number(func(b *builder) *int { return &b.outstandingLimit }, 1)(b, v)
}

func setDigestEnabled(b *builder, v string) error {
	on := true
	err := boolean(func(*builder) *bool { return &on })(b, v)
	b.s.DisableDigest = !on
	return err
}

// digestAlgs are the spellings of the algorithms, in lower case.
var digestAlgs = map[string]string{
	"sha1": "SHA1", "sha-1": "SHA1", "sha-224": "SHA-224", "sha-256": "SHA-256", "sha-384": "SHA-384", "sha-512": "SHA-512",
}

func setDigestAlg(b *builder, v string) error {
	alg, ok := digestAlgs[strings.ToLower(v)]
	if !ok {
		return fmt.Errorf("%q is none of SHA1, SHA-224, SHA-256, SHA-384 and SHA-512", v)
	}
	b.s.DigestAlgorithm = alg
	return nil
}

// setAuthSchemes takes schemes that a connection can have an identity of. Any other would shut everybody out.
func setAuthSchemes(b *builder, v string) error {
	b.authSchemes = nil
	for _, scheme := range strings.Split(v, ",") {
		switch scheme = strings.TrimSpace(scheme); scheme {
		case "":
		case "digest", "ip":
			b.authSchemes = append(b.authSchemes, scheme)
		case "sasl", "x509":
			return fmt.Errorf("the scheme %s is not supported", scheme)
		default:
			return fmt.Errorf("%q is no scheme", scheme)
		}
	}
	return nil
}

// setLargeThreshold takes bytes; -1 is off.
func setLargeThreshold(b *builder, v string) error {
	if v == "-1" {
		b.s.LargeRequestBytes = 0
		return nil
	}
	return number(func(b *builder) *int { return &b.s.LargeRequestBytes }, 1)(b, v)
}

func setMaxBuffer(b *builder, v string) error {
	n, err := strconv.ParseInt(v, 0, 64) // ZooKeeper takes 0x... as well
	if err != nil || n < 1 || n > math.MaxInt32 {
		return fmt.Errorf("%q is no positive number of bytes", v)
	}
	b.s.MaxFrameBytes = int(n)
	return nil
}

// words are the four-letter words that ZooKeeper knows.
var words = []string{"conf", "cons", "crst", "dump", "envi", "ruok", "srst", "srvr", "stat", "wchc", "wchs", "wchp", "dirs", "mntr", "isro", "hash", "lsnp", "gtmk", "stmk", "orst", "lead", "obsr", "icfg"}

func setWhitelist(b *builder, v string) error {
	b.s.FourLetterWords = []string{} // an empty list allows none, unlike a missing one
	for _, w := range strings.Split(v, ",") {
		switch w = strings.TrimSpace(w); {
		case w == "":
		case w == "*" || slices.Contains(words, w):
			b.s.FourLetterWords = append(b.s.FourLetterWords, w)
		default:
			b.warn("4lw.commands.whitelist: %q is no four-letter word", w)
		}
	}
	return nil
}

// lookup finds what the table says about a key, nil if it says nothing.
func lookup(name string) *key {
	for i := range keys {
		if keys[i].name == name {
			return &keys[i]
		}
	}
	for _, f := range families {
		if rest, ok := strings.CutPrefix(name, f.prefix); ok && rest != "" {
			k := &key{name: name, class: f.class, why: f.why}
			if f.moot != nil {
				k.mootIf = func(v string) bool { return f.moot(name, v) }
			}
			return k
		}
	}
	return nil
}

// isMoot reports whether the value asks for what kvd does anyway.
func (k *key) isMoot(value string) bool {
	value = strings.ToLower(value)
	return slices.Contains(k.moot, value) || k.mootIf != nil && k.mootIf(value)
}

// ownPrefix begins the keys that ZooKeeper does not have.
const ownPrefix = "kvd."

// nearest finds the known key that a typo most likely meant, "" if none is close. A kvd.* key meant one of kvd's own,
// however far it is.
func nearest(name string) string {
	best, bestDist := "", 1+len(name)/3
	own := strings.HasPrefix(strings.ToLower(name), ownPrefix)
	if own {
		bestDist = math.MaxInt
	}
	consider := func(known string) {
		d := distance(strings.ToLower(name), strings.ToLower(known))
		if d < bestDist {
			best, bestDist = known, d
		}
	}
	for _, k := range keys {
		if !own || strings.HasPrefix(k.name, ownPrefix) {
			consider(k.name)
		}
	}
	if i := strings.IndexByte(name, '.'); i >= 0 && !own { // servers.1, sever.2
		for _, f := range append([]family{{prefix: "server."}}, families...) {
			consider(f.prefix + name[i+1:])
		}
	}
	return best
}

// distance is the edit distance: insertions, deletions, replacements.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d++
			}
			diagonal = row[j+1]
			row[j+1] = min(d, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// KeyInfo describes one key, or a family of keys whose name ends in N or in *, for people.
type KeyInfo struct {
	Name     string
	Standing string // honoured, ignored or refused
	Meaning  string // what it does here, or why it is ignored or refused
	Silent   string // values of an ignored or refused key that ask for what kvd does anyway
}

// Keys lists everything that a zoo.cfg may say, in the order of ZooKeeper's documentation, kvd's own keys last.
func Keys() []KeyInfo {
	standing := map[class]string{honoured: "honoured", ignored: "ignored", refused: "refused"}
	all := []KeyInfo{{Name: "server.N", Standing: "honoured", Meaning: "host:quorumPort:electionPort[:role][;[clientHost:]clientPort], N 1 to 255; one address each"}}
	var own []KeyInfo
	for i := range keys {
		k := &keys[i]
		silent := slices.DeleteFunc(slices.Clone(k.moot), func(v string) bool { return v == "" })
		info := KeyInfo{k.name, standing[k.class], k.why, strings.Join(silent, ", ")}
		if strings.HasPrefix(k.name, ownPrefix) {
			own = append(own, info)
		} else {
			all = append(all, info)
		}
	}
	for _, f := range families {
		all = append(all, KeyInfo{Name: f.prefix + "*", Standing: standing[f.class], Meaning: f.why})
	}
	return append(all, own...)
}
