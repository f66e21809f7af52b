package wire

import (
	"encoding/hex"
	"reflect"
	"strings"
	"testing"

	"kvd/kv"
)

// The byte strings that ZooKeeper's clients and servers were seen to send.
func TestGoldenBytes(t *testing.T) {
	zeros := strings.Repeat("00", 16)
	for _, c := range []struct {
		name, want string
		got        []byte
	}{
		{"connect request, new session, 10 s, with the flag",
			"00000000 0000000000000000 00002710 0000000000000000 00000010" + zeros + "00",
			(&ConnectRequest{TimeoutMs: 10000, Password: make([]byte, 16), HasReadOnly: true}).AppendTo(nil)},
		{"connect request without the flag",
			"00000000 0000000000000000 00002710 0000000000000000 00000010" + zeros,
			(&ConnectRequest{TimeoutMs: 10000, Password: make([]byte, 16)}).AppendTo(nil)},
		{"connect response, invalid session",
			"00000000 00000000 0000000000000000 00000010" + zeros + "00",
			(&ConnectResponse{HasReadOnly: true}).AppendTo(nil)},
		{"connect response without the flag",
			"00000000 00000000 0000000000000000 00000010" + zeros,
			(&ConnectResponse{}).AppendTo(nil)},
		{"ping request", "fffffffe 0000000b", (&RequestHeader{XidPing, OpPing}).AppendTo(nil)},
		{"ping reply", "fffffffe 0000000100000002 00000000", (&ReplyHeader{XidPing, 1<<32 | 2, 0}).AppendTo(nil)},
		{"close request", "00000007 fffffff5", (&RequestHeader{7, OpCloseSession}).AppendTo(nil)},
		{"no node", "00000007 00000000000000ab ffffff9b", (&ReplyHeader{7, 0xab, -101}).AppendTo(nil)},
		{"event", "0000001e ffffffff ffffffffffffffff 00000000 00000003 00000003 00000002 2f61",
			AppendEventFrame(nil, -1, EventDataChanged, "/a")},
		{"auth", "fffffffc 00000064 00000000 00000006 646967657374 00000003 753a70",
			(&AuthRequest{Scheme: "digest", Auth: []byte("u:p")}).AppendTo((&RequestHeader{XidAuth, OpAuth}).AppendTo(nil))},
		{"auth reply", "fffffffc 0000000000000000 00000000", (&ReplyHeader{Xid: XidAuth}).AppendTo(nil)},
		{"empty multi", "ffffffff 01 ffffffff", AppendMultiEnd(nil)},
		{"multi with one failed op", "ffffffff 00 ffffff9b ffffff9b ffffffff 01 ffffffff",
			AppendMultiEnd(AppendMultiError(nil, -101))},
		{"addWatch reply", "00000000", (&NumberResponse{}).AppendTo(nil)},
		{"unknown op", "00000003 ffffffffffffffff fffffffa", (&ReplyHeader{3, -1, -6}).AppendTo(nil)},
		{"null data, empty data", "ffffffff 00000000", AppendBuffer(AppendBuffer(nil, nil), []byte{})},
		{"create", "00000002 2f61 00000001 78 00000001 0000001f 00000005 776f726c64 00000006 616e796f6e65 00000003",
			(&CreateRequest{"/a", []byte("x"), []kv.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}, kv.FlagEphemeralSequential}).AppendTo(nil)},
		{"multi of create container: the result is of create2's type",
			"0000000f 00 00000000 00000002 2f61" + strings.Repeat("00", 68),
			AppendMultiResult(nil, OpCreateContainer, "/a", &kv.Stat{})},
		{"stat",
			"0000000000000001 0000000000000002 0000000000000003 0000000000000004 00000005 00000006 00000007 0000000000000008 00000009 0000000a 000000000000000b",
			AppendStat(nil, &kv.Stat{Czxid: 1, Mzxid: 2, Ctime: 3, Mtime: 4, Version: 5, Cversion: 6, Aversion: 7, EphemeralOwner: 8, DataLength: 9, NumChildren: 10, Pzxid: 11})},
	} {
		want := strings.ReplaceAll(c.want, " ", "")
		if got := hex.EncodeToString(c.got); got != want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, want)
		}
	}
}

