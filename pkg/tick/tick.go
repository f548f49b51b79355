// Package tick provides what a loop waits for: ticks, which mean that something may have changed, and pauses. A tick has no value, and a
// pending one covers all that are sent after it, so a burst of events costs a slow loop one pass.
//
// A sender never blocks, and the last tick is never lost: a loop that receives a tick before it reads sees every change before that tick.
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

// Send sends a tick, unless one is pending. It never blocks.
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

// Drain receives ticks until their channel is closed, and so waits for a watch that is ending.
func Drain(ticks <-chan struct{}) {
	for range ticks { // no longer needed
	}
}

// Grid waits for the next multiple of d on the wall clock, and reports whether ctx did not end before. Loops on the same grid
// wake their process once together; the wake-up costs more than most of their work.
func Grid(ctx context.Context, d time.Duration) bool { return Pause(ctx, UntilGrid(d)) }

// UntilGrid returns the time until the next multiple of d on the wall clock.
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
