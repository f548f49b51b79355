package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/caddy/caddyfile"

	"github.com/neardns/neardns/agent/internal/nameserver"
)

// Survey is what a Corefile written for NodeLocal DNSCache says of matters that the agent sees to itself.
type Survey struct {
	Zones      []string              // of all server blocks, lower case, without the final dot; the root is "."
	Prometheus []string              // host:port to serve metrics at, each once, as written
	Health     []string              // where /health is to be served
	Ready      []string              // where /ready is to be served
	Forward    map[string]netip.Addr // by zone, the first server on port 53 that it is forwarded to by number
}

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
	blocks, err := parseCorefile(name, text)
	if err != nil {
		return s, err
	}
	for _, sb := range blocks {
		zones, err := blockZones(sb.Keys, defaultPort)
		if err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
		s.Zones = append(s.Zones, zones...)
		for _, e := range []struct {
			directive, otherwise string
			into                 *[]string
		}{{"prometheus", defaultPrometheus, &s.Prometheus}, {"health", defaultHealth, &s.Health}, {"ready", defaultReady, &s.Ready}} {
			tokens, ok := sb.Tokens[e.directive]
			if !ok {
				continue
			}
			at := e.otherwise
			if len(tokens) > 1 && tokens[1].Text != "{" {
				at = bracketed(tokens[1].Text)
			}
			if !slices.Contains(*e.into, at) {
				*e.into = append(*e.into, at)
			}
		}
		if err := checkForward(sb.Tokens[dirForward], own); err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
		if to := firstServer(sb.Tokens[dirForward]); to.IsValid() {
			for _, z := range zones {
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
func firstServer(tokens []caddyfile.Token) netip.Addr {
	for _, t := range tokens {
		if t.Text == "{" {
			break
		}
		if at, err := nameserver.ParsePlain(strings.TrimPrefix(t.Text, "dns://")); err == nil && at.Addr.Port() == defaultPort {
			return at.Addr.Addr()
		}
	}
	return netip.Addr{}
}

// checkForward refuses servers that are the agent itself.
func checkForward(tokens []caddyfile.Token, own []netip.Addr) error {
	for _, t := range tokens {
		if t.Text == "{" {
			return nil // options follow, and perhaps another forward; CoreDNS's own check sees to that
		}
		at, err := nameserver.ParsePlain(strings.TrimPrefix(t.Text, "dns://"))
		if err == nil && at.Refuse(own) != nil {
			return fmt.Errorf("line %d: forward to %s, an address of the agent itself, which would ask itself for ever: name the server behind it, such as the address of a second Service", t.Line, t.Text)
		}
	}
	return nil
}

// blockBinds are the addresses of ours that a server block binds; none: it binds nothing, and is served at all.
func blockBinds(tokens []caddyfile.Token, cfg Config) ([]netip.Addr, error) {
	if len(tokens) == 0 {
		return nil, nil
	}
	var out, except []netip.Addr
	into := &out
	for _, t := range tokens {
		switch t.Text {
		case dirBind, "{", "}":
			into = &out
			continue
		case "except":
			into = &except
			continue
		}
		addresses := cfg.Addresses
		if a, err := netip.ParseAddr(t.Text); err == nil {
			if a = a.Unmap(); !a.IsUnspecified() { // every address of the node: of ours, all of its family
				addresses = []netip.Addr{a}
			} else {
				addresses = slices.DeleteFunc(slices.Clone(addresses), func(o netip.Addr) bool { return o.Is4() != a.Is4() })
			}
		} else if t.Text != cfg.Binds {
			return nil, fmt.Errorf("line %d: bind %s: neither an address nor the agent's link (%s): the agent listens on its own addresses alone", t.Line, t.Text, cfg.Binds)
		}
		for _, a := range addresses {
			if slices.Contains(cfg.Addresses, a) && !slices.Contains(*into, a) {
				*into = append(*into, a)
			}
		}
	}
	out = slices.DeleteFunc(out, func(a netip.Addr) bool { return slices.Contains(except, a) })
	if len(out) == 0 {
		return nil, fmt.Errorf("line %d: bind names none of the agent's addresses (%s): name one of them, or take the line out", tokens[0].Line, joinAddrs(cfg.Addresses))
	}
	return out, nil
}

func joinAddrs(addresses []netip.Addr) string {
	var out []string
	for _, a := range addresses {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}

// Directives lists what an operator's Corefile may say: what is served, and what the agent sees to itself.
func Directives() []string {
	out := slices.DeleteFunc(directives(), func(d string) bool { return d == dirProbe || d == dirMetrics })
	for name := range taken() {
		if name != dirMetrics {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
