// Package translate tells whether this host's own packet rules translate a cluster DNS address: whether a packet for it that the
// switch gives back, after prerouting has begun, would come to kube-dns.
//
// It must never change a rule nor send a packet, and never take what could not be looked at for an answer. What translates
// before a packet meets the host's netfilter is of no use to the switch: programs at sockets (connect, sendmsg), and those at
// tc ingress or XDP of pods' links, which see the steering address. So it looks at nftables, both iptables, IPVS, and at what
// takes a packet after its route is found: a link that the address is routed to on purpose, or a program at that link's egress.
//
// Failure policy: each place that cannot be read makes the finding Unknown, unless another place gives the answer.
package translate

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// State is what was found of one address.
type State int

// The states.
const (
	None       State = iota // every place was looked at, and nothing translates it
	Translated              // by what Why names
	Unknown                 // Why names what could not be looked at, or may translate it
)

// Finding is what was found of one address. Why is in words, for people.
type Finding struct {
	Address netip.Addr
	State   State
	Why     string
}

// Look looks at the calling thread's netns. Rules are shown to CAP_NET_ADMIN only; without it an address is Unknown.
func Look(addresses ...netip.Addr) []Finding {
	out := make([]Finding, 0, len(addresses))
	for _, a := range addresses {
		out = append(out, look(a))
	}
	return out
}

// place is one thing that may translate an address.
type place struct {
	// by names what translates it there; "" if nothing does.
	by string
	// near says what was seen that does not, but tells why it is so.
	near string
	// maybe says why it cannot be told.
	maybe string
}

func look(a netip.Addr) Finding {
	var maybe, near []string
	for _, at := range []func(netip.Addr) (place, error){inNFT, inLegacy, inIPVS, inRoutes} {
		p, err := at(a)
		if err != nil {
			p.maybe = err.Error()
		}
		if p.by != "" {
			return Finding{a, Translated, p.by}
		}
		if p.maybe != "" {
			maybe = append(maybe, p.maybe)
		}
		if p.near != "" {
			near = append(near, p.near)
		}
	}
	switch {
	case len(maybe) > 0:
		return Finding{a, Unknown, strings.Join(maybe, "; ")}
	case len(near) > 0:
		return Finding{a, None, strings.Join(near, "; ")}
	}
	return Finding{a, None, "no rules of kube-proxy in nftables or iptables, no virtual server of IPVS"}
}

const ipvsFile = "/proc/thread-self/net/ip_vs"

// inIPVS reads the kernel's table of virtual servers.
func inIPVS(a netip.Addr) (place, error) {
	text, err := os.ReadFile(ipvsFile)
	if errors.Is(err, os.ErrNotExist) {
		return place{}, nil // a kernel without it, or that never used it
	} else if err != nil {
		return place{}, fmt.Errorf("IPVS cannot be looked at: %w", err)
	}
	return ipvs(string(text), a), nil
}

func ipvs(table string, a netip.Addr) place {
	servers := virtualServers(table)
	switch {
	case slices.Contains(servers, netip.AddrPortFrom(a, dnsPort)):
		return place{by: "IPVS"}
	case len(servers) > 0:
		return place{near: "IPVS has no virtual server for it"}
	}
	return place{}
}

const dnsPort = 53

// virtualServers reads /proc/net/ip_vs: lines such as "UDP  0A60000A:0035 rr" and "TCP  [fd00:0096:...:000a]:0035 rr".
func virtualServers(text string) []netip.AddrPort {
	var out []netip.AddrPort
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "TCP" && f[0] != "UDP" && f[0] != "SCTP" {
			continue
		}
		if s, ok := virtualServer(f[1]); ok {
			out = append(out, s)
		}
	}
	return out
}

func virtualServer(text string) (netip.AddrPort, bool) {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return netip.AddrPort{}, false
	}
	var port uint16
	if n, err := fmt.Sscanf(text[at+1:], "%04X", &port); n != 1 || err != nil {
		return netip.AddrPort{}, false
	}
	host := text[:at]
	if inner, ok := strings.CutPrefix(host, "["); ok {
		a, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		return netip.AddrPortFrom(a, port), err == nil
	}
	var four [4]byte
	if n, err := fmt.Sscanf(host, "%02X%02X%02X%02X", &four[0], &four[1], &four[2], &four[3]); n != len(four) || err != nil || len(host) != 2*len(four) {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(netip.AddrFrom4(four), port), true
}
