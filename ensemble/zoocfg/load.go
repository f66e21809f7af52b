package zoocfg

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// builder gathers settings and problems.
type builder struct {
	s       Settings
	lenient bool
	ignore  bool // ZooKeeper's data
	file    string

	dataDir, dataLogDir string
	clientPort          int
	clientPortAddress   string
	dynamicFile         string
	peerType            string
	standaloneEnabled   bool
	outstandingLimit    int
	enforceAuth         bool
	authSchemes         []string
	set                 []property          // of --set, by key; no line
	given               map[string]property // keys of the main file

	problems []string
	// Keys and ids of server lines that were given and are wrong: nobody is told that they are missing too.
	wrongKeys    map[string]bool
	wrongServers map[uint64]bool // true: with a client part
}

func (b *builder) bad(format string, args ...any) {
	b.problems = append(b.problems, fmt.Sprintf(format, args...))
}

func (b *builder) warn(format string, args ...any) {
	b.s.Warnings = append(b.s.Warnings, fmt.Sprintf(format, args...))
}

// Load reads what o names and returns the settings of one member, or a *Error with every problem found.
// It reads files and directories and writes nothing.
func Load(o Options) (Settings, error) {
	b := &builder{lenient: o.Lenient, ignore: o.IgnoreZooKeeperData, standaloneEnabled: true, given: map[string]property{}}
	b.readSet(o.Set)
	if o.Config.Given() {
		b.contradictions(o)
		if !b.readMain(o.Config.Text) {
			return Settings{}, &Error{b.problems} // everything else would be missing
		}
	}
	if !o.Config.Given() {
		b.takeSet()
	}
	servers := b.s.Servers
	if len(o.Members) > 0 {
		parsed, err := ParseMembers(o.Members)
		if err != nil {
			for _, line := range strings.Split(err.Error(), "\n") {
				b.bad("%s: %s", o.MembersFrom, line)
			}
		}
		servers = parsed
	}
	b.s.Servers = b.checkServers(servers)
	if o.Config.Given() {
		b.fromFile(o)
	} else {
		b.fromFlags(o)
	}
	b.clientAddress(o.Listen)
	b.clientPortOfItsOwn()
	b.bootstrap(o.Bootstrap)
	b.ranges()
	if len(b.s.Servers) == 1 && b.standaloneEnabled {
		b.s.Servers = nil // a single member, as QuorumPeerConfig decides; its id and client address are taken over
	}
	if len(b.problems) > 0 {
		return Settings{}, &Error{b.problems}
	}
	return b.s, nil
}

// contradictions: a configuration file and the same settings by flags.
func (b *builder) contradictions(o Options) {
	for _, v := range []Value{o.ID, o.Data, {From: o.MembersFrom}} {
		if strings.HasPrefix(v.From, flagPrefix) {
			b.bad("%s contradicts %s: the file says it", v.From, o.Config.From)
		}
	}
}

// readMain reads zoo.cfg, and the dynamic file if it names one.
// It reports whether the file could be read at all.
func (b *builder) readMain(path string) bool {
	b.file = path
	properties, err := readProperties(path)
	if err != nil {
		b.bad("%v", err)
		return false
	}
	var servers []property
	properties = b.override(b.once(properties))
	for _, p := range properties {
		b.given[p.key] = p
		if isServer(p.key) {
			servers = append(servers, p)
			continue
		}
		b.take(p)
	}
	if b.dynamicFile != "" {
		for _, p := range properties {
			if k := p.key; isServer(k) || strings.HasPrefix(k, "group.") || strings.HasPrefix(k, "weight.") {
				b.bad("%s: %s must be in the dynamic file %s when there is one", b.place(p), p.key, b.dynamicFile)
			}
		}
		servers = b.readDynamic()
	}
	for _, p := range servers {
		b.takeServer(p)
	}
	b.file = path
	return true
}

// readSet takes --set KEY=VALUE apart. The last one of a key counts.
func (b *builder) readSet(set []string) {
	for _, text := range set {
		key, value, ok := strings.Cut(text, "=")
		key, value = strings.TrimPrefix(strings.TrimSpace(key), "zookeeper."), strings.TrimSpace(value)
		if !ok || key == "" {
			b.bad("--set %s: it is not KEY=VALUE", text)
			continue
		}
		p := property{key: key, value: value}
		if i := slices.IndexFunc(b.set, func(o property) bool { return o.key == key }); i >= 0 {
			b.set[i] = p
			continue
		}
		b.set = append(b.set, p)
	}
}

