package lifecycle

import (
	"context"
	"log/slog"
	"time"

	"github.com/neardns/neardns/agent/internal/lifecycle/memtrim"
	"github.com/neardns/neardns/pkg/tick"
)

// releaseStartMemory considers the start complete settleRest after the node is ready. It waits for readiness at most settleMax, because
// kube-dns may be down for long.
const (
	settleLook = 250 * time.Millisecond
	settleRest = 500 * time.Millisecond
	settleMax  = time.Minute
)

// releaseStartMemory waits until the start is complete, and then frees once the memory that only the start needed.
func releaseStartMemory(ctx context.Context, log *slog.Logger, ready func() (bool, string)) {
	for begun := time.Now(); ; {
		if ok, _ := ready(); ok || time.Since(begun) >= settleMax {
			break
		}
		if !tick.Pause(ctx, settleLook) {
			return
		}
	}
	if !tick.Pause(ctx, settleRest) {
		return
	}
	file, err := memtrim.Settle()
	if err != nil {
		log.Debug("cannot free all memory that only the start needed", "err", err)
		return
	}
	log.Debug("freed the memory that only the start needed", "dropped_executable_bytes", file)
}
