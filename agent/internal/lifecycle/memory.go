package lifecycle

import (
	"context"
	"log/slog"
	"time"

	"github.com/neardns/neardns/agent/internal/lifecycle/memtrim"
	"github.com/neardns/neardns/pkg/tick"
)

// The start is over settleRest after the node is ready, or settleMax after settle began, because a node may wait long for kube-dns.
const (
	settleLook = 250 * time.Millisecond
	settleRest = 500 * time.Millisecond
	settleMax  = time.Minute
)

// releaseStartMemory frees, once, the memory that only the start needed.
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
		log.Debug("memory of the start not released", "err", err)
		return
	}
	log.Debug("memory of the start released", "of", "the program's file", "bytes", file)
}
