package node

import (
	"fmt"
	"slices"
	"time"
)

// Bounds of flapping. Ten repairs within ten seconds are more than an operator at work or a firewall's restart makes;
// from there on the pauses double, so that two programs that undo each other cost one transaction in five seconds.
const (
	flappingWindow = 10 * time.Second
	flappingLimit  = 10
	flappingFirst  = 500 * time.Millisecond
	flappingLast   = 5 * time.Second
)

// flapping is what is known of another program that keeps undoing one kind of repair. Its zero value is peace. It
// belongs to the goroutine that repairs.
type flapping struct {
	mended []time.Time   // the repairs of the last window
	on     bool          // the limit was passed, and quiet did not last a window since
	count  int           // repairs since it began, those that began it included
	wait   time.Duration // after the next repair
	until  time.Time     // no repair before
}

// due reports whether the thing may be looked at and repaired now. Where it may not, there is something to wait for: until.
func (q *flapping) due(now time.Time) bool { return !now.Before(q.until) }

// repaired notes a repair, and reports whether the flapping begins with it.
func (q *flapping) repaired(now time.Time) (begins bool) {
	q.mended = append(slices.DeleteFunc(q.mended, func(t time.Time) bool { return now.Sub(t) > flappingWindow }), now)
	if !q.on && len(q.mended) < flappingLimit {
		return false
	}
	begins = !q.on
	if begins {
		q.on, q.count, q.wait = true, len(q.mended)-1, flappingFirst
	}
	q.count++
	q.until = now.Add(q.wait)
	q.wait = min(2*q.wait, flappingLast)
	return begins
}

// ended reports whether nothing was undone for a whole window, and how often it was before. It says so once.
func (q *flapping) ended(now time.Time) (count int, ended bool) {
	if !q.on || now.Sub(q.mended[len(q.mended)-1]) <= flappingWindow {
		return 0, false
	}
	count = q.count
	*q = flapping{}
	return count, true
}

// err is the fault that stands while the flapping lasts. Its text does not change, so that it is said once.
func (q *flapping) err() error {
	if !q.on {
		return nil
	}
	return fmt.Errorf("something on this node undid it %d times within %v: it is mended less often until that ends; find the program that changes "+
		"it (`neardns-agent doctor`)", flappingLimit, flappingWindow)
}

// mending has mend look at one kind of thing and put it right, unless it was put right too often lately. What a reload asks
// for is always done and no repair.
func (n *Node) mending(kind string, mend func() (mended string, err error)) error {
	q := n.flapping[kind]
	if q == nil {
		q = &flapping{}
		n.flapping[kind] = q
	}
	moving := n.isMoving()
	if !moving && !q.due(time.Now()) {
		return q.err()
	}
	mended, err := mend()
	n.Recorder.Kept(kind, err)
	if mended != "" && !moving {
		if q.repaired(time.Now()); q.on {
			time.AfterFunc(time.Until(q.until), n.kick.Send) // the next look
		}
	}
	if mended != "" {
		n.repaired(kind, mended, q.on && q.count > flappingLimit)
	}
	if count, ended := q.ended(time.Now()); ended {
		n.Log.Info("nothing undoes repairs any more", "part", kind, "repairs", count)
	}
	if err != nil || moving {
		return err
	}
	return q.err()
}

func (n *Node) isMoving() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.moving
}
