package nft_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/rig"
)

// prober is the agent's prober: a namespace behind an interface of its own, with a pod table and two sources.
type prober struct {
	r     *nftRig
	ns    *testutil.NetNS
	probe map[bool]netip.Addr // by family, true is IPv4
	proof map[bool]netip.Addr
	pod   map[bool]netip.Addr // addresses that have no special meaning
}

func newProber(t testing.TB, r *nftRig) *prober {
	t.Helper()
	p := &prober{r: r, ns: testutil.NewNS(t, "prober"),
		probe: map[bool]netip.Addr{true: steer.ProbeSource4, false: steer.ProbeSource6},
		proof: map[bool]netip.Addr{true: steer.FallbackCheckSource4, false: steer.FallbackCheckSource6},
		pod:   map[bool]netip.Addr{true: addr("10.244.1.200"), false: addr("fd00:244:1::200")}}
	testutil.VethPair(t, r.Node.Host, steer.ProberInterface, p.ns, "eth0")
	gateways := map[bool]netip.Addr{true: addr("169.254.20.249"), false: addr("fd00:90de:d95::f9")}
	for _, a := range r.Node.ClusterDNS() {
		is4 := a.Is4()
		r.Node.Host.AddAddr(steer.ProberInterface, testutil.Host(gateways[is4]))
		for _, source := range []netip.Addr{p.probe[is4], p.proof[is4], p.pod[is4]} {
			p.ns.AddAddr("eth0", testutil.Host(source))
			r.Node.Host.AddRoute(testutil.Host(source), netip.Addr{}, steer.ProberInterface)
		}
		p.ns.AddRoute(testutil.Host(gateways[is4]), netip.Addr{}, "eth0")
		p.ns.AddRoute(testutil.DefaultRoute(gateways[is4]), gateways[is4], "eth0")
	}
	must(t, open(t, p.ns).Apply(steer.Pod{Redirects: r.Host.Redirects, Always: true})) // as the agent steers its prober: lost queries do not bypass it
	p.ns.Settle("eth0")
	r.Node.Host.Settle(steer.ProberInterface)
	return p
}

func (p *prober) ask(server netip.AddrPort, network string, source map[bool]netip.Addr, timeout time.Duration) (*testutil.Answer, error) {
	return testutil.Ask(p.ns, server, "a.cluster.local", dns.TypeTXT, network,
		testutil.AskOptions{Timeout: timeout, Source: netip.AddrPortFrom(source[server.Addr().Is4()], 0)})
}

func (p *prober) want(who, when string, source map[bool]netip.Addr) {
	p.r.t.Helper()
	for _, server := range p.r.ClusterDNS() {
		for _, network := range rig.Networks() {
			answer, err := p.ask(server, network, source, 0)
			if err != nil || answer.Who != who {
				p.r.t.Errorf("%s: %s over %s from %s: %v, %v; want %s", when, server, network, source[server.Addr().Is4()], answer, err, who)
				continue
			}
			// Only this node knows the prober's addresses, so kube-dns, which may be on another node, sees the node's address.
			from := source[server.Addr().Is4()]
			if who == "KUBEDNS" && (answer.Client == steer.ProbeSource(from.Is4()) || answer.Client == steer.FallbackCheckSource(from.Is4())) {
				p.r.t.Errorf("%s: kube-dns hears %s over %s", when, answer.Client, network)
			}
		}
	}
}

// Queries from the probe source are delivered to the agent if a socket is bound, also without a lease, so that the first lease can be
// granted. Queries from the fallback
// check's source always take the fallback. Any other source in that netns counts as a pod's.
func TestProber(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		for _, intercept := range []bool{false, true} {
			r := newRig(t, o, func(h *steer.Host) { h.InterceptNode = intercept })
			p := newProber(t, r)
			p.want("KUBEDNS", "no agent", p.probe)
			p.want("KUBEDNS", "no agent", p.proof)
			p.want("KUBEDNS", "no agent", p.pod)
			r.Addresses()
			p.want("KUBEDNS", "no socket", p.probe)
			r.Listen()
			p.want("AGENT", "no lease", p.probe)
			p.want("KUBEDNS", "no lease", p.proof)
			p.want("KUBEDNS", "no lease", p.pod)
			r.Renew()
			p.want("AGENT", "lease", p.probe)
			p.want("KUBEDNS", "lease", p.proof)
			p.want("AGENT", "lease", p.pod)
			r.Kill()
			p.want("KUBEDNS", "killed, lease stands", p.probe)
			p.want("KUBEDNS", "killed, lease stands", p.proof)
			r.Listen()
			// Nothing translates the address, so the fallback check fails, and no pod may be steered.
			r.Node.Proxy.Remove()
			r.WantSilence("the proof, nothing translates", r.ClusterDNS(), func(server netip.AddrPort, network string) (*testutil.Answer, error) {
				return p.ask(server, network, p.proof, testutil.Silence)
			})
			p.want("AGENT", "no translation", p.probe)
		}
	})
}

// A kube-proxy that does not know the pods' range masquerades no packets. neardns's own rule then must, or kube-dns's answers would not
// reach the prober.
func TestProberIsMasqueraded(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.Dual, Attach: testutil.PTP})
	for i, a := range r.Node.ClusterDNS() {
		family := map[bool]string{true: "ip", false: "ip6"}[a.Is4()]
		r.Node.Host.RunInput(fmt.Sprintf("table %[1]s plain { chain p { type nat hook prerouting priority dstnat; %[1]s daddr %[2]s dnat to %[3]s; }; }",
			family, a, r.Node.KubeDNSAddrs()[i]), "nft", "-f", "-")
	}
	p := newProber(t, r)
	p.want("KUBEDNS", "the fallback", p.proof)
	p.want("KUBEDNS", "no agent", p.probe)
}
