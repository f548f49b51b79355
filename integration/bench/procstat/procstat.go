// Package procstat reads what processes and the machine used, from /proc: the scheduler's own sums of time (schedstat), memory, and
// what the hypervisor took. Nothing in it keeps state.
package procstat

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// CPU is how long a process's threads have run. It is the scheduler's own sum: user and system time are sampled by
// ticks on many kernels, which short bursts hide between. Threads that ended are lost; servers keep theirs.
func CPU(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, f := range files {
		data, err := os.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, os.ErrProcessDone) {
			continue
		} else if err != nil {
			return 0, fmt.Errorf("read CPU time of %d: %w", pid, err)
		}
		field, _, _ := bytes.Cut(data, []byte(" "))
		ns, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", f, err)
		}
		sum += time.Duration(ns)
	}
	if sum == 0 {
		return 0, fmt.Errorf("process %d has no CPU time: it is gone, or the kernel has no schedstat", pid)
	}
	return sum, nil
}

// SoftIRQ lists the kernel's threads (ksoftirqd) that take what the network left over: on veth pairs most of that runs in the
// sender's time, the rest in theirs.
func SoftIRQ() ([]int, error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, n := range names {
		data, err := os.ReadFile(n)
		if err != nil || !bytes.HasPrefix(data, []byte("ksoftirqd/")) {
			continue // a process that ended meanwhile, or another one
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(n)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Machine is what all CPUs did since the boot, in sum.
type Machine struct {
	CPUs  int
	Idle  time.Duration // nothing to do
	Steal time.Duration // another guest had the CPU
}

// Sub is what was done since an earlier look.
func (m Machine) Sub(o Machine) Machine { return Machine{m.CPUs, m.Idle - o.Idle, m.Steal - o.Steal} }

// Now looks at the machine. It counts in steps of 10 ms. The kernel measures idle time; what ran it samples by ticks, so that
// what others ran is better found as the rest.
func Now() (Machine, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return Machine{}, fmt.Errorf("read the CPUs' times: %w", err)
	}
	return parseMachine(string(stat))
}

// tick is USER_HZ, in which /proc/stat counts on every architecture (proc_stat(5)).
const tick = 10 * time.Millisecond

func parseMachine(stat string) (Machine, error) {
	var m Machine
	for line := range strings.Lines(stat) {
		// user nice system idle iowait irq softirq steal (proc_stat(5))
		f := strings.Fields(line)
		if len(f) < 9 || !strings.HasPrefix(f[0], "cpu") || f[0] == "cpu" {
			continue
		}
		var ticks [3]int64
		for i, at := range []int{4, 5, 8} {
			n, err := strconv.ParseInt(f[at], 10, 64)
			if err != nil {
				return Machine{}, fmt.Errorf("/proc/stat: %w", err)
			}
			ticks[i] = n
		}
		m.CPUs++
		m.Idle += time.Duration(ticks[0]+ticks[1]) * tick
		m.Steal += time.Duration(ticks[2]) * tick
	}
	if m.CPUs == 0 {
		return Machine{}, errors.New("/proc/stat names no CPU")
	}
	return m, nil
}

// Memory is what a process occupies, in MiB.
type Memory struct{ RSS, PSS, Anonymous float64 }

// MemoryOf reads it.
func MemoryOf(pid int) (Memory, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return Memory{}, fmt.Errorf("read memory of %d: %w", pid, err)
	}
	var m Memory
	for name, to := range map[string]*float64{"Rss:": &m.RSS, "Pss:": &m.PSS, "Anonymous:": &m.Anonymous} {
		s := bufio.NewScanner(bytes.NewReader(data))
		for s.Scan() {
			if f := strings.Fields(s.Text()); len(f) == 3 && f[0] == name {
				kib, err := strconv.ParseFloat(f[1], 64)
				if err != nil {
					return Memory{}, fmt.Errorf("memory of %d: %w", pid, err)
				}
				*to = kib / 1024
			}
		}
	}
	if m.RSS == 0 {
		return Memory{}, fmt.Errorf("process %d has no memory: it is gone", pid)
	}
	return m, nil
}
