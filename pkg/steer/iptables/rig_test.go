package iptables_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a node with the host's rules and a stand-in for the agent: a server on our addresses, and leases by hand.
type rig struct {
	t       testing.TB
	variant iptables.Variant
	node    *testutil.Node
	host    steer.Host
	rules   *iptables.Iptables
	hairpin *iptables.Hairpin
	lease   *steer.Lease
	agent   *testutil.DNSServer
}

// lasting is a lease's lifetime that no test outlives: leases then end by withdrawal alone.
const lasting = 10 * time.Minute

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, ns *testutil.NetNS, variant iptables.Variant) *iptables.Iptables {
	t.Helper()
	b, err := iptables.Open(ns.FD(), variant, nil)
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	return b
}

func newRig(t testing.TB, variant iptables.Variant, change ...func(*steer.Host)) *rig {
	t.Helper()
	return newRigBeside(t, testutil.IPTables, variant, change...)
}

func newRigBeside(t testing.TB, proxy testutil.ProxyMode, variant iptables.Variant, change ...func(*steer.Host)) *rig {
	t.Helper()
	return newRigOn(t, proxy, testutil.PTP, variant, change...)
}

func newRigOn(t testing.TB, proxy testutil.ProxyMode, attach testutil.Attach, variant iptables.Variant, change ...func(*steer.Host)) *rig {
	t.Helper()
	testutil.RequireRoot(t)
	r := &rig{t: t, variant: variant, node: testutil.NewNode(t, testutil.Options{
		Families: testutil.Dual, Proxy: proxy, Attach: attach, Legacy: variant == iptables.Legacy})}
	var err error
	var redirects []steer.Redirect
	for _, a := range r.node.ClusterDNS() {
		redirects = append(redirects, steer.Redirect{ClusterDNS: a})
	}
	r.host.Lifetime = lasting
	r.host.Redirects, err = steer.Complete(redirects)
	must(t, err)
	r.host.Locals, err = steer.Locals([]netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:90de:d95::a")}, r.host.Redirects)
	must(t, err)
	r.node.Host.Do(func() { r.host.Uplinks, err = rules.Uplinks() })
	must(t, err)
	for _, f := range change {
		f(&r.host)
	}
	r.hairpin, err = iptables.OpenHairpin(r.node.Host.FD())
	must(t, err)
	r.host.Bridges, err = r.hairpin.Bridges()
	must(t, err)
	t.Cleanup(func() { must(t, r.hairpin.Close()) })
	_, err = r.hairpin.Ensure(r.behind(), r.host.OwnLocals)
	must(t, err)
	r.rules = open(t, r.node.Host, variant)
	must(t, r.rules.Apply(r.host))
	r.node.Host.Do(func() { r.lease, err = steer.OpenLease(steer.DrawSecret()) })
	must(t, err)
	t.Cleanup(func() { must(t, r.lease.Close()) })
	return r
}

// behind lists whom packets are given back to.
func (r *rig) behind() []netip.Addr {
	out := r.node.ClusterDNS()
	for _, l := range r.host.Locals {
		if !slices.Contains(out, l.ClusterDNS) {
			out = append(out, l.ClusterDNS)
		}
	}
	return out
}

// ours lists our addresses.
func (r *rig) ours() []netip.Addr {
	var out []netip.Addr
	for _, d := range r.host.Redirects {
		out = append(out, d.Steering)
	}
	for _, l := range r.host.Locals {
		out = append(out, l.Address)
	}
	return out
}

// listen puts our addresses on a link, as the agent does, and starts the stand-in on them.
func (r *rig) listen() {
	r.t.Helper()
	if r.agent != nil {
		r.agent.Start()
		return
	}
	r.node.Host.Serving("neardns0", r.ours()...)
	var at []netip.AddrPort
	for _, a := range r.ours() {
		at = append(at, netip.AddrPortFrom(a, 53))
	}
	r.agent = testutil.ServeDNS(r.t, r.node.Host, testutil.DNSConfig{Name: "AGENT", Listen: at, Transparent: len(r.host.Ceded) > 0})
}

func (r *rig) each(f func(netip.Addr, steer.Protocol) error) {
	r.t.Helper()
	for _, a := range r.ours() {
		for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
			must(r.t, f(a, p))
		}
	}
}

func (r *rig) renew()    { r.t.Helper(); r.each(r.lease.Renew) }
func (r *rig) withdraw() { r.t.Helper(); r.each(r.lease.Withdraw) }

// steered adds a pod with a pod's rules.
func (r *rig) steered(name string) *testutil.Pod {
	r.t.Helper()
	pod := r.node.AddPod(name)
	must(r.t, open(r.t, pod.NetNS, r.variant).Apply(steer.Pod{Redirects: r.host.Redirects}))
	return pod
}

// servers lists what pods ask: cluster DNS addresses and local ones.
func (r *rig) servers() []netip.AddrPort {
	var out []netip.AddrPort
	for _, d := range r.host.Redirects {
		out = append(out, netip.AddrPortFrom(d.ClusterDNS, 53))
	}
	for _, l := range r.host.Locals {
		out = append(out, netip.AddrPortFrom(l.Address, 53))
	}
	return out
}

// want asks each server over both protocols and fails unless who answers each, from the address that was asked.
func (r *rig) want(who string, from *testutil.NetNS, when string, servers ...netip.AddrPort) {
	r.t.Helper()
	for _, server := range servers {
		for _, network := range []string{"udp", "tcp"} {
			answer, err := testutil.Ask(from, server, "a.cluster.local", dns.TypeTXT, network, testutil.AskOptions{EDNS: 1232})
			switch {
			case err != nil:
				r.t.Errorf("%s: %v", when, err)
			case answer.Who != who:
				r.t.Errorf("%s: %s over %s is answered by %s, not %s", when, server, network, answer.Who, who)
			}
		}
	}
}

// variants runs a test with each variant, beside kube-proxy in iptables mode.
func variants(t *testing.T, f func(t *testing.T, variant iptables.Variant)) {
	t.Helper()
	for _, variant := range []iptables.Variant{iptables.NFT, iptables.Legacy} {
		t.Run(string(variant), func(t *testing.T) { f(t, variant) })
	}
}

// dump is what stands in a namespace's tables, of both variants.
func dump(ns *testutil.NetNS) string {
	var out strings.Builder
	for _, program := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		text, _ := ns.TryRun("", program)
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, ":") { // packets that went by
				line, _, _ = strings.Cut(line, "[")
				line += "\n"
			}
			if !strings.HasPrefix(line, "#") {
				out.WriteString(line)
			}
		}
	}
	return out.String()
}
