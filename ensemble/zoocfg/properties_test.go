package zoocfg

import (
	"slices"
	"strings"
	"testing"
)

func TestParseProperties(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []property
	}{
		{"plain", "a=1\nb = 2 \n", []property{{"a", "1", 1}, {"b", "2", 2}}},
		{"separators", "a:1\nb 2\nc\t=\t3\nd:= 4\n", []property{{"a", "1", 1}, {"b", "2", 2}, {"c", "3", 3}, {"d", "= 4", 4}}},
		{"comments and blanks", "# x=1\n  ! y=2\n\n \t\n a=1", []property{{"a", "1", 5}}},
		{"no value", "a\nb=\n", []property{{"a", "", 1}, {"b", "", 2}}},
		{"value with separators", "server.1=h:2888:3888;2181\nu=a=b", []property{{"server.1", "h:2888:3888;2181", 1}, {"u", "a=b", 2}}},
		{"continued", "a=1,\\\n   2,\\\n 3\nb=4", []property{{"a", "1,2,3", 1}, {"b", "4", 4}}},
		{"not continued by an escaped backslash", "a=1\\\\\nb=2", []property{{"a", `1\`, 1}, {"b", "2", 2}}},
		{"continued at the end of the file", "a=1\\", []property{{"a", "1", 1}}},
		{"escapes", `a\=b=c\:d\tx\u0041\zy`, []property{{"a=b", "c:d\txAzy", 1}}},
		{"surrogates", `a=\ud83d\ude00`, []property{{"a", "😀", 1}}},
		{"a comment is not continued", "# x\\\na=1", []property{{"a", "1", 2}}},
		{"windows lines", "a=1\r\nb=2\r", []property{{"a", "1", 1}, {"b", "2", 2}}},
		{"byte order mark", "\ufeffa=1", []property{{"a", "1", 1}}},
		{"utf-8", "a=ä", []property{{"a", "ä", 1}}},
		{"latin-1", "a=\xe4", []property{{"a", "ä", 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseProperties([]byte(c.in))
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
	for _, in := range []string{`a=\u12`, `a=\uzzzz`, "x=1\na=\\u"} {
		if got, err := parseProperties([]byte(in)); err == nil || !strings.Contains(err.Error(), "line ") {
			t.Errorf("%q: got %+v, %v, want an error with a line", in, got, err)
		}
	}
}

func FuzzParseProperties(f *testing.F) {
	f.Add([]byte("a=1\nserver.1=h:1:2:observer;[::1]:3\n# c\nb\\\n c=\\u0041"))
	f.Add([]byte{0xe4, '=', '\\'})
	f.Fuzz(func(t *testing.T, b []byte) {
		properties, err := parseProperties(b)
		if err != nil {
			return
		}
		lines := 1 + strings.Count(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(b)), "\n")
		for _, p := range properties {
			if p.line < 1 || p.line > lines {
				t.Fatalf("line %d of %d", p.line, lines)
			}
			lookup(p.key)
			nearest(p.key)
			if s, err := parseServer(1, p.value); err == nil {
				// What was understood is said canonically and understood again.
				_, text, _ := strings.Cut(s.String(), "=")
				if again, err := parseServer(1, text); err != nil || again != s {
					t.Fatalf("%q became %+v, then %q became %+v, %v", p.value, s, text, again, err)
				}
			}
		}
	})
}
