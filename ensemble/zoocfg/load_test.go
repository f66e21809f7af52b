package zoocfg

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// files writes a configuration directory; DIR in the texts becomes its path. It returns the path of zoo.cfg.
func files(t *testing.T, contents map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range contents {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "DIR", dir)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "zoo.cfg")
}

func withConfig(path string) Options { return Options{Config: Value{path, "--config"}} }

// base is a complete single-member configuration.
const base = "dataDir=DIR\nclientPort=2181\n"

const ensemble3 = base + "initLimit=5\nsyncLimit=2\nserver.1=h1:2888:3888\nserver.2=h2:2888:3888\nserver.3=h3:2888:3888\n"

func problems(t *testing.T, err error) []string {
	t.Helper()
	var e *Error
	if err != nil && !errors.As(err, &e) {
		t.Fatalf("got %T %v, want *Error", err, err)
	}
	if e == nil {
		return nil
	}
	return e.Problems
}

func contains(lines []string, text string) bool {
	return slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, text) })
}

// Every key that ZooKeeper's documentation knows, transcribed by section. None may be unknown to kvd.
const referenceKeys = `
tickTime dataDir dataLogDir clientPort clientPortAddress secureClientPort secureClientPortAddress maxClientCnxns maxCnxns
clientPortListenBacklog minSessionTimeout maxSessionTimeout globalOutstandingLimit serverCnxnFactory extendedTypesEnabled
localSessionsEnabled localSessionsUpgradingEnabled readonlymode.enabled
snapCount snapSizeLimitInKb txnLogSizeLimitInKb preAllocSize forceSync fsync.warningthresholdms commitLogCount flushDelay
maxWriteQueuePollTime maxBatchSize autopurge.snapRetainCount autopurge.purgeInterval snapshot.trust.empty
snapshot.compression.method serializeLastProcessedZxid.enabled syncEnabled digest.enabled
initLimit syncLimit connectToLearnerMasterLimit leaderServes peerType electionAlg cnxTimeout quorumCnxnTimeoutMs
quorumListenOnAllIPs electionPortBindRetry standaloneEnabled reconfigEnabled dynamicConfigFile group.1 weight.1
observerMasterPort observer.reconnectDelayMs observer.election.DelayMs leader.maxConcurrentSnapSyncs
leader.maxConcurrentDiffSyncs leader.maxTimeToWaitForEpoch fastleader.minNotificationInterval
fastleader.maxNotificationInterval multiAddress.enabled multiAddress.reachabilityCheckEnabled
multiAddress.reachabilityCheckTimeoutMs tcpKeepAlive clientTcpKeepAlive oraclePath
quorum.auth.enableSasl quorum.auth.serverRequireSasl quorum.auth.learnerRequireSasl quorum.auth.learner.saslLoginContext
quorum.auth.server.saslLoginContext quorum.auth.kerberos.servicePrincipal quorum.cnxn.threads.size
ssl.keyStore.location ssl.keyStore.password ssl.keyStore.passwordPath ssl.keyStore.type ssl.trustStore.location ssl.quorum.keyStore.location
ssl.quorum.trustStore.password ssl.protocol ssl.enabledProtocols ssl.ciphersuites ssl.clientAuth ssl.hostnameVerification
ssl.clientHostnameVerification ssl.allowReverseDnsLookup ssl.crl ssl.ocsp ssl.handshakeDetectionTimeoutMillis
ssl.context.supplier.class ssl.sslProvider sslQuorum portUnification sslQuorumReloadCertFiles client.portUnification
client.certReload ssl.authProvider fips-mode
authProvider.1 authProvider.sasl DigestAuthenticationProvider.enabled DigestAuthenticationProvider.superDigest
DigestAuthenticationProvider.digestAlg X509AuthenticationProvider.superUser superUser superUser.1 sessionRequireClientSASLAuth
enforce.auth.enabled enforce.auth.schemes allowSaslFailedClients skipACL enableEagerACLCheck
IPAuthenticationProvider.usexforwardedfor kerberos.removeHostFromPrincipal kerberos.removeRealmFromPrincipal audit.enable
jute.maxbuffer jute.maxbuffer.extrasize enforceQuota requestThrottleLimit request_throttle_max_requests requestThrottleStallTime
request_throttle_stall_time requestThrottleDropStale throttled_op_wait_time largeRequestThreshold largeRequestMaxBytes
connectionMaxTokens connectionTokenFillTime connectionTokenFillCount connectionFreezeTime connectionDropIncrease
connectionDropDecrease connectionDecreaseRatio nio.sessionlessCnxnTimeout nio.numSelectorThreads nio.numWorkerThreads
maxResponseCacheSize maxGetChildrenResponseCacheSize
4lw.commands.whitelist admin.enableServer admin.serverAddress admin.serverPort admin.commandURL admin.idleTimeout
admin.portUnification admin.forceHttps admin.needClientAuth admin.rateLimiterIntervalInMS admin.snapshot.enabled
admin.restore.enabled metricsProvider.className metricsProvider.httpHost metricsProvider.httpPort metricsProvider.exportJvmInfo
znode.container.checkIntervalMs znode.container.maxPerMinute znode.container.maxNeverUsedIntervalMs`

func TestReferenceKeysAreKnown(t *testing.T) {
	for _, name := range strings.Fields(referenceKeys) {
		if lookup(name) == nil {
			t.Errorf("%s is unknown", name)
		}
	}
	seen := map[string]bool{}
	for _, k := range keys {
		if seen[k.name] {
			t.Errorf("%s is in the table twice", k.name)
		}
		seen[k.name] = true
		if (k.set != nil) != (k.class == honoured) || k.why == "" {
			t.Errorf("%s: class, setter and reason do not fit together", k.name)
		}
		for _, m := range k.moot {
			if m != strings.ToLower(m) {
				t.Errorf("%s: moot value %q is not lower case", k.name, m)
			}
		}
		if k.class == honoured && !slices.ContainsFunc(honouredCases, func(c honouredCase) bool { return c.key == k.name }) {
			t.Errorf("no case shows that %s is honoured", k.name)
		}
	}
}

