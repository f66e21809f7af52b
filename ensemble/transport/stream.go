package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"kvd/snapshot"
	"kvd/zab"
)

// A snapshot stream travels on a link between the other frames:
//
//	sender                                receiver
//	kindSnapBegin  stream, point   →
//	                               ←      kindSnapHave  stream, count uint16, bytes held per file uint64 ...
//	kindSnapChunk  stream, file uint16, offset uint64, hash uint64, data   →
//	                               ←      kindSnapAck   stream, bytes taken since the start uint64
//	                               ←      kindSnapDone  stream, reason ("" = all files are durable)
//	kindSnapAbort  stream, reason  →      (instead of more chunks)
//
// stream is a uint32 that numbers the sender's streams on this link; frames of another number are old news.
// Chunks of a file come in order. At most StreamWindowBytes are under way, and the writer puts at most one
// chunk behind what else is waiting, so a ping is never behind more than a window (S44, S55). Where a stream
// stopped, the next one goes on: files are named by content.

const (
	maxBacklogBytes  = 16 << 20 // what a receiver takes ahead of its disk; more breaks the protocol
	maxBacklogChunks = 1024
)

var errLinkEnded = errors.New("the link ended")

// outStream is the sender's side of a stream. Its channels have room for the only values they ever get, or for
// the newest.
type outStream struct {
	id      uint32
	have    chan []int64  // capacity 1
	done    chan string   // capacity 1
	acked   atomic.Int64  // bytes
	ackWake chan struct{} // capacity 1
}

// inStream is the receiver's side.
type inStream struct {
	id      uint32
	files   int
	chunks  chan inChunk // capacity maxBacklogChunks
	aborted chan string  // capacity 1
	backlog atomic.Int64 // bytes in chunks
}

type inChunk struct {
	file int
	off  int64
	hash uint64
	data []byte
}

// StreamSnapshot sends the files of point, read from src, to the other side of link, and goes on where an
// earlier stream of the same files stopped. It returns at once; Handler.SnapshotSent is called exactly once
// (except while closing), SnapshotProgress while it moves. One stream per link at a time. The files are opened
// on the stream's goroutine: point must stay referenced until SnapshotSent.
func (t *Transport) StreamSnapshot(id zab.LinkID, point snapshot.Point, src snapshot.Store) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return // everything has ended or is about to, with LinkDown
	}
	l := t.links[id]
	t.wg.Go(func() {
		err := errLinkEnded
		if l != nil {
			err = l.stream(point, src)
		}
		t.o.Handler.SnapshotSent(id, err)
	})
}

func (l *link) stream(point snapshot.Point, src snapshot.Store) (err error) {
	if err := point.Validate(); err != nil {
		return err
	}
	out := &outStream{have: make(chan []int64, 1), done: make(chan string, 1), ackWake: make(chan struct{}, 1)}
	l.mu.Lock()
	if l.out != nil {
		l.mu.Unlock()
		return errors.New("another snapshot stream is under way on this link")
	}
	l.streams++
	out.id, l.out = l.streams, out
	l.mu.Unlock()
	begun := false
	defer func() {
		l.mu.Lock()
		l.out = nil
		l.mu.Unlock()
		if err != nil && begun {
			l.pushText(kindSnapAbort, out.id, err.Error())
		}
	}()

	// All files are opened first: from here on a Retain cannot take them away.
	files := make([]snapshot.FileReader, len(point.Files))
	for i, f := range point.Files {
		if files[i], err = src.OpenFile(f.Name); err != nil {
			return err
		}
		defer func() { _ = files[i].Close() }()
	}
	begin := newFrame(kindSnapBegin)
	begin.buf = binary.BigEndian.AppendUint32(begin.buf, out.id)
	begin.buf = point.AppendTo(begin.buf)
	l.pushOwn(begin)
	begun = true

	have, done, err := out.awaitHave(l.dead)
	if done || err != nil {
		return err
	}
	if len(have) != len(point.Files) {
		return fmt.Errorf("the receiver reports %d files of %d", len(have), len(point.Files))
	}
	var sent int64
	for i, f := range point.Files {
		if have[i] < 0 || have[i] > f.Bytes {
			return fmt.Errorf("the receiver reports %d bytes of %s, which has %d", have[i], f.Name, f.Bytes)
		}
		for off := have[i]; off < f.Bytes; {
			n := min(f.Bytes-off, int64(l.t.o.Limits.ChunkBytes))
			for sent+n-out.acked.Load() > int64(l.t.o.Limits.StreamWindowBytes) {
				select {
				case <-out.ackWake:
				case reason := <-out.done:
					return doneError(reason)
				case <-l.dead:
					return errLinkEnded
				}
			}
			chunk, err := readChunk(out.id, i, off, int(n), files[i])
			if err != nil {
				return fmt.Errorf("reading %s: %w", f.Name, err)
			}
			select {
			case l.low <- chunk:
			case reason := <-out.done:
				chunk.release()
				return doneError(reason)
			case <-l.dead:
				chunk.release()
				return errLinkEnded
			}
			off += n
			sent += n
		}
	}
	for {
		select {
		case <-out.ackWake: // progress is reported by the reader
		case reason := <-out.done:
			return doneError(reason)
		case <-l.dead:
			return errLinkEnded
		}
	}
}

