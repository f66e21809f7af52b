package zoocfg

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// property is one key with its value and the line it begins on.
type property struct {
	key, value string
	line       int
}

// maxFileBytes bounds a configuration file. The largest sensible ones have a few kilobytes.
const maxFileBytes = 1 << 20

// parseProperties reads Java's properties syntax: key=value, key:value or key value; comments with # or !; a
// backslash at the end of a line continues it; \t \n \r \f \uXXXX and \c for any other c. Like ZooKeeper it trims
// keys and values. Bytes that are not UTF-8 are read as Latin-1, which is what Java assumes.
func parseProperties(b []byte) ([]property, error) {
	text := string(b)
	if !utf8.ValidString(text) {
		runes := make([]rune, len(b))
		for i, c := range b {
			runes[i] = rune(c)
		}
		text = string(runes)
	}
	text = strings.TrimPrefix(text, "\ufeff")
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	lines := strings.Split(text, "\n")
	var all []property
	for i := 0; i < len(lines); i++ {
		first := i + 1
		logical := strings.TrimLeft(lines[i], " \t\f")
		if logical == "" || logical[0] == '#' || logical[0] == '!' {
			continue
		}
		for continues(logical) {
			logical = logical[:len(logical)-1]
			if i+1 == len(lines) {
				break
			}
			i++
			logical += strings.TrimLeft(lines[i], " \t\f")
		}
		rawKey, rawValue := splitProperty(logical)
		key, err := unescape(rawKey)
		if err == nil {
			var value string
			if value, err = unescape(rawValue); err == nil {
				all = append(all, property{strings.TrimSpace(key), strings.TrimSpace(value), first})
				continue
			}
		}
		return nil, fmt.Errorf("line %d: %w", first, err)
	}
	return all, nil
}

// continues reports whether a line ends in an odd number of backslashes.
func continues(s string) bool {
	n := 0
	for n < len(s) && s[len(s)-1-n] == '\\' {
		n++
	}
	return n%2 == 1
}

// splitProperty cuts at the first unescaped '=', ':' or blank; blanks around one '=' or ':' belong to it.
func splitProperty(s string) (key, value string) {
	i := 0
	for i < len(s) && !strings.ContainsRune("=: \t\f", rune(s[i])) {
		if s[i] == '\\' {
			i++
		}
		i++
	}
	i = min(i, len(s))
	key, rest := s[:i], strings.TrimLeft(s[i:], " \t\f")
	if rest != "" && (rest[0] == '=' || rest[0] == ':') {
		rest = strings.TrimLeft(rest[1:], " \t\f")
	}
	return key, rest
}

func unescape(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	var b strings.Builder
	var units []uint16 // pending \u escapes: two of them can be one character
	flush := func() {
		b.WriteString(string(utf16.Decode(units)))
		units = units[:0]
	}
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			flush()
			b.WriteByte(s[i])
			continue
		}
		i++
		if i == len(s) {
			break
		}
		if s[i] == 'u' {
			if i+5 > len(s) {
				return "", fmt.Errorf(`%q ends inside a \u escape`, s)
			}
			u, err := strconv.ParseUint(s[i+1:i+5], 16, 16)
			if err != nil {
				return "", fmt.Errorf(`\u%s is no character`, s[i+1:i+5])
			}
			units = append(units, uint16(u))
			i += 4
			continue
		}
		flush()
		switch s[i] {
		case 't':
			b.WriteByte('\t')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 'f':
			b.WriteByte('\f')
		default:
			b.WriteByte(s[i])
		}
	}
	flush()
	return b.String(), nil
}
