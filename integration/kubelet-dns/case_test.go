package kubeletdns

import (
	"math/rand/v2"
	"net/netip"
	"strings"

	"github.com/neardns/neardns/pkg/resolvconf"
)

// node has the facts about the node that both sides get.
type node struct {
	file          string
	clusterDNS    []netip.Addr
	clusterDomain string
}

// generator makes cases. Its words are few, so that they meet: duplicates, overrides and limits are what the rules are about.
type generator struct{ *rand.Rand }

func newGenerator(seed uint64) generator { return generator{rand.New(rand.NewPCG(seed, 0))} }

func (g generator) one(of ...string) string { return of[g.IntN(len(of))] }

func (g generator) chance(percent int) bool { return g.IntN(100) < percent }

// many draws a list: most are short, some reach the limits, few pass them by far.
func (g generator) many(draw func() string) []string {
	n := g.IntN(4)
	switch {
	case g.chance(10):
		n = 25 + g.IntN(20)
	case g.chance(20):
		n = 2 + g.IntN(6)
	}
	var out []string
	for range n {
		out = append(out, draw())
	}
	return out
}

func (g generator) addr() netip.Addr {
	return netip.MustParseAddr(g.one("10.96.0.10", "10.96.0.10", "10.0.0.1", "fd00::a", "::ffff:10.0.0.1", "192.168.1.1", "::1", "127.0.0.1"))
}

func (g generator) addrs() []netip.Addr {
	var out []netip.Addr
	for range 1 + g.IntN(4) {
		out = append(out, g.addr())
	}
	return out
}

func (g generator) nameserver() string {
	if g.chance(10) {
		return g.one("FD00::A", "fe80::1%eth0", "dns.example", "010.0.0.1", "10.0.0.1:53", "#")
	}
	return g.addr().String()
}

// domain draws one from few, or one of a length near the limits. valid ones are what an overlay may hold.
func (g generator) domain(valid bool) string {
	switch {
	case g.chance(50):
		return g.one("a.example", "b.example", "cluster.local", "svc.cluster.local", "ns1.svc.cluster.local", "ns1.svc.a", "_tcp.example", ".")
	case valid:
		return strings.TrimSuffix(strings.Repeat(g.one("abcdefgh.", strings.Repeat("x", 62)+"."), 1+g.IntN(3))+g.one("a", "b", "c", "d"), ".")
	case g.chance(20): // around 253 and 255
		return strings.Repeat("x", 248+g.IntN(10))
	case g.chance(25):
		return g.one("a.example.", "..", "", "UPPER.example", "ä.example", "#", "a.example..", "cluster.local.")
	}
	return strings.Repeat(g.one("a", "b", "c", "d"), 1+g.IntN(90))
}

func (g generator) option() string {
	return g.one("ndots", "ndots", "timeout", "rotate", "edns0", "x") + g.one("", "", ":1", ":2", ":5", ":a:b", ":")
}

// space is what stands between words of a file, and about lines.
func (g generator) space() string {
	return g.one(" ", " ", " ", "\t", "  ", " \t ", "\v", "\u00a0")
}

func (g generator) file() string {
	var b strings.Builder
	for range g.IntN(8) {
		if g.chance(10) {
			b.WriteString(g.space())
		}
		switch {
		case g.chance(30):
			b.WriteString("nameserver")
			if !g.chance(2) { // without an address the whole file is at fault
				b.WriteString(g.space() + g.nameserver())
			}
			if g.chance(10) {
				b.WriteString(g.space() + "more")
			}
		case g.chance(40):
			b.WriteString("search")
			for _, d := range g.many(func() string { return g.domain(false) }) {
				b.WriteString(g.space() + d)
			}
		case g.chance(60):
			b.WriteString("options")
			for _, o := range g.many(g.option) {
				b.WriteString(g.space() + o)
			}
		default:
			b.WriteString(g.one("", "# nameserver 1.1.1.1", ";search c", "domain d.example", "sortlist 10.0.0.0/8", "nameservers 1.1.1.1", "Search e", "option f", "\x00\xff", "#"))
		}
		b.WriteString(g.one("\n", "\n", "\n", "\r\n", "\n\n", " \n"))
	}
	text := b.String()
	if g.chance(30) {
		text = strings.TrimRight(text, "\n")
	}
	return text
}

func (g generator) node() node {
	return node{file: g.file(), clusterDNS: g.addrs(), clusterDomain: g.one("cluster.local", "a")}
}

func (g generator) policy() resolvconf.Policy {
	return resolvconf.Policy(g.one("Default", "ClusterFirst", "ClusterFirstWithHostNet", "None"))
}

// settings draws what a runtime passes, or what a pod's resolv.conf has.
func (g generator) settings() resolvconf.Settings {
	return resolvconf.Settings{
		Nameservers: g.many(g.nameserver),
		Searches:    g.many(func() string { return g.domain(false) }),
		Options:     g.many(g.option),
	}
}

// overlay draws what may stand in one: the kubelet, given the same as a dnsConfig, is its oracle.
func (g generator) overlay() resolvconf.Overlay {
	var o resolvconf.Overlay
	for range len(g.many(g.option)) {
		o.Options = append(o.Options, g.option())
	}
	for range g.IntN(4) {
		o.Nameservers = append(o.Nameservers, g.addr().String())
	}
	o.Searches = g.many(func() string { return g.domain(true) })
	if g.chance(20) {
		o.Policy = g.policy()
	}
	return o
}
