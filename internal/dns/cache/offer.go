package cache

import (
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/fastpath"
)

// Borrowing is what is known of a client whose hits somebody else may answer, with answers that this cache lends.
type Borrowing interface{ Borrows() bool }

// offer offers an answer that was just said, where the question is of those that the borrower knows.
func (c *Cache) offer(e *answers.Entry, q *fastpath.Query, now answers.Instant) {
	if q.TCP || !q.RD || q.CD || q.OPT.DO() {
		return
	}
	if rcode := e.Rcode(); rcode != dns.RcodeSuccess && rcode != dns.RcodeNameError {
		return
	}
	if client, ok := q.Who.(Borrowing); ok && client.Borrows() {
		c.source.Offer(e, now, q.MaxSize)
	}
}

// popular is with which gaps hits count as one popularity; 0 where nothing is fetched for it.
func (c *Cache) popular() time.Duration {
	if c.prefetch == 0 {
		return 0
	}
	return c.gap
}

// says tells until when hits of a question are answered with e: to its end where a timer watches it, else to the moment from which a popular
// answer is left to the chain, to be watched or fetched anew. It is part of lend.Source.
func (c *Cache) says(e, success, denial *answers.Entry, now answers.Instant) (until answers.Instant, ok bool) {
	if e == denial && success != nil && c.preferPositive {
		return 0, false // what is stale may come to be preferred at any moment
	}
	if chosen, left := c.choose(success, denial, now); chosen != e || left <= 0 {
		return 0, false
	}
	ttl := time.Duration(e.TTL()) * time.Second
	if c.prefetch > 0 && (!c.timed || !e.Marked()) {
		ttl -= ttl / 100 * time.Duration(c.percentage) // as in early
	}
	return e.Stored() + answers.Instant(ttl), true
}
