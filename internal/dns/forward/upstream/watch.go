package upstream

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/neardns/neardns/pkg/tick"
)

// How Watch paces itself.
const (
	settle   = 200 * time.Millisecond // quiet time before a change is reported: an editor writes in several steps
	patience = 2 * time.Second        // the longest delay, even if changes go on
	poll     = 15 * time.Second       // for changes that the kernel does not report: other file systems, a bind mount's target
)

// Watch follows files by their content until ctx ends, which closes the channel. A tick means that at least one of them changed, appeared
// or was removed; several changes may make one tick. It compares content, since a file may be replaced by rename, reached through
// symlinks that are swapped (as the kubelet does with a mounted ConfigMap) or touched without a change. Paths need not exist. One that
// ends in a slash is a folder, in which files come and go.
func Watch(ctx context.Context, log *slog.Logger, paths []string) <-chan struct{} {
	w := &watcher{paths: slices.Clone(paths), log: log, settle: settle, patience: patience, poll: poll}
	ticks := tick.New()
	w.last = w.content() // before returning, so that every later change is noticed
	w.open()
	go func() {
		defer close(ticks)
		defer w.close()
		w.run(ctx, ticks)
	}()
	return ticks
}

// watcher is used by one goroutine, which ctx stops.
type watcher struct {
	paths                  []string
	log                    *slog.Logger
	settle, patience, poll time.Duration

	notify  *fsnotify.Watcher // nil: poll alone
	folders []string          // that notify is on
	last    [sha256.Size]byte
}

func (w *watcher) open() {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		// Out of inotify instances, as on nodes with many log readers.
		w.log.Warn("cannot watch files; polling them", "err", err, "every", w.poll)
		return
	}
	w.notify = notify
	w.follow()
}

func (w *watcher) close() {
	if w.notify != nil {
		_ = w.notify.Close() // nothing is lost with it
	}
}

// run sends a tick for each change.
func (w *watcher) run(ctx context.Context, ticks tick.Chan) {
	looking := time.NewTicker(w.poll)
	defer looking.Stop()
	var events chan fsnotify.Event
	var errs chan error
	if w.notify != nil {
		events, errs = w.notify.Events, w.notify.Errors
	}
	var quiet <-chan time.Time // armed by the first event
	var latest time.Time       // when a check is due in any case
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			now := time.Now()
			if quiet == nil {
				latest = now.Add(w.patience)
			}
			quiet = time.After(min(w.settle, latest.Sub(now)))
			continue
		case err := <-errs:
			// An overrun queue means lost events, so check.
			w.log.Debug("file watch", "err", err)
		case <-quiet:
		case <-looking.C:
		}
		quiet = nil
		w.check(ticks)
	}
}

// check compares the content with the last one and ticks if it differs.
func (w *watcher) check(ticks tick.Chan) {
	if w.notify != nil {
		w.follow() // first: a new folder must be watched before its files are read
	}
	now := w.content()
	if now == w.last {
		return
	}
	w.last = now
	ticks.Send()
}

// follow puts the watch on every folder through which the paths lead: that of each path, and of each symlink on the way.
func (w *watcher) follow() {
	var want []string
	for _, p := range w.paths {
		for range 8 { // a loop of symlinks ends here
			if dir := filepath.Dir(p); !slices.Contains(want, dir) {
				want = append(want, dir)
			}
			target, err := os.Readlink(p)
			if err != nil {
				break
			}
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(p), target)
			}
			p = target
		}
	}
	for _, dir := range w.folders {
		if !slices.Contains(want, dir) {
			_ = w.notify.Remove(dir) // gone with the folder already, most of the time
		}
	}
	w.folders = nil
	for _, dir := range want {
		// Adding again is free, and needed where the folder itself was replaced.
		if err := w.notify.Add(dir); err == nil {
			w.folders = append(w.folders, dir)
		} else if up := filepath.Dir(dir); !slices.Contains(want, up) && w.notify.Add(up) == nil {
			w.folders = append(w.folders, up) // the missing folder may appear: watch its parent
		}
	}
}

// names lists a folder's entries, except those that the kubelet swaps in a mounted ConfigMap.
func names(p string) []string {
	if !strings.HasSuffix(p, "/") {
		return nil
	}
	entries, _ := os.ReadDir(p) // none where it is not there
	var out []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "..") {
			out = append(out, e.Name())
		}
	}
	return out
}

// content digests all files, with their absence, in order.
func (w *watcher) content() [sha256.Size]byte {
	digest := sha256.New()
	for _, p := range w.paths {
		data, err := readRegular(p)
		length := int64(len(data))
		if err != nil {
			length = -1
		}
		_ = binary.Write(digest, binary.BigEndian, length) // a hash never fails
		digest.Write(data)
		for _, name := range names(p) {
			digest.Write([]byte(name + "\x00"))
		}
	}
	return [sha256.Size]byte(digest.Sum(nil))
}

// readRegular reads a file of which reading ends: a FIFO would block until a program writes into it.
func readRegular(p string) ([]byte, error) {
	f, err := os.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, os.ErrInvalid)
	}
	return io.ReadAll(f)
}
