package main

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

// cpuTime is how long a process's threads have run. It is the scheduler's own sum: user and system time are sampled by
// ticks on many kernels, which short bursts hide between. Threads that ended are lost; Go's servers keep theirs.
func cpuTime(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, f := range files {
		data, err := os.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) {
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

// memory is what a process occupies, in MiB.
type memory struct{ RSS, PSS, Anonymous float64 }

func memoryOf(pid int) (memory, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return memory{}, fmt.Errorf("read memory of %d: %w", pid, err)
	}
	var m memory
	for name, to := range map[string]*float64{"Rss:": &m.RSS, "Pss:": &m.PSS, "Anonymous:": &m.Anonymous} {
		s := bufio.NewScanner(bytes.NewReader(data))
		for s.Scan() {
			if f := strings.Fields(s.Text()); len(f) == 3 && f[0] == name {
				kib, err := strconv.ParseFloat(f[1], 64)
				if err != nil {
					return memory{}, fmt.Errorf("memory of %d: %w", pid, err)
				}
				*to = kib / 1024
			}
		}
	}
	if m.RSS == 0 {
		return memory{}, fmt.Errorf("process %d has no memory: it is gone", pid)
	}
	return m, nil
}
