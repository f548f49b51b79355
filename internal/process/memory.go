// Package process has two things that the agent and neardns-edge need as processes: reloads when a file changes or a signal comes, and the
// Go runtime's memory limit.
//
// It guarantees that a change or signal that comes during a reload leads to another reload.
//
// On failure: if the container's memory limit cannot be read, it logs that and sets none.
package process

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// memoryShare is the percentage of the cgroup's memory limit that the Go runtime may use. The rest is for memory that the cgroup is
// charged for but the runtime does not count: socket buffers, page tables, the program's code.
const memoryShare = 80

// gcPercent is the value for GOGC: how far the heap may grow between two collections, in percent. With Go's default of 100, garbage could
// double the memory of the cache. With 50, the runtime collects twice as often, which costs about half a percent of a core at 10,000 hits
// a second.
const gcPercent = 50

// LimitMemory sets the Go runtime's memory limit to a share of the container's, so that the runtime collects garbage before the kernel
// kills the process, and sets GOGC to 50. The environment variables GOMEMLIMIT and GOGC take precedence.
//
// The limit is soft: near it, the runtime collects more often, but can exceed it.
func LimitMemory(log *slog.Logger, lookupEnv func(string) (string, bool)) {
	limitMemory(log, lookupEnv, memlimit.FromCgroup, debug.SetMemoryLimit, debug.SetGCPercent)
}

// limitMemory is LimitMemory with its access to the process as arguments, for tests. cgroup returns the limit of cgroup v1 or v2 in
// bytes.
func limitMemory(log *slog.Logger, lookupEnv func(string) (string, bool),
	cgroup func() (uint64, error), set func(int64) int64, setGC func(int) int) {
	if value, ok := lookupEnv("GOGC"); !ok || value == "" {
		setGC(gcPercent)
	}
	if value, ok := lookupEnv("GOMEMLIMIT"); ok && value != "" {
		// The Go runtime has read GOMEMLIMIT before main.
		log.Info("Go memory limit set", "gomemlimit", bytesText(set(-1)), "source", "GOMEMLIMIT")
		return
	}
	limit, err := cgroup()
	switch {
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
		log.Info("no memory limit set for the Go runtime", "reason", err)
	case err != nil:
		log.Warn("cannot read the container's memory limit; the Go runtime runs without one: set GOMEMLIMIT", "err", err)
	default:
		share := int64(limit / 100 * memoryShare) //nolint:gosec // memlimit caps it at what a machine can have
		set(share)
		log.Info("Go memory limit set from the cgroup", "gomemlimit", bytesText(share), "container", bytesText(int64(limit)), "source", "cgroup")
	}
}

func bytesText(n int64) string { return fmt.Sprintf("%.1fMiB", float64(n)/(1<<20)) }