// override replaces what the file says by what --set says.
func (b *builder) override(file []property) []property {
	file = slices.DeleteFunc(file, func(p property) bool {
		return slices.ContainsFunc(b.set, func(o property) bool { return o.key == p.key })
	})
	return append(file, b.set...)
}

// takeSet takes --set without a file. Directories and members then have flags of their own.
func (b *builder) takeSet() {
	for _, p := range b.set {
		flag := map[string]string{"dataDir": "--data", "dataLogDir": "--data", "dynamicConfigFile": "--member"}[p.key]
		switch {
		case isServer(p.key):
			b.bad("--set %s needs --config; without a file give --member", p.key)
		case flag != "":
			b.bad("--set %s needs --config; without a file give %s", p.key, flag)
		default:
			b.given[p.key] = p
			b.take(p)
		}
	}
}

// place says where a property stands.
func (b *builder) place(p property) string {
	if p.line == 0 {
		return "--set " + p.key
	}
	return fmt.Sprintf("%s line %d", b.file, p.line)
}

// where says where the first of some keys that was given stands.
func (b *builder) where(keys ...string) string {
	for _, key := range keys {
		if p, ok := b.given[key]; ok {
			return b.place(p)
		}
	}
	return b.file
}

// once takes the zookeeper. prefix off the keys and refuses a key that is there twice, also with the same value: a second
// server.1 was meant to be another member, and the ensemble without it has another quorum. It returns the first of each.
func (b *builder) once(properties []property) []property {
	first := make(map[string]property, len(properties))
	var all []property
	for _, p := range properties {
		p.key = strings.TrimPrefix(p.key, "zookeeper.")
		if before, twice := first[p.key]; twice {
			b.bad("%s: %s is there twice, on line %d and on line %d; which one counts must be plain", b.file, p.key, before.line, p.line)
			continue
		}
		first[p.key] = p
		all = append(all, p)
	}
	return all
}

// readDynamic reads the dynamic file: server lines only (group and weight are refused by the table).
func (b *builder) readDynamic() []property {
	b.file = b.dynamicFile
	properties, err := readProperties(b.dynamicFile)
	if err != nil {
		b.bad("dynamicConfigFile: %v", err)
		return nil
	}
	var servers []property
	for _, p := range b.once(properties) {
		switch {
		case isServer(p.key):
			servers = append(servers, p)
		case p.key == "version", strings.HasPrefix(p.key, "group."), strings.HasPrefix(p.key, "weight."):
			b.take(p)
		default:
			b.bad("%s line %d: %s does not belong into a dynamic file, which has only server lines", b.file, p.line, p.key)
		}
	}
	if i := strings.LastIndexByte(b.dynamicFile, '.'); i >= 0 {
		if v, err := strconv.ParseUint(b.dynamicFile[i+1:], 16, 64); err == nil {
			b.s.ConfigVersion = v
		}
	}
	return servers
}

// take handles one key that is no server line.
func (b *builder) take(p property) {
	at := b.place(p)
	k := lookup(p.key)
	if k == nil {
		hint := ""
		if n := nearest(p.key); n != "" {
			hint = fmt.Sprintf("; the nearest known one is %s", n)
		}
		if b.lenient {
			b.warn("%s: unknown key %s is ignored%s", at, p.key, hint)
		} else {
			b.bad("%s: unknown key %s%s (--lenient-config makes this a warning)", at, p.key, hint)
		}
		return
	}
	switch {
	case k.class == honoured:
		if err := k.set(b, p.value); err != nil {
			b.bad("%s: %s: %v", at, p.key, err)
			if b.wrongKeys == nil {
				b.wrongKeys = map[string]bool{}
			}
			b.wrongKeys[k.name] = true
		}
	case k.isMoot(p.value):
	case k.class == ignored:
		b.warn("%s: %s is ignored: %s", at, p.key, k.why)
	default:
		b.bad("%s: %s is refused: %s", at, p.key, k.why)
	}
}

func isServer(key string) bool { return strings.HasPrefix(key, "server.") }

