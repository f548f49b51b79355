// Package probe is the CoreDNS plugin that answers the agent's prober with the ID of the agent instance that serves the address.
//
// Its zone has a server block of its own, so queries for other zones do not pass it. It queries no upstream, its answers are not cached,
// and only the prober and loopback addresses learn which instance answers.
//
// Every other query in its zone gets NXDOMAIN.
package probe

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/dns/fairshare"
)

// Zone is the zone of the prober's queries. It is below "invalid" (RFC 6761): a query that takes the fallback gets NXDOMAIN from kube-dns
// or the root, which cannot be mistaken for the agent's answer.
const Zone = "probe.neardns.invalid."

// Probe answers TXT queries for <nonce>.<Zone> with the instance's ID.
type Probe struct {
	Instance string
	Sources  []netip.Addr // the prober's addresses: only they and loopback addresses get the ID
}

// Name implements plugin.Handler.
func (p *Probe) Name() string { return "probe" }

// ServeDNS implements plugin.Handler. It calls no other plugin, because Probe is the last one of its server block.
func (p *Probe) ServeDNS(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	answer := new(dns.Msg)
	answer.SetReply(r)
	answer.Authoritative = true
	q := r.Question[0]
	if p.asks(w.RemoteAddr()) && q.Qclass == dns.ClassINET && q.Qtype == dns.TypeTXT && hasNonce(q.Name) {
		answer.Answer = []dns.RR{&dns.TXT{
			Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET},
			Txt: []string{p.Instance},
		}}
	} else {
		answer.Rcode = dns.RcodeNameError
	}
	if err := w.WriteMsg(answer); err != nil {
		// The client is gone, or its buffer is full. The returned code means that an answer was written, so that CoreDNS does not write
		// another.
		return dns.RcodeSuccess, plugin.Error(p.Name(), err)
	}
	return answer.Rcode, nil
}

func (p *Probe) asks(client net.Addr) bool {
	addr := fairshare.Client(client)
	return addr.IsLoopback() || slices.Contains(p.Sources, addr)
}

// hasNonce reports whether name is exactly one label below Zone. The prober uses a new label for each query, so that a cache on the way
// (of a service mesh, or a test's resolver) cannot answer in the agent's place.
func hasNonce(name string) bool {
	cut := len(name) - len(Zone) - 1
	if cut <= 0 || name[cut] != '.' || !strings.EqualFold(name[cut+1:], Zone) {
		return false
	}
	return !strings.Contains(name[:cut], ".")
}
