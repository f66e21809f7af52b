package main

import (
	"encoding/binary"
	"errors"
)

// enc appends values in the encoding of the client protocol (protocol 2).
type enc struct{ b []byte }

func (e *enc) int(v int32)   { e.b = binary.BigEndian.AppendUint32(e.b, uint32(v)) }
func (e *enc) long(v int64)  { e.b = binary.BigEndian.AppendUint64(e.b, uint64(v)) }
func (e *enc) byte(v byte)   { e.b = append(e.b, v) }
func (e *enc) raw(v []byte)  { e.b = append(e.b, v...) }
func (e *enc) text(s string) { e.int(int32(len(s))); e.b = append(e.b, s...) }

func (e *enc) bool(v bool) {
	if v {
		e.byte(1)
	} else {
		e.byte(0)
	}
}

// nullable writes a null for nil.
func (e *enc) nullable(s *text) {
	if s == nil {
		e.int(-1)
		return
	}
	e.text(string(*s))
}

func (e *enc) buffer(b []byte) {
	if b == nil {
		e.int(-1)
		return
	}
	e.int(int32(len(b)))
	e.raw(b)
}

func (e *enc) texts(l []text) {
	if l == nil {
		e.int(-1)
		return
	}
	e.int(int32(len(l)))
	for _, s := range l {
		e.text(string(s))
	}
}

func (e *enc) acls(l []ACL) {
	if l == nil {
		e.int(-1)
		return
	}
	e.int(int32(len(l)))
	for _, a := range l {
		e.int(a.Perms)
		e.nullable(a.Scheme)
		e.nullable(a.ID)
	}
}

// frame puts the length in front.
func frame(body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, len(body)+4), uint32(len(body))), body...)
}

var errShort = errors.New("the record ends early")

// dec reads values. After the first failure everything reads as zero and err stays set.
type dec struct {
	b   []byte
	err error
}

func (d *dec) take(n int) []byte {
	if d.err != nil || n < 0 || n > len(d.b) {
		d.err = errShort
		return nil
	}
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
}

func (d *dec) int() int32 {
	if b := d.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (d *dec) long() int64 {
	if b := d.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

func (d *dec) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

// buffer returns false for a null.
func (d *dec) buffer() ([]byte, bool) {
	n := d.int()
	if n == -1 || d.err != nil {
		return nil, false
	}
	return d.take(int(n)), true
}

// count reads the length of a vector, which is never longer than what is left.
func (d *dec) count() int {
	n := d.int()
	if n < -1 || int(n) > len(d.b) {
		d.err = errShort
		return 0
	}
	return int(n)
}