func (b *builder) takeServer(p property) {
	id, err := parseID(strings.TrimPrefix(p.key, "server."))
	if err == nil {
		var s Server
		if s, err = parseServer(id, p.value); err == nil {
			b.s.Servers = append(b.s.Servers, s)
			return
		}
		if b.wrongServers == nil {
			b.wrongServers = map[uint64]bool{}
		}
		b.wrongServers[id] = strings.Contains(p.value, ";")
	}
	b.bad("%s: %s=%s: %v", b.place(p), p.key, p.value, err)
}

// checkServers looks at the ensemble as a whole and returns it by id.
func (b *builder) checkServers(servers []Server) []Server {
	servers = slices.Clone(servers)
	slices.SortStableFunc(servers, func(x, y Server) int { return cmp.Compare(x.ID, y.ID) })
	voters := 0
	endpoints := map[string]uint64{}
	for i, s := range servers {
		if i > 0 && servers[i-1].ID == s.ID {
			b.bad("member %d is configured twice: as %v and as %v", s.ID, servers[i-1], s)
		}
		if !s.Observer {
			voters++
		}
		for _, port := range []int{s.LearnerPort, s.ElectionPort} {
			e := net.JoinHostPort(s.Host, strconv.Itoa(port))
			if other, taken := endpoints[e]; taken && other != s.ID {
				b.bad("members %d and %d both use %s", other, s.ID, e)
			}
			endpoints[e] = s.ID
		}
	}
	if len(servers) > 0 && voters == 0 {
		b.bad("there are observers but no participant")
	}
	return servers
}

// fromFile finishes a configuration by zoo.cfg; the environment may override some of it.
func (b *builder) fromFile(o Options) {
	path := o.Config.Text
	if b.dataDir == "" && !o.Data.Given() {
		b.bad("%s: dataDir is missing", path)
	}
	if b.dataDir != "" {
		b.s.DataDir = filepath.Join(b.dataDir, "kvd")
	}
	if b.dataLogDir != "" {
		b.s.LogDir = filepath.Join(b.dataLogDir, "kvd", "log")
	}
	if o.Data.Given() {
		b.s.DataDir = o.Data.Text
	}
	// Exactly one server line means a single member, unless that is switched off (QuorumPeerConfig).
	single := len(b.s.Servers) == 1 && b.standaloneEnabled
	ensemble := len(b.s.Servers) > 0 && !single
	if ensemble {
		for _, limit := range []string{"initLimit", "syncLimit"} {
			if _, ok := b.given[limit]; !ok {
				b.bad("%s: %s is missing, which an ensemble needs", path, limit)
			}
		}
	}
	if !ensemble && len(b.s.Servers) == 0 && !b.standaloneEnabled {
		b.bad("%s: standaloneEnabled=false needs at least one server.N line", path)
	}
	b.identity(o.ID, ensemble, single)
	b.peerRole()
	if _, ok := b.given["maxClientCnxns"]; !ok {
		b.note("maxClientCnxns is unlimited (ZooKeeper: 60)")
	}
	if _, ok := b.given["autopurge.purgeInterval"]; !ok {
		b.note("old snapshots and log are purged (ZooKeeper: autopurge.purgeInterval=0, off)")
	}
	b.note("snapshots are triggered by log bytes; snapCount is only the least distance between two")
	b.zooKeeperData(b.dataDir, b.dataLogDir)
}

func (b *builder) note(text string) { b.s.Notes = append(b.s.Notes, text) }

// identity finds the member id: KVD_ID, else myid, else the only server line.
func (b *builder) identity(given Value, ensemble, single bool) {
	switch {
	case given.Given():
		id, err := parseID(given.Text)
		if err != nil {
			b.bad("%s: %v", given.From, err)
			return
		}
		b.s.ID = id
	case b.dataDir == "":
		return // already a problem
	default:
		path := filepath.Join(b.dataDir, "myid")
		id, err := readMyID(path)
		switch {
		case err == nil:
			b.s.ID = id
		case single:
			b.s.ID = b.s.Servers[0].ID
		case !ensemble && errors.Is(err, os.ErrNotExist):
			b.s.ID = 1
		case errors.Is(err, os.ErrNotExist):
			b.bad("%s is missing: it must say which server line is this member", path)
			return
		default:
			b.bad("%v", err)
			return
		}
	}
	if len(b.s.Servers) > 0 {
		b.mustContain(b.s.ID)
	}
}

