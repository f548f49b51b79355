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

// poll is how often files are read again although no event reported a change.
const poll = 10 * time.Second

// again is how long a watch that could not be set up waits for the next attempt; meanwhile every reading is fresh.
const again = time.Second

// dir holds the pod files.
func (p *Pods) dir() string { return filepath.Dir(podfile.Path(p.stateDir, "x", "y")) }

// Watch ticks when pod files may have changed, until ctx ends, which closes the channel. Ticks are coalesced.
func (p *Pods) Watch(ctx context.Context) (<-chan struct{}, error) {
	watcher, err := p.follow()
	if err != nil {
		return nil, err
	}
	ticks := tick.New()
	go func() {
		defer close(ticks)
		p.Outdate() // what changed before there was a watch
		p.watch(ctx, watcher, func() {
			p.Outdate()
			ticks.Send()
		})
	}()
	return ticks, nil
}

func (p *Pods) setWatched(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watched = on
}

// follow makes the folder where it is missing, as the first ADD would, and watches it.
func (p *Pods) follow() (*fsnotify.Watcher, error) {
	if err := os.MkdirAll(p.dir(), 0o755); err != nil { //nolint:gosec // as the plugin makes it
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

// watch keeps watching until ctx ends; while there is no watch, every reading is fresh. A folder that was removed is made and
// watched anew, by a new watcher: the library forgets an old one's folder only some time after it said that it went.
func (p *Pods) watch(ctx context.Context, watcher *fsnotify.Watcher, changed func()) {
	slow := time.NewTicker(poll)
	defer slow.Stop()
	for ctx.Err() == nil {
		if watcher != nil {
			p.setWatched(true)
			p.events(ctx, watcher, slow.C, changed)
			watcher.Close()
		}
		p.setWatched(false)
		if ctx.Err() != nil {
			return
		}
		var err error
		if watcher, err = p.follow(); err != nil {
			p.log.Warn("pod files are only polled", "err", err)
			tick.Pause(ctx, again)
		}
		changed()
	}
	if watcher != nil {
		watcher.Close()
	}
}

// events passes changes on until ctx ends or the folder goes.
func (p *Pods) events(ctx context.Context, watcher *fsnotify.Watcher, slow <-chan time.Time, changed func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-watcher.Events:
			switch {
			case !ok, event.Name == p.dir() && event.Has(fsnotify.Remove|fsnotify.Rename):
				return
			case isPodFile(event.Name) && event.Op != fsnotify.Chmod:
				changed()
			}
		case _, ok := <-watcher.Errors:
			if !ok {
				return
			}
			changed() // events were lost
		case <-slow:
			p.Outdate()
		}
	}
}

// isPodFile leaves out files that are being written: their rename is the event.
func isPodFile(path string) bool {
	return !strings.HasPrefix(filepath.Base(path), ".")
}

// folderSeen reports whether the folder of a netns path is visible. /proc shows only the reader's own pid namespace, so a process that is
// missing there proves nothing.
func folderSeen(path string) bool {
	if strings.HasPrefix(path, "/proc/") {
		return false
	}
	st, err := os.Stat(filepath.Dir(path))
	return err == nil && st.IsDir()
}
