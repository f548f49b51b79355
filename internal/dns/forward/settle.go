package forward

import (
	"cmp"
	"errors"
	"time"

	"github.com/neardns/neardns/internal/dns/resourceerr"
)

// errNoStream is recorded for a try over TCP that still ran when the query ended.
var errNoStream = errors.New("no answer over TCP within the time of a query")

// settle updates the health of each server that was tried. winner is the index of the try after which the client got an answer, or -1.
func (r *hedgedQuery) settle(winner int) {
	now := time.Now()
	if r.checkLate(r.end); r.late {
		return // this process was stopped or got no CPU, so it may have read answers late that came in time
	}
	r.settleStreams(now)
	for i := range r.next {
		if r.tries[i].state == planned || r.tries[i].again && hasServer(r.tries[:i], r.tries[i].server) {
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
			why := reasonSlow
			if winner < 0 {
				why = reasonSilent
			}
			t.count(why)
		}
	}
}

// count counts the result of a try. A server that has sent anything since the try began is slow with this answer, not silent.
func (t *try) count(why reason) {
	if why == reasonSilent && t.server.heard(t.began) {
		why = reasonSlow
	}
	t.server.counts.results[why].Add(1)
}

// settleStreams records that a server answered over UDP although its TCP connection failed.
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

// byDatagram reports whether a server has answered this query over UDP, but not over TCP.
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

// settleOwn closes the pooled connections of the server that answered well, if another of its tries has a connection but no answer.
func (r *hedgedQuery) settleOwn(winner int) {
	won := &r.tries[winner]
	for i := range r.next {
		if t := &r.tries[i]; i != winner && t.server == won.server && t.state == running && t.hasConnection() {
			// This connection probably leads to an endpoint that is gone, and others of the same age may too.
			won.server.pool(t.stream).flush()
		}
	}
}

// failure returns how a server failed in its tries, the first of which has the index first; ok is false if it did not. If no server
// answered well (won is false), only network failures count, because there may be no better answer to the query.
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
			// The ICMP error may be true: the query ended before this server could have disproved it with an answer.
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

// silentAfter is how long a server must have sent nothing before its silence leads to a health check. If the client leaves sooner, the
// silence does not count.
const silentAfter = 3 * hedgeAfter

// stalled is the delay from which this process counts as stopped or without CPU. A server's silence then proves nothing.
const stalled = 200 * time.Millisecond
