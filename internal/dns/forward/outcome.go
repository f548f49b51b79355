package forward

import (
	"errors"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/resourceerr"
)

// outcome is what came of a try.
type outcome struct {
	try  int
	msg  *dns.Msg
	err  error
	told bool // by the network, in err: the try goes on
}

// take notes an outcome and reports whether it is the answer.
func (r *race) take(out outcome) bool {
	t := &r.tries[out.try]
	t.state, t.err = ended, out.err
	now := time.Now()
	v := good
	if out.err == nil {
		v = judge(out.msg, r.a.holds)
		t.server.observe(out.msg.Rcode, now.Sub(t.began))
		if t.stream {
			t.server.streamWorks()
		}
	}
	t.why, t.worth = reasonOf(v, out.err), v
	t.server.counts.results[t.why].Add(1)
	if out.err != nil {
		// The head of the answer is all that there is, and the client can come over TCP itself.
		return r.cut() && t.stream && !t.stood() && !r.overTCP
	}
	if r.best == nil || rank(v) < rank(r.worth) {
		r.best, r.worth = out.msg, v
	}
	if v == truncated && t.stream && !r.overTCP {
		v = good // the server itself has no more
	}
	if v != good {
		t.server.hear(now)
		if v == truncated && !t.stream {
			r.headed = now
			r.wholeNext(t)
		}
		return false
	}
	t.server.good(now, now.Sub(t.began))
	t.server.remember(now, r.req)
	t.server.health.well.Store(t.server.at(now))
	if r.spare {
		for _, s := range r.a.list {
			if s != t.server && s.health.failing.Load() {
				s.offer(r.req, r.a.stream, r.a.holds)
			}
		}
	}
	if t.at >= r.a.first {
		r.a.resorted.Add(1)
	}
	return true
}

// wholeNext has the server that answered with the head of an answer asked next, over a stream.
func (r *race) wholeNext(t *try) {
	if r.next == maxTries {
		return
	}
	if r.count < maxTries {
		r.count++
	}
	copy(r.tries[r.next+1:r.count], r.tries[r.next:r.count-1])
	r.tries[r.next] = try{server: t.server, at: t.at, again: true, stream: true}
}

// rank says which of two answers that are no good goes to the client when there is no other. A denial from elsewhere is
// what the client would have got without us.
func rank(v verdict) int {
	return [...]int{good: 0, truncated: 1, lame: 2, servfail: 3, refused: 4}[v]
}

// give ends a race that nobody has won: with the best of the bad answers, or everybody's reason. A client over TCP never gets
// the head of an answer: it would take it for the whole.
func (r *race) give(err error) (*dns.Msg, error) {
	if r.best != nil && !(r.overTCP && r.cut()) {
		return r.best, nil
	}
	errs := []error{err}
	limit := err != nil || r.cut()
	if r.cut() {
		errs = append(errs, errCut)
	}
	for i := range r.next {
		t := &r.tries[i]
		switch t.state {
		case planned:
			continue
		case running:
			t.why = reasonSilent
		}
		// What did not come in time may be on its way, but from a server that was dead before and stayed so.
		limit = limit || resourceerr.ForQuery(t.err) || t.why == reasonSilent && (!r.trial || t.server.heard(r.began))
		errs = append(errs, fault(t.server, t.why, t.err))
	}
	if err = errors.Join(errs...); limit {
		err = limited{err}
	}
	return nil, err
}
