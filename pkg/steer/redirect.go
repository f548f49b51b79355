package steer

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/neardns/neardns/pkg/strict"
)

// ReadRedirect reads a redirect from a configuration: the cluster DNS address as a string, or an object with that address and
// optionally the steering address. It calls addr to parse an address; addr reports a fault to the same reader r.
func ReadRedirect(r *strict.Reader, v strict.Value, addr func(strict.Value) netip.Addr) Redirect {
	var out Redirect
	switch v.Kind {
	case strict.String:
		out.ClusterDNS = addr(v)
		return out
	case strict.Object:
	default:
		r.Mismatch(v, `"10.96.0.10" or {"clusterDNS": "10.96.0.10", "steering": "169.254.20.11"}`)
		return out
	}
	named := false
	for _, m := range r.Members(v) {
		switch m.Key {
		case "clusterDNS":
			named = true
			out.ClusterDNS = addr(m.Value)
		case "steering":
			out.Steering = addr(m.Value)
		default:
			r.Unknown(m, "clusterDNS", "steering")
		}
	}
	if !named {
		r.Fault(v.At("clusterDNS"), "missing: name the address that pods have as nameserver")
	}
	return out
}

// UnmarshalJSON reads either form of a redirect. It ignores unknown keys, because a newer release may have written them.
func (r *Redirect) UnmarshalJSON(text []byte) error {
	v, err := strict.JSON("", "", text)
	if err != nil || v.IsNull() {
		return err
	}
	var in strict.Reader
	*r = ReadRedirect(&in, v, func(v strict.Value) (a netip.Addr) {
		text, _ := in.TextOf(v, "an IP address, in quotes")
		if text == "" {
			return a
		}
		a, err := netip.ParseAddr(text)
		if err != nil {
			in.Fault(v, "%q is not an IP address", text)
		}
		return a
	})
	for _, f := range in.Faults() {
		if !f.Unknown {
			return fmt.Errorf("redirect: %w", f)
		}
	}
	return nil
}

// ClusterDNS lists the cluster DNS addresses of redirects, in their order.
func ClusterDNS(redirects []Redirect) []netip.Addr {
	var out []netip.Addr
	for _, r := range redirects {
		out = append(out, r.ClusterDNS)
	}
	return out
}

// JoinAddrs writes addresses into one string, with separator between them.
func JoinAddrs(addrs []netip.Addr, separator string) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, separator)
}
