package main

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

// note takes an answer in; false for one that nobody waits for.
func (a *asker) note(answer []byte) bool {
	if len(answer) < 12 {
		return false
	}
	id := binary.BigEndian.Uint16(answer)
	if a.due[id].IsZero() {
		return false
	}
	a.times = append(a.times, time.Since(a.due[id]))
	a.due[id] = time.Time{}
	// An answer, its code NOERROR, with at least one record.
	if answer[2]&0x80 == 0 || answer[3]&0x0f != 0 || binary.BigEndian.Uint16(answer[6:]) == 0 {
		a.result.Wrong++
		return true
	}
	a.result.Answered++
	return true
}

// question writes an A question for n<number>.<zone>.
func question(b []byte, id uint16, n int, zone string) []byte {
	b = binary.BigEndian.AppendUint16(b, id)
	b = append(b, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0) // recursion desired; one question
	label := fmt.Appendf(make([]byte, 0, 16), "n%07d", n)
	b = append(append(b, byte(len(label))), label...)
	for part := range strings.SplitSeq(zone, ".") {
		b = append(append(b, byte(len(part))), part...)
	}
	return append(b, 0, 0, 1, 0, 1)
}
