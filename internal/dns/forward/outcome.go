package forward

import (
	"errors"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/resourceerr"
)

// outcome is the result of a try.
type outcome struct {
	try int
	msg *dns.Msg
	err error
}

// take records the outcome of a try. It reports whether the client's query has its answer.
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
	t.count(t.why)
	if out.err != nil {
		// The answer is truncated and the server accepts no TCP; the client can try TCP itself.
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
	t.server.good(t.began, now)
	if t.at >= r.a.first {
		r.a.resorted.Add(1)
	}
	return true
}

// planWhole inserts a try, if one is left, that fetches the whole answer over TCP from the server of the truncated one.
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

// rank orders answers; without a good one, the client gets the one with the lowest rank. A denial from a server that does not hold the zone
// ranks before an error, because without neardns the client would have got it.
func rank(v verdict) int {
	return [...]int{good: 0, truncated: 1, lame: 2, servfail: 3, refused: 4}[v]
}

// finish ends a query without a good answer: with the best other answer, or with an error that has each server's reason. A client over
// TCP never gets a truncated answer, because it would take it for complete.
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
		// A silent server may still answer, so the failure must not be cached; except if all servers were failing already and this one
		// has sent nothing since.
		limit = limit || resourceerr.ForQuery(t.err) || t.why == reasonSilent && (!r.probing || t.server.heard(r.began))
		errs = append(errs, fault(t.server, t.why, t.err))
	}
	if err = errors.Join(errs...); limit {
		err = limited{err}
	}
	return nil, err
}
