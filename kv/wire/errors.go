package wire

import "errors"

var (
	// ErrMarshalling: a header, a handshake or a record does not parse. A request that is answered gets
	// ZooKeeper's error -5 and the connection stays; a frame too short for its header closes it.
	ErrMarshalling = errors.New("wire: record does not parse")

	// ErrFrameLength: a frame announces a negative length or one beyond the limit. The connection is closed
	// without a reply.
	ErrFrameLength = errors.New("wire: frame length is negative or beyond the limit")

	// ErrNotWrite: DecodeRequest was given an operation that is no write. A mistake of the caller.
	ErrNotWrite = errors.New("wire: operation is not a write")
)
