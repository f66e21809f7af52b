package kv

import (
	"fmt"
	"testing"
)

// TestQuotaText: what ZooKeeper 3.8.0 made of each text when a node of no bytes was created below it.
func TestQuotaText(t *testing.T) {
	for text, want := range map[string]string{
		"count=4,bytes=8":                 "count=5,bytes=8",
		"":                                "count=0,bytes=-1",
		",,;":                             "count=0,bytes=-1",
		"count=1000,bytes=5=;foo=7;abc=3": "count=1001,bytes=5=;abc=3;foo=7",
		"count=2,bytes=-1=;byteHardLimit=-1;countHardLimit=-1": "count=3,bytes=-1=;byteHardLimit=-1;countHardLimit=-1",
		"bytes=3;;,count=1,":        "count=2,bytes=3",
		"count=1,count=7":           "count=8,bytes=-1",
		"count==5,bytes=+4":         "count=0,bytes=4",
		"x=1,x=2":                   "count=0,bytes=-1=;x=2",
		"=5":                        "count=0,bytes=-1=;=5",
		"hello":                     "",
		"count=":                    "",
		"count=,bytes=3":            "",
		",count=1":                  "",
		"count=x":                   "",
		"count= 1":                  "",
		"count=9223372036854775808": "",
		"count=9223372036854775807,bytes=-9223372036854775808":   "count=-9223372036854775808,bytes=-9223372036854775808",
		"count=1,bytes=1=;byteHardLimit=10=3=;countHardLimit==4": "count=2,bytes=1=;byteHardLimit=10;countHardLimit=-1",
	} {
		q, ok := parseQuota(text)
		q.count++
		got := ""
		if ok {
			got = string(q.append(nil))
		}
		if got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

func FuzzQuotaText(f *testing.F) {
	for _, s := range quotaTexts {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		q, ok := parseQuota(s)
		if want := modelText([]byte(s)); ok != (want != nil) || ok && (q.count != modelFigure(want, "count") ||
			q.hard(quotaBytesHardKey) != modelFigure(want, quotaBytesHardKey)) {
			t.Fatalf("%q: %+v %v, want %v", s, q, ok, want)
		}
	})
}

func TestSplitQuota(t *testing.T) {
	for path, want := range map[string]struct {
		prefix string
		part   quotaPart
	}{
		"/zookeeper/quota/a/zookeeper_limits":                    {"/a", quotaLimits},
		"/zookeeper/quota/a/b/zookeeper_stats":                   {"/a/b", quotaStats},
		"/zookeeper/quota/zookeeper_stats":                       {"", quotaStats},
		"/zookeeper/quota":                                       {},
		"/zookeeper/quota/a":                                     {},
		"/zookeeper/quotaX/zookeeper_limits":                     {},
		"/zookeeper/quota/a/zookeeper_limits/x":                  {},
		"/zookeeper/quota/a/zookeeper_limits/zookeeper_limits":   {"/a/zookeeper_limits", quotaLimits},
		"/zookeeper/quota/zookeeper/quota/zookeeper_limits":      {"/zookeeper/quota", quotaLimits},
		"/quota/zookeeper_limits":                                {},
		"/zookeeper/quota/a/xzookeeper_limits":                   {},
		"/zookeeper/quota/zookeeper/quota/zookeeper_limitsx/abc": {},
	} {
		prefix, part := splitQuotaPath(path)
		if prefix != want.prefix || part != want.part {
			t.Errorf("%q: %q %d", path, prefix, part)
		}
		if prefix, part = splitQuotaKey(string(appendKey(nil, path))); prefix != want.prefix || part != want.part {
			t.Errorf("key of %q: %q %d", path, prefix, part)
		}
	}
}

// TestQuotaIsCountedInPlace: nothing of a stats node changes but its data, and no watch hears of it.
func TestQuotaIsCountedInPlace(t *testing.T) {
	h := newHistory(NewTree(nil))
	const stats = "/zookeeper/quota/q/zookeeper_stats"
	for _, p := range []string{"/q", "/zookeeper/quota/q", "/zookeeper/quota/q/zookeeper_limits", stats} {
		h.do(t, &Request{Op: OpCreate, Path: p, ACL: OpenACL()})
	}
	_, before, _ := h.tree.View().Get(stats)
	w := new(mailbox)
	h.tree.GetWatch(stats, w)
	for i := range 20 {
		h.do(t, &Request{Op: OpCreate, Path: fmt.Sprintf("/q/%d", i), Data: []byte("abc"), ACL: OpenACL()})
	}
	data, after, _ := h.tree.View().Get(stats)
	if string(data) != "count=21,bytes=60" {
		t.Errorf("%q", data)
	}
	before.DataLength = int32(len(data))
	if after != before {
		t.Errorf("%+v, was %+v", after, before)
	}
	if len(w.events) != 0 {
		t.Errorf("%v", w.events)
	}
}

// TestPendingQuotasAreForgotten: a leader that is never idle does not keep what it knew of quotas long applied.
func TestPendingQuotasAreForgotten(t *testing.T) {
	h := newHistory(NewTree(nil))
	var inflight []Entry
	for i := range 3000 {
		for _, p := range []string{"/zookeeper/quota/q%d", "/zookeeper/quota/q%d/zookeeper_limits", "/zookeeper/quota/q%d/zookeeper_stats"} {
			inflight = append(inflight, h.prepare(&Request{Op: OpCreate, Path: fmt.Sprintf(p, i), ACL: OpenACL()}))
		}
		if len(inflight) > 20 {
			if err := h.tree.Apply(inflight[:10], nil); err != nil {
				t.Fatal(err)
			}
			inflight = inflight[10:]
		}
		if n := len(h.prep.quotas); n > 1100 {
			t.Fatalf("%d quotas pending after %d", n, i)
		}
	}
	if n := h.tree.View().QuotaCount(); n < 2900 {
		t.Errorf("%d quotas", n)
	}
}
