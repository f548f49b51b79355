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

// retryDelay is the pause after a watch could not be set up; until then, every use reads the files.
const retryDelay = time.Second

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
		p.Outdate() // files may have changed before the watch began
		p.watch(ctx, watcher, func(name string) {
			if name == "" {
				p.Outdate()
			} else {
				p.outdateFile(name)
			}
			ticks.Send()
		})
	}()
	return ticks, nil
}

func (p *Pods) setWatched(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cached.watched = on
}

// follow makes the folder if it is missing, as the first ADD would, and watches it.
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

// watch keeps a watch until ctx ends; while there is none, every use reads the files. If the folder was removed, watch makes it again and
// uses a new watcher, because an old one keeps the removed folder for some time after the event. changed gets a file's name; "": any.
func (p *Pods) watch(ctx context.Context, watcher *fsnotify.Watcher, changed func(name string)) {
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
			p.log.Warn("cannot watch pod files; polling them", "err", err)
			tick.Pause(ctx, retryDelay)
		}
		changed("")
	}
	if watcher != nil {
		watcher.Close()
	}
}

// events reports changes until ctx ends or the folder is removed.
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
			changed("") // events were lost
		case <-slow:
			p.Outdate()
		}
	}
}

// isPodFile is false for temporary files; their rename into place is the event.
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