func TestHandshakeLengths(t *testing.T) {
	for _, c := range []struct {
		name string
		rec  Record
		want int
	}{
		{"request with flag", &ConnectRequest{Password: make([]byte, 16), HasReadOnly: true}, 45},
		{"request without", &ConnectRequest{Password: make([]byte, 16)}, 44},
		{"response with flag", &ConnectResponse{HasReadOnly: true}, 37},
		{"response without", &ConnectResponse{}, 36},
		{"stat", &StatResponse{}, 68},
	} {
		if got := len(c.rec.AppendTo(nil)); got != c.want {
			t.Errorf("%s: %d bytes, want %d", c.name, got, c.want)
		}
	}
}

func TestTableOfOperations(t *testing.T) {
	for op, row := range opTable {
		if op.Class() != row.class {
			t.Errorf("%v: fast table says %v, table %v", op, op.Class(), row.class)
		}
		if row.class == ClassUnknown {
			t.Errorf("%v: class %v", op, row.class)
		}
		if multi := op == OpMulti || op == OpMultiRead; multi != (row.request == nil) || multi != (row.response == nil) {
			t.Errorf("%v: records missing", op)
		}
	}
	for _, op := range []Op{0, -1, 10, 23, 99, 108, 127, 128, 1 << 30, -12, -16, -17, -1 << 31} {
		if op.Class() != ClassUnknown {
			t.Errorf("op %d: class %v", int32(op), op.Class())
		}
	}
	// What a client gets -6 and a closed connection for, although the code has a name.
	for op := range opTable {
		refused := op == OpCheck || op == OpDeleteContainer || op == OpCreateSession
		if (op.Class() == ClassRefused) != refused {
			t.Errorf("%v: class %v", op, op.Class())
		}
	}
}

// Every record of the table survives encode, decode, encode, for values that use every field.
func TestEveryRecordRoundTrips(t *testing.T) {
	for op := range opTable {
		for _, mk := range []func() Record{op.NewRequest, op.NewResponse} {
			rec := mk()
			if rec == nil {
				continue
			}
			fillFields(reflect.ValueOf(rec).Elem(), new(int))
			one := rec.AppendTo(nil)
			back := mk()
			if err := Decode(one, back); err != nil {
				t.Errorf("%v %T: %v", op, rec, err)
				continue
			}
			if !reflect.DeepEqual(rec, back) {
				t.Errorf("%v %T:\n sent %+v\n  got %+v", op, rec, rec, back)
			}
			// Every proper prefix fails, or (optional read-only flag) decodes to something else: no field is
			// read from beyond the bytes.
			for n := range len(one) {
				part := mk()
				if err := Decode(one[:n], part); err == nil && reflect.DeepEqual(rec, part) {
					t.Errorf("%v %T: %d of %d bytes decode to the whole record", op, rec, n, len(one))
				}
			}
		}
	}
}

// fillFields gives every field a distinct value.
func fillFields(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Name == "Null" {
				continue // excludes the string beside it
			}
			fillFields(v.Field(i), n)
		}
	case reflect.String:
		v.SetString("/s" + string(rune('a'+*n%26)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n) * 7)
	case reflect.Uint64, reflect.Uint8:
		v.SetUint(uint64(*n) * 7 % 256)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fillFields(v.Index(i), n)
		}
	case reflect.Array:
		for i := range v.Len() {
			fillFields(v.Index(i), n)
		}
	default:
		panic("no value for " + v.Type().String())
	}
}

