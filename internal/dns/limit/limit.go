// Package limit is the CoreDNS plugin that bounds what is asked of upstreams at one time, fairly by who asks.
//
// It stands behind the cache, so it sees misses alone: a hit never waits and is never turned away, whatever floods the
// node. It owns the Gate. It must never ask, wait or answer by itself.
//
// Failure policy: a question beyond the bounds is shed at once with SERVFAIL and not written, so the cache in front
// gives a stale answer where it has one, and keeps nothing of the failure where it has none.
package limit

import (
	"context"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fairshare"
)

// Limit lets misses through its gate.
type Limit struct {
	next plugin.Handler
	gate *Gate
}

// Name implements plugin.Handler.
func (a *Limit) Name() string { return "limit" }

// ServeDNS implements plugin.Handler.
func (a *Limit) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	src := fairshare.Source(w.RemoteAddr())
	if a.gate.enter(src) != admitted {
		// No error beside it: CoreDNS's cache would keep a SERVFAIL that comes with one, and one pod's flood would take a
		// name from all pods. The errors plugin would log each of 20,000 a second; the gate has counted it.
		return dns.RcodeServerFailure, nil
	}
	defer a.gate.leave(src)
	return plugin.NextOrFailure(a.Name(), a.next, ctx, w, r)
}
