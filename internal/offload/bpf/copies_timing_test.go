//go:build timing

package bpf

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestTimingCopiesOfOneLink: of a pod that queries ever new names, a bounded number of queries is mirrored, and they do not fill the ring.
//
// State: TestUncopied. Bound: none, the kernel program counts copies by the kernel's clock.
func TestTimingCopiesOfOneLink(t *testing.T) {
	l := openCopying(t)
	oneCPU(t)
	const asked = 1000 // for all of which the ring has room
	frames := make([][]byte, asked)
	for i := range frames {
		frames[i] = packet(false, none, ask(t, fmt.Sprintf("n%d.example.", i), dns.TypeA, nil))
	}
	begun := time.Now()
	for _, frame := range frames {
		run(t, l, frame, nil)
	}
	took := time.Since(begun)
	most := 16 * (int(took>>26) + 2)
	if got := len(copies(t, l)); got == 0 || got > most {
		t.Errorf("%d of %d were copied in %s, at most %d may be", got, asked, took, most)
	}
	if most > asked/2 {
		t.Errorf("%d queries in %s are too few for the bound", asked, took)
	}
}
