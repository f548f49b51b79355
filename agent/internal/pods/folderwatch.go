package pods

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/tick"
)

// poll is how often all pod files count as changed even without an event, in case an event was lost.
const poll = 10 * time.Second

// retryDelay is the pause before the next attempt to set up the watch. Until then, every use reads the files from disk.
const retryDelay = time.Second

// dir returns the folder of the pod files.
func (p *Pods) dir() string { return filepath.Dir(podfile.Path(p.stateDir, "x", "y")) }

// Watch returns a channel that gets a tick when the watch begins and when pod files may have changed. While a tick waits to be received,
// further changes add none. The channel is closed after ctx ends.
func (p *Pods) Watch(ctx context.Context) <-chan struct{} {
	ticks := tick.New()
	go func() {
		defer close(ticks)
		p.watch(ctx, func(name string) {
			if name == "" {
				p.Outdate()
			} else {
				p.outdateFile(name)
			}
			ticks.Send()
		})
	}()
	return ticks
}

func (p *Pods) setWatched(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cached.watched = on
}

// follow creates the folder of the pod files if it is missing, as the first ADD would, and watches it.
func (p *Pods) follow() (*fsnotify.Watcher, error) {
	if err := os.MkdirAll(p.dir(), 0o755); err != nil { //nolint:gosec // the same mode as the plugin uses
		return nil, fmt.Errorf("make the folder of the pod files: %w", err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		if err = watcher.Add(p.dir()); err != nil {
			watcher.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", p.dir(), err)
	}
	return watcher, nil
}

// watch calls changed for each change until ctx ends, with the name of the pod file, or "" if any file may have changed. If the folder is
// removed, watch creates it again and uses a new watcher, because the old one watches the removed folder. While there is no watcher, for
// example because other programs have used up the node's inotify instances, every use reads the files from disk.
func (p *Pods) watch(ctx context.Context, changed func(name string)) {
	slow := time.Tick(poll)
	last := ""
	for ctx.Err() == nil {
		watcher, err := p.follow()
		if err != nil {
			if last != err.Error() {
				last = err.Error()
				p.log.Warn("cannot watch the pod files for changes; they are read at each use until a retry succeeds", "err", err)
			}
			changed("")
			tick.Pause(ctx, retryDelay)
			continue
		}
		last = ""
		p.setWatched(true)
		changed("") // files may have changed before the watch began
		p.events(ctx, watcher, slow, changed)
		watcher.Close()
		p.setWatched(false)
	}
}

// events calls changed with the name of each pod file that changes, until ctx ends or the folder is removed.
func (p *Pods) events(ctx context.Context, watcher *fsnotify.Watcher, slow <-chan time.Time, changed func(name string)) {
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-watcher.Events:
			switch {
			case !ok, event.Name == p.dir() && event.Has(fsnotify.Remove|fsnotify.Rename):
				return
			case isPodFile(event.Name) && event.Op != fsnotify.Chmod:
				changed(filepath.Base(event.Name))
			}
		case _, ok := <-watcher.Errors:
			if !ok {
				return
			}
			changed("") // the watcher may have lost events
		case <-slow:
			p.Outdate()
		}
	}
}

// isPodFile reports whether a path is that of a pod file. It is false for temporary files: their rename to the final name is the event
// that counts.
func isPodFile(path string) bool {
	return !strings.HasPrefix(filepath.Base(path), ".")
}

// folderSeen reports whether this process sees the folder of a netns path. It is false below /proc, which shows only processes of the
// reader's own pid namespace: a process that is missing there may still run.
func folderSeen(path string) bool {
	if strings.HasPrefix(path, "/proc/") {
		return false
	}
	st, err := os.Stat(filepath.Dir(path))
	return err == nil && st.IsDir()
}
