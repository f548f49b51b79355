// Package tick has what a loop waits for: ticks, which tell it to look again, and pauses. A tick has no value, and one that waits stands
// for all that were sent since, so a storm of events costs a slow loop one look.
//
// A sender never waits, and the last tick is never lost: a loop that takes a tick before it looks sees all that led to it.
package tick

import (
	"context"
	"sync"
	"time"
)

// Chan carries ticks to one loop. Any goroutine may send. Only its one owner may close it, after the last Send.
type Chan chan struct{}

// New returns a channel in which one tick can wait.
func New() Chan { return make(Chan, 1) }

// Send ticks, unless a tick waits already. It never blocks.
func (c Chan) Send() {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Join ticks when any of the sources does, and closes its channel when all of them are closed.
func Join(sources ...<-chan struct{}) <-chan struct{} {
	ticks := New()
	var open sync.WaitGroup
	for _, s := range sources {
		open.Go(func() {
			for range s {
				ticks.Send()
			}
		})
	}
	go func() { // ends with the sources
		defer close(ticks)
		open.Wait()
	}()
	return ticks
}

// Drain takes ticks until their channel is closed, and so waits for a watch that has been told to end.
func Drain(ticks <-chan struct{}) {
	for range ticks { // each is of no use any more
	}
}

// Grid waits for the next multiple of d on the wall clock, and reports whether ctx did not end before. Loops that wait on one grid
// wake their process once for all of them, which costs more than most of what they do then.
func Grid(ctx context.Context, d time.Duration) bool { return Pause(ctx, UntilGrid(d)) }

// UntilGrid is how long it is until the next multiple of d on the wall clock.
func UntilGrid(d time.Duration) time.Duration { return d - time.Duration(time.Now().UnixNano())%d }

// Pause waits for d, and reports whether ctx did not end before.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
