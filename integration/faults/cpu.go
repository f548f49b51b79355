package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// busy is how much waiting for a CPU within a second is worth a word: what is asked meanwhile may come too late, and with a little
// more a lease lapses.
const busy = 500 * time.Millisecond

// waited is how long each of a process's threads was ready to run and did not (the second figure of schedstat, see
// Documentation/scheduler/sched-stats.rst), by the threads' files; empty when it is gone or the kernel does not count it.
func waited(pid int) map[string]time.Duration {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	out := map[string]time.Duration{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		var on, off int64
		if err != nil {
			continue // a thread that has ended
		}
		if _, err := fmt.Sscan(string(data), &on, &off); err == nil {
			out[file] = time.Duration(off)
		}
	}
	return out
}

// longest is the most that one thread waited between two looks. One that is new waited since it began.
func longest(from, to map[string]time.Duration) (most time.Duration) {
	for thread, off := range to {
		most = max(most, off-from[thread])
	}
	return most
}
