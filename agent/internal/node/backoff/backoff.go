// Package backoff detects that another program keeps undoing the agent's repairs (a conflict), and then makes the agent repair less often
// (D-012).
//
// The first repairs are never delayed, and no pause is longer than Last. The package reads no clock: the caller passes the time. It
// cannot fail. While a conflict lasts, Err returns the fault to report.
package backoff

import (
	"fmt"
	"slices"
	"time"
)

// The limits of a conflict. Ten undone repairs within ten seconds are more than an operator at work or a firewall's restart causes. From
// then on the pause before the next repair doubles up to Last, so that a fight with another program costs one kernel transaction in five
// seconds.
const (
	Window = 10 * time.Second
	Limit  = 10
	first  = 500 * time.Millisecond
	Last   = 5 * time.Second
)

// Conflict tracks whether another program undoes one kind of repair. Its zero value stands for no conflict. It is not safe for concurrent
// use.
type Conflict struct {
	repairs []time.Time   // the times of the repairs within the last Window
	lasts   bool          // a conflict lasts: there were Limit repairs in a Window, and no Window without a repair since
	count   int           // repairs since the conflict began, including the first Limit ones
	wait    time.Duration // the pause after the next repair
	until   time.Time     // no repair before this time
}

// Due reports whether the caller may check and repair now. If not, the caller must wait until the time that Until returns.
func (q *Conflict) Due(now time.Time) bool { return !now.Before(q.until) }

// Repaired records a repair, and reports whether this repair starts a conflict.
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

// Ended reports that the conflict is over, because nothing was undone for a whole Window, and how many repairs it took. It reports each
// end only once.
func (q *Conflict) Ended(now time.Time) (count int, ended bool) {
	if !q.lasts || now.Sub(q.repairs[len(q.repairs)-1]) <= Window {
		return 0, false
	}
	count = q.count
	*q = Conflict{}
	return count, true
}

// Err returns an error while the conflict lasts, else nil. Its text is constant, so that the caller logs it once.
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
