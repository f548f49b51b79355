// Package limit is the CoreDNS plugin that bounds the queries in flight to upstreams, fairly by client.
//
// It comes after the cache, so it sees only misses: a hit never waits and is never shed, whatever floods the node. It never waits and
// sends no query itself.
//
// On failure: a query beyond the limit is shed at once with SERVFAIL and without a written answer, so the cache in front of it serves a
// stale answer if it has one, and stores nothing of the failure.
package limit

import (
	"context"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fairshare"
)

// Limit passes the misses on that its gate admits.
type Limit struct {
	next plugin.Handler
	gate *Gate
}

// Name implements plugin.Handler.
func (a *Limit) Name() string { return "limit" }

// ServeDNS implements plugin.Handler.
func (a *Limit) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	client := fairshare.Client(w.RemoteAddr())
	if a.gate.enter(client) != admitted {
		// No error is returned: with one, CoreDNS's cache would store the SERVFAIL, and one pod's flood would take a name from all
		// pods. The errors plugin would also log each of 20,000 a second, which the gate has counted already.
		return dns.RcodeServerFailure, nil
	}
	defer a.gate.leave(client)
	return plugin.NextOrFailure(a.Name(), a.next, ctx, w, r)
}
