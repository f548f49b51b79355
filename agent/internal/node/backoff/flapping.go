// Package backoff tells when another program keeps undoing what we repair, and how long the next repair has to wait then (D-012). It
// is a leaf and pure: whoever repairs passes the time.
package backoff

import (
	"fmt"
	"slices"
	"time"
)

// Bounds of flapping. Ten repairs within ten seconds are more than an operator at work or a firewall's restart makes;
// from there on the pauses double, so that two programs that undo each other cost one transaction in five seconds.
const (
	Window = 10 * time.Second
	Limit  = 10
	first  = 500 * time.Millisecond
	Last   = 5 * time.Second
)

// Flapping is what is known of another program that keeps undoing one kind of repair. Its zero value is peace. It
// belongs to the goroutine that repairs.
type Flapping struct {
	mended []time.Time   // the repairs of the last window
	on     bool          // the limit was passed, and quiet did not last a window since
	count  int           // repairs since it began, those that began it included
	wait   time.Duration // after the next repair
	until  time.Time     // no repair before
}

// Due reports whether the thing may be looked at and repaired now. Where it may not, there is something to wait for: until.
func (q *Flapping) Due(now time.Time) bool { return !now.Before(q.until) }

// Repaired notes a repair, and reports whether the flapping begins with it.
func (q *Flapping) Repaired(now time.Time) (begins bool) {
	q.mended = append(slices.DeleteFunc(q.mended, func(t time.Time) bool { return now.Sub(t) > Window }), now)
	if !q.on && len(q.mended) < Limit {
		return false
	}
	begins = !q.on
	if begins {
		q.on, q.count, q.wait = true, len(q.mended)-1, first
	}
	q.count++
	q.until = now.Add(q.wait)
	q.wait = min(2*q.wait, Last)
	return begins
}

// Ended reports whether nothing was undone for a whole window, and how often it was before. It says so once.
func (q *Flapping) Ended(now time.Time) (count int, ended bool) {
	if !q.on || now.Sub(q.mended[len(q.mended)-1]) <= Window {
		return 0, false
	}
	count = q.count
	*q = Flapping{}
	return count, true
}

// Err is the fault that stands while the flapping lasts. Its text does not change, so that it is said once.
func (q *Flapping) Err() error {
	if !q.on {
		return nil
	}
	return fmt.Errorf("something on this node undid it %d times within %v: it is mended less often until that ends; find the program that changes "+
		"it (`neardns-agent doctor`)", Limit, Window)
}

// Lasts reports whether it goes on, and how many repairs it took since it began.
func (q *Flapping) Lasts() (count int, lasts bool) { return q.count, q.on }

// Until is the time before which nothing is due.
func (q *Flapping) Until() time.Time { return q.until }
