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

// Hangups delivers SIGHUP, and SIGUSR1, by which CoreDNS reloads, until ctx ends.
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

// FollowFiles calls reload at each hangup, and when one of the files that followed lists has changed, until ctx ends; with stale also at
// once. A reload may change the list.
func FollowFiles(ctx context.Context, log *slog.Logger, hangups <-chan struct{}, stale bool, followed func() []string, reload func()) {
	for ; ctx.Err() == nil; stale = true {
		files := followed()
		watching, stop := context.WithCancel(ctx)
		changes := upstream.Watch(watching, log, files)
		if stale {
			reload() // a hangup, or what changed while no watch stood
		}
		for again := !slices.Equal(files, followed()); !again && ctx.Err() == nil; {
			select {
			case <-ctx.Done():
			case <-hangups:
				// The watch must not know of less than the hangup makes us read: it would take a return to what it
				// knows for no change.
				again = true
			case _, ok := <-changes:
				if ok { // else ctx ends
					reload()
					again = !slices.Equal(files, followed())
				}
			}
		}
		stop()
		tick.Drain(changes)
	}
}
