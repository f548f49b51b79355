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

// How often a Keeper looks after its store. After a sleep answers are taken for younger until it was noticed: TTLs are of seconds, and
// looks on a grid cost no wake-up of their own where the prober wakes the process anyway.
const (
	sleepCheck = time.Second
	sweepEvery = time.Minute
	saveEvery  = 3 * time.Minute
)

// Keeper looks after a store: its clock, what has died in it, and its snapshot in a file. A file that cannot be written or
// read costs a warm start and nothing else.
type Keeper struct {
	Store *Store
	Path  string      // of the snapshot; its folder is made
	Boot  func() Boot // the boot's clock; its zero value where there is none
	Log   *slog.Logger

	mu      sync.Mutex // guards the fields below, and the file
	saved   uint64     // Store.Changes at the last snapshot
	failing bool

	fresh atomic.Int64 // Unix time in milliseconds, for Fresh; a slow disk must not delay the caller
}

// Snapshot writes what the store holds.
func (k *Keeper) Snapshot(w io.Writer) error { return k.Store.Snapshot(w, k.Boot()) }

// Restore takes over what another process's store held.
func (k *Keeper) Restore(r io.Reader) (Restored, error) { return k.Store.Restore(r, k.Boot) }

// Load restores the file, if there is one, and logs the result in one line.
func (k *Keeper) Load() {
	f, err := atomicfile.Open(k.Path, os.O_RDONLY|syscall.O_NOFOLLOW) // a link must lead nowhere else
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		defer f.Close()
		var done Restored
		if done, err = k.Restore(f); err == nil {
			if done.Unknown {
				k.Log.Info("the cache begins empty: its snapshot is not of this boot, so its age is unknown", "path", k.Path)
				return
			}
			k.Log.Info("cache restored", "path", k.Path, "entries", done.Entries, "stale", done.Stale, "age", done.Age.Round(time.Second))
			return
		}
	}
	k.Log.Warn("the cache's snapshot is not used", "path", k.Path, "err", err)
}

// Fresh returns when the snapshot was last known to hold what the store holds. Before the first one it is when Run began.
func (k *Keeper) Fresh() time.Time { return time.UnixMilli(k.fresh.Load()) }

func (k *Keeper) isFresh() { k.fresh.Store(time.Now().UnixMilli()) }

// Run keeps the store until ctx ends. It does not Save then: the server may still be answering.
func (k *Keeper) Run(ctx context.Context) {
	k.isFresh()
	swept, saved := time.Now(), time.Now()
	boot, mono := k.Boot().Since, time.Now()
	for tick.Grid(ctx, sleepCheck) {
		now := time.Now()
		if b := k.Boot().Since; b > 0 && boot > 0 {
			if d := (b - boot) - now.Sub(mono); d > time.Second {
				k.Store.Slept(d)
			}
			boot = b
		}
		mono = now
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

// Save writes the snapshot if the store has changed, and logs when writing starts or stops to fail.
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
			k.Log.Warn("the cache's snapshot cannot be written: the next start will be a cold one", "path", k.Path, "err", err)
		}
		k.failing = true
		return
	}
	if k.failing {
		k.Log.Info("the cache's snapshot is written again", "path", k.Path)
	}
	k.saved, k.failing = changes, false
	k.isFresh()
}

// write replaces the file whole or not at all.
func (k *Keeper) write() error {
	return atomicfile.Stream(k.Path, atomicfile.Options{Mode: 0o600, Durable: true, Folder: true}, k.Snapshot)
}
