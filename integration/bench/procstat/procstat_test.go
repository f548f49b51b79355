package procstat

import (
	"os"
	"testing"
	"time"
)

func TestProcess(t *testing.T) {
	if d, err := CPU(os.Getpid()); err != nil || d <= 0 {
		t.Errorf("own CPU time %v, %v", d, err)
	}
	if m, err := MemoryOf(os.Getpid()); err != nil || m.RSS < m.Anonymous || m.PSS <= 0 {
		t.Errorf("own memory %+v, %v", m, err)
	}
	const nobody = 1 << 30
	if _, err := CPU(nobody); err == nil {
		t.Error("CPU time of nobody")
	}
	if _, err := MemoryOf(nobody); err == nil {
		t.Error("memory of nobody")
	}
}

// A CPU that this process keeps busy is not idle.
func TestMachine(t *testing.T) {
	before, err := Now()
	if err != nil {
		t.Fatal(err)
	}
	begun, own := time.Now(), mustCPU(t)
	for time.Since(begun) < 100*time.Millisecond {
	}
	took, ran := time.Since(begun), mustCPU(t)-own
	after, err := Now()
	if err != nil {
		t.Fatal(err)
	}
	// The sums are as old as the last tick of each CPU.
	m := after.Sub(before)
	if idle := took*time.Duration(m.CPUs) - ran + time.Duration(m.CPUs)*30*time.Millisecond; m.CPUs < 1 || m.Idle < 0 || m.Idle > idle {
		t.Errorf("idle for %v of %v on %d CPUs, while this process ran for %v", m.Idle, took, m.CPUs, ran)
	}
	if pids, err := SoftIRQ(); err != nil || len(pids) == 0 {
		t.Logf("no ksoftirqd: %v, %v", pids, err)
	}
}

func mustCPU(t *testing.T) time.Duration {
	t.Helper()
	d, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestParseMachine(t *testing.T) {
	const stat = "cpu  2 4 6 8 10 12 14 160 0 0\ncpu0 1 2 3 4 5 6 7 70 0 0\ncpu1 1 2 3 4 5 6 7 90 0 0\nintr 5\n"
	if m, err := parseMachine(stat); err != nil || m != (Machine{CPUs: 2, Idle: 180 * time.Millisecond, Steal: 1600 * time.Millisecond}) {
		t.Errorf("%+v, %v", m, err)
	}
	for _, bad := range []string{"", "cpu 1 2 3 4 5 6 7 8\n", "cpu0 1 2 3 x 5 6 7 8\n"} {
		if _, err := parseMachine(bad); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}
