package forward

import (
	"errors"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/resourceerr"
)

// outcome is the result of a try.
type outcome struct {
	try      int
	msg      *dns.Msg
	err      error
	rejected bool // err is the network's rejection of a datagram: the try goes on
}

// take records an outcome and reports whether it is the answer.
func (r *hedgedQuery) take(out outcome) bool {
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
		// There is only a truncated answer, and the client can retry over TCP itself.
		return r.isTruncated() && t.stream && !t.hasConnection() && !r.overTCP
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
			r.truncatedAt = now
			r.planWhole(t)
		}
		return false
	}
	t.server.good(now)
	if t.at >= r.a.first {
		r.a.resorted.Add(1)
	}
	return true
}

// planWhole makes the next try go to the server of the truncated answer, over a stream.
func (r *hedgedQuery) planWhole(t *try) {
	if r.next == maxTries {
		return
	}
	if r.count < maxTries {
		r.count++
	}
	copy(r.tries[r.next+1:r.count], r.tries[r.next:r.count-1])
	r.tries[r.next] = try{server: t.server, at: t.at, again: true, stream: true}
}

// rank orders the answers that are not good: the lowest goes to the client if there is no good one. A denial from another zone is what the
// client would have got without neardns.
func rank(v verdict) int {
	return [...]int{good: 0, truncated: 1, lame: 2, servfail: 3, refused: 4}[v]
}

// finish ends a query without a good answer: with the best of the others, or with each server's reason. A client over TCP never gets a
// truncated answer, because it would take it for the whole.
func (r *hedgedQuery) finish(err error) (*dns.Msg, error) {
	if r.best != nil && !(r.overTCP && r.isTruncated()) {
		return r.best, nil
	}
	errs := []error{err}
	limit := err != nil || r.isTruncated()
	if r.isTruncated() {
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
		// A late answer may still be on its way, except from a server that was dead before and sent nothing since.
		limit = limit || resourceerr.ForQuery(t.err) || t.why == reasonSilent && (!r.trial || t.server.heard(r.began))
		errs = append(errs, fault(t.server, t.why, t.err))
	}
	if err = errors.Join(errs...); limit {
		err = limited{err}
	}
	return nil, err
}
