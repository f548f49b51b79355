package process

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/neardns/neardns/pkg/atomicfile"
)

// How FollowFiles paces itself.
const (
	settle   = 200 * time.Millisecond // time without a change before one is reported, because an editor writes in several steps
	patience = 2 * time.Second        // maximum delay of a report if changes go on
	poll     = 15 * time.Second       // interval of checks for changes without inotify events: network file systems, a bind mount's target
)

// watcher waits until one of some files has changed, appeared or vanished. It compares contents, because a file may be replaced by rename,
// be reached through symlinks that are swapped (as the kubelet does with a mounted ConfigMap), or be touched without a change. Paths need
// not exist. A path that ends in a slash is a folder, whose list of files is watched. Only one goroutine uses it.
type watcher struct {
	paths                  []string
	log                    *slog.Logger
	settle, patience, poll time.Duration

	notify  *fsnotify.Watcher // nil: inotify is not available, so changes are found only by polling
	folders []string          // the folders that notify watches
	last    [sha256.Size]byte // content at the last check
}

func (w *watcher) open() {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		// For example, log readers have used up the node's inotify instances.
		w.log.Warn("cannot watch files; from now on they are only compared at intervals", "err", err, "every", w.poll)
		return
	}
	w.notify = notify
}

func (w *watcher) close() {
	if w.notify != nil {
		_ = w.notify.Close() // nothing is lost with it
	}
}

// wait checks the files after events and at intervals. It returns when they have changed, after a hangup, or when ctx ends.
func (w *watcher) wait(ctx context.Context, hangups <-chan os.Signal) {
	looking := time.NewTicker(w.poll)
	defer looking.Stop()
	var events chan fsnotify.Event
	var errs chan error
	if w.notify != nil {
		events, errs = w.notify.Events, w.notify.Errors
	}
	var quiet <-chan time.Time // armed by the first event
	var latest time.Time       // when to check even if events go on
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			w.check() // the caller reads the files' current content
			return
		case <-events:
			now := time.Now()
			if quiet == nil {
				latest = now.Add(w.patience)
			}
			quiet = time.After(min(w.settle, latest.Sub(now)))
			continue
		case err := <-errs:
			// The error may mean an overflow of the event queue, with lost events, so check.
			w.log.Debug("file watcher may have missed a change; checking the files once", "err", err)
		case <-quiet:
		case <-looking.C:
		}
		quiet = nil
		if w.check() {
			return
		}
	}
}

// check compares the contents with the last ones, and reports whether they differ.
func (w *watcher) check() bool {
	if w.notify != nil {
		w.follow() // first, so that a new folder is watched before its files are read
	}
	before := w.last
	w.last = w.content()
	return w.last != before
}

// follow watches every folder on the way to the files: the folder of each path and, if that is a symlink, of each symlink's target.
func (w *watcher) follow() {
	var want []string
	for _, p := range w.paths {
		for range 8 { // at most eight folders for each path, so that a loop of symlinks ends
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
			_ = w.notify.Remove(dir) // usually fails, because the watch ended with the folder
		}
	}
	w.folders = nil
	for _, dir := range want {
		// Adding a folder twice is harmless, and necessary if the folder was replaced.
		if err := w.notify.Add(dir); err == nil {
			w.folders = append(w.folders, dir)
		} else if up := filepath.Dir(dir); !slices.Contains(want, up) && w.notify.Add(up) == nil {
			w.folders = append(w.folders, up) // the missing folder may appear: watch its parent
		}
	}
}

// names returns the files in a folder, except those that the kubelet swaps in a mounted ConfigMap; nil if p does not end in a slash.
func names(p string) []string {
	if !strings.HasSuffix(p, "/") {
		return nil
	}
	entries, _ := os.ReadDir(p) // a missing folder has no files
	var out []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "..") {
			out = append(out, e.Name())
		}
	}
	return out
}

// content returns a hash over the contents of all files and the names in all folders; a missing file counts too.
func (w *watcher) content() [sha256.Size]byte {
	digest := sha256.New()
	for _, p := range w.paths {
		length := int64(-1)
		if f, err := atomicfile.Open(p, os.O_RDONLY); err == nil {
			length, _ = io.Copy(digest, f) // never all of it in memory: a geo database has 70 MB
			_ = f.Close()                  // it was only read
		}
		_ = binary.Write(digest, binary.BigEndian, length) // a hash never fails
		for _, name := range names(p) {
			digest.Write([]byte(name + "\x00"))
		}
	}
	return [sha256.Size]byte(digest.Sum(nil))
}
