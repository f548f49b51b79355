package bpf

import (
	"context"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
)

// copiesBytes is the size of the ring buffer for mirrored queries, enough for almost 1,500 unread ones of 176 bytes each. It must be a
// power of two and a multiple of the page size (ringbuf_map_alloc).
const copiesBytes = 1 << 18

// Copied calls each for every mirrored query, in order, until ctx ends. The kernel program mirrors a query if it answers queries of this
// form but has no valid answer to it; Uncopied counts those that it leaves out. each gets the index of the link that the query came from,
// and the DNS message, which it must not keep. If each is slow, mirrored queries are lost; pods' own queries are not. It needs a level with
// Options.Copies, and only one call may run at a time.
func (l *Level) Copied(ctx context.Context, each func(ifindex int, message []byte)) error {
	r, err := ringbuf.NewReader(l.objects.Copies)
	if err != nil {
		return fmt.Errorf("read mirrored queries: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = r.Close() })() // makes ReadInto return when ctx ends
	defer r.Close()                                          //nolint:errcheck // only read
	var record ringbuf.Record
	for {
		err := r.ReadInto(&record)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("read mirrored queries: %w", err)
		}
		if ifindex, message, ok := copiedOf(record.RawSample); ok {
			each(ifindex, message)
		}
	}
}

// copiedOf parses a ring buffer record, which has the type `struct copied` of hits.bpf.c.
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