// awaitHave waits for the receiver's list of held bytes. done: there was the last word instead. If the receiver
// has everything both come at once and select may take either.
func (out *outStream) awaitHave(dead <-chan struct{}) (have []int64, done bool, err error) {
	select {
	case have := <-out.have:
		return have, false, nil
	case reason := <-out.done:
		return nil, true, doneError(reason)
	case <-dead:
		return nil, false, errLinkEnded
	}
}

// doneError turns the receiver's last word into the outcome: an empty reason says that the whole point is
// durable there.
func doneError(reason string) error {
	if reason == "" {
		return nil
	}
	return fmt.Errorf("the receiver could not take the snapshot: %s", reason)
}

func readChunk(stream uint32, file int, off int64, n int, r snapshot.FileReader) (*frame, error) {
	f := newFrame(kindSnapChunk)
	f.buf = binary.BigEndian.AppendUint32(f.buf, stream)
	f.buf = binary.BigEndian.AppendUint16(f.buf, uint16(file))
	f.buf = binary.BigEndian.AppendUint64(f.buf, uint64(off))
	head := len(f.buf) + 8
	if cap(f.buf) < head+n {
		f.buf = append(make([]byte, 0, head+n), f.buf...)
	}
	f.buf = f.buf[:head+n]
	data := f.buf[head:]
	if got, err := r.ReadAt(data, off); got < n {
		f.release()
		return nil, fmt.Errorf("offset %d: %d of %d bytes: %w", off, got, n, err)
	}
	binary.BigEndian.PutUint64(f.buf[head-8:], snapshot.ChunkHash(data))
	f.seal()
	return f, nil
}

// pushOwn seals f, queues it and gives up the caller's reference.
func (l *link) pushOwn(f *frame) {
	f.seal()
	l.push(f)
	f.release()
}

func (l *link) pushText(kind byte, stream uint32, text string) {
	f := newFrame(kind)
	f.buf = binary.BigEndian.AppendUint32(f.buf, stream)
	f.buf = append(f.buf, text[:min(len(text), maxReasonBytes)]...)
	l.pushOwn(f)
}

// deliverStream handles one frame of a stream, on the reader goroutine.
func (l *link) deliverStream(kind byte, body []byte) error {
	if len(body) < 4 {
		return fmt.Errorf("%w: stream frame of %d bytes", errFrame, len(body))
	}
	id := binary.BigEndian.Uint32(body)
	body = body[4:]
	if kind == kindSnapBegin {
		return l.beginReceive(id, body)
	}
	l.mu.Lock()
	out, in := l.out, l.in
	l.mu.Unlock()
	switch kind {
	case kindSnapChunk, kindSnapAbort:
		if in == nil || in.id != id {
			return nil // of a stream that has ended here
		}
		if kind == kindSnapAbort {
			select {
			case in.aborted <- printable(body[:min(len(body), maxReasonBytes)]):
			default:
			}
			return nil
		}
		return in.take(body)
	}
	if out == nil || out.id != id {
		return nil
	}
	switch kind {
	case kindSnapHave:
		have, err := decodeHave(body)
		if err != nil {
			return err
		}
		select {
		case out.have <- have:
		default:
			return fmt.Errorf("%w: a second list of held bytes", errFrame)
		}
	case kindSnapAck:
		if len(body) != 8 {
			return fmt.Errorf("%w: stream ack of %d bytes", errFrame, len(body))
		}
		taken := int64(binary.BigEndian.Uint64(body))
		if taken < out.acked.Load() {
			return fmt.Errorf("%w: stream acks went back", errFrame)
		}
		out.acked.Store(taken)
		poke(out.ackWake)
		l.t.o.Handler.SnapshotProgress(l.id)
	case kindSnapDone:
		select {
		case out.done <- printable(body[:min(len(body), maxReasonBytes)]):
		default:
		}
	}
	return nil
}