type honouredCase struct {
	key, value string
	want       func(s *Settings) bool
	wrong      []string // values that are problems
}

var honouredCases = []honouredCase{
	{"tickTime", "3000", func(s *Settings) bool { return s.TickTime == 3*time.Second }, []string{"0", "-1", "x", "", "10", "70000"}},
	{"dataDir", "DIR/data", func(s *Settings) bool { return strings.HasSuffix(s.DataDir, "/data/kvd") && s.LogDir == "" }, []string{""}},
	{"dataLogDir", "DIR/logs", func(s *Settings) bool {
		return strings.HasSuffix(s.LogDir, "/logs/kvd/log") && strings.HasSuffix(s.DataDir, "/kvd")
	}, []string{""}},
	{"clientPort", "2182", func(s *Settings) bool { return s.Listen == ":2182" }, []string{"0", "65536", "x", ""}},
	{"clientPortAddress", "127.0.0.1", func(s *Settings) bool { return s.Listen == "127.0.0.1:2181" }, []string{""}},
	{"maxClientCnxns", "70", func(s *Settings) bool { return s.MaxClientConns == 70 }, []string{"-1", "many"}},
	{"minSessionTimeout", "1000", func(s *Settings) bool { return s.MinSessionTimeout == time.Second && s.MaxSessionTimeout == 0 }, []string{"0", "-2"}},
	{"maxSessionTimeout", "90000", func(s *Settings) bool { return s.MaxSessionTimeout == 90*time.Second }, []string{"0", "x", "3999"}},
	{"extendedTypesEnabled", "true", func(s *Settings) bool { return s.ExtendedTypes }, []string{"maybe", ""}},
	{"snapCount", "5000", func(s *Settings) bool { return s.SnapCount == 5000 }, []string{"1", "x"}},
	{"autopurge.snapRetainCount", "7", func(s *Settings) bool { return s.SnapRetain == 7 }, []string{"0", "x"}},
	{"autopurge.purgeInterval", "0", func(s *Settings) bool { return s.DisablePurge }, []string{"-1", "x", ""}},
	{"initLimit", "7", func(s *Settings) bool { return s.InitLimit == 7 }, []string{"0", "x"}},
	{"syncLimit", "3", func(s *Settings) bool { return s.SyncLimit == 3 }, []string{"0", "x"}},
	{"peerType", "observer", func(s *Settings) bool { return true }, []string{"leader"}},
	{"electionAlg", "3", func(s *Settings) bool { return true }, []string{"0", "1"}},
	{"quorumListenOnAllIPs", "true", func(s *Settings) bool { return s.ListenAllPeers }, []string{"2"}},
	{"standaloneEnabled", "true", func(s *Settings) bool { return len(s.Servers) == 0 }, []string{"x", "false"}},
	{"dynamicConfigFile", "DIR/zoo.cfg.dynamic.1f", func(s *Settings) bool { return s.ConfigVersion == 0x1f && len(s.Servers) == 3 }, []string{"DIR/missing", ""}},
	{"DigestAuthenticationProvider.superDigest", "super:Jq7wMyA/w2Vd5WIDAKdu4OIIFEQ=", func(s *Settings) bool { return s.SuperDigest == "super:Jq7wMyA/w2Vd5WIDAKdu4OIIFEQ=" }, []string{"x", ":y", "u:"}},
	{"jute.maxbuffer", "0x200000", func(s *Settings) bool { return s.MaxFrameBytes == 2<<20 }, []string{"0", "x", "1000", "67108865"}},
	{"4lw.commands.whitelist", "ruok, srvr", func(s *Settings) bool { return slices.Equal(s.FourLetterWords, []string{"ruok", "srvr"}) }, nil},
	{"maxCnxns", "500", func(s *Settings) bool { return s.MaxConns == 500 }, []string{"-1", "x"}},
	{"clientPortListenBacklog", "77", func(s *Settings) bool { return s.ClientBacklog == 77 }, []string{"0", "x"}},
	{"globalOutstandingLimit", "2000", func(s *Settings) bool { return s.MaxOutstandingRequests == 2000 }, []string{"0", "x"}},
	{"localSessionsEnabled", "true", func(s *Settings) bool { return s.LocalSessions }, []string{"1"}},
	{"localSessionsUpgradingEnabled", "true", func(s *Settings) bool { return s.LocalSessionsUpgrading }, []string{"1"}},
	{"readonlymode.enabled", "true", func(s *Settings) bool { return s.ReadOnlyMode }, []string{"on"}},
	{"znode.container.checkIntervalMs", "500", func(s *Settings) bool { return s.ContainerCheckInterval == 500*time.Millisecond }, []string{"0", "1m"}},
	{"znode.container.maxPerMinute", "60", func(s *Settings) bool { return s.ContainerMaxPerMinute == 60 }, []string{"0"}},
	{"znode.container.maxNeverUsedIntervalMs", "7000", func(s *Settings) bool { return s.ContainerMaxNeverUsed == 7*time.Second }, []string{"-1"}},
	{"skipACL", "yes", func(s *Settings) bool { return s.SkipACL }, []string{"1"}},
	{"enforceQuota", "true", func(s *Settings) bool { return s.EnforceQuota }, []string{"1"}},
	{"DigestAuthenticationProvider.enabled", "false", func(s *Settings) bool { return s.DisableDigest }, []string{"x"}},
	{"DigestAuthenticationProvider.digestAlg", "sha-256", func(s *Settings) bool { return s.DigestAlgorithm == "SHA-256" }, []string{"MD5", ""}},
	{"enforce.auth.enabled", "false", func(s *Settings) bool { return s.EnforceAuthSchemes == nil }, []string{"x", "true"}},
	{"enforce.auth.schemes", "digest, ip", func(s *Settings) bool { return s.EnforceAuthSchemes == nil }, []string{"sasl", "x509", "digest,bogus"}},
	{"requestThrottleLimit", "100", func(s *Settings) bool { return s.ThrottleLimit == 100 }, []string{"-1"}},
	{"request_throttle_max_requests", "100", func(s *Settings) bool { return s.ThrottleLimit == 100 }, []string{"-1"}},
	{"throttled_op_wait_time", "250", func(s *Settings) bool { return s.ThrottledOpWait == 250*time.Millisecond }, []string{"-1"}},
	{"largeRequestThreshold", "4096", func(s *Settings) bool { return s.LargeRequestBytes == 4096 }, []string{"0", "x"}},
	{"largeRequestMaxBytes", "1048576", func(s *Settings) bool { return s.LargeRequestMaxBytes == 1<<20 }, []string{"0"}},
	{"connectionMaxTokens", "10", func(s *Settings) bool { return s.ConnectionTokens == 10 }, []string{"-1"}},
	{"connectionTokenFillTime", "20", func(s *Settings) bool { return s.ConnectionTokenFillTime == 20*time.Millisecond }, []string{"0"}},
	{"connectionTokenFillCount", "3", func(s *Settings) bool { return s.ConnectionTokenFillCount == 3 }, []string{"0"}},
	{"nio.sessionlessCnxnTimeout", "2500", func(s *Settings) bool { return s.SessionlessTimeout == 2500*time.Millisecond }, []string{"0"}},
	{"kvd.maxReplyBytes", "1048575", func(s *Settings) bool { return s.MaxReplyBytes == 1<<20-1 }, []string{"0", "x"}},
	{"kvd.pingInterval", "50", func(s *Settings) bool { return s.PingInterval == 50*time.Millisecond }, []string{"0", "x"}},
	{"kvd.leaderTimeout", "1.5s", func(s *Settings) bool { return s.LeaderTimeout == 1500*time.Millisecond }, []string{"-1s", "x"}},
	{"kvd.finalizeWait", "200", func(s *Settings) bool { return s.FinalizeWait == 200*time.Millisecond }, []string{"0"}},
	{"kvd.selfCheckInterval", "30s", func(s *Settings) bool { return s.SelfCheckInterval == 30*time.Second }, []string{"-1s", "x"}},
	{"kvd.selfCheckInterval", "0", func(s *Settings) bool { return s.SelfCheckInterval < 0 }, nil},
	{"kvd.lowSpaceBytes", "1048576", func(s *Settings) bool { return s.LowSpaceBytes == 1<<20 }, []string{"-1", "x"}},
	{"kvd.lowSpaceBytes", "0", func(s *Settings) bool { return s.LowSpaceBytes < 0 }, nil},
	{"kvd.ballastBytes", "1048576", func(s *Settings) bool { return s.BallastBytes == 1<<20 }, []string{"-1", "x"}},
	{"kvd.ballastBytes", "0", func(s *Settings) bool { return s.BallastBytes < 0 }, nil},
	{"kvd.snapshotLogBytes", "1048576", func(s *Settings) bool { return s.SnapshotLogBytes == 1<<20 }, []string{"0", "x"}},
	{"kvd.retainBytes", "1048576", func(s *Settings) bool { return s.RetainBytes == 1<<20 }, []string{"0"}},
	{"kvd.retainEntries", "1000", func(s *Settings) bool { return s.RetainEntries == 1000 }, []string{"0"}},
	{"kvd.reservedFiles", "300", func(s *Settings) bool { return s.ReservedFiles == 300 }, []string{"0", "many"}},
	{"kvd.maxOutstandingRequests", "100", func(s *Settings) bool { return s.MaxOutstandingRequests == 100 }, []string{"0"}},
	{"kvd.maxOutstandingBytes", "8388608", func(s *Settings) bool { return s.MaxOutstandingBytes == 8<<20 }, []string{"0"}},
}

