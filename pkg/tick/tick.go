// Package tick lets a loop wait for ticks, which mean that something may have changed, and for a time. A tick has no value. While
// one is pending, further ones are dropped, so a burst of events costs a slow loop one pass.
//
// Sending a tick never blocks, and no change is missed: a loop that reads the state after it has received a tick sees every change
// that was made before, including those whose ticks were dropped.
package tick

import (
	"context"
	"sync"
	"time"
)

// Chan is a channel of ticks for one loop. Any goroutine may send. Only the channel's owner may close it, after the last Send.
type Chan chan struct{}

// New returns a channel that holds at most one pending tick.
func New() Chan { return make(Chan, 1) }

// Send sends a tick, unless one is pending. It never blocks.
func (c Chan) Send() {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Join returns a channel that gets a tick when any of the sources gets one, and that is closed when all of them are closed.
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
	go func() { // this goroutine ends when all sources are closed
		defer close(ticks)
		open.Wait()
	}()
	return ticks
}

// Drain discards ticks until their channel is closed, which is when the watch that sends them has ended.
func Drain(ticks <-chan struct{}) {
	for range ticks { // discard the tick
	}
}

// Grid waits until the wall clock reaches the next multiple of d. It returns false if ctx ended first. Loops that wait for the same
// multiples wake the process only once for all of them; the wake-up costs more than most of their work.
func Grid(ctx context.Context, d time.Duration) bool { return Pause(ctx, UntilGrid(d)) }

// UntilGrid returns the time until the next multiple of d on the wall clock.
func UntilGrid(d time.Duration) time.Duration { return d - time.Duration(time.Now().UnixNano())%d }

// Pause waits for d. It returns false if ctx ended first.
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
