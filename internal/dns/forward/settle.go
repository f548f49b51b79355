package forward

import (
	"cmp"
	"errors"
	"time"

	"github.com/neardns/neardns/internal/dns/resourceerr"
)

// errNoStream is of a stream that was still being made when another way had the answer.
var errNoStream = errors.New("no connection in the time of a question")

// settle draws the conclusions of a race: what each server that was asked has shown of itself. winner is the try that
// answered well, or -1.
func (r *race) settle(winner int) {
	now := time.Now()
	if r.due(r.end); r.late {
		return // it was us: stopped or starved, we have looked too late at what had come in time
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
			s.bad(now, f)
		}
	}
	for i := range r.next {
		if t := &r.tries[i]; t.state == running {
			t.server.counts.results[reasonSlow].Add(1)
		}
	}
}

// settleStreams notes whose streams did not come about although they answered over datagrams. A stream that stands and
// brings nothing is slow and no more, unless none has ever brought anything.
func (r *race) settleStreams(now time.Time) {
	for i := range r.next {
		t := &r.tries[i]
		failed := t.state == ended && t.err != nil && !resourceerr.ForQuery(t.err) || t.state == running && now.Sub(t.began) >= hedgeAfter
		if !t.stream || t.server.tls != nil || !failed || t.stood() && t.server.streams.worked.Load() || !r.byDatagram(t.server) {
			continue
		}
		t.server.streamFailed(now, cmp.Or(t.err, errNoStream))
		return
	}
}

// byDatagram reports whether a server has answered over a datagram, and over no stream.
func (r *race) byDatagram(s *server) (did bool) {
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

// earlier reports whether a try before i asked the same server.
func (r *race) earlier(i int) bool {
	for j := range i {
		if r.tries[j].server == r.tries[i].server {
			return true
		}
	}
	return false
}

// settleOwn is for a server whose second try was better than its first: the server is well, the first way to it was not.
func (r *race) settleOwn(winner int) {
	won := &r.tries[winner]
	for i := range r.next {
		if t := &r.tries[i]; i != winner && t.server == won.server && t.state == running && t.stood() {
			// Its connection leads to an endpoint that is gone, as may the others of its time.
			won.server.pool(t.stream).flush()
		}
	}
}

// failure sums up what went wrong between a server and this question, over all of its tries. Without a winner only the
// network's failures count: nobody has shown that the question has a better answer.
func (r *race) failure(first int, won bool, now time.Time) (f failed, ok bool) {
	for i := first; i < r.next; i++ {
		t := &r.tries[i]
		if t.server != r.tries[first].server || t.state == planned {
			continue
		}
		why := t.why
		heard := t.server.heard(t.began)
		overtaken := false
		switch {
		case t.state == ended && t.err == nil && (!won || !t.why.spoken()):
			return failed{}, false
		case resourceerr.ForQuery(t.err):
			continue
		case t.state == running && t.told != nil:
			// It may be true. Another server answered before it could be seen whether this one answers all the same.
			return failed{why: reasonOf(good, t.told), err: t.told, req: r.req, holds: r.a.holds, asker: r.a, stream: t.stream}, true
		case t.state == ended && t.why != reasonSilent:
		case won && now.Sub(t.began) >= hedgeAfter:
			if why, overtaken = reasonSilent, true; heard {
				why = reasonSlow
			}
		case !won && !heard && now.Sub(t.began) >= silentAfter:
			why = reasonSilent
		default:
			continue // too short to tell
		}
		f, ok = failed{why: why, err: t.err, beaten: won, overtaken: overtaken, req: r.req, holds: r.a.holds, asker: r.a}, true
		f.stream = r.tries[first].stream
	}
	return f, ok
}

// silentAfter is how long nothing may have been heard of a server to call it silent, where its client went before the
// budget was over.
const silentAfter = 3 * hedgeAfter

// stalled is how late a timer or the end of a question may be noticed before a server's silence says nothing.
const stalled = 200 * time.Millisecond
