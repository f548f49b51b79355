package testutil

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCgroup(t *testing.T) {
	RequireRoot(t)
	var dirs []string
	t.Run("made", func(t *testing.T) {
		cpu, memory := NewCgroups(t)
		dirs = []string{cpu.dir, memory.dir}
		cpu.LimitCPU(5 * time.Millisecond)
		memory.LimitMemory(64 << 20)
		ns := NewNS(t, "cgroup")
		p := ns.StartIn([]*Cgroup{cpu, memory}, "sleep", "60")
		for _, g := range []*Cgroup{cpu, memory} {
			Eventually(t, func() error { return ErrorIf(!g.Contains(p.PID()), "not in the cgroup") })
		}
		other := ns.Start("sleep", "60")
		cpu.Add(other.PID())
		if !cpu.Contains(other.PID()) || memory != cpu && memory.Contains(other.PID()) {
			t.Error("Add moved the process elsewhere")
		}
		limits := ""
		for _, file := range []string{filepath.Join(cpu.dir, "cpu.cfs_quota_us"), filepath.Join(cpu.dir, "cpu.max"),
			filepath.Join(memory.dir, "memory.limit_in_bytes"), filepath.Join(memory.dir, "memory.max")} {
			text, _ := os.ReadFile(file) // two of the four are there
			limits += string(text)
		}
		if !strings.Contains(limits, "5000") || !strings.Contains(limits, "67108864") {
			t.Errorf("limits are %q", limits)
		}
		cpu.LimitCPU(0)
	})
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is left", dir)
		}
	}
}
