package process

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// Hangups returns a channel that gets SIGHUP, and SIGUSR1, with which CoreDNS reloads, until ctx ends.
func Hangups(ctx context.Context) <-chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGUSR1)
	context.AfterFunc(ctx, func() { signal.Stop(signals) })
	return signals
}

// FollowFiles calls reload at each hangup and whenever one of the files that followed returns has changed, until ctx ends; several changes
// may lead to one call. If stale is set, it calls reload at once too. followed is called again after each reload, because that may change
// the list.
func FollowFiles(ctx context.Context, log *slog.Logger, hangups <-chan os.Signal, stale bool, followed func() []string, reload func()) {
	w := &watcher{log: log, settle: settle, patience: patience, poll: poll}
	w.open()
	w.run(ctx, hangups, stale, followed, reload)
}

func (w *watcher) run(ctx context.Context, hangups <-chan os.Signal, stale bool, followed func() []string, reload func()) {
	defer w.close()
	for ; ctx.Err() == nil; stale = true {
		if files := followed(); w.paths == nil || !slices.Equal(files, w.paths) {
			w.paths = append([]string{}, files...)
			w.check() // before reload, so that every later change leads to another one
		} else {
			w.wait(ctx, hangups)
		}
		if stale && ctx.Err() == nil {
			reload() // after a hangup, or for changes, also those before the files were watched
		}
	}
}
