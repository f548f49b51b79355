package testutil

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Cgroup is a control group with one controller, below the cgroup that the test runs in. Its processes must have ended at
// the end of the test.
type Cgroup struct {
	t   TB
	dir string
	v2  bool
}

// NewCgroup makes a cgroup with controller ("cpu" or "memory"), of version 1 or 2, whichever the machine uses for it. It
// skips the test if it cannot make one.
func NewCgroup(t testing.TB, controller string) *Cgroup {
	t.Helper()
	g := OpenCgroup(t, controller)
	if g == nil {
		Skip(t, "no "+controller+" cgroup can be made here")
	}
	return g
}

// NewCgroups makes cgroups for CPU and memory of the same processes. In version 2, where a process is in one cgroup, they are the same.
func NewCgroups(t testing.TB) (cpu, memory *Cgroup) {
	t.Helper()
	cpu = NewCgroup(t, "cpu")
	if _, err := os.Stat(filepath.Join(cpu.dir, "memory.max")); err == nil {
		return cpu, cpu
	}
	return cpu, NewCgroup(t, "memory")
}

// OpenCgroup is NewCgroup for programs. It returns nil if no cgroup can be made.
func OpenCgroup(t TB, controller string) *Cgroup {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatalf("read own cgroup: %v", err)
	}
	for line := range strings.Lines(string(own)) {
		// "7:cpu,cpuacct:/path" for version 1, "0::/path" for version 2.
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || f[1] != "" && !strings.Contains(","+f[1]+",", ","+controller+",") {
			continue
		}
		g := &Cgroup{t: t, v2: f[1] == ""}
		for _, root := range g.roots(f[1]) {
			if g.make(filepath.Join(root, f[2]), controller) {
				t.Cleanup(g.Remove)
				return g
			}
		}
	}
	return nil
}

// roots returns the folders where the cgroup hierarchy may be mounted: version 2 alone or next to version 1.
func (g *Cgroup) roots(controllers string) []string {
	if g.v2 {
		return []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}
	}
	return []string{"/sys/fs/cgroup/" + controllers}
}

func (g *Cgroup) make(parent, controller string) bool {
	file := map[string]string{"cpu": "cpu.cfs_quota_us", "memory": "memory.limit_in_bytes"}[controller]
	if g.v2 {
		file = controller + ".max"
		// The kernel refuses this if the parent itself has processes, unless it is the root. The new cgroup then lacks the file.
		for _, c := range []string{"cpu", "memory"} {
			_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+c), 0)
		}
	}
	g.dir = filepath.Join(parent, fmt.Sprintf("neardns-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	if os.Mkdir(g.dir, 0o755) != nil {
		return false
	}
	if _, err := os.Stat(filepath.Join(g.dir, file)); err != nil {
		g.Remove()
		return false
	}
	if controller == "memory" && !g.v2 {
		g.set("memory.kmem.tcp.limit_in_bytes", strconv.FormatInt(math.MaxInt64, 10)) // starts the accounting
	}
	return true
}

// Remove waits until the cgroup's processes have ended, then removes the cgroup. It may be called twice.
func (g *Cgroup) Remove() {
	// A killed process leaves its cgroup a moment later.
	Eventually(g.t, func() error {
		if err := os.Remove(g.dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove cgroup: %w", err)
		}
		return nil
	})
}

func (g *Cgroup) set(file, value string) {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, file), []byte(value), 0); err != nil {
		g.t.Fatalf("set %s: %v", file, err)
	}
}

// Add moves a process, with all its threads, into the cgroup.
func (g *Cgroup) Add(pid int) {
	g.t.Helper()
	g.set("cgroup.procs", strconv.Itoa(pid))
}

// LimitCPU lets the cgroup run for quota in every 100 ms, as the kubelet sets it: 5 ms is a limit of 50m. Zero removes the
// limit.
func (g *Cgroup) LimitCPU(quota time.Duration) {
	g.t.Helper()
	const period = 100_000
	us := strconv.FormatInt(quota.Microseconds(), 10)
	switch {
	case g.v2 && quota == 0:
		g.set("cpu.max", "max")
	case g.v2:
		g.set("cpu.max", us+" "+strconv.Itoa(period))
	case quota == 0:
		g.set("cpu.cfs_quota_us", "-1")
	default:
		g.set("cpu.cfs_period_us", strconv.Itoa(period))
		g.set("cpu.cfs_quota_us", us)
	}
}

// LimitMemory limits the cgroup's memory to limit bytes. If the cgroup needs more, the kernel kills processes in it.
func (g *Cgroup) LimitMemory(limit int64) {
	g.t.Helper()
	file := "memory.limit_in_bytes"
	if g.v2 {
		file = "memory.max"
	}
	g.set(file, strconv.FormatInt(limit, 10))
}

// PeakMemory returns the maximum memory, in bytes, that the cgroup has used: by its processes, by pages of files that these were the first
// to read, and by their TCP sockets. Version 1 counts the sockets separately, so the result is the sum of two maximums. In version 2 before
// Linux 5.19, the result is the memory in use now.
func (g *Cgroup) PeakMemory() (peak int64) {
	g.t.Helper()
	files := []string{"memory.max_usage_in_bytes", "memory.kmem.tcp.max_usage_in_bytes"}
	if g.v2 {
		files = []string{"memory.peak"}
		if _, err := os.Stat(filepath.Join(g.dir, files[0])); err != nil {
			files[0] = "memory.current" // Linux before 5.19 has no memory.peak
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(g.dir, file))
		if err != nil {
			g.t.Fatalf("read the cgroup's peak: %v", err)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			g.t.Fatalf("read the cgroup's peak: %v", err)
		}
		peak += n
	}
	return peak
}

// OOMKills returns how many of the cgroup's processes the kernel has killed at the memory limit. It is 0 in version 1 before Linux 4.13.
func (g *Cgroup) OOMKills() int {
	g.t.Helper()
	file := "memory.oom_control"
	if g.v2 {
		file = "memory.events"
	}
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		g.t.Fatalf("read the cgroup's OOM kills: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			kills, _ := strconv.Atoi(n) // cannot fail, because the kernel writes a number
			return kills
		}
	}
	return 0
}

// Contains reports whether a process is in the cgroup.
func (g *Cgroup) Contains(pid int) bool {
	g.t.Helper()
	procs, err := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	if err != nil && !errors.Is(err, unix.ENODEV) {
		g.t.Fatalf("read cgroup: %v", err)
	}
	for line := range strings.Lines(string(procs)) {
		if strings.TrimSpace(line) == strconv.Itoa(pid) {
			return true
		}
	}
	return false
}

// StartIn starts a program in the namespace and in cgroups from its first instruction on.
func (n *NetNS) StartIn(groups []*Cgroup, args ...string) *Process {
	n.t.Helper()
	script := ""
	for _, g := range groups {
		script += "echo $$ >'" + filepath.Join(g.dir, "cgroup.procs") + "' && "
	}
	return n.Start(append([]string{"sh", "-c", script + `exec "$0" "$@"`}, args...)...)
}
