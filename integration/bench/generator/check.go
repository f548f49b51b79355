package generator

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/neardns/neardns/integration/bench/workload"
)

const (
	servFail = 2
	refused  = 5
)

// check reports what is wrong with an answer; "" where it is right. It never reads beyond the answer, whatever that is.
func check(answer []byte, q *workload.Question, number int) string {
	length := q.Length()
	if len(answer) < 2+length {
		return fmt.Sprintf("an answer of %d bytes", len(answer))
	}
	flags := binary.BigEndian.Uint16(answer[2:])
	switch {
	case flags&0x8000 == 0:
		return "no answer but a question"
	case flags&0x7800 != 0:
		return fmt.Sprintf("operation code %d", flags>>11&0xf)
	case flags&0x0200 != 0:
		return "truncated"
	case uint8(flags&0xf) != q.Rcode:
		return fmt.Sprintf("response code %d, want %d", flags&0xf, q.Rcode)
	case binary.BigEndian.Uint16(answer[4:]) != 1 || !sameQuestion(answer[12:2+length], q, number):
		return "another question"
	}
	count := binary.BigEndian.Uint16(answer[6:])
	if count != q.Count {
		return fmt.Sprintf("%d records, want %d", count, q.Count)
	}
	rest := answer[2+length:]
	for range count {
		data, more, ok := record(rest, q.Type)
		if !ok {
			return "a record that cannot be read, or of another type"
		}
		if !bytes.HasPrefix(data, q.First) {
			return fmt.Sprintf("data %x, want %x", data, q.First)
		}
		rest = more
	}
	return ""
}

// sameQuestion compares byte by byte, in the case that was queried.
func sameQuestion(got []byte, q *workload.Question, number int) bool {
	want := q.Wire[10:q.Length()]
	if q.Digits == 0 {
		return bytes.Equal(got, want)
	}
	var wire [512]byte
	n := copy(wire[:], q.Wire)
	q.Number(wire[:n], number)
	return bytes.Equal(got, wire[10:q.Length()])
}

// record reads one record and returns its data and what follows it.
func record(b []byte, qtype uint16) (data, rest []byte, ok bool) {
	for { // its name: labels, or a pointer to them
		if len(b) == 0 {
			return nil, nil, false
		}
		n := int(b[0])
		if n >= 0xc0 {
			n = 1
		}
		if len(b) < n+1 {
			return nil, nil, false
		}
		end := b[0] == 0 || b[0] >= 0xc0
		if b = b[n+1:]; end {
			break
		}
	}
	if len(b) < 10 || binary.BigEndian.Uint16(b) != qtype {
		return nil, nil, false
	}
	n := int(binary.BigEndian.Uint16(b[8:]))
	if len(b) < 10+n {
		return nil, nil, false
	}
	return b[10 : 10+n], b[10+n:], true
}
