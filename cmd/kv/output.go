package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"kvd/kv"
)

// hexZxid is a zxid in JSON.
type hexZxid kv.Zxid

// MarshalJSON writes "0x...".
func (z hexZxid) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `"0x%x"`, uint64(z)), nil }

// jsonStat has ZooKeeper's field names.
type jsonStat struct {
	Czxid          hexZxid `json:"czxid"`
	Mzxid          hexZxid `json:"mzxid"`
	Ctime          int64   `json:"ctime"`
	Mtime          int64   `json:"mtime"`
	Version        int32   `json:"version"`
	Cversion       int32   `json:"cversion"`
	Aversion       int32   `json:"aversion"`
	EphemeralOwner hexZxid `json:"ephemeralOwner"`
	DataLength     int32   `json:"dataLength"`
	NumChildren    int32   `json:"numChildren"`
	Pzxid          hexZxid `json:"pzxid"`
}

func statJSON(s kv.Stat) *jsonStat {
	return &jsonStat{
		hexZxid(s.Czxid), hexZxid(s.Mzxid), s.Ctime, s.Mtime, s.Version, s.Cversion, s.Aversion,
		hexZxid(uint64(s.EphemeralOwner)), s.DataLength, s.NumChildren, hexZxid(s.Pzxid),
	}
}

// nodeJSON is what -o json prints about one node.
type nodeJSON struct {
	Path     string    `json:"path"`
	Value    *string   `json:"value,omitempty"`
	Encoding string    `json:"encoding,omitempty"`
	Children *[]string `json:"children,omitempty"`
	Paths    *[]string `json:"paths,omitempty"`
	Stat     *jsonStat `json:"stat,omitempty"`
}

// encodeValue gives a value as text if it is text.
func encodeValue(data []byte) (value, encoding string) {
	if utf8.Valid(data) {
		return string(data), "utf-8"
	}
	return base64.StdEncoding.EncodeToString(data), "base64"
}

// printJSON prints one object on one line, with every character of a value as it is.
func (p *program) printJSON(v any) error {
	enc := json.NewEncoder(p.stdout)
	enc.SetEscapeHTML(false)
	return p.written(enc.Encode(v))
}

// written names a failure to print.
func (p *program) written(err error) error {
	if err != nil {
		return &failure{what: "write to standard output", err: err}
	}
	return nil
}

func (p *program) println(line string) error {
	_, err := io.WriteString(p.stdout, line+"\n")
	return p.written(err)
}

// statLines is a Stat for people.
func statLines(s kv.Stat) string {
	at := func(ms int64) string {
		return fmt.Sprintf("%d (%s)", ms, time.UnixMilli(ms).Format("2006-01-02 15:04:05.000 MST"))
	}
	return fmt.Sprintf("czxid: 0x%x\nmzxid: 0x%x\npzxid: 0x%x\nctime: %s\nmtime: %s\nversion: %d\ncversion: %d\naversion: %d\nephemeralOwner: 0x%x\ndataLength: %d\nnumChildren: %d\n",
		uint64(s.Czxid), uint64(s.Mzxid), uint64(s.Pzxid), at(s.Ctime), at(s.Mtime), s.Version, s.Cversion, s.Aversion,
		uint64(s.EphemeralOwner), s.DataLength, s.NumChildren)
}
