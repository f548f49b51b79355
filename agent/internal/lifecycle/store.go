package lifecycle

import (
	"encoding/hex"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/pkg/nodestate"
)

func mebibytes(n int) int64 { return int64(n) << 20 }

// newAnswers makes the cache's store, and the Keeper that saves it to a file and loads it. The store stays when the Corefile changes.
func newAnswers(log *slog.Logger, conf *config.Node) *answers.Keeper {
	return &answers.Keeper{
		Store: answers.NewStore(mebibytes(conf.Cache.MemoryMiB)), Path: filepath.Join(conf.PersistDir, nodestate.CacheSnapshotName),
		Boot: bootClock, Log: log,
	}
}

// bootClock returns the ID of the current boot and the time since that boot, including suspended time. It returns the zero Boot if either
// cannot be read.
func bootClock() answers.Boot {
	id, err := hex.DecodeString(strings.ReplaceAll(nodestate.ThisBoot(), "-", ""))
	var since unix.Timespec
	if err != nil || len(id) != 16 || unix.ClockGettime(unix.CLOCK_BOOTTIME, &since) != nil {
		return answers.Boot{}
	}
	return answers.Boot{ID: [16]byte(id), Since: time.Duration(since.Nano())}
}
