// Package limit is the CoreDNS plugin that limits the queries in flight to upstreams, and shares them fairly among clients.
//
// It comes after the cache, so it sees only misses and refreshes: a hit is never refused, whatever floods the node. It never waits and
// sends no query itself.
//
// A query above the limit or the client's fair share is refused at once with SERVFAIL, but without a written answer. So the cache before
// it serves a stale entry if it has one, and does not store the failure.
package limit

import (
	"context"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fairshare"
)

// Limit is the plugin's handler in one server block. It passes on the misses that its gate admits.
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
		// No error is returned. With an error, the cache would store the SERVFAIL, so one pod's flood would make a name fail for all
		// pods. The errors plugin would also log each refusal, thousands a second during a flood; the gate has counted them.
		return dns.RcodeServerFailure, nil
	}
	defer a.gate.leave(client)
	return plugin.NextOrFailure(a.Name(), a.next, ctx, w, r)
}
