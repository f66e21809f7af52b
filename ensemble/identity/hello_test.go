package identity

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"testing"

	"kvd/kv"
)

func fullHello() Hello {
	return Hello{From: 255, Run: math.MaxUint64, Echo: 7, Ask: true, Suspect: true, Cluster: ClusterID{1, 2, 3, 15: 16},
		Accepted: math.MaxUint32, Last: kv.Zxid(math.MaxUint64)}
}

// The wire form is part of the peer protocol: it must not change by accident.
func TestHelloGolden(t *testing.T) {
	h := Hello{From: 3, Run: 1, Echo: 2, Ask: true, Cluster: ClusterID{0: 1, 15: 2}, Accepted: 4, Last: kv.MakeZxid(0, 5)}
	const want = "99" + "03" + "01" + "02" + "01" + "cf0100000000000000" + "02" + "04" + "05" + "00"
	if got := hex.EncodeToString(AppendHello(nil, h)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestDecodeHello(t *testing.T) {
	good := AppendHello(nil, fullHello())
	if got, err := DecodeHello(good); err != nil || got != fullHello() {
		t.Fatalf("got %+v, %v", got, err)
	}
	more := append(bytes.Clone(good), 9)
	more[0]++
	if got, err := DecodeHello(more); err != nil || got != fullHello() {
		t.Errorf("with a field of a newer version: got %+v, %v", got, err)
	}
	refuse := func(name string, b []byte) {
		t.Helper()
		if h, err := DecodeHello(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: got %+v, %v, want ErrMalformed", name, h, err)
		}
	}
	for i := range good {
		refuse("cut short", good[:i])
	}
	for n := range 40 {
		refuse("zeros", make([]byte, n))
		refuse("ones", bytes.Repeat([]byte{0xff}, n))
	}
	refuse("bytes after the end", append(bytes.Clone(good), 0))
	refuse("longer than the limit", append(bytes.Clone(good), make([]byte, MaxHelloBytes)...))
	refuse("huge array", []byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	for name, h := range map[string]Hello{"sender 0": {Run: 1}, "sender 256": {From: 256, Run: 1}, "run 0": {From: 1}} {
		refuse(name, AppendHello(nil, h))
	}
	flags := AppendHello(nil, Hello{From: 1, Run: 1})
	flags[4] = 4
	refuse("unknown flag", flags)
}

func FuzzDecodeHello(f *testing.F) {
	f.Add(AppendHello(nil, fullHello()))
	f.Add(AppendHello(nil, Hello{From: 1, Run: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := DecodeHello(b)
		if err != nil {
			return
		}
		if again, err := DecodeHello(AppendHello(nil, h)); err != nil || again != h {
			t.Fatalf("%+v came back as %+v, %v", h, again, err)
		}
	})
}
