// Package probe is the CoreDNS plugin that answers the agent's own prober with the name of the instance that serves the address.
//
// It owns one zone, in a server block of its own, so it costs the other zones nothing: no handler more in their chains.
// It guarantees that no upstream is queried, that no answer is cached, and that only the prober learns which instance answers.
//
// On failure: every other query gets NXDOMAIN, which the prober takes for "not the agent".
package probe

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

// Zone is below "invalid" (RFC 6761), so that a query that takes the fallback instead ends at kube-dns or the root
// with NXDOMAIN and can never be mistaken for the agent's answer.
const Zone = "probe.neardns.invalid."

// Probe answers <nonce>.<Zone> TXT with the instance's name.
type Probe struct {
	Instance string
	Sources  []netip.Addr // whose queries are answered, besides loopback
}

// Name implements plugin.Handler.
func (p *Probe) Name() string { return "probe" }

// ServeDNS implements plugin.Handler. The plugin is the end of its chain.
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
		// The client is gone or its buffer full; CoreDNS must not write a second time, so the code is that of a written answer.
		return dns.RcodeSuccess, plugin.Error(p.Name(), err)
	}
	return answer.Rcode, nil
}

func (p *Probe) asks(client net.Addr) bool {
	var addr netip.Addr
	switch c := client.(type) {
	case *net.UDPAddr:
		addr = c.AddrPort().Addr().Unmap()
	case *net.TCPAddr:
		addr = c.AddrPort().Addr().Unmap()
	default:
		return false
	}
	return addr.IsLoopback() || slices.Contains(p.Sources, addr.WithZone(""))
}

// hasNonce reports whether name is exactly one label below the zone. Only the prober's fresh names are answered, so a
// cache on the way (a mesh's capture, a test's resolver) cannot answer in the agent's place.
func hasNonce(name string) bool {
	cut := len(name) - len(Zone) - 1
	if cut <= 0 || name[cut] != '.' || !strings.EqualFold(name[cut+1:], Zone) {
		return false
	}
	return !strings.Contains(name[:cut], ".")
}