// Each honoured key reaches its setting, also as zookeeper.KEY, silently; each wrong value is a problem.
func TestHonouredKeys(t *testing.T) {
	other := map[string]string{"myid": "2", "zoo.cfg.dynamic.1f": "server.1=h1:1:2\nserver.2=h2:1:2\nserver.3=h3:1:2"}
	for _, c := range honouredCases {
		load := func(prefix, value string) (Settings, error) {
			config := ""
			for line := range strings.Lines(base) {
				if !strings.HasPrefix(line, c.key+"=") { // twice would be refused
					config += line
				}
			}
			if c.key == "dynamicConfigFile" {
				config += "initLimit=5\nsyncLimit=5\n"
			}
			contents := map[string]string{"zoo.cfg": config + prefix + c.key + "=" + value, "data/myid": "2"}
			for name, text := range other {
				contents[name] = text
			}
			return Load(withConfig(files(t, contents)))
		}
		for _, prefix := range []string{"", "zookeeper."} {
			s, err := load(prefix, c.value)
			if err != nil || !c.want(&s) || len(s.Warnings) != 0 && c.key != "dataDir" && c.key != "clientPort" {
				t.Errorf("%s%s=%s: got %+v, %v", prefix, c.key, c.value, s, err)
			}
		}
		for _, wrong := range c.wrong {
			if s, err := load("", wrong); !contains(problems(t, err), c.key) {
				t.Errorf("%s=%q: got %+v, %v, want a problem that names the key", c.key, wrong, s, err)
			}
		}
	}
}

// Each ignored key gives one warning with key, line and reason; none with a value that asks for what kvd does anyway.
func TestIgnoredKeys(t *testing.T) {
	for _, name := range append(strings.Fields(referenceKeys), namesOf(ignored)...) {
		k := lookup(name)
		if k.class != ignored {
			continue
		}
		s, err := Load(withConfig(files(t, map[string]string{"zoo.cfg": base + name + "=17"})))
		if err != nil || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], name+" is ignored: "+k.why) || !strings.Contains(s.Warnings[0], "zoo.cfg line 3") {
			t.Errorf("%s: got %q, %v", name, s.Warnings, err)
		}
		for _, v := range k.moot {
			if s, err := Load(withConfig(files(t, map[string]string{"zoo.cfg": base + name + "=" + v}))); err != nil || len(s.Warnings) != 0 {
				t.Errorf("%s=%s: got %q, %v, want silence", name, v, s.Warnings, err)
			}
		}
	}
}

