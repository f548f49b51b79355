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

func TestMachine(t *testing.T) {
	if m, err := Now(); err != nil || m.CPUs < 1 || m.Idle <= 0 {
		t.Errorf("%+v, %v", m, err)
	}
	if pids, err := SoftIRQ(); err != nil || len(pids) == 0 {
		t.Logf("no ksoftirqd: %v, %v", pids, err)
	}
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
