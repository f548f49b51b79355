//go:build timing

package steering

import "time"

// startTimedTraffic is startTraffic, with queries that are lost after a second.
func (n *node) startTimedTraffic(p *pod, name string, perSecond int) *traffic {
	n.t.Helper()
	return n.startTrafficWaiting(p, name, perSecond, answerWait)
}

// lostAround fails unless all that is lost was sent while a process was killed: it waited for that process, for as long as the machine let
// others wait, or came until the kernel had ended it (D-016). Without a fallback at once, losses go on for a lease's lifetime.
func (f *traffic) lostAround(killed, dead time.Time) {
	f.t.Helper()
	slowest := time.Duration(0) // answer
	for _, q := range f.sent {
		if q.err == nil {
			slowest = max(slowest, q.done.Sub(q.sent))
		}
	}
	waited := min(max(slack/10, slowest), lifetime/2)
	for _, q := range f.sent {
		if q.err != nil && (q.sent.Before(killed.Add(-waited)) || q.sent.After(dead.Add(waited))) {
			f.t.Errorf("a query is lost that was sent %v after the kill, which took %v; others waited for up to %v", q.sent.Sub(killed).Round(time.Millisecond),
				dead.Sub(killed).Round(time.Millisecond), waited.Round(time.Millisecond))
		}
	}
}
