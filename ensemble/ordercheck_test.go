package ensemble

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kvd/kv"
	"kvd/kv/wire"
)

// Several sessions on all members pipeline everything with everything: reads with watches, persistent and recursive
// watches, their removal, setWatches, auth, sync, multiRead, writes, and the end of the session. Each checks what comes
// to it against a model of its own connection, from what design 4 promises and nothing else. KVD_ORDER_SEED repeats a run.
func TestEverythingPipelinedKeepsItsOrder(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 120*time.Second)
	defer cancel()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("KVD_ORDER_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("seed %d", seed)
	tr := startTrio(t, nil)
	tr.serving(ctx, 0, 1, 2)
	setup := talk(t, tr.peers[0].ClientAddr)
	for _, p := range append([]string{"/r"}, orderNodes...) {
		setup.run(t, false, []step{{op: wire.OpCreate, rec: rCreate(p, "", 0), want: "OK " + p}})
	}
	secret := wire.CreateRequest{Path: "/secret", ACL: []kv.ACL{{Perms: kv.PermRead, Scheme: "digest", ID: kv.DigestIdentity("SHA1", []byte("u:p")).ID}}}
	setup.run(t, false, []step{{op: wire.OpCreate, rec: &secret, want: "OK /secret"}})
	lives, batches := 3, 40
	if testing.Short() {
		lives, batches = 1, 15
	}
	var wg sync.WaitGroup
	for id := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(id)))
			for life := range lives {
				o, err := newOrderCheck(tr.peers[id%3].ClientAddr, fmt.Sprintf("/r/own%d-%d", id, life), rng)
				if err == nil {
					err = o.live(batches)
					_ = o.nc.Close()
				}
				if err != nil {
					t.Errorf("session %d, life %d: %v\nlast:\n%s", id, life, err, strings.Join(o.log[max(0, len(o.log)-120):], "\n"))
					return
				}
			}
		})
	}
	wg.Wait()
}

var (
	orderNodes  = []string{"/r/n0", "/r/n1", "/r/n2"} // written, never deleted
	orderComers = []string{"/r/e0", "/r/e1"}          // created and deleted
)

// orderCheck is one connection with a model of what it may be told.
type orderCheck struct {
	nc   net.Conn
	fr   *wire.FrameReader
	rng  *rand.Rand
	own  string // a node that only this session writes
	xid  int32
	sent []orderRequest // without a reply
	log  []string

	ownWrites int32 // writes of own that were sent: a read shows exactly those before it
	authed    bool  // an auth packet was sent

	last  int64            // greatest zxid in a header
	shown map[string]int64 // greatest mzxid shown by a reply
	// One-shot watches whose reply has come, with the state that it showed (0: missing; unknown after setWatches).
	dataWatch, childWatch map[string]int64
	persistent, recursive map[string]bool
	counted               map[string]*counted // nodes under a lasting watch
	// loose: watches were taken away, and an event raised before may still come until a sync behind it is answered.
	loose map[string]bool
	told  map[string]bool // by events of the setWatches that is answered next
}

// counted is the version of a node at a reply and the number of events about it since.
type counted struct{ version, events int32 }

type orderRequest struct {
	xid    int32
	op     wire.Op
	path   string
	watch  bool
	kind   int32
	own    int32 // version of own that a reply is to show
	authed bool
	lists  [3][]string
}

const unknownState = -2

func newOrderCheck(addr, own string, rng *rand.Rand) (*orderCheck, error) {
	o := &orderCheck{
		own: own, rng: rng, shown: map[string]int64{}, dataWatch: map[string]int64{}, childWatch: map[string]int64{},
		persistent: map[string]bool{}, recursive: map[string]bool{}, counted: map[string]*counted{}, loose: map[string]bool{}, told: map[string]bool{},
	}
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return o, err
	}
	_ = nc.SetDeadline(time.Now().Add(rawLimit))
	o.nc, o.fr = nc, wire.NewFrameReader(nc, 1<<20)
	if _, err := nc.Write(frame(record(&wire.ConnectRequest{TimeoutMs: 10_000, Password: make([]byte, 16)}))); err != nil {
		return o, err
	}
	_, err = o.fr.Next()
	return o, err
}

