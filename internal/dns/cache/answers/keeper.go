package answers

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/neardns/neardns/pkg/atomicfile"
	"github.com/neardns/neardns/pkg/tick"
)

// How often a Keeper does its work. Until sleepCheck notices that the machine was suspended, entries seem younger than they are; a second
// of error does not matter for TTLs. tick.Grid wakes at the same times as the prober, so the checks cost no wake-up of their own.
const (
	sleepCheck = time.Second
	sweepEvery = time.Minute
	saveEvery  = 3 * time.Minute
)

// Keeper does the periodic work for a store: it corrects the store's clock after a suspend, removes dead entries, and saves a snapshot to
// a file. If the file cannot be written or read, the next process starts with an empty or older cache.
type Keeper struct {
	Store *Store
	Path  string      // of the snapshot file; Save makes its folder if necessary
	Boot  func() Boot // reads the boot ID and the time since boot; the zero value if unknown
	Log   *slog.Logger

	mu      sync.Mutex // guards saved and failing, and writes of the file
	saved   uint64     // Store.Changes at the last snapshot
	failing bool

	fresh atomic.Int64 // for Fresh, Unix time in ms; atomic, because mu is held while a slow disk writes
}

// Load restores the snapshot file if there is one, and logs the result.
func (k *Keeper) Load() {
	f, err := atomicfile.Open(k.Path, os.O_RDONLY|syscall.O_NOFOLLOW) // a symbolic link could lead to another file
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		defer f.Close()
		var done Restored
		if done, err = k.Store.Restore(f, k.Boot()); err == nil {
			if done.Unknown {
				k.Log.Info("cache starts empty: its snapshot file may be from another boot, so its age is unknown", "path", k.Path)
				return
			}
			k.Log.Info("cache restored from file", "path", k.Path, "entries", done.Entries, "stale", done.Stale, "age", done.Age.Round(time.Second))
			return
		}
	}
	k.Log.Warn("cannot restore the cache from its snapshot file; it starts empty", "path", k.Path, "err", err)
}

// Fresh returns when the snapshot was last known to match the store. Before the first snapshot, it is the time when Run began.
func (k *Keeper) Fresh() time.Time { return time.UnixMilli(k.fresh.Load()) }

func (k *Keeper) isFresh() { k.fresh.Store(time.Now().UnixMilli()) }

// Run does the periodic work until ctx ends. It does not save at its end, because the server may still be answering; the caller does.
func (k *Keeper) Run(ctx context.Context) {
	k.isFresh()
	swept, saved := time.Now(), time.Now()
	boot, mono := k.Boot().Since, time.Now()
	for tick.Grid(ctx, sleepCheck) {
		now := time.Now()
		if b := k.Boot().Since; b > 0 && boot > 0 {
			if d := (b - boot) - now.Sub(mono); d > time.Second {
				k.Store.Slept(d)
				boot, mono = b, now // not otherwise, so that shorter suspends add up
			}
		}
		if now.Sub(swept) >= sweepEvery {
			k.Store.Sweep()
			swept = now
		}
		if now.Sub(saved) >= saveEvery {
			k.Save()
			saved = now
		}
	}
}

// Save writes the snapshot if the store has changed, and logs the first failure and the first success after one.
func (k *Keeper) Save() {
	k.mu.Lock()
	defer k.mu.Unlock()
	changes := k.Store.Changes()
	if changes == k.saved {
		k.isFresh()
		return
	}
	if err := k.write(); err != nil {
		if !k.failing {
			k.Log.Warn("cannot write the cache's snapshot file; while this lasts, a restart or an upgrade finds an older one or none",
				"path", k.Path, "err", err)
		}
		k.failing = true
		return
	}
	if k.failing {
		k.Log.Info("the cache's snapshot file was written again after failures", "path", k.Path)
	}
	k.saved, k.failing = changes, false
	k.isFresh()
}

// write replaces the file atomically.
func (k *Keeper) write() error {
	return atomicfile.Stream(k.Path, atomicfile.Options{Mode: 0o600, Durable: true, Folder: true}, func(w io.Writer) error {
		return k.Store.Snapshot(w, k.Boot())
	})
}
