// Package wire is ZooKeeper's client protocol as bytes: frames, the handshake, the records of every
// operation, multi, watch events and the four-letter words. It knows no connection, no session and no
// tree; the server ([kvd/ensemble]) and the Go client ([kvd/kv/client]) share it, so that a record is
// written down once.
//
// # Layout of the bytes
//
//	frame    | length int32 | body            length counts the body only
//	first    body = ConnectRequest            and ConnectResponse in return, both without a header
//	request  body = RequestHeader  | record    xid int32, op int32
//	reply    body = ReplyHeader    | record    xid int32, zxid int64, err int32; no record when err != 0
//	event    body = ReplyHeader{-1, zxid, 0} | WatcherEvent
//
// Integers are big-endian. A string or buffer is an int32 length and its bytes, length -1 is null. A vector
// is an int32 count and its elements, count -1 is null. Records have neither tags nor padding.
//
// # How it is used
//
// Encoding appends to the caller's buffer and never fails. Decoding runs over a [Reader] that holds the
// frame; the first impossible length makes the Reader fail for good, so a record is decoded without a check
// per field and [Reader.Err] is asked once at the end. Bytes after a record are ignored, as ZooKeeper does.
//
// Decoded strings and buffers ALIAS the frame. They live as long as the frame's bytes do: see
// [FrameReader.Next] for when that is. Whoever keeps a path longer (a watch table) clones it.
//
// Nothing here allocates on behalf of a length that was only announced: a vector's count is checked against
// the bytes that are there before its slice is made.
//
// The table of operations is in op.go: one row per operation with its name, its class and its two records. A
// new operation is a row and, if no existing record has its shape, a record.
package wire
