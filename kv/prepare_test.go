package kv

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// script drives the two doors from a golden file. Each line under prepare is one request, prepared but not
// applied; apply carries out the oldest ones; overlay shows what the preparer remembers.
type script struct {
	t      *testing.T
	tree   *Tree
	prep   *Preparer
	z      Zxid
	chain  uint64
	queued []Entry
}

func (s *script) parse(line string) Request {
	f := strings.Fields(line)
	r := Request{Version: -1, ACL: OpenACL(), Session: 1}
	for _, o := range []Op{OpCreate, OpCreate2, OpDelete, OpSetData, OpSetACL, OpCheck, OpMulti, OpCreateSession, OpCloseSession,
		OpSetLevels, OpSetConfig, OpCreateContainer, OpCreateTTL, OpDeleteContainer} {
		if o.String() == f[0] {
			r.Op = o
		}
	}
	if r.Op == 0 {
		s.t.Fatalf("unknown operation in %q", line)
	}
	if r.Op == OpSetLevels || r.Op == OpSetConfig {
		r.Session = 0
	}
	for _, arg := range f[1:] {
		key, value, _ := strings.Cut(arg, "=")
		n, _ := strconv.ParseInt(value, 0, 64)
		switch {
		case strings.HasPrefix(arg, "/"):
			r.Path = arg
		case key == "session":
			r.Session = SessionID(n)
		case key == "version":
			r.Version = int32(n)
		case key == "data":
			r.Data = []byte(value)
		case key == "flags":
			r.Flags = int32(n)
		case key == "ttl":
			r.TTL = n
		case key == "local":
			r.Local = true
		case key == "auth":
			scheme, id, _ := strings.Cut(value, ":")
			r.Auth = r.Auth.With(Identity{scheme, id})
		case key == "acl" && strings.Contains(value, "="):
			r.ACL = nil
			for _, e := range strings.Split(value, ",") {
				perms, who, _ := strings.Cut(e, "=")
				scheme, id, _ := strings.Cut(who, ":")
				n, _ := strconv.ParseInt(perms, 10, 32)
				r.ACL = append(r.ACL, ACL{int32(n), scheme, id})
			}
		case key == "acl" && value == "none":
			r.ACL = nil
		case key == "acl":
			r.ACL = []ACL{{PermAll, "digest", value}}
		case key == "levels":
			r.Levels = Levels{uint32(n), uint32(n)}
		default:
			s.t.Fatalf("unknown argument %q", arg)
		}
	}
	return r
}

// prepare reads requests; lines that begin with a space belong to the multi above them.
func (s *script) prepare(input string) string {
	var requests []Request
	for _, line := range strings.Split(input, "\n") {
		r := s.parse(line)
		if strings.HasPrefix(line, " ") {
			last := &requests[len(requests)-1]
			last.Ops = append(last.Ops, r)
			continue
		}
		requests = append(requests, r)
	}
	var out strings.Builder
	for i := range requests {
		s.z++
		p := s.prep.Prepare(nil, s.z, TxnHeader{Time: int64(s.z.Counter())}, &requests[i])
		s.chain = ChainDigest(s.chain, s.z, p)
		s.queued = append(s.queued, Entry{s.z, s.chain, p})
		fmt.Fprintf(&out, "%v %s\n", s.z, describeTxn(s.t, p))
	}
	return out.String()
}

// describeTxn prints a transaction on one line, a multi on several.
func describeTxn(t *testing.T, payload []byte) string {
	txn, err := DecodeTxn(payload)
	if err != nil {
		t.Fatal(err)
	}
	h := txn.Header
	if h.Err != CodeOK {
		if txn.Total > 0 {
			return fmt.Sprintf("%v refused: %v (operation %d of %d)", h.Kind, h.Err, txn.Failed+1, txn.Total)
		}
		return fmt.Sprintf("%v refused: %v", h.Kind, h.Err)
	}
	var out []string
	for _, o := range txn.Ops {
		line := fmt.Sprintf("%v %s", o.Op, o.Path)
		switch o.Op {
		case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
			line += fmt.Sprintf(" creates=%d", o.Creates)
			if o.Op == OpCreateTTL {
				line += fmt.Sprintf(" ttl=%d", o.Owner.TTL())
			} else if o.Owner.Ephemeral() != 0 {
				line += fmt.Sprintf(" owner=%v", SessionID(o.Owner))
			}
		case OpSetData, OpSetACL, OpSetConfig:
			line += fmt.Sprintf(" version=%d", o.Version)
		case OpCreateSession, OpCloseSession:
			line += h.Session.String()
		case OpSetLevels:
			line += fmt.Sprint(o.Levels)
		}
		out = append(out, strings.TrimSpace(line))
	}
	if h.Kind == OpMulti {
		out = append([]string{"multi"}, out...)
	}
	return strings.Join(out, "\n    ")
}

