package bpf

import (
	"context"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
)

// copiesBytes is what copied questions may take that nobody has read yet, some 1,400 of them: a power of two (bpf_map_create).
const copiesBytes = 1 << 18

// Copied calls each with the questions that there was no good answer to, in their order, until ctx ends: at which link one came, and its
// message, which each must not keep. They are in a form that is answered here, and their packets went on. One link's are bounded, so that
// those of others find room; while nobody calls Copied, and where each is slow, questions are lost to it and to nobody else. The level
// must have been opened for it, and one call reads at a time.
func (l *Level) Copied(ctx context.Context, each func(ifindex int, message []byte)) error {
	r, err := ringbuf.NewReader(l.objects.Copies)
	if err != nil {
		return fmt.Errorf("read copied questions: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = r.Close() })() // ends the reading
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

// copiedOf reads a record, struct copied of the program.
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
