package kv

import (
	"strings"
	"unicode/utf8"
)

// MaxPathBytes is the longest path a node may have. ZooKeeper has no such limit of its own (only the frame's);
// here a path is also the key of a snapshot record, and the snapshot's store bounds its keys. Longer paths are
// refused with CodeBadArguments.
const MaxPathBytes = 32000

// The nodes that every tree has from the start (ZooKeeper: DataTree's constructor). They cannot be deleted.
const (
	RootPath       = "/"
	ZookeeperPath  = "/zookeeper"
	QuotaPath      = "/zookeeper/quota"
	ConfigPath     = "/zookeeper/config"
	sequenceDigits = 10
)

// ValidatePath applies the rules for create, setData, setACL and check (ZooKeeper: PathUtils.validatePath).
// It returns ErrBadArguments or nil. Reads and delete do not apply these rules; a bad path simply does not exist.
func ValidatePath(path string) error {
	if !validPath(path) {
		return ErrBadArguments
	}
	return nil
}

// validPath reports whether path obeys the rules. Java's server sees UTF-16: a character outside the basic
// plane arrives as surrogates, which are refused, and broken UTF-8 arrives as U+FFFD, which is refused too.
func validPath(path string) bool {
	n := len(path)
	if n == 0 || n > MaxPathBytes || path[0] != '/' {
		return false
	}
	if n == 1 {
		return true
	}
	if path[n-1] == '/' {
		return false
	}
	start := 1 // of the current component
	for i := 1; i < n; {
		c := path[i]
		switch {
		case c == '/':
			if !validComponent(path[start:i]) {
				return false
			}
			i++
			start = i
		case c < 0x20 || c == 0x7f:
			return false
		case c < utf8.RuneSelf:
			i++
		default:
			r, size := utf8.DecodeRuneInString(path[i:])
			if (r == utf8.RuneError && size == 1) || !validRune(r) {
				return false
			}
			i += size
		}
	}
	return validComponent(path[start:])
}

func validComponent(c string) bool { return c != "" && c != "." && c != ".." }

func validRune(r rune) bool {
	switch {
	case r <= 0x9f: // U+0080 - U+009F; smaller ones were handled as bytes
		return false
	case r >= 0xd800 && r <= 0xf8ff:
		return false
	case r >= 0xfff0:
		return false
	}
	return true
}

// parentOf returns the text before the last slash, which is how ZooKeeper finds a parent: of "/q//x" it is
// "/q/", which never exists. The caller has checked that there is a slash. The root is always spelled "/".
func parentOf(path string) string {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return RootPath
	}
	return path[:i]
}

// isBuiltin reports whether path is one of the nodes that cannot be deleted.
func isBuiltin(path string) bool {
	switch path {
	case RootPath, ZookeeperPath, QuotaPath, ConfigPath:
		return true
	}
	return false
}

// appendSequence appends the decimal suffix of a sequential node as Java's "%010d" does: ten digits padded
// with zeros, a minus sign counting as one of them.
func appendSequence(dst []byte, counter int32) []byte {
	v := int64(counter)
	digits := sequenceDigits
	if v < 0 {
		dst = append(dst, '-')
		v = -v
		digits--
	}
	var buf [sequenceDigits]byte
	i := len(buf)
	for v > 0 {
		i--
		buf[i] = byte('0' + v%10)
		v /= 10
	}
	for len(buf)-i < digits {
		i--
		buf[i] = '0'
	}
	return append(dst, buf[i:]...)
}

// appendKey appends the key under which the node of path is stored: the path with its last slash replaced by
// NUL, which no path contains. Byte order of keys therefore keeps siblings together, in order of their names:
// the children of "/a" are exactly the keys that begin with "/a\x00". The root's key is "/". The key of a path
// that no node can have ("", "abc", "/a/") matches no stored key, except that "" is an alias of the root, as in
// ZooKeeper. Part of the format.
func appendKey(dst []byte, path string) []byte {
	if path == "" || path == RootPath {
		return append(dst, '/')
	}
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return append(append(dst, 0, 0), path...) // two NULs: in no stored key
	}
	dst = append(dst, path...)
	dst[len(dst)-len(path)+i] = 0
	return dst
}

// pathOfKey is the inverse of appendKey for stored keys.
func pathOfKey(key string) string {
	b := []byte(key)
	for i, c := range b {
		if c == 0 {
			b[i] = '/'
			break
		}
	}
	return string(b)
}

// parentPathOfKey returns the path of the parent, without copying. Not for the root.
func parentPathOfKey(key string) string {
	i := strings.IndexByte(key, 0)
	if i <= 0 {
		return RootPath
	}
	return key[:i]
}