func decodeHave(body []byte) ([]int64, error) {
	if len(body) < 2 {
		return nil, fmt.Errorf("%w: list of held bytes without a count", errFrame)
	}
	n := int(binary.BigEndian.Uint16(body))
	if n > snapshot.MaxFiles || len(body) != 2+8*n {
		return nil, fmt.Errorf("%w: list of held bytes: %d files in %d bytes", errFrame, n, len(body))
	}
	have := make([]int64, n)
	for i := range have {
		have[i] = int64(binary.BigEndian.Uint64(body[2+8*i:]))
	}
	return have, nil
}

// take queues a chunk for the receiving goroutine. The sender's window keeps well below the bounds.
func (in *inStream) take(body []byte) error {
	if len(body) < chunkHeadBytes-5 {
		return fmt.Errorf("%w: snapshot chunk of %d bytes", errFrame, len(body))
	}
	c := inChunk{file: int(binary.BigEndian.Uint16(body)), off: int64(binary.BigEndian.Uint64(body[2:])), hash: binary.BigEndian.Uint64(body[10:]), data: body[18:]}
	if c.file >= in.files || c.off < 0 {
		return fmt.Errorf("%w: snapshot chunk for file %d of %d at %d", errFrame, c.file, in.files, c.off)
	}
	if in.backlog.Add(int64(len(c.data))) > maxBacklogBytes {
		return fmt.Errorf("%w: the sender ignores the stream's window", errFrame)
	}
	select {
	case in.chunks <- c:
		return nil
	default:
		return fmt.Errorf("%w: the sender ignores the stream's window", errFrame)
	}
}

func (l *link) beginReceive(id uint32, body []byte) error {
	point, err := snapshot.DecodePoint(body)
	if err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	in := &inStream{id: id, files: len(point.Files), chunks: make(chan inChunk, maxBacklogChunks), aborted: make(chan string, 1)}
	l.mu.Lock()
	busy := l.in != nil
	if !busy {
		l.in = in
	}
	l.mu.Unlock()
	if busy {
		return fmt.Errorf("%w: a second snapshot stream while one is under way", errFrame)
	}
	l.t.wg.Go(func() {
		err := l.receive(in, point)
		l.mu.Lock()
		l.in = nil
		l.mu.Unlock()
		// The report precedes the answer, so that whatever the sender sends upon the answer is handled after
		// the report.
		l.t.o.Handler.SnapshotReceived(l.id, point, err)
		reason := ""
		if err != nil {
			reason = err.Error()
		}
		l.pushText(kindSnapDone, id, reason)
	})
	return nil
}

// receive is the receiving goroutine: the disk is touched here, never by the reader.
func (l *link) receive(in *inStream, point snapshot.Point) error {
	store := l.t.o.Snapshots
	if store == nil {
		return errors.New("this member takes no snapshots")
	}
	select {
	case l.t.receiving <- struct{}{}: // a receiver of an earlier link may still be finishing
		defer func() { <-l.t.receiving }()
	case <-l.dead:
		return errLinkEnded
	}
	r, err := store.Receive(point)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // after Commit it does nothing; after a failure what was received stays for the next attempt
	have := r.Have()
	f := newFrame(kindSnapHave)
	f.buf = binary.BigEndian.AppendUint32(f.buf, in.id)
	f.buf = binary.BigEndian.AppendUint16(f.buf, uint16(len(have)))
	missing := int64(0)
	for i, n := range have {
		f.buf = binary.BigEndian.AppendUint64(f.buf, uint64(n))
		missing += point.Files[i].Bytes - n
	}
	l.pushOwn(f)
	var taken int64
	for missing > 0 {
		var c inChunk
		select {
		case c = <-in.chunks:
		case reason := <-in.aborted:
			return fmt.Errorf("the sender stopped the snapshot: %s", reason)
		case <-l.dead:
			return errLinkEnded
		}
		in.backlog.Add(-int64(len(c.data)))
		if err := r.WriteChunk(c.file, c.off, c.data, c.hash); err != nil {
			return err
		}
		missing -= int64(len(c.data))
		taken += int64(len(c.data))
		ack := newFrame(kindSnapAck)
		ack.buf = binary.BigEndian.AppendUint32(ack.buf, in.id)
		ack.buf = binary.BigEndian.AppendUint64(ack.buf, uint64(taken))
		l.pushOwn(ack)
		l.t.o.Handler.SnapshotProgress(l.id)
	}
	return r.Commit()
}