func (b *builder) mustContain(id uint64) {
	if _, wrong := b.wrongServers[id]; wrong {
		return
	}
	if _, ok := b.own(); !ok {
		var ids []string
		for _, s := range b.s.Servers {
			ids = append(ids, strconv.FormatUint(s.ID, 10))
		}
		b.bad("this member is %d, which is not among the configured ones: %s", id, strings.Join(ids, ", "))
	}
}

// own is the line of this member.
func (b *builder) own() (Server, bool) {
	i := slices.IndexFunc(b.s.Servers, func(s Server) bool { return s.ID == b.s.ID })
	if i < 0 {
		return Server{}, false
	}
	return b.s.Servers[i], true
}

// peerRole compares peerType with the server line, which wins.
func (b *builder) peerRole() {
	s, ok := b.own()
	if !ok || b.peerType == "" {
		return
	}
	if role := map[bool]string{true: "observer", false: "participant"}[s.Observer]; role != b.peerType {
		b.warn("peerType=%s differs from the line of member %d, which says %s and counts", b.peerType, s.ID, role)
	}
}

// fromFlags finishes a configuration by flags and environment alone.
func (b *builder) fromFlags(o Options) {
	b.s.DataDir = o.Data.Text
	if b.s.DataDir == "" {
		b.bad("no configuration: give --config zoo.cfg, or --data DIR (with --id and --member for an ensemble)")
	}
	switch {
	case o.ID.Given():
		id, err := parseID(o.ID.Text)
		if err != nil {
			b.bad("%s: %v", o.ID.From, err)
			return
		}
		b.s.ID = id
		if len(b.s.Servers) > 0 {
			b.mustContain(id)
		}
	case len(b.s.Servers) == 1:
		b.s.ID = b.s.Servers[0].ID
	case len(b.s.Servers) > 1:
		b.bad("no id: give --id to say which --member is this one")
	default:
		b.s.ID = 1
	}
	b.zooKeeperData(b.s.DataDir, "")
}

// clientAddress finds where clients are served: --listen, else the own server line, else clientPort.
func (b *builder) clientAddress(listen Value) {
	own, _ := b.own()
	if b.clientPortAddress != "" && b.clientPort == 0 {
		b.bad("%s: clientPortAddress needs clientPort", b.file)
	}
	if own.ClientPort != 0 && b.clientPort != 0 {
		if own.ClientPort != b.clientPort || b.clientPortAddress != "" && own.ClientHost != b.clientPortAddress {
			b.bad("%s: server.%d says client address %s, clientPort and clientPortAddress say %s", b.file, own.ID, own.ClientAddr(),
				net.JoinHostPort(b.clientPortAddress, strconv.Itoa(b.clientPort)))
		}
	}
	switch {
	case listen.Given():
		host, port, err := net.SplitHostPort(listen.Text)
		if err != nil {
			b.bad("%s: %q is not HOST:PORT or :PORT", listen.From, listen.Text)
			return
		}
		if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
			b.bad("%s: %q is no port between 0 and 65535", listen.From, port)
			return
		}
		b.s.Listen = net.JoinHostPort(host, port)
	case own.ClientPort != 0:
		b.s.Listen = own.ClientAddr()
	case b.clientPort != 0:
		b.s.Listen = net.JoinHostPort(b.clientPortAddress, strconv.Itoa(b.clientPort))
	case b.clientPortAddress == "" && !b.wrongKeys["clientPort"] && !b.wrongServers[b.s.ID]:
		b.bad("no client port: give clientPort, a client part in the server line (;2181), or --listen")
	}
}

// clientPortOfItsOwn names a client port that is one of the member's own peer ports as well.
func (b *builder) clientPortOfItsOwn() {
	own, ok := b.own()
	host, port, err := net.SplitHostPort(b.s.Listen)
	if !ok || err != nil {
		return
	}
	if ip := net.ParseIP(host); host != "" && host != own.Host && (ip == nil || !ip.IsUnspecified()) && !b.s.ListenAllPeers {
		return // two addresses
	}
	for _, p := range []struct {
		name string
		port int
	}{{"quorum port", own.LearnerPort}, {"election port", own.ElectionPort}} {
		if strconv.Itoa(p.port) == port {
			b.bad("client port %s is the %s of server.%d too", port, p.name, own.ID)
		}
	}
}