func (o *orderCheck) live(batches int) error {
	b := o.add(nil, orderRequest{op: wire.OpCreate, path: o.own}, rCreate(o.own, "", 1))
	for range batches {
		b = o.add(b, orderRequest{op: wire.OpSync, path: "/"}, &wire.SyncRecord{Path: "/"})
		for range 1 + o.rng.IntN(40) {
			b = o.random(b)
		}
		for len(b) > 0 { // in pieces, which cut frames
			n := 1 + o.rng.IntN(len(b))
			if _, err := o.nc.Write(b[:n]); err != nil {
				return err
			}
			b = b[n:]
		}
		for left := o.rng.IntN(4); len(o.sent) > left; { // a few replies overlap with the next batch
			if err := o.receive(); err != nil {
				return err
			}
		}
	}
	b = o.add(b, orderRequest{op: wire.OpCloseSession}, &wire.Empty{})
	b = o.add(b, orderRequest{op: wire.OpSync}, &wire.SyncRecord{Path: "/"}) // is not answered
	if _, err := o.nc.Write(b); err != nil {
		return err
	}
	for len(o.sent) > 1 {
		if err := o.receive(); err != nil {
			return err
		}
	}
	if f, err := o.fr.Next(); err == nil || !errors.Is(err, io.EOF) && !isReset(err) {
		return fmt.Errorf("after closeSession: %x, %v", f, err)
	}
	return nil
}

