// Package backoff detects a conflict, in which another program keeps undoing the agent's repairs, and spaces the repairs out (D-012).
//
// The first repairs are never delayed, and no pause is longer than Last. It reads no clock: the caller passes the time.
//
// On failure: there is none. While the conflict lasts, Err returns the fault to report.
package backoff

import (
	"fmt"
	"slices"
	"time"
)

// The limits of a conflict. Ten undone repairs within ten seconds are more than an operator at work or a firewall's restart causes. From
// then on the pauses double, so that two programs that undo each other cost one transaction in five seconds.
const (
	Window = 10 * time.Second
	Limit  = 10
	first  = 500 * time.Millisecond
	Last   = 5 * time.Second
)

// Conflict tracks the conflict about one kind of repair. Its zero value is: no conflict. It belongs to the goroutine that repairs.
type Conflict struct {
	repairs []time.Time   // the repairs of the last window
	lasts   bool          // Limit was reached, and there has been a repair in every window since
	count   int           // repairs since the conflict began, including the Limit that started it
	wait    time.Duration // the pause after the next repair
	until   time.Time     // no repair before this time
}

// Due reports whether the caller may check and repair now. If not, it waits until Until.
func (q *Conflict) Due(now time.Time) bool { return !now.Before(q.until) }

// Repaired records a repair, and reports whether the conflict begins with it.
func (q *Conflict) Repaired(now time.Time) (begins bool) {
	q.repairs = append(slices.DeleteFunc(q.repairs, func(t time.Time) bool { return now.Sub(t) > Window }), now)
	if !q.lasts && len(q.repairs) < Limit {
		return false
	}
	begins = !q.lasts
	if begins {
		q.lasts, q.count, q.wait = true, len(q.repairs)-1, first
	}
	q.count++
	q.until = now.Add(q.wait)
	q.wait = min(2*q.wait, Last)
	return begins
}

// Ended reports once that nothing was undone for a whole window, and how many repairs the conflict took.
func (q *Conflict) Ended(now time.Time) (count int, ended bool) {
	if !q.lasts || now.Sub(q.repairs[len(q.repairs)-1]) <= Window {
		return 0, false
	}
	count = q.count
	*q = Conflict{}
	return count, true
}

// Err returns the fault while the conflict lasts, else nil. Its text is constant, so that it is logged once.
func (q *Conflict) Err() error {
	if !q.lasts {
		return nil
	}
	return fmt.Errorf("another program undid the repair %d times within %v; repairs are less frequent until it stops: find the program with "+
		"`neardns-agent doctor`", Limit, Window)
}

// Lasts reports whether the conflict lasts, and how many repairs it took so far.
func (q *Conflict) Lasts() (count int, lasts bool) { return q.count, q.lasts }

// Until returns the time before which Due is false.
func (q *Conflict) Until() time.Time { return q.until }