func TestNulls(t *testing.T) {
	for _, c := range []struct {
		name string
		op   Op
		body []byte
		err  bool
	}{
		{"create with a null path", OpCreate, (&SyncRecord{Null: true}).AppendTo(nil), true},
		{"create with a null ACL", OpCreate, AppendInt32(AppendACL(AppendBuffer(AppendString(nil, "/a"), nil), nil), 0), false},
		{"create with a count beyond the frame", OpCreate, AppendInt32(AppendInt32(AppendBuffer(AppendString(nil, "/a"), nil), 1<<30), 0), true},
		{"create with a negative length", OpCreate, AppendInt32(AppendString(nil, "/a"), -2), true},
		{"setData with a null path", OpSetData, AppendInt32(nil, -1), true},
		{"setData with null data", OpSetData, AppendInt32(AppendBuffer(AppendString(nil, "/a"), nil), 3), false},
		{"multi with a null path", OpMulti, AppendMultiEnd(AppendInt32(AppendInt32((&MultiHeader{Op: OpDelete, Err: -1}).AppendTo(nil), -1), 0)), true},
		{"multi with setACL", OpMulti, AppendMultiEnd(AppendMultiOp(nil, OpSetACL, &SetACLRequest{Path: "/a"})), true},
		{"multi with a read", OpMulti, AppendMultiEnd(AppendMultiOp(nil, OpGetData, &PathWatchRequest{Path: "/a"})), true},
		{"multi with create flags 7", OpMulti, AppendMultiEnd(AppendMultiOp(nil, OpCreate, &CreateRequest{Path: "/a", Flags: 7})), true},
		{"multi within a multi", OpMulti, AppendMultiEnd(AppendMultiEnd((&MultiHeader{Op: OpMulti, Err: -1}).AppendTo(nil))), true},
		{"multi without an end", OpMulti, AppendMultiOp(nil, OpDelete, &PathVersionRequest{Path: "/a"}), true},
		{"empty multi", OpMulti, AppendMultiEnd(nil), false},
		{"bytes behind the record", OpDelete, append((&PathVersionRequest{Path: "/a"}).AppendTo(nil), 1, 2, 3), false},
	} {
		var req kv.Request
		if err := DecodeRequest(c.op, c.body, &req); (err != nil) != c.err {
			t.Errorf("%s: error %v", c.name, err)
		}
	}
	for _, op := range []Op{OpGetData, OpCheck, OpPing, OpReconfig, OpCreateSession, OpDeleteContainer, 0} {
		if err := DecodeRequest(op, nil, &kv.Request{}); err != ErrNotWrite {
			t.Errorf("%v: %v", op, err)
		}
	}
}

// Within a multi the flags of a create decide what it is, not its code.
func TestCreatesWithinAMultiGoByTheirFlags(t *testing.T) {
	for _, op := range []Op{OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL} {
		for flags := int32(-1); flags <= 7; flags++ {
			var rec Record = &CreateRequest{Path: "/a", Flags: flags}
			if op == OpCreateTTL {
				rec = &CreateTTLRequest{CreateRequest{Path: "/a", Flags: flags}, 77}
			}
			var req kv.Request
			err := DecodeRequest(OpMulti, AppendMultiEnd(AppendMultiOp(nil, op, rec)), &req)
			want, ttl := kv.OpCreate, int64(-1)
			switch {
			case flags < 0 || flags > 6 || flags >= 5 && op != OpCreateTTL:
				if err == nil {
					t.Errorf("%v with flags %d is taken", op, flags)
				}
				continue
			case flags >= 5:
				want, ttl = kv.OpCreateTTL, 77
			case flags == 4:
				want = kv.OpCreateContainer
			case op == OpCreate2:
				want = kv.OpCreate2
			}
			if err != nil || len(req.Ops) != 1 || req.Ops[0].Op != want || req.Ops[0].Flags != flags || req.Ops[0].TTL != ttl {
				t.Errorf("%v with flags %d: %+v, %v", op, flags, req.Ops, err)
			}
		}
	}
}

func TestMultiRead(t *testing.T) {
	ops := []ReadOp{{OpGetData, PathWatchRequest{"/a", false}}, {OpGetChildren, PathWatchRequest{"/", true}}}
	got, _, err := DecodeMultiRead(AppendMultiRead(nil, ops), nil)
	if err != nil || !reflect.DeepEqual(got, ops) {
		t.Fatalf("%+v, %v", got, err)
	}
	_, writesOnly, err := DecodeMultiRead(AppendMultiEnd(AppendMultiOp(nil, OpDelete, &PathVersionRequest{Path: "/a"})), nil)
	if !writesOnly || err == nil {
		t.Errorf("a list of writes: %v, %v", writesOnly, err)
	}
	mixed := AppendMultiOp(AppendMultiOp(nil, OpGetData, &PathWatchRequest{Path: "/a"}), OpDelete, &PathVersionRequest{Path: "/a"})
	if _, writesOnly, err := DecodeMultiRead(mixed, nil); writesOnly || err == nil {
		t.Errorf("reads, then a write: %v, %v", writesOnly, err)
	}
}