// Each refused key is a problem that says why, whatever else is right.
func TestRefusedKeys(t *testing.T) {
	tried := 0
	for _, name := range append(strings.Fields(referenceKeys), namesOf(refused)...) {
		k := lookup(name)
		if k.class != refused {
			continue
		}
		tried++
		for _, prefix := range []string{"", "zookeeper."} {
			_, err := Load(withConfig(files(t, map[string]string{"zoo.cfg": base + prefix + name + "=17"})))
			if got := problems(t, err); len(got) != 1 || !strings.Contains(got[0], name+" is refused: "+k.why) {
				t.Errorf("%s%s: got %q", prefix, name, got)
			}
		}
	}
	if tried < 25 {
		t.Errorf("only %d refused keys", tried)
	}
	for line, refusedToo := range map[string]bool{
		"sslQuorum=true": true, "sslQuorum=false": false, "quorum.auth.enableSasl=true": true, "quorum.auth.enableSasl=false": false,
		"quorum.auth.kerberos.servicePrincipal=x/y": true, "enforce.auth.enabled=true": true, "enforce.auth.enabled=false": false,
		"enforce.auth.schemes=digest": false, "enforce.auth.enabled=true\nenforce.auth.schemes=sasl": true, "enforce.auth.enabled=true\nenforce.auth.schemes=digest": false,
		"enforce.auth.enabled=true\nenforce.auth.schemes=digest\nDigestAuthenticationProvider.enabled=false": true,
		"sessionRequireClientSASLAuth=true": true, "sessionRequireClientSASLAuth=false": false,
		"authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider": true, "authProvider.x=com.example.Mine": true,
		"authProvider.1=org.apache.zookeeper.server.auth.DigestAuthenticationProvider": false,
		"DigestAuthenticationProvider.digestAlg=MD5":                                   true, "DigestAuthenticationProvider.digestAlg=SHA1": false,
		"secureClientPort=2281": true, "ssl.quorum.keyStore.location=/k": true, "group.1=1:2:3": true, "weight.1=1": true, "oraclePath=/o": true,
	} {
		_, err := Load(withConfig(files(t, map[string]string{"zoo.cfg": base + line})))
		if (err != nil) != refusedToo {
			t.Errorf("%s: got %v, refused should be %v", line, err, refusedToo)
		}
	}
}

func namesOf(c class) []string {
	var names []string
	for _, k := range keys {
		if k.class == c {
			names = append(names, k.name)
		}
	}
	return names
}

func TestUnknownKeys(t *testing.T) {
	for name, want := range map[string]string{
		"ticktime": "tickTime", "tickTimes": "tickTime", "maxClientConns": "maxClientCnxns", "dataDirectory": "", "initlimit": "initLimit",
		"sever.1": "server.1", "autopurge.purgeInterval2": "autopurge.purgeInterval", "kvd.pingIntervall": "kvd.pingInterval",
		"kvd.bogus": "kvd.retainBytes", "KVD.RetainByte": "kvd.retainBytes", "somethingElseEntirely": "", "kvd.": "", "ssl.": "", "group.": "", "4lw.command.whitelist": "4lw.commands.whitelist",
	} {
		config := map[string]string{"zoo.cfg": base + name + "=h:1:2"}
		_, err := Load(withConfig(files(t, config)))
		got := problems(t, err)
		if len(got) != 1 || !strings.Contains(got[0], "unknown key "+name) || want != "" && !strings.Contains(got[0], "the nearest known one is "+want+" ") {
			t.Errorf("%s: got %q, want %q named", name, got, want)
		}
		o := withConfig(files(t, config))
		o.Lenient = true
		if s, err := Load(o); err != nil || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "unknown key "+name+" is ignored") {
			t.Errorf("%s, lenient: got %q, %v", name, s.Warnings, err)
		}
	}
	o := withConfig(files(t, map[string]string{"zoo.cfg": base + "secureClientPort=1"}))
	o.Lenient = true
	if _, err := Load(o); err == nil {
		t.Error("--lenient-config let a refused key pass")
	}
}

