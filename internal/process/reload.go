package process

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/neardns/neardns/internal/dns/forward/upstream"
	"github.com/neardns/neardns/pkg/tick"
)

// Hangups returns a channel that ticks after SIGHUP, and after SIGUSR1, with which CoreDNS reloads, until ctx ends.
func Hangups(ctx context.Context) <-chan struct{} {
	signals, out := make(chan os.Signal, 1), tick.New()
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGUSR1)
	go func() {
		defer signal.Stop(signals)
		for {
			select {
			case <-ctx.Done():
				return
			case <-signals:
				out.Send()
			}
		}
	}()
	return out
}

// FollowFiles calls reload at each hangup and whenever one of the files that followed returns has changed, until ctx ends. If stale is
// set, it calls reload at once too. followed is called again after each reload, because that may change the list.
func FollowFiles(ctx context.Context, log *slog.Logger, hangups <-chan struct{}, stale bool, followed func() []string, reload func()) {
	for ; ctx.Err() == nil; stale = true {
		files := followed()
		watching, stop := context.WithCancel(ctx)
		changes := upstream.Watch(watching, log, files)
		if stale {
			reload() // after a hangup, or for changes before the watch began
		}
		for again := !slices.Equal(files, followed()); !again && ctx.Err() == nil; {
			select {
			case <-ctx.Done():
			case <-hangups:
				// Start a new watch, because reload now reads the files' current content. The old watch knows an older one: if a file
				// returned to that, it would report no change.
				again = true
			case _, ok := <-changes:
				if ok { // else the channel is closed, because ctx has ended
					reload()
					again = !slices.Equal(files, followed())
				}
			}
		}
		stop()
		tick.Drain(changes)
	}
}