func (b *builder) bootstrap(v Value) {
	if !v.Given() {
		return
	}
	on, err := strconv.ParseBool(v.Text)
	if err != nil {
		b.bad("%s: %q is neither true nor false", v.From, v.Text)
	}
	b.s.Bootstrap = on
}

// ranges checks numbers against each other and against what kvd can do.
func (b *builder) ranges() {
	s := &b.s
	const leastTick = 50e6 // the member's own clock ticks every 50 ms
	if s.TickTime != 0 && (s.TickTime < leastTick || s.TickTime > 60e9) {
		b.bad("%s: tickTime %d is outside 50..60000", b.where("tickTime"), s.TickTime.Milliseconds())
	}
	tick := s.TickTime
	if tick == 0 {
		tick = 2e9
	}
	least, most := s.MinSessionTimeout, s.MaxSessionTimeout
	if least == 0 {
		least = 2 * tick
	}
	if most == 0 {
		most = max(20*tick, least)
	}
	if least > most {
		b.bad("%s: minSessionTimeout %d is greater than maxSessionTimeout %d", b.where("minSessionTimeout", "maxSessionTimeout"), least.Milliseconds(), most.Milliseconds())
	}
	switch {
	case !b.enforceAuth:
	case len(b.authSchemes) == 0:
		b.bad("%s: enforce.auth.enabled needs enforce.auth.schemes: nobody could be let in", b.where("enforce.auth.enabled"))
	case s.DisableDigest && !slices.Contains(b.authSchemes, "ip"):
		b.bad("%s: enforce.auth.schemes asks for digest, which DigestAuthenticationProvider.enabled=false switches off: nobody could be let in", b.where("enforce.auth.schemes"))
	default:
		s.EnforceAuthSchemes = b.authSchemes
	}
	if s.MaxOutstandingRequests == 0 {
		s.MaxOutstandingRequests = b.outstandingLimit
	}
	if s.MaxFrameBytes != 0 && (s.MaxFrameBytes < 1<<10 || s.MaxFrameBytes > 64<<20) {
		b.bad("%s: jute.maxbuffer %d is outside 1024..67108864", b.where("jute.maxbuffer"), s.MaxFrameBytes)
	}
}

// zooKeeperData refuses directories that hold ZooKeeper's data and nothing of kvd's: starting would look like
// losing it.
func (b *builder) zooKeeperData(dataDir, logDir string) {
	if exists(filepath.Join(dataDir, "kvd")) || logDir != "" && exists(filepath.Join(logDir, "kvd")) || exists(filepath.Join(b.s.DataDir, "log")) {
		return
	}
	for _, dir := range []string{dataDir, logDir} {
		found := foreignData(dir)
		switch {
		case found == "":
		case b.ignore:
			b.warn("%s holds ZooKeeper's data (%s), which kvd does not read: starting empty beside it, as asked", dir, found)
		default:
			b.bad("%s holds ZooKeeper's data (%s), which kvd does not read yet; --ignore-zookeeper-data starts empty beside it", dir, found)
		}
	}
}

// foreignData names the first of ZooKeeper's snapshots or logs under dir, "" if there is none.
func foreignData(dir string) string {
	if dir == "" {
		return ""
	}
	entries, err := os.ReadDir(filepath.Join(dir, "version-2"))
	if err != nil {
		return ""
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "snapshot.") || strings.HasPrefix(e.Name(), "log.") {
			return filepath.Join("version-2", e.Name())
		}
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func readProperties(path string) ([]property, error) {
	b, err := readSmall(path)
	if err != nil {
		return nil, err
	}
	properties, err := parseProperties(b)
	if err != nil {
		return nil, fmt.Errorf("%s %w", path, err)
	}
	return properties, nil
}

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFileBytes {
		return nil, fmt.Errorf("%s is longer than %d bytes", path, maxFileBytes)
	}
	return b, nil
}

// readMyID reads the member id from the first line; a trailing newline is fine, other text is not.
func readMyID(path string) (uint64, error) {
	b, err := readSmall(path)
	if err != nil {
		return 0, err
	}
	id, err := parseID(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return id, nil
}
