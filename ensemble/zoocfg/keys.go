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
	// why completes "KEY is ignored: ..." or "KEY is refused: ...".
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
	{name: "tickTime", set: duration(func(b *builder) *time.Duration { return &b.s.TickTime }, 1)},
	{name: "dataDir", set: text(func(b *builder) *string { return &b.dataDir })},
	{name: "dataLogDir", set: text(func(b *builder) *string { return &b.dataLogDir })},
	{name: "clientPort", set: func(b *builder, v string) (err error) { b.clientPort, err = parsePort(v); return err }},
	{name: "clientPortAddress", set: text(func(b *builder) *string { return &b.clientPortAddress })},
	{name: "maxClientCnxns", set: number(func(b *builder) *int { return &b.s.MaxClientConns }, 0)},
	{name: "minSessionTimeout", set: sessionBound(func(b *builder) *time.Duration { return &b.s.MinSessionTimeout })},
	{name: "maxSessionTimeout", set: sessionBound(func(b *builder) *time.Duration { return &b.s.MaxSessionTimeout })},
	{name: "extendedTypesEnabled", set: boolean(func(b *builder) *bool { return &b.s.ExtendedTypes })},
	{name: "maxCnxns", class: ignored, why: "kvd bounds outstanding requests, not the number of connections", moot: []string{"0"}},
	{name: "clientPortListenBacklog", class: ignored, why: "the operating system's listen backlog is used", moot: []string{"-1"}},
	{name: "globalOutstandingLimit", class: ignored, why: "kvd has its own bounds, kvd.maxOutstandingRequests and kvd.maxOutstandingBytes"},
	{name: "serverCnxnFactory", class: ignored, why: "kvd has one transport"},
	{name: "clientCnxnSocket", class: ignored, why: "it configures Java clients"},
	{name: "localSessionsEnabled", class: ignored, why: "local sessions are not supported yet; all sessions are global", moot: no},
	{name: "localSessionsUpgradingEnabled", class: ignored, why: "local sessions are not supported yet", moot: no},
	{name: "readonlymode.enabled", class: ignored, why: "read-only mode is not supported yet; a member without a quorum does not serve", moot: no},
	{name: "emulate353TTLNodes", class: ignored, why: "the TTL encoding of ZooKeeper 3.5.3 is not supported", moot: no},
	{name: "znode.container.checkIntervalMs", class: ignored, why: "container nodes come with a later version"},
	{name: "znode.container.maxPerMinute", class: ignored, why: "container nodes come with a later version"},
	{name: "znode.container.maxNeverUsedIntervalMs", class: ignored, why: "container nodes come with a later version"},

	// Log, snapshots, purge
	{name: "snapCount", set: number(func(b *builder) *int { return &b.s.SnapCount }, 2)},
	{name: "autopurge.snapRetainCount", set: setSnapRetain},
	{name: "autopurge.purgeInterval", set: setPurgeInterval},
	{name: "snapSizeLimitInKb", class: ignored, why: "kvd.snapshotLogBytes says after how many logged bytes a snapshot is due"},
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
	{name: "initLimit", set: number(func(b *builder) *int { return &b.s.InitLimit }, 1)},
	{name: "syncLimit", set: number(func(b *builder) *int { return &b.s.SyncLimit }, 1)},
	{name: "peerType", set: setPeerType},
	{name: "electionAlg", set: setElectionAlg},
	{name: "quorumListenOnAllIPs", set: boolean(func(b *builder) *bool { return &b.s.ListenAllPeers })},
	{name: "standaloneEnabled", set: boolean(func(b *builder) *bool { return &b.standaloneEnabled })},
	{name: "dynamicConfigFile", set: text(func(b *builder) *string { return &b.dynamicFile })},
	{name: "connectToLearnerMasterLimit", class: ignored, why: "initLimit bounds connecting too"},
	{name: "leaderServes", class: ignored, why: "kvd's leader always serves clients", moot: []string{"yes", "true"}},
	{name: "cnxTimeout", class: ignored, why: "kvd connects to each peer on its own and has its own time-out"},
	{name: "quorumCnxnTimeoutMs", class: ignored, why: "kvd has its own election time-outs", moot: []string{"-1"}},
	{name: "electionPortBindRetry", class: ignored, why: "kvd reports an address that it cannot bind and stops"},
	{name: "reconfigEnabled", class: ignored, why: "changing the membership at run time comes with a later version", moot: no},
	{name: "skipACL", class: ignored, why: "kvd does not switch access checks off", moot: no},
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
	{name: "DigestAuthenticationProvider.superDigest", set: setSuperDigest},
	{name: "DigestAuthenticationProvider.enabled", class: refused, why: "kvd cannot switch the digest scheme off", moot: []string{"true"}},
	{name: "DigestAuthenticationProvider.digestAlg", class: refused, why: "kvd hashes with SHA1 only", moot: []string{"sha1", "sha-1"}},
	{name: "sessionRequireClientSASLAuth", class: refused, why: "SASL is not supported, and clients without it would be let in", moot: no},
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
	{name: "jute.maxbuffer", set: setMaxBuffer},
	{name: "jute.maxbuffer.extrasize", class: ignored, why: "jute.maxbuffer bounds a whole frame"},
	{name: "enforceQuota", class: ignored, why: "quotas come with a later version", moot: no},
	{name: "requestThrottleLimit", class: ignored, why: throttle, moot: []string{"0"}},
	{name: "request_throttle_max_requests", class: ignored, why: throttle, moot: []string{"0"}},
	{name: "requestThrottleStallTime", class: ignored, why: throttle},
	{name: "request_throttle_stall_time", class: ignored, why: throttle},
	{name: "requestThrottleDropStale", class: ignored, why: throttle},
	{name: "throttled_op_wait_time", class: ignored, why: throttle, moot: []string{"0"}},
	{name: "largeRequestThreshold", class: ignored, why: throttle, moot: []string{"-1"}},
	{name: "largeRequestMaxBytes", class: ignored, why: throttle},
	{name: "connectionMaxTokens", class: ignored, why: throttle, moot: []string{"0"}},
	{name: "connectionTokenFillTime", class: ignored, why: throttle},
	{name: "connectionTokenFillCount", class: ignored, why: throttle},
	{name: "connectionFreezeTime", class: ignored, why: throttle},
	{name: "connectionDropIncrease", class: ignored, why: throttle},
	{name: "connectionDropDecrease", class: ignored, why: throttle},
	{name: "connectionDecreaseRatio", class: ignored, why: throttle},
	{name: "nio.sessionlessCnxnTimeout", class: ignored, why: "a connection without a session is closed after ten seconds", moot: []string{"10000"}},
	{name: "nio.numSelectorThreads", class: ignored, why: threads},
	{name: "nio.numWorkerThreads", class: ignored, why: threads},
	{name: "nio.directBufferBytes", class: ignored, why: threads},
	{name: "nio.shutdownTimeout", class: ignored, why: threads},
	{name: "commitProcessor.numWorkerThreads", class: ignored, why: threads},
	{name: "maxResponseCacheSize", class: ignored, why: "kvd has no response cache"},
	{name: "maxGetChildrenResponseCacheSize", class: ignored, why: "kvd has no response cache"},

	// Words, admin server, metrics
	{name: "4lw.commands.whitelist", set: setWhitelist},
	{name: "admin.enableServer", class: ignored, why: "the admin HTTP server comes with a later version", moot: no},
	{name: "metricsProvider.className", class: ignored, why: "kvd serve --metrics-listen serves Prometheus metrics"},
	{name: "initialConfig", class: ignored, why: "it belongs to the admin HTTP server"},

	// kvd's own
	{name: "kvd.pingInterval", set: ownDuration(func(b *builder) *time.Duration { return &b.s.PingInterval })},
	{name: "kvd.leaderTimeout", set: ownDuration(func(b *builder) *time.Duration { return &b.s.LeaderTimeout })},
	{name: "kvd.finalizeWait", set: ownDuration(func(b *builder) *time.Duration { return &b.s.FinalizeWait })},
	{name: "kvd.snapshotLogBytes", set: bytes(func(b *builder) *int64 { return &b.s.SnapshotLogBytes })},
	{name: "kvd.retainBytes", set: bytes(func(b *builder) *int64 { return &b.s.RetainBytes })},
	{name: "kvd.retainEntries", set: number(func(b *builder) *int { return &b.s.RetainEntries }, 1)},
	{name: "kvd.reservedFiles", set: number(func(b *builder) *int { return &b.s.ReservedFiles }, 1)},
	{name: "kvd.maxOutstandingRequests", set: number(func(b *builder) *int { return &b.s.MaxOutstandingRequests }, 1)},
	{name: "kvd.maxOutstandingBytes", set: bytes(func(b *builder) *int64 { return &b.s.MaxOutstandingBytes })},
}

const (
	throttle = "kvd stops reading from clients at its own bounds, kvd.maxOutstandingRequests and kvd.maxOutstandingBytes"
	threads  = "it sizes thread pools that kvd does not have"
)

// families are matched when no single key was. server.N is taken by the builder.
var families = []family{
	{prefix: "group.", class: refused, why: "hierarchical quorums are not supported, and a majority would be another quorum"},
	{prefix: "weight.", class: refused, why: "weighted quorums are not supported, and a majority would be another quorum"},
	{prefix: "ssl.", class: refused, why: "TLS is not supported yet, and traffic must not go in clear text unnoticed"},
	{prefix: "quorum.auth.", class: refused, why: "SASL between members is not supported, and members would not be authenticated", moot: saslSwitchedOff},
	{prefix: "quorum.cnxn.", class: ignored, why: threads},
	{prefix: "enforce.auth.", class: refused, why: "enforced authentication is not supported, and clients without it would be let in",
		moot: func(k, v string) bool { return k == "enforce.auth.enabled" && slices.Contains(no, v) }},
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