func (o *orderCheck) add(b []byte, q orderRequest, rec wire.Record) []byte {
	o.xid++
	q.xid, q.own, q.authed = o.xid, o.ownWrites, o.authed
	o.sent = append(o.sent, q)
	return append(b, request(q.xid, q.op, record(rec))...)
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

// random adds one request.
func (o *orderCheck) random(b []byte) []byte {
	all := append(append([]string{"/r", o.own}, orderNodes...), orderComers...)
	p, watch := pick(o.rng, all...), o.rng.IntN(2) == 0
	read := func(op wire.Op) []byte {
		return o.add(b, orderRequest{op: op, path: p, watch: watch}, &wire.PathWatchRequest{Path: p, Watch: watch})
	}
	switch o.rng.IntN(24) {
	case 0, 1, 2, 3:
		return read(wire.OpGetData)
	case 4, 5, 6:
		return read(wire.OpExists)
	case 7, 8:
		p = pick(o.rng, "/r", "/r", o.own)
		return read(wire.OpGetChildren2)
	case 9, 10, 11:
		p = pick(o.rng, orderNodes...)
		return o.add(b, orderRequest{op: wire.OpSetData, path: p}, rSet(p, strings.Repeat("d", o.rng.IntN(2000))))
	case 12:
		o.ownWrites++
		return o.add(b, orderRequest{op: wire.OpSetData, path: o.own}, rSet(o.own, ""))
	case 13:
		p = pick(o.rng, orderComers...)
		return o.add(b, orderRequest{op: wire.OpCreate, path: p}, rCreate(p, "", 0))
	case 14:
		p = pick(o.rng, orderComers...)
		return o.add(b, orderRequest{op: wire.OpDelete, path: p}, rDelete(p))
	case 15:
		p = pick(o.rng, orderNodes...)
		return o.add(b, orderRequest{op: wire.OpAddWatch, path: p, kind: watchModePersistent}, rKind(p, watchModePersistent))
	case 16:
		return o.add(b, orderRequest{op: wire.OpAddWatch, path: "/r", kind: watchModeRecursive}, rKind("/r", watchModeRecursive))
	case 17:
		return o.add(b, orderRequest{op: wire.OpRemoveWatches, path: p, kind: 3}, rKind(p, 3))
	case 18:
		kind := int32(4 + o.rng.IntN(2))
		return o.add(b, orderRequest{op: wire.OpCheckWatches, path: p, kind: kind}, rKind(p, kind))
	case 19:
		q := orderRequest{op: wire.OpSetWatches}
		for i, from := range [][]string{orderNodes, orderComers, {"/r", o.own}} { // an event says which list it answers
			if o.rng.IntN(2) == 0 {
				q.lists[i] = append(q.lists[i], pick(o.rng, from...))
			}
		}
		return o.add(b, q, &wire.SetWatchesRequest{Relative: max(0, o.last-int64(o.rng.IntN(20))), Data: q.lists[0], Exist: q.lists[1], Child: q.lists[2]})
	case 20:
		if o.rng.IntN(8) == 0 {
			o.authed = true
			return o.add(b, orderRequest{op: wire.OpAuth}, &wire.AuthRequest{Scheme: "digest", Auth: []byte("u:p")})
		}
		return o.add(b, orderRequest{op: wire.OpGetData, path: "/secret"}, rRead("/secret"))
	case 21:
		rec := rawRecord{wire.AppendMultiRead(nil, []wire.ReadOp{
			{Op: wire.OpGetData, PathWatchRequest: wire.PathWatchRequest{Path: o.own}}, {Op: wire.OpGetData, PathWatchRequest: wire.PathWatchRequest{Path: p}},
		})}
		return o.add(b, orderRequest{op: wire.OpMultiRead, path: p}, &rec)
	case 22:
		o.ownWrites++
		ops := wire.AppendMultiOp(nil, wire.OpSetData, rSet(o.own, ""))
		ops = wire.AppendMultiOp(ops, wire.OpSetData, rSet(pick(o.rng, orderNodes...), ""))
		return o.add(b, orderRequest{op: wire.OpMulti}, &rawRecord{wire.AppendMultiEnd(ops)})
	}
	return append(b, request(wire.XidPing, wire.OpPing, nil)...)
}

func (o *orderCheck) note(format string, args ...any) {
	o.log = append(o.log, fmt.Sprintf(format, args...))
}

// receive takes one frame and checks it.
func (o *orderCheck) receive() error {
	f, err := o.fr.Next()
	if err != nil {
		return err
	}
	h, body, err := wire.SplitReply(f)
	if err != nil {
		return err
	}
	if h.Xid == wire.XidEvent {
		var e wire.WatcherEvent
		if err := wire.Decode(body, &e); err != nil {
			return err
		}
		o.note("event %v %s zxid %d", kv.EventType(e.Type), e.Path, h.Zxid)
		return o.event(h.Zxid, kv.EventType(e.Type), e.Path)
	}
	if h.Xid == wire.XidPing {
		o.note("ping, zxid %d", h.Zxid)
		return o.zxid(h.Zxid)
	}
	q := o.sent[0]
	o.sent = o.sent[1:]
	o.note("reply %d %v %s watch %v kind %d %v: err %d zxid %d", h.Xid, q.op, q.path, q.watch, q.kind, q.lists, h.Err, h.Zxid)
	if h.Xid != q.xid {
		return fmt.Errorf("reply to %d, want %d", h.Xid, q.xid)
	}
	if q.op == wire.OpAuth { // says nothing of the state
		if h.Zxid != 0 || h.Err != kv.CodeOK {
			return fmt.Errorf("auth: %+v", h)
		}
		return nil
	}
	if err := o.zxid(h.Zxid); err != nil {
		return err
	}
	return o.reply(&q, h, body)
}

func (o *orderCheck) zxid(z int64) error {
	if z < o.last {
		return fmt.Errorf("zxid falls from %d to %d", o.last, z)
	}
	o.last = z
	return nil
}

func (o *orderCheck) event(z int64, typ kv.EventType, p string) error {
	if z == -1 { // directly before the reply of a setWatches
		if len(o.sent) == 0 || o.sent[0].op != wire.OpSetWatches {
			return errors.New("an event of setWatches before another reply")
		}
		for _, l := range o.sent[0].lists {
			for _, asked := range l {
				if asked == p {
					o.told[fmt.Sprint(typ == kv.EventNodeChildrenChanged, p)] = true
					if typ == kv.EventNodeDeleted {
						o.told[fmt.Sprint(true, p)] = true
					}
					return nil
				}
			}
		}
		return errors.New("an event of setWatches for what is not in it")
	}
	if err := o.zxid(z); err != nil {
		return err
	}
	_, data := o.dataWatch[p]
	_, child := o.childWatch[p]
	legal := o.persistent[p] || o.loose[p]
	switch typ {
	case kv.EventNodeChildrenChanged:
		legal = legal || child
		delete(o.childWatch, p)
	case kv.EventNodeDeleted:
		legal = legal || data || child || o.covered(p)
		delete(o.dataWatch, p)
		delete(o.childWatch, p)
	default:
		legal = legal || data || o.covered(p)
		delete(o.dataWatch, p)
	}
	if !legal {
		return errors.New("an event that no watch asked for, or before the reply that set it")
	}
	if typ != kv.EventNodeChildrenChanged {
		if z <= o.shown[p] {
			return fmt.Errorf("an event after a reply that shows zxid %d", o.shown[p])
		}
		if c := o.counted[p]; c != nil {
			c.events++
		}
	}
	return nil
}

// covered reports whether a recursive watch speaks of p.
func (o *orderCheck) covered(p string) bool {
	return o.recursive[p] || o.recursive[path.Dir(p)] || o.loose[path.Dir(p)]
}

// showsData takes in what a reply shows of a node; a missing one has no mzxid.
func (o *orderCheck) showsData(p string, st *kv.Stat) error {
	mzxid := int64(st.Mzxid)
	if mzxid != 0 && mzxid < o.shown[p] {
		return fmt.Errorf("%s goes back from %d to %d", p, o.shown[p], mzxid)
	}
	o.shown[p] = max(o.shown[p], mzxid)
	if mzxid > o.last {
		return fmt.Errorf("%s shows %d with zxid %d in the header", p, mzxid, o.last)
	}
	if was, ok := o.dataWatch[p]; ok {
		if was != mzxid && was != unknownState {
			return fmt.Errorf("%s shows %d without an event for the watch set at %d", p, mzxid, was)
		}
		o.dataWatch[p] = mzxid
	}
	if strings.HasPrefix(p, "/r/n") && (o.persistent[p] || o.recursive["/r"]) {
		if c := o.counted[p]; c == nil {
			o.counted[p] = &counted{version: st.Version}
		} else if st.Version-c.version != c.events {
			return fmt.Errorf("%s has version %d, %d changes since the lasting watch, and %d events came", p, st.Version, st.Version-c.version, c.events)
		}
	}
	return nil
}

func (o *orderCheck) showsChildren(p string, st *kv.Stat) error {
	pzxid := int64(st.Pzxid)
	if pzxid > o.last {
		return fmt.Errorf("%s shows children of %d with zxid %d in the header", p, pzxid, o.last)
	}
	if was, ok := o.childWatch[p]; ok {
		if was != pzxid && was != unknownState {
			return fmt.Errorf("children of %s show %d without an event for the watch set at %d", p, pzxid, was)
		}
		o.childWatch[p] = pzxid
	}
	return nil
}

func (o *orderCheck) reply(q *orderRequest, h wire.ReplyHeader, body []byte) error {
	var st kv.Stat
	have := h.Err == kv.CodeOK // st is that of q.path
	decode := func(rec wire.Record, from *kv.Stat) error {
		if !have {
			return nil
		}
		err := wire.Decode(body, rec)
		st = *from
		return err
	}
	var err error
	switch q.op {
	case wire.OpGetData:
		if q.path == "/secret" {
			if h.Err == kv.CodeOK != q.authed || !q.authed && h.Err != kv.CodeNoAuth {
				return fmt.Errorf("/secret: %v, authenticated: %v", h.Err, q.authed)
			}
			return nil
		}
		var r wire.DataResponse
		err = decode(&r, &r.Stat)
	case wire.OpExists:
		var r wire.StatResponse
		err = decode(&r, &r.Stat)
	case wire.OpGetChildren2:
		var r wire.NamesStatResponse
		err = decode(&r, &r.Stat)
	case wire.OpSetData:
		var r wire.StatResponse
		if err = decode(&r, &r.Stat); err == nil && int64(st.Mzxid) != h.Zxid {
			err = fmt.Errorf("setData at %d with mzxid %d", h.Zxid, st.Mzxid)
		}
	case wire.OpMultiRead, wire.OpMulti:
		results, err := wire.DecodeMultiResults(body, nil)
		if err != nil || len(results) != 2 || results[0].Failed || results[0].Stat.Version != q.own {
			return fmt.Errorf("results %v, own node to be at %d: %v", results, q.own, err)
		}
		if err := o.showsData(o.own, &results[0].Stat); err != nil || q.op == wire.OpMulti || results[1].Failed {
			return err
		}
		return o.showsData(q.path, &results[1].Stat)
	case wire.OpAddWatch:
		if h.Err != kv.CodeOK {
			return fmt.Errorf("addWatch: %v", h.Err)
		}
		if q.kind == watchModePersistent {
			o.persistent[q.path] = true
		} else {
			o.recursive[q.path] = true
		}
		return nil
	case wire.OpRemoveWatches:
		if (o.persistent[q.path] || o.recursive[q.path]) && h.Err != kv.CodeOK {
			return fmt.Errorf("removeWatches: %v", h.Err)
		}
		clear(o.counted)
		delete(o.persistent, q.path)
		delete(o.recursive, q.path)
		delete(o.dataWatch, q.path)
		delete(o.childWatch, q.path)
		o.loose[q.path] = true
		return nil
	case wire.OpCheckWatches:
		has := map[int32]map[string]bool{4: o.persistent, 5: o.recursive}[q.kind][q.path]
		if has != (h.Err == kv.CodeOK) || !has && h.Err != kv.CodeNoWatcher {
			return fmt.Errorf("checkWatches: %v, watched: %v", h.Err, has)
		}
		return nil
	case wire.OpSetWatches:
		if h.Err != kv.CodeOK {
			return fmt.Errorf("setWatches: %v", h.Err)
		}
		for i, l := range q.lists {
			into := o.dataWatch
			if i == 2 {
				into = o.childWatch
			}
			for _, p := range l {
				if _, ok := into[p]; !ok && !o.told[fmt.Sprint(i == 2, p)] {
					into[p] = unknownState
				}
			}
		}
		clear(o.told)
		return nil
	case wire.OpSync:
		clear(o.loose)
		return nil
	default:
		return nil
	}
	switch {
	case err != nil:
		return err
	case h.Err != kv.CodeOK && h.Err != kv.CodeNoNode:
		return fmt.Errorf("error %v", h.Err)
	case q.path == o.own && (!have || st.Version != q.own):
		return fmt.Errorf("own node %v at version %d, want %d", have, st.Version, q.own)
	}
	if err := o.showsData(q.path, &st); err != nil {
		return err
	}
	if have {
		if err := o.showsChildren(q.path, &st); err != nil {
			return err
		}
	}
	switch {
	case !q.watch:
	case q.op == wire.OpGetChildren2:
		o.childWatch[q.path] = int64(st.Pzxid)
	case have || q.op == wire.OpExists:
		o.dataWatch[q.path] = int64(st.Mzxid)
	}
	return nil
}
