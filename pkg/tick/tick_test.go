package tick

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

func waits(c <-chan struct{}) bool {
	select {
	case _, ok := <-c:
		return ok
	default:
		return false
	}
}

// A slow loop gets one tick for many, and another for a tick that is sent after it received the first.
func TestSendCoalesces(t *testing.T) {
	c := New()
	for range 3 {
		c.Send()
	}
	if !waits(c) || waits(c) {
		t.Error("three ticks are not one")
	}
	c.Send()
	if !waits(c) {
		t.Error("a tick after one that was taken is lost")
	}
}

func TestJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := New(), New()
		both := Join(a, b)
		for _, c := range []Chan{a, b, a} {
			c.Send()
			synctest.Wait()
			if !waits(both) {
				t.Error("a source's tick is lost")
			}
		}
		close(a)
		b.Send()
		b.Send()
		synctest.Wait()
		if !waits(both) {
			t.Error("a source that is closed stops the others")
		}
		close(b)
		synctest.Wait()
		if _, open := <-both; open {
			t.Error("open after all sources were closed")
		}
	})
}

// Loops that wait for one grid wake up together, whenever they began to wait. A wait that begins on a multiple ends at the next one.
func TestGrid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const step = 250 * time.Millisecond
		for _, before := range []time.Duration{0, 1, step / 3, step - 1, step} {
			<-time.After(before)
			begun := time.Now()
			if !Grid(t.Context(), step) || time.Now().UnixNano()%int64(step) != 0 {
				t.Errorf("begun at %s, awake at %s", begun, time.Now())
			}
			if waited := time.Since(begun); waited <= 0 || waited > step {
				t.Errorf("waited %s", waited)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if Grid(ctx, step) {
			t.Error("waits beyond its context")
		}
	})
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if !Pause(ctx, time.Second/2) || time.Since(begun) != time.Second/2 {
			t.Error("a pause of half a second was cut short, or was another")
		}
		if Pause(ctx, time.Hour) || time.Since(begun) != time.Second {
			t.Error("a pause outlives its context")
		}
	})
}