func TestServerLines(t *testing.T) {
	for in, want := range map[string]Server{
		"h:2888:3888":                        {1, "h", 2888, 3888, false, "", 0},
		"h:2888:3888:participant":            {1, "h", 2888, 3888, false, "", 0},
		"h:2888:3888:OBSERVER":               {1, "h", 2888, 3888, true, "", 0},
		"h:2888:3888;2181":                   {1, "h", 2888, 3888, false, "0.0.0.0", 2181},
		"h:2888:3888:observer;10.0.0.1:2181": {1, "h", 2888, 3888, true, "10.0.0.1", 2181},
		"[::1]:2888:3888;[fe80::1%eth0]:2":   {1, "::1", 2888, 3888, false, "fe80::1%eth0", 2},
		"10.1.2.3:1:65535":                   {1, "10.1.2.3", 1, 65535, false, "", 0},
		" h : 2888 : 3888 ; 2181 ":           {1, "h", 2888, 3888, false, "0.0.0.0", 2181},
		"h:2888:3888;;":                      {1, "h", 2888, 3888, false, "", 0},
		"h:2888:3888;:2181":                  {1, "h", 2888, 3888, false, "0.0.0.0", 2181},
	} {
		got, err := parseServer(1, in)
		if err != nil || got != want {
			t.Errorf("%q: got %+v, %v, want %+v", in, got, err, want)
		}
		members, err := ParseMembers([]string{"1=" + in})
		if err != nil || len(members) != 1 || members[0] != want {
			t.Errorf("--member 1=%q: got %+v, %v", in, members, err)
		}
	}
	for _, in := range []string{"", "h", "h:1", "h:1:2:3", "h:1:2:leader", "h:1:1", "h:0:2", "h:1:65536", "h:a:2", ":1:2", "h:1:2:observer:x",
		"h:1:2|g:1:2", "h:1:2;x", "h:1:2;0", "h:1:2;a:b:3", "h:1:2;3;4", "h:1:2;3;;5", "[::1:1:2", "[h]:1:2", "[::1]x:1:2", "::1:1:2"} {
		if got, err := parseServer(1, in); err == nil {
			t.Errorf("%q: accepted as %+v", in, got)
		}
	}
	for _, in := range []string{"h:1:2", "x=h:1:2", "0=h:1:2", "256=h:1:2", "1=h:1", "=h:1:2"} {
		if got, err := ParseMembers([]string{in}); err == nil {
			t.Errorf("--member %q: accepted as %+v", in, got)
		}
	}
	if got, want := (Server{3, "::1", 1, 2, true, "0.0.0.0", 2181}).String(), "server.3=[::1]:1:2:observer;0.0.0.0:2181"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestEnsembleFile(t *testing.T) {
	s, err := Load(withConfig(files(t, map[string]string{"zoo.cfg": ensemble3 + "server.9=h9:2888:3888:observer;2190\n", "myid": "2\n"})))
	if err != nil || s.ID != 2 || len(s.Servers) != 4 || !s.Servers[3].Observer || s.Listen != ":2181" || s.InitLimit != 5 || s.SyncLimit != 2 {
		t.Errorf("got %+v, %v", s, err)
	}
	if !contains(s.Notes, "maxClientCnxns is unlimited") || !contains(s.Notes, "purged") || !contains(s.Notes, "snapCount") {
		t.Errorf("notes %q", s.Notes)
	}
	s, err = Load(withConfig(files(t, map[string]string{"zoo.cfg": ensemble3 + "maxClientCnxns=60\nautopurge.purgeInterval=1\n", "myid": "2\n"})))
	if err != nil || contains(s.Notes, "maxClientCnxns") || contains(s.Notes, "purged") || s.DisablePurge {
		t.Errorf("got %+v, %v", s, err)
	}
}

// The configuration that the issue names, and that of the common container image.
func TestOrdinaryFiles(t *testing.T) {
	for name, config := range map[string]string{
		"issue": ensemble3 + "admin.enableServer=false\nextendedTypesEnabled=true\nmaxClientCnxns=0\n4lw.commands.whitelist=*\n" +
			"DigestAuthenticationProvider.superDigest=super:D/InIHSb7yEEbrWz8b9l71RjZJU=\ntickTime=2000\n",
		"container": "dataDir=DIR\ndataLogDir=DIR/datalog\ntickTime=2000\ninitLimit=5\nsyncLimit=2\nautopurge.snapRetainCount=3\nautopurge.purgeInterval=0\n" +
			"maxClientCnxns=60\nstandaloneEnabled=true\nadmin.enableServer=false\nserver.1=zoo1:2888:3888;2181\nserver.2=zoo2:2888:3888;2181\n",
	} {
		s, err := Load(withConfig(files(t, map[string]string{"zoo.cfg": config, "myid": "1"})))
		if err != nil || len(s.Warnings) != 0 {
			t.Errorf("%s: got %q, %v", name, s.Warnings, err)
		}
	}
}

func TestStandalone(t *testing.T) {
	for name, c := range map[string]struct {
		files   map[string]string
		id      uint64
		servers int
		listen  string
	}{
		"no server line":           {map[string]string{"zoo.cfg": base}, 1, 0, ":2181"},
		"no server line, myid":     {map[string]string{"zoo.cfg": base, "myid": "7"}, 7, 0, ":2181"},
		"one server line":          {map[string]string{"zoo.cfg": "dataDir=DIR\nserver.4=h:1:2;127.0.0.1:2185"}, 4, 0, "127.0.0.1:2185"},
		"one, standalone disabled": {map[string]string{"zoo.cfg": ensembleOf1 + "standaloneEnabled=false", "myid": "4"}, 4, 1, ":2181"},
		"one with myid":            {map[string]string{"zoo.cfg": base + "server.4=h:1:2", "myid": "4"}, 4, 0, ":2181"},
		"client part agrees":       {map[string]string{"zoo.cfg": base + "server.4=h:1:2;2181", "myid": "4"}, 4, 0, "0.0.0.0:2181"},
		"client part agrees, address": {map[string]string{"zoo.cfg": base + "clientPortAddress=10.0.0.1\nserver.4=h:1:2;10.0.0.1:2181", "myid": "4"}, 4, 0,
			"10.0.0.1:2181"},
	} {
		s, err := Load(withConfig(files(t, c.files)))
		if err != nil || s.ID != c.id || len(s.Servers) != c.servers || s.Listen != c.listen {
			t.Errorf("%s: got %+v, %v", name, s, err)
		}
	}
}

const ensembleOf1 = base + "initLimit=1\nsyncLimit=1\nserver.4=h:1:2\n"

// Everything wrong with a configuration is told at once.
func TestProblems(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"many at once": {map[string]string{"zoo.cfg": "tickTime=x\nclientport=1\nserver.1=h:1:1\nserver.2=h:3:4\nserver.3=h:3:5\nsecureClientPort=1\n"},
			[]string{"tickTime", "unknown key clientport", "server.1", "members 2 and 3 both use h:3", "secureClientPort is refused", "dataDir is missing", "initLimit is missing", "syncLimit is missing", "no client port"}},
		"missing file":             {map[string]string{"other": ""}, []string{"zoo.cfg: no such file"}},
		"broken escape":            {map[string]string{"zoo.cfg": base + `x=\u1`}, []string{"zoo.cfg line 3"}},
		"no myid":                  {map[string]string{"zoo.cfg": ensemble3}, []string{"myid is missing"}},
		"myid not a number":        {map[string]string{"zoo.cfg": ensemble3, "myid": "2 # me"}, []string{`myid: "2 # me" is no member id`}},
		"myid of a stranger":       {map[string]string{"zoo.cfg": ensemble3, "myid": "4"}, []string{"this member is 4, which is not among the configured ones: 1, 2, 3"}},
		"no limits":                {map[string]string{"zoo.cfg": base + "server.1=a:1:2\nserver.2=b:1:2\nsyncLimit=2", "myid": "1"}, []string{"initLimit is missing"}},
		"only observers":           {map[string]string{"zoo.cfg": base + "server.4=h:1:2:observer", "myid": "4"}, []string{"observers but no participant"}},
		"id out of range":          {map[string]string{"zoo.cfg": base + "server.256=a:1:2"}, []string{"server.256"}},
		"id no number":             {map[string]string{"zoo.cfg": base + "server.one=a:1:2"}, []string{"server.one"}},
		"no client port":           {map[string]string{"zoo.cfg": "dataDir=DIR"}, []string{"no client port"}},
		"address without port":     {map[string]string{"zoo.cfg": "dataDir=DIR\nclientPortAddress=h"}, []string{"clientPortAddress needs clientPort"}},
		"client ports differ":      {map[string]string{"zoo.cfg": base + "server.1=h:1:2;2182"}, []string{"server.1 says client address 0.0.0.0:2182"}},
		"client addresses":         {map[string]string{"zoo.cfg": base + "clientPortAddress=a\nserver.1=h:1:2;b:2181"}, []string{"server.1 says client address b:2181"}},
		"client and quorum port":   {map[string]string{"zoo.cfg": "dataDir=DIR\nclientPort=4\ninitLimit=1\nsyncLimit=1\nserver.1=h:4:5", "myid": "1"}, []string{"client port 4 is the quorum port of server.1 too"}},
		"client and election port": {map[string]string{"zoo.cfg": "dataDir=DIR\ninitLimit=1\nsyncLimit=1\nserver.1=h:4:5;h:5", "myid": "1"}, []string{"client port 5 is the election port of server.1 too"}},
		"session bounds":           {map[string]string{"zoo.cfg": base + "minSessionTimeout=9000\nmaxSessionTimeout=5000"}, []string{"minSessionTimeout 9000 is greater"}},
		"servers in both files":    {map[string]string{"zoo.cfg": ensemble3 + "dynamicConfigFile=DIR/d", "d": "server.1=a:1:2", "myid": "1"}, []string{"server.1 must be in the dynamic file", "server.2 must", "server.3 must"}},
		"foreign key in dynamic":   {map[string]string{"zoo.cfg": base + "dynamicConfigFile=DIR/d", "d": "server.1=a:1:2\ntickTime=5", "myid": "1"}, []string{"tickTime does not belong into a dynamic file"}},
		"version in dynamic":       {map[string]string{"zoo.cfg": base + "dynamicConfigFile=DIR/d", "d": "server.1=a:1:2\nversion=5", "myid": "1"}, []string{"version is refused"}},
		"group in dynamic":         {map[string]string{"zoo.cfg": base + "dynamicConfigFile=DIR/d", "d": "server.1=a:1:2\ngroup.1=1", "myid": "1"}, []string{"group.1 is refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(withConfig(files(t, c.files)))
			got := problems(t, err)
			for _, w := range c.want {
				if !contains(got, w) {
					t.Errorf("got %q, want a problem with %q", got, w)
				}
			}
			if len(got) != len(c.want) {
				t.Errorf("got %d problems %q, want %d", len(got), got, len(c.want))
			}
		})
	}
}

