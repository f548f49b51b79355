package nodecache

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
)

// Survey has what the agent itself uses of a Corefile written for NodeLocal DNSCache.
type Survey struct {
	Zones      []string              // zones of all server blocks, lower case, without the final dot; the root is "."
	Prometheus []string              // addresses of the prometheus directive (host:port), without duplicates
	Health     []string              // addresses of /health
	Ready      []string              // addresses of /ready
	Forward    map[string]netip.Addr // by zone: the first server on port 53 to which the zone is forwarded
}

// kubeDNSPort is kube-dns's port.
const kubeDNSPort = 53

// The default addresses of CoreDNS's plugins.
const (
	defaultPrometheus = "localhost:9153"
	defaultHealth     = ":8080"
	defaultReady      = ":8181"
)

// ReadCorefile parses a Corefile and returns its Survey. name is its name in errors. own has the agent's addresses; a forward to one of
// them is an error.
func ReadCorefile(name, text string, own []netip.Addr) (Survey, error) {
	s := Survey{Forward: map[string]netip.Addr{}}
	blocks, err := corefile.Blocks(name, text)
	if err != nil {
		return s, err
	}
	for _, b := range blocks {
		s.Zones = append(s.Zones, b.Zones...)
		for _, e := range []struct {
			directive, otherwise string
			into                 *[]string
		}{{"prometheus", defaultPrometheus, &s.Prometheus}, {"health", defaultHealth, &s.Health}, {"ready", defaultReady, &s.Ready}} {
			words, ok := b.Directives[e.directive]
			if !ok {
				continue
			}
			at := e.otherwise
			if len(words) > 1 && words[1].Text != "{" {
				at = bracketed(words[1].Text)
			}
			if !slices.Contains(*e.into, at) {
				*e.into = append(*e.into, at)
			}
		}
		to, err := firstServer(b.Directives["forward"], own)
		if err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
		if to.IsValid() {
			for _, z := range b.Zones {
				s.Forward[z] = to
			}
		}
	}
	return s, nil
}

// bracketed adds the brackets that an IPv6 address before a port needs, if they are missing: an operator may have replaced an IPv4
// address in the Corefile template.
func bracketed(at string) string {
	i := max(strings.LastIndex(at, ":"), 0)
	if a, err := netip.ParseAddr(at[:i]); err == nil && a.Is6() {
		return "[" + at[:i] + "]" + at[i:]
	}
	return at
}

// firstServer returns the first server of a forward directive that has port 53. It is an error if a server is the agent itself. It leaves
// the directive's options, and another forward after them, for CoreDNS to check.
func firstServer(words []corefile.Token, own []netip.Addr) (first netip.Addr, err error) {
	for _, t := range words {
		if t.Text == "{" {
			break
		}
		at, err := nameserver.ParsePlain(strings.TrimPrefix(t.Text, "dns://"))
		switch {
		case err != nil: // the zone, or a server that only CoreDNS reads
		case at.Refuse(own) != nil:
			return first, fmt.Errorf("line %d: forward to %s, an address of the agent, which would query itself forever: "+
				"name the server behind it, such as the address of a second Service", t.Line, t.Text)
		case !first.IsValid() && at.Addr.Port() == kubeDNSPort:
			first = at.Addr.Addr()
		}
	}
	return first, nil
}
