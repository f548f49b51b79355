package corefile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/coredns/caddy/caddyfile"
)

// blockBinds returns those of the agent's addresses that a server block's bind directive names. It returns none if there is no such
// directive: the block is then served at all addresses.
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
			if a = a.Unmap(); !a.IsUnspecified() { // a wildcard means all of the agent's addresses of its family
				addresses = []netip.Addr{a}
			} else {
				addresses = slices.DeleteFunc(slices.Clone(addresses), func(o netip.Addr) bool { return o.Is4() != a.Is4() })
			}
		} else if t.Text != cfg.Binds {
			return nil, fmt.Errorf("line %d: bind %s: neither an address nor the agent's link (%s): the agent listens on its own addresses alone",
				t.Line, t.Text, cfg.Binds)
		}
		for _, a := range addresses {
			if slices.Contains(cfg.Addresses, a) && !slices.Contains(*into, a) {
				*into = append(*into, a)
			}
		}
	}
	out = slices.DeleteFunc(out, func(a netip.Addr) bool { return slices.Contains(except, a) })
	if len(out) == 0 {
		return nil, fmt.Errorf("line %d: bind names none of the agent's addresses (%s): name one of them, or take the line out",
			tokens[0].Line, joinAddrs(cfg.Addresses, ", "))
	}
	return out, nil
}

func joinAddrs(addresses []netip.Addr, separator string) string {
	var out []string
	for _, a := range addresses {
		out = append(out, a.String())
	}
	return strings.Join(out, separator)
}

// Directives lists the directives that an operator's Corefile may have, except for metrics: those that are served, and those that the agent
// takes out. Only the agent writes the directives for the prober's zone and for an edge.
func Directives() []string {
	out := slices.DeleteFunc(directives(), func(d string) bool { return d == dirProbe || d == dirMetrics || d == dirShared })
	for name := range taken() {
		if name != dirMetrics {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