// A key that is there twice is refused with both lines, whatever the values and the spelling: a second server.1 was meant to
// be another member.
func TestDuplicateKey(t *testing.T) {
	for name, c := range map[string]struct {
		zoo, dynamic string
		want         []string
	}{
		"a number":        {base + "tickTime=100\nzookeeper.tickTime=200\n", "", []string{"zoo.cfg: tickTime is there twice, on line 3 and on line 4"}},
		"the same value":  {base + "tickTime=100\n\ntickTime=100\n", "", []string{"tickTime is there twice, on line 3 and on line 5"}},
		"three times":     {base + "clientPort=1\nclientPort=1\n", "", []string{"clientPort is there twice, on line 2 and on line 3", "clientPort is there twice, on line 2 and on line 4"}},
		"a server":        {ensemble3 + "server.1=h9:2888:3888\n", "", []string{"server.1 is there twice, on line 5 and on line 8"}},
		"the same server": {ensemble3 + "server.1=h1:2888:3888\n", "", []string{"server.1 is there twice, on line 5 and on line 8"}},
		"an id spelled differently": {ensemble3 + "server.01=h9:2888:3888\n", "",
			[]string{"member 1 is configured twice: as server.1=h1:2888:3888:participant and as server.1=h9:2888:3888:participant"}},
		"in the dynamic file": {base + "initLimit=5\nsyncLimit=2\ndynamicConfigFile=DIR/d\n", "server.1=h1:1:2\nserver.2=h2:1:2\nzookeeper.server.1=h3:1:2\n",
			[]string{"/d: server.1 is there twice, on line 1 and on line 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(withConfig(files(t, map[string]string{"zoo.cfg": c.zoo, "d": c.dynamic, "myid": "1"})))
			got := problems(t, err)
			if len(got) != len(c.want) {
				t.Errorf("got %q, want %d problems", got, len(c.want))
			}
			for _, w := range c.want {
				if !contains(got, w) {
					t.Errorf("got %q, want a problem with %q", got, w)
				}
			}
		})
	}
}

func TestPeerTypeOfTheLineWins(t *testing.T) {
	s, err := Load(withConfig(files(t, map[string]string{"zoo.cfg": ensemble3 + "peerType=observer", "myid": "1"})))
	if err != nil || !contains(s.Warnings, "peerType=observer differs") || s.Servers[0].Observer {
		t.Errorf("got %+v, %v", s, err)
	}
}

func TestZooKeeperData(t *testing.T) {
	for name, c := range map[string]struct {
		files   map[string]string
		refused bool
	}{
		"snapshot":                 {map[string]string{"version-2/snapshot.100": ""}, true},
		"log":                      {map[string]string{"version-2/log.1": ""}, true},
		"in dataLogDir":            {map[string]string{"logs/version-2/log.1": ""}, true},
		"with kvd's data":          {map[string]string{"version-2/snapshot.100": "", "kvd/identity": ""}, false},
		"with kvd's log":           {map[string]string{"logs/version-2/log.1": "", "logs/kvd/log/x": ""}, false},
		"only epochs":              {map[string]string{"version-2/currentEpoch": "1"}, false},
		"empty":                    {map[string]string{}, false},
		"a file called version-2":  {map[string]string{"version-2": ""}, false},
		"something else's log dir": {map[string]string{"version-3/log.1": ""}, false},
	} {
		c.files["zoo.cfg"] = base + "dataLogDir=DIR/logs"
		o := withConfig(files(t, c.files))
		_, err := Load(o)
		if got := problems(t, err); (len(got) == 1 && strings.Contains(got[0], "--ignore-zookeeper-data")) != c.refused || !c.refused && err != nil {
			t.Errorf("%s: got %q", name, got)
		}
		o.IgnoreZooKeeperData = true
		s, err := Load(o)
		if err != nil || contains(s.Warnings, "starting empty beside it") != c.refused {
			t.Errorf("%s, ignored: got %q, %v", name, s.Warnings, err)
		}
	}
}

