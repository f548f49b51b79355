package nodecache

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/neardns/neardns/internal/dns/corefile"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
)

// Survey is what a Corefile written for NodeLocal DNSCache says of matters that the agent sees to itself.
type Survey struct {
	Zones      []string              // of all server blocks, lower case, without the final dot; the root is "."
	Prometheus []string              // host:port to serve metrics at, each once, as written
	Health     []string              // where /health is to be served
	Ready      []string              // where /ready is to be served
	Forward    map[string]netip.Addr // by zone, the first server on port 53 that it is forwarded to by number
}

// kubeDNSPort is where kube-dns answers.
const kubeDNSPort = 53

// Where CoreDNS's plugins listen that are given no address.
const (
	defaultPrometheus = "localhost:9153"
	defaultHealth     = ":8080"
	defaultReady      = ":8181"
)

// Look reads a Corefile without setting anything up. name stands for the text in errors; own are the agent's addresses, which
// no forward may name: the agent would ask itself.
func Look(name, text string, own []netip.Addr) (Survey, error) {
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
		forward := b.Directives["forward"]
		if err := checkForward(forward, own); err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
		if to := firstServer(forward); to.IsValid() {
			for _, z := range b.Zones {
				s.Forward[z] = to
			}
		}
	}
	return s, nil
}

// bracketed mends an IPv6 address that stands before its port without brackets, as a sed over IPv4's form leaves it.
func bracketed(at string) string {
	host, port, ok := cutLast(at, ":")
	if a, err := netip.ParseAddr(host); ok && err == nil && a.Is6() {
		return "[" + host + "]:" + port
	}
	return at
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// firstServer is the first that is named by its number, on the port that kube-dns has.
func firstServer(words []corefile.Word) netip.Addr {
	for _, t := range words {
		if t.Text == "{" {
			break
		}
		if at, err := nameserver.ParsePlain(strings.TrimPrefix(t.Text, "dns://")); err == nil && at.Addr.Port() == kubeDNSPort {
			return at.Addr.Addr()
		}
	}
	return netip.Addr{}
}

// checkForward refuses servers that are the agent itself.
func checkForward(words []corefile.Word, own []netip.Addr) error {
	for _, t := range words {
		if t.Text == "{" {
			return nil // options follow, and perhaps another forward; CoreDNS's own check sees to that
		}
		at, err := nameserver.ParsePlain(strings.TrimPrefix(t.Text, "dns://"))
		if err == nil && at.Refuse(own) != nil {
			return fmt.Errorf("line %d: forward to %s, an address of the agent itself, which would ask itself for ever: "+
				"name the server behind it, such as the address of a second Service", t.Line, t.Text)
		}
	}
	return nil
}
