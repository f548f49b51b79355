package bpf

import (
	"context"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
)

// copiesBytes bounds the mirrored queries that are not read yet, to about 1,400 of them. It is a power of two (bpf_map_create).
const copiesBytes = 1 << 18

// Copied calls each for every mirrored query, in order, until ctx ends, with the link that it came from and its message, which each must
// not keep. Mirrored are queries that the program could answer but has no valid answer to; their packets pass on. One link's share of the
// buffer is bounded, so that other links find room. If Copied is not running, or each is slow, mirrored queries are lost; the pods' own
// queries are not. The level must have been opened with Copies, and only one call may run at a time.
func (l *Level) Copied(ctx context.Context, each func(ifindex int, message []byte)) error {
	r, err := ringbuf.NewReader(l.objects.Copies)
	if err != nil {
		return fmt.Errorf("read copied questions: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = r.Close() })() // ends ReadInto
	defer r.Close()                                          //nolint:errcheck // only read
	var record ringbuf.Record
	for {
		err := r.ReadInto(&record)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("read copied questions: %w", err)
		}
		if ifindex, message, ok := copiedOf(record.RawSample); ok {
			each(ifindex, message)
		}
	}
}

// copiedOf parses a record: struct copied of the program.
func copiedOf(b []byte) (ifindex int, message []byte, ok bool) {
	const head, zeros = 8, 4
	if len(b) < int(unsafe.Sizeof(objectCopied{})) {
		return 0, nil, false
	}
	ifindex, message = int(binary.LittleEndian.Uint32(b)), b[head+zeros:]
	size := binary.LittleEndian.Uint32(b[4:])
	if int64(size) > int64(len(message)) {
		return 0, nil, false
	}
	return ifindex, message[:size], true
}