func TestFlags(t *testing.T) {
	dir := t.TempDir()
	flag := func(text string) Value { return Value{text, "--flag"} }
	for name, c := range map[string]struct {
		o    Options
		want func(s *Settings) bool
		bad  string
	}{
		"ensemble": {Options{ID: flag("1"), Data: flag(dir), Listen: flag(":2181"), Members: []string{"2=h2:1:2", "1=h1:1:2:participant;9"}, MembersFrom: "--member"},
			func(s *Settings) bool {
				return s.ID == 1 && len(s.Servers) == 2 && s.Servers[0].ID == 1 && s.Listen == ":2181" && s.DataDir == dir
			}, ""},
		"listen from the line": {Options{ID: flag("1"), Data: flag(dir), Members: []string{"1=h1:1:2;9", "2=h2:1:2"}, MembersFrom: "--member"},
			func(s *Settings) bool { return s.Listen == "0.0.0.0:9" }, ""},
		"alone":                     {Options{Data: flag(dir), Listen: flag("127.0.0.1:0")}, func(s *Settings) bool { return s.ID == 1 && len(s.Servers) == 0 && s.Listen == "127.0.0.1:0" }, ""},
		"bootstrap":                 {Options{Data: flag(dir), Listen: flag(":9"), Bootstrap: flag("true")}, func(s *Settings) bool { return s.Bootstrap }, ""},
		"nothing":                   {Options{Listen: flag(":9")}, nil, "no configuration: give --config"},
		"no id":                     {Options{Data: flag(dir), Listen: flag(":9"), Members: []string{"1=a:1:2", "2=b:1:2"}, MembersFrom: "--member"}, nil, "no id"},
		"wrong id":                  {Options{ID: flag("x"), Data: flag(dir), Listen: flag(":9")}, nil, `--flag: "x" is no member id`},
		"not a member":              {Options{ID: flag("3"), Data: flag(dir), Listen: flag(":9"), Members: []string{"1=a:1:2", "2=b:1:2"}, MembersFrom: "--member"}, nil, "this member is 3"},
		"twice":                     {Options{ID: flag("1"), Data: flag(dir), Listen: flag(":9"), Members: []string{"1=a:1:2", "1=b:1:2"}, MembersFrom: "--member"}, nil, "member 1 is configured twice: as server.1=a:1:2:participant and as server.1=b:1:2:participant"},
		"listen without port":       {Options{Data: flag(dir), Listen: flag("host")}, nil, "is not HOST:PORT"},
		"listen with a wrong port":  {Options{Data: flag(dir), Listen: flag("h:70000")}, nil, "is no port"},
		"no client port":            {Options{Data: flag(dir)}, nil, "no client port"},
		"bootstrap perhaps":         {Options{Data: flag(dir), Listen: flag(":9"), Bootstrap: flag("perhaps")}, nil, "neither true nor false"},
		"member":                    {Options{ID: flag("1"), Data: flag(dir), Listen: flag(":9"), Members: []string{"1=a:1:2", "b:1:2"}, MembersFrom: "--member"}, nil, `--member: member "b:1:2"`},
		"zookeeper's own directory": {Options{Data: flag(filepath.Dir(files(t, map[string]string{"version-2/log.1": ""}))), Listen: flag(":9")}, nil, "holds ZooKeeper's data"},
	} {
		s, err := Load(c.o)
		if c.bad != "" {
			if got := problems(t, err); len(got) != 1 || !strings.Contains(got[0], c.bad) {
				t.Errorf("%s: got %q, want %q", name, got, c.bad)
			}
		} else if err != nil || !c.want(&s) {
			t.Errorf("%s: got %+v, %v", name, s, err)
		}
	}
}