func (s *script) overlay() string {
	var lines []string
	for path, n := range s.prep.nodes {
		f := n.facts
		line := path + " gone"
		if f.exists {
			line = fmt.Sprintf("%s version=%d aversion=%d creates=%d children=%d", path, f.version, f.aversion, f.creates, f.children)
			if f.owner != 0 {
				line += fmt.Sprintf(" owner=%v", SessionID(f.owner))
			}
		}
		lines = append(lines, fmt.Sprintf("%s @%v", line, n.zxid))
	}
	for id, p := range s.prep.sessions {
		lines = append(lines, fmt.Sprintf("session %v open=%v created=%q @%v", id, p.open, p.created, p.zxid))
	}
	if s.prep.levelsAt > s.tree.View().Zxid() {
		lines = append(lines, fmt.Sprintf("levels %v @%v", s.prep.levels, s.prep.levelsAt))
	}
	sort.Strings(lines)
	return fmt.Sprintf("applied %v, marks %d\n%s\n", s.tree.View().Zxid(), s.prep.InFlight(), strings.Join(lines, "\n"))
}

// show prints the applied tree.
func (s *script) show() string {
	var out strings.Builder
	v := s.tree.View()
	v.nodes.ascend("", func(rec string) bool {
		path := pathOfKey(recKey(rec))
		data, st, _ := v.Get(path)
		fmt.Fprintf(&out, "%s %q c=%v m=%v p=%v version=%d cversion=%d aversion=%d children=%d", path, data, st.Czxid, st.Mzxid,
			st.Pzxid, st.Version, st.Cversion, st.Aversion, st.NumChildren)
		if st.EphemeralOwner != 0 {
			fmt.Fprintf(&out, " owner=%v", st.EphemeralOwner)
		}
		out.WriteByte('\n')
		return true
	})
	v.Sessions(func(se Session) bool {
		fmt.Fprintf(&out, "session %v\n", se.ID)
		return true
	})
	return out.String()
}

func TestPrepareScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/prepare", func(t *testing.T, path string) {
		s := &script{t: t, tree: NewTree(nil), z: MakeZxid(1, 0), chain: ChainSeed()}
		s.prep = NewPreparer(s.tree.View, PreparerOptions{ExtendedTypes: true, EnforceQuota: true})
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			switch d.Cmd {
			case "prepare":
				return s.prepare(d.Input)
			case "prepare-and-undo":
				out := s.prepare(d.Input)
				s.prep.Undo()
				s.queued = s.queued[:len(s.queued)-1]
				s.z--
				s.chain = s.tree.View().Chain()
				if n := len(s.queued); n > 0 {
					s.chain = s.queued[n-1].Chain
				}
				return out
			case "apply":
				n := len(s.queued)
				if len(d.CmdArgs) > 0 {
					n, _ = strconv.Atoi(d.CmdArgs[0].Key)
				}
				if err := s.tree.Apply(s.queued[:n], nil); err != nil {
					t.Fatal(err)
				}
				s.queued = s.queued[n:]
				return fmt.Sprintf("applied %v, %d in flight\n", s.tree.View().Zxid(), len(s.queued))
			case "overlay":
				return s.overlay()
			case "show":
				return s.show()
			case "lose": // the leader's reign ends; what was in flight is never applied
				s.prep.Reset()
				s.queued = nil
				s.z, s.chain = MakeZxid(s.z.Epoch()+1, 0), s.tree.View().Chain()
				return ""
			}
			t.Fatalf("unknown command %q", d.Cmd)
			return ""
		})
	})
}
