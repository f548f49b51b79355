package cache

import (
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/fastpath"
)

// OffloadClient is implemented by the identity of a client. MayOffload reports whether the kernel program may answer this client's
// queries from offloaded entries.
type OffloadClient interface{ MayOffload() bool }

// offer is called for a hit: e answers q. It offers e for offload if the kernel program could answer such a query.
func (c *Cache) offer(e *answers.Entry, q *fastpath.Query, now answers.Instant) {
	if q.TCP || !q.RD || q.CD || q.OPT.DO() {
		return
	}
	if rcode := e.Rcode(); rcode != dns.RcodeSuccess && rcode != dns.RcodeNameError {
		return
	}
	if client, ok := q.Identity.(OffloadClient); ok && client.MayOffload() {
		c.source.Offer(e, now, q.MaxSize)
	}
}

// validUntil returns until when the kernel program may serve e: until e expires if the timer watches it or nothing is refreshed, otherwise
// until only the configured percentage of its TTL is left. ok is false if e has expired, or if the cache serves the key's other entry. It
// implements entries.Source.ValidUntil.
func (c *Cache) validUntil(e, success, denial *answers.Entry, now answers.Instant) (until answers.Instant, ok bool) {
	if chosen, left := c.choose(success, denial, now); chosen != e || left <= 0 {
		return 0, false
	}
	ttl := time.Duration(e.TTL()) * time.Second
	if c.prefetch > 0 && (!c.timed || !e.Marked()) {
		ttl -= ttl / 100 * time.Duration(c.percentage) // as in early
	}
	return e.Stored() + answers.Instant(ttl), true
}