// Flag, then environment, then file, then default; and a file contradicts flags that say the same.
func TestPrecedence(t *testing.T) {
	env := func(vars map[string]string) func(string) (string, bool) {
		return func(k string) (string, bool) { v, ok := vars[k]; return v, ok }
	}
	path := files(t, map[string]string{"zoo.cfg": ensemble3, "myid": "1"})
	load := func(o Options, vars map[string]string) (Settings, error) {
		o.AddEnvironment(env(vars))
		return Load(o)
	}
	check := func(name string, s Settings, err error, ok bool) {
		t.Helper()
		if err != nil || !ok {
			t.Errorf("%s: got %+v, %v", name, s, err)
		}
	}
	s, err := load(Options{}, map[string]string{"KVD_CONFIG": path})
	check("file by environment", s, err, s.ID == 1 && s.Listen == ":2181")
	s, err = load(withConfig(path), map[string]string{"KVD_ID": "3", "KVD_LISTEN": ":9", "KVD_DATA": "/d", "KVD_BOOTSTRAP": "true", "KVD_CONFIG": "/nowhere"})
	check("environment over file, flag over environment", s, err, s.ID == 3 && s.Listen == ":9" && s.DataDir == "/d" && s.Bootstrap)
	s, err = load(withConfig(path), map[string]string{"KVD_ID": "", "KVD_MEMBERS": "1=x:1:2, 2=y:1:2,"})
	check("members by environment", s, err, s.ID == 1 && len(s.Servers) == 2 && s.Servers[1].Host == "y")
	o := withConfig(path)
	o.Listen = Value{":7", "--listen"}
	s, err = load(o, map[string]string{"KVD_LISTEN": ":9"})
	check("listen by flag", s, err, s.Listen == ":7")
	s, err = load(Options{Data: Value{"/d", "--data"}, Members: []string{"1=a:1:2;5"}, MembersFrom: "--member"}, map[string]string{"KVD_MEMBERS": "2=b:1:2", "KVD_ID": "1"})
	check("members by flag", s, err, s.ID == 1 && len(s.Servers) == 0 && s.Listen == "0.0.0.0:5")

	for name, o := range map[string]Options{
		"--id":     {Config: Value{path, "--config"}, ID: Value{"1", "--id"}},
		"--data":   {Config: Value{path, "--config"}, Data: Value{"/d", "--data"}},
		"--member": {Config: Value{path, "KVD_CONFIG"}, Members: []string{"1=a:1:2"}, MembersFrom: "--member"},
	} {
		if _, err := Load(o); !contains(problems(t, err), name+" contradicts ") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestErrorText(t *testing.T) {
	if got := (&Error{[]string{"a"}}).Error(); got != "a" {
		t.Errorf("got %q", got)
	}
	if got, want := (&Error{[]string{"a", "b"}}).Error(), "2 problems with the configuration:\n  a\n  b"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestEnforcedSchemes(t *testing.T) {
	s, err := Load(withConfig(files(t, map[string]string{"zoo.cfg": base + "zookeeper.enforce.auth.enabled=true\nenforce.auth.schemes=digest,ip\n"})))
	if err != nil || !slices.Equal(s.EnforceAuthSchemes, []string{"digest", "ip"}) {
		t.Errorf("got %+v, %v", s.EnforceAuthSchemes, err)
	}
	s, err = Load(withConfig(files(t, map[string]string{"zoo.cfg": base + "globalOutstandingLimit=10\nkvd.maxOutstandingRequests=20\n"})))
	if err != nil || s.MaxOutstandingRequests != 20 {
		t.Errorf("got %d, %v", s.MaxOutstandingRequests, err)
	}
}

// --set wins over the file, the last one of a key counts, and a problem names it.
func TestSet(t *testing.T) {
	load := func(config map[string]string, set ...string) (Settings, error) {
		o := withConfig(files(t, config))
		o.Set = set
		return Load(o)
	}
	s, err := load(map[string]string{"zoo.cfg": base + "tickTime=1000\nzookeeper.maxCnxns=5\n"},
		"zookeeper.tickTime=3000", "maxCnxns=6", "maxCnxns=7", " skipACL = yes ", "4lw.commands.whitelist=*")
	if err != nil || s.TickTime != 3*time.Second || s.MaxConns != 7 || !s.SkipACL || !slices.Equal(s.FourLetterWords, []string{"*"}) {
		t.Errorf("got %+v, %v", s, err)
	}
	// A refused or wrong line of the file does not matter if it is overridden.
	if s, err := load(map[string]string{"zoo.cfg": base + "tickTime=x\nsslQuorum=true\n"}, "tickTime=2000", "sslQuorum=false"); err != nil || s.TickTime != 2*time.Second {
		t.Errorf("got %+v, %v", s, err)
	}
	s, err = load(map[string]string{"zoo.cfg": ensemble3, "myid": "2"}, "server.3=other:1:2", "initLimit=9")
	if err != nil || len(s.Servers) != 3 || s.Servers[2].Host != "other" || s.InitLimit != 9 {
		t.Errorf("got %+v, %v", s, err)
	}
	for set, want := range map[string]string{
		"nothing": "--set nothing: it is not KEY=VALUE", "=1": "--set =1: it is not KEY=VALUE", "tickTimes=1": "--set tickTimes: unknown key tickTimes; the nearest known one is tickTime",
		"tickTime=x": "--set tickTime: tickTime: ", "tickTime=10": "--set tickTime: tickTime 10 is outside", "secureClientPort=1": "--set secureClientPort: secureClientPort is refused: ",
		"server.1=h": "--set server.1: server.1=h: ", "server.4=h1:2888:9": "members 1 and 4 both use",
	} {
		if _, err := load(map[string]string{"zoo.cfg": ensemble3, "myid": "2"}, set); !contains(problems(t, err), want) {
			t.Errorf("%s: got %v, want %s", set, err, want)
		}
	}
	if s, err := load(map[string]string{"zoo.cfg": base}, "forceSync=no"); err != nil || len(s.Warnings) != 1 || !strings.HasPrefix(s.Warnings[0], "--set forceSync: forceSync is ignored: ") {
		t.Errorf("got %q, %v", s.Warnings, err)
	}
	// Without a file.
	o := Options{Data: Value{t.TempDir(), "--data"}, Set: []string{"clientPort=2191", "maxCnxns=9"}}
	if s, err := Load(o); err != nil || s.Listen != ":2191" || s.MaxConns != 9 {
		t.Errorf("got %+v, %v", s, err)
	}
	o.Set = []string{"clientPort=2191", "dataDir=/x", "server.1=a:1:2"}
	if _, err := Load(o); !contains(problems(t, err), "--set dataDir needs --config; without a file give --data") || !contains(problems(t, err), "--set server.1 needs --config") {
		t.Errorf("got %v", err)
	}
}

// One mistake is one problem: what was given and is wrong is not missing as well.
func TestOneMistakeIsOneProblem(t *testing.T) {
	const limits = "dataDir=DIR\ninitLimit=1\nsyncLimit=1\n"
	for name, c := range map[string]struct{ cfg, want string }{
		"client port":          {limits + "clientPort=99999\nserver.1=h:1:2", `clientPort: "99999" is no port`},
		"own server line":      {limits + "clientPort=9\nserver.1=h:1:1\nserver.2=h:3:4", "quorum port and election port are both 1"},
		"client part of own":   {limits + "server.1=h:1:2;0\nserver.2=h:3:4", "server.1=h:1:2;0"},
		"two client addresses": {limits + "clientPort=9\nserver.1=h:1:2\nserver.2=h:3:9", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{"zoo.cfg": strings.ReplaceAll(c.cfg, "DIR", dir), "myid": "1"} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, "zoo.cfg")
			_, err := Load(Options{Config: Value{Text: path, From: "--config"}})
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "problems") {
				t.Fatalf("%v", err)
			}
		})
	}
}
