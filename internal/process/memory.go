// Package process has what every long-running program of neardns does with its process: it follows its configuration's files and SIGHUP,
// and keeps within the container's memory.
//
// It guarantees that a change of a file or a SIGHUP that came after the last reload leads to another one. A memory limit that cannot be
// read is logged, and none is set.
package process

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// memoryShare is how much of the cgroup's limit the Go runtime may use, in percent. The rest is for what the cgroup is
// charged with and the runtime does not see: sockets' buffers in the kernel, page tables, the program's own pages.
const memoryShare = 80

// gcPercent is how far the heap grows between two collections. Go's 100 would let a flood's garbage double what the cache
// holds; the heap is small and long-lived, so collecting twice as often costs about half a percent of a core at 10,000 hits a
// second.
const gcPercent = 50

// LimitMemory gives the Go runtime the memory limit of the container that it runs in, so that it collects garbage before
// the kernel kills the process: by itself it would let the heap double first. GOMEMLIMIT in the environment goes before, and
// so does GOGC, which is 50 otherwise.
//
// It is a soft limit: the runtime works harder near it and can exceed it. The cache's size and the limits in NodeConfig bound memory.
func LimitMemory(log *slog.Logger, lookupEnv func(string) (string, bool)) {
	limitMemory(log, lookupEnv, memlimit.FromCgroup, debug.SetMemoryLimit, debug.SetGCPercent)
}

// limitMemory has what belongs to the process as arguments. cgroup reads the limit, in bytes, of cgroup v1 or v2.
func limitMemory(log *slog.Logger, lookupEnv func(string) (string, bool),
	cgroup func() (uint64, error), set func(int64) int64, setGC func(int) int) {
	if value, ok := lookupEnv("GOGC"); !ok || value == "" {
		setGC(gcPercent)
	}
	if value, ok := lookupEnv("GOMEMLIMIT"); ok && value != "" {
		// The runtime has read it itself, before main.
		log.Info("memory limit", "gomemlimit", bytesText(set(-1)), "source", "GOMEMLIMIT")
		return
	}
	limit, err := cgroup()
	switch {
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
		log.Info("no memory limit", "reason", err)
	case err != nil:
		log.Warn("memory limit of the container not read, none is set: set GOMEMLIMIT", "err", err)
	default:
		share := int64(limit / 100 * memoryShare) //nolint:gosec // memlimit bounds it by what a machine can have
		set(share)
		log.Info("memory limit", "gomemlimit", bytesText(share), "container", bytesText(int64(limit)), "source", "cgroup")
	}
}

func bytesText(n int64) string { return fmt.Sprintf("%.1fMiB", float64(n)/(1<<20)) }
