package bpf

import (
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// Reason is why the program passed a query on instead of answering it: its key in the kernel map of passes.
type Reason uint32

// The reasons.
const (
	Packet     Reason = iota + 1 // for example IP options, fragments, padding, a VLAN tag, a checksum that is wrong or of uncertain kind
	Question                     // the query has a form that the program does not answer
	Unknown                      // the kernel maps have no answer to the query
	Old                          // the answer is expired or past Answer.Until
	Size                         // the answer is too large for the client
	Kernel                       // a kernel helper failed, for example for lack of memory, or the program interrupted its own run on the CPU
	Unanswered                   // the query is a sample, or no recent sample of the pod is known to be answered
)

func (r Reason) String() string {
	return [...]string{"", "packet", "question", "unknown", "old", "size", "kernel", "unanswered"}[r]
}

// passed reads how many queries to served addresses the program passed on since the kernel maps were made, by reason.
func passed(t testing.TB, l *Level) map[Reason]uint64 {
	t.Helper()
	out := map[Reason]uint64{}
	for r := Packet; r <= Unanswered; r++ {
		n, err := l.passed(uint32(r))
		testutil.Must(t, err)
		out[r] = n
	}
	return out
}
