//go:build timing

package procstat

import (
	"os"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestTimingMachine: a CPU that this process keeps busy is not idle.
//
// State: TestMachine. Bound: TestParseMachine.
func TestTimingMachine(t *testing.T) {
	before, err := Now()
	testutil.Must(t, err)
	begun, own := time.Now(), mustCPU(t)
	for time.Since(begun) < 100*time.Millisecond {
	}
	took, ran := time.Since(begun), mustCPU(t)-own
	after, err := Now()
	testutil.Must(t, err)
	// The sums are as old as the last tick of each CPU.
	m := after.Sub(before)
	if idle := took*time.Duration(m.CPUs) - ran + time.Duration(m.CPUs)*30*time.Millisecond; m.CPUs < 1 || m.Idle < 0 || m.Idle > idle {
		t.Errorf("idle for %v of %v on %d CPUs, while this process ran for %v", m.Idle, took, m.CPUs, ran)
	}
}

func mustCPU(t *testing.T) time.Duration {
	t.Helper()
	d, err := CPU(os.Getpid())
	testutil.Must(t, err)
	return d
}
