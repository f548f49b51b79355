package forward

import (
	"cmp"
	"errors"
	"time"

	"github.com/neardns/neardns/internal/dns/resourceerr"
)

// errNoStream is the failure of a connection that was still being made when another try had the answer.
var errNoStream = errors.New("no connection within the time of a query")

// settle updates the health of each server that the query used. winner is the try that answered well, or -1.
func (r *hedgedQuery) settle(winner int) {
	now := time.Now()
	if r.checkLate(r.end); r.late {
		return // this process was stopped or starved, and may have read answers late that came in time
	}
	r.settleStreams(now)
	for i := range r.next {
		if r.tries[i].state == planned || r.tries[i].again && r.earlier(i) {
			continue
		}
		s := r.tries[i].server
		if winner >= 0 && r.tries[winner].server == s {
			r.settleOwn(winner)
			continue
		}
		if f, ok := r.failure(i, winner >= 0, now); ok {
			s.bad(now, r.a, f)
		}
	}
	for i := range r.next {
		if t := &r.tries[i]; t.state == running {
			t.server.counts.results[reasonSlow].Add(1)
		}
	}
}

// settleStreams records a server whose stream failed although it answered over a datagram.
func (r *hedgedQuery) settleStreams(now time.Time) {
	for i := range r.next {
		t := &r.tries[i]
		failed := t.state == ended && t.err != nil && !resourceerr.ForQuery(t.err) || t.state == running && now.Sub(t.began) >= hedgeAfter
		if !t.stream || t.server.tls != nil || !failed || !r.byDatagram(t.server) {
			continue
		}
		t.server.streamFailed(now, cmp.Or(t.err, errNoStream))
		return
	}
}

// byDatagram reports whether a server has answered over a datagram, and over no stream.
func (r *hedgedQuery) byDatagram(s *server) (did bool) {
	for i := range r.next {
		if t := &r.tries[i]; t.server == s && t.state == ended && t.err == nil {
			if t.stream {
				return false
			}
			did = true
		}
	}
	return did
}

// earlier reports whether a try before i went to the same server.
func (r *hedgedQuery) earlier(i int) bool {
	for j := range i {
		if r.tries[j].server == r.tries[i].server {
			return true
		}
	}
	return false
}

// settleOwn handles a server whose later try won over its earlier one: the server is healthy, but the earlier connection was not.
func (r *hedgedQuery) settleOwn(winner int) {
	won := &r.tries[winner]
	for i := range r.next {
		if t := &r.tries[i]; i != winner && t.server == won.server && t.state == running && t.hasConnection() {
			// Its connection leads to an endpoint that is gone, and so may others of the same age.
			won.server.pool(t.stream).flush()
		}
	}
}

// failure returns what went wrong with a server over all of its tries. Without a winner only failures of the network count, because no
// other server has shown that the query has a better answer.
func (r *hedgedQuery) failure(first int, won bool, now time.Time) (f failed, ok bool) {
	for i := first; i < r.next; i++ {
		t := &r.tries[i]
		if t.server != r.tries[first].server || t.state == planned {
			continue
		}
		why := t.why
		heard := t.server.heard(t.began)
		slow := false
		switch {
		case t.state == ended && t.err == nil && (!won || !t.why.answered()):
			return failed{}, false
		case resourceerr.ForQuery(t.err):
			continue
		case t.state == running && t.rejected != nil:
			// The rejection may be true: another server answered before this one could disprove it.
			return failed{why: reasonOf(good, t.rejected), err: t.rejected}, true
		case t.state == ended && t.why != reasonSilent:
		case won && now.Sub(t.began) >= hedgeAfter:
			if why, slow = reasonSilent, true; heard {
				why = reasonSlow
			}
		case !won && !heard && now.Sub(t.began) >= silentAfter:
			why = reasonSilent
		default:
			continue // it ran too briefly for a verdict
		}
		f, ok = failed{why: why, err: t.err, beaten: won, slow: slow}, true
	}
	return f, ok
}

// silentAfter is how long a server must have sent nothing to count as silent, if the client left before the budget was used up.
const silentAfter = 3 * hedgeAfter

// stalled is how late this process may notice a timer or the end of a query. Beyond it, a server's silence proves nothing.
const stalled = 200 * time.Millisecond
