package nft_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
)

// rig is a node with the host table and a stand-in for the agent: a server on our addresses, and leases by hand.
type rig struct {
	t     testing.TB
	node  *testutil.Node
	host  steer.Host
	nft   *nft.Nftables
	lease *steer.Lease
	agent *testutil.DNSServer // nil until listen
}

// forever is a lifetime that no test outlives: leases then end by withdrawal alone.
const forever = 10 * time.Minute

// lateness is what a busy test machine may add before a test sees what happened in the kernel.
const lateness = time.Second

// short is a patience for answers that must not come.
const short = 250 * time.Millisecond

func newRig(t testing.TB, o testutil.Options, change ...func(*steer.Host)) *rig {
	t.Helper()
	testutil.RequireRoot(t)
	if o.Attach == testutil.BridgeNF {
		testutil.RequireSysctl(t, testutil.NewNS(t, "sysctl"), "net.bridge.bridge-nf-call-iptables")
	}
	r := &rig{t: t, node: testutil.NewNode(t, o)}
	var err error
	var redirects []steer.Redirect
	var locals []netip.Addr
	for _, a := range r.node.ClusterDNS() {
		redirects = append(redirects, steer.Redirect{ClusterDNS: a})
		if a.Is4() {
			locals = append(locals, local4.Address)
		} else {
			locals = append(locals, local6.Address)
		}
	}
	r.host = steer.Host{Lifetime: forever, Secret: testSecret}
	r.host.Redirects, err = steer.Complete(redirects)
	must(t, err)
	r.host.Locals, err = steer.Locals(locals, r.host.Redirects)
	must(t, err)
	r.node.Host.Do(func() { r.host.Uplinks, err = rules.Uplinks() })
	must(t, err)
	for _, f := range change {
		f(&r.host)
	}
	r.node.Host.Settle("kubedns0")
	r.node.KubeDNS.Settle("eth0")
	r.nft = open(t, r.node.Host)
	must(t, r.nft.Apply(r.host))
	r.lease = openLease(t, r.node.Host)
	return r
}

// ours lists our addresses, steering ones first.
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

// addresses puts our addresses on a link without ports, as the agent does where the kernel has no dummy.
func (r *rig) addresses() {
	r.t.Helper()
	r.node.Host.Serving("neardns0", r.ours()...)
}

// listen starts the stand-in agent; the addresses must be there.
func (r *rig) listen() {
	r.t.Helper()
	if r.agent != nil {
		r.agent.Start()
		return
	}
	var at []netip.AddrPort
	for _, a := range r.ours() {
		at = append(at, netip.AddrPortFrom(a, 53))
	}
	r.agent = testutil.ServeDNS(r.t, r.node.Host, testutil.DNSConfig{Name: "AGENT", Listen: at})
}

// kill ends the stand-in agent; leases stay as they are.
func (r *rig) kill() { r.agent.Stop() }

func (r *rig) each(f func(netip.Addr, steer.Protocol) error) {
	r.t.Helper()
	for _, a := range r.ours() {
		for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
			if err := f(a, p); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

func (r *rig) renew()    { r.t.Helper(); r.each(r.lease.Renew) }
func (r *rig) withdraw() { r.t.Helper(); r.each(r.lease.Withdraw) }

// serving brings the stand-in agent all the way up.
func (r *rig) serving() {
	r.t.Helper()
	r.addresses()
	r.listen()
	r.renew()
}

// pod adds a pod, and waits until its addresses serve.
func (r *rig) pod(name string) *testutil.Pod {
	r.t.Helper()
	pod := r.node.AddPod(name)
	pod.NetNS.Settle("eth0")
	if pod.HostInterface != "" {
		r.node.Host.Settle(pod.HostInterface)
	}
	return pod
}

// steered adds a pod with the pod table.
func (r *rig) steered(name string) *testutil.Pod {
	r.t.Helper()
	pod := r.pod(name)
	r.steer(pod.NetNS)
	return pod
}

func (r *rig) steer(ns *testutil.NetNS) {
	r.t.Helper()
	must(r.t, open(r.t, ns).Apply(steer.Pod{Redirects: r.host.Redirects}))
}

// clusterDNS lists the cluster DNS addresses with their port, local those of the local addresses.
func (r *rig) clusterDNS() []netip.AddrPort {
	var out []netip.AddrPort
	for _, d := range r.host.Redirects {
		out = append(out, netip.AddrPortFrom(d.ClusterDNS, 53))
	}
	return out
}

func (r *rig) local() []netip.AddrPort {
	var out []netip.AddrPort
	for _, l := range r.host.Locals {
		out = append(out, netip.AddrPortFrom(l.Address, 53))
	}
	return out
}

var networks = []string{"udp", "tcp"}

// want asks each server over both protocols and fails unless who answers each from the address that was asked.
func (r *rig) want(who string, from *testutil.NetNS, when string, servers ...netip.AddrPort) {
	r.t.Helper()
	for _, server := range servers {
		for _, network := range networks {
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

// wantUntracked fails if what the agent answers leaves an entry in the host's connection tracking. The last packets of
// connections that kube-dns served before may come late and leave one, so entries must come each time to count.
func (r *rig) wantUntracked(from *testutil.NetNS, servers ...netip.AddrPort) {
	r.t.Helper()
	r.wantUntrackedBy("AGENT", from, servers...)
}

func (r *rig) wantUntrackedBy(who string, from *testutil.NetNS, servers ...netip.AddrPort) {
	r.t.Helper()
	testutil.Eventually(r.t, 5*time.Second, func() error {
		testutil.FlushConntrack(r.node.Host)
		r.want(who, from, "hit", servers...)
		if lines := testutil.Conntrack(r.node.Host); len(lines) > 0 {
			return errors.New("a hit is tracked: " + strings.Join(lines, "; "))
		}
		return nil
	})
}

// wantNone asks each server over both protocols and fails if anybody answers.
func (r *rig) wantNone(from *testutil.NetNS, when string, servers ...netip.AddrPort) {
	r.t.Helper()
	for _, server := range servers {
		for _, network := range networks {
			answer, err := testutil.Ask(from, server, "a.cluster.local", dns.TypeTXT, network, testutil.AskOptions{Timeout: short})
			if err == nil {
				r.t.Errorf("%s: %s over %s is answered: %v", when, server, network, answer)
			}
		}
	}
}

// cells runs a test in each combination of kube-proxy mode and attachment, both families in each.
func cells(t *testing.T, f func(t *testing.T, o testutil.Options)) {
	t.Helper()
	for _, proxy := range testutil.Proxies() {
		for _, attach := range []testutil.Attach{testutil.PTP, testutil.BridgeCNI, testutil.BridgeNF, testutil.ProxyARP} {
			o := testutil.Options{Families: testutil.Dual, Proxy: proxy, Attach: attach}
			t.Run(fmt.Sprintf("%s/%s", proxy, attach), func(t *testing.T) { f(t, o) })
		}
	}
}

// modes is cells with ptp alone.
func modes(t *testing.T, f func(t *testing.T, o testutil.Options)) {
	t.Helper()
	for _, proxy := range testutil.Proxies() {
		o := testutil.Options{Families: testutil.Dual, Proxy: proxy, Attach: testutil.PTP}
		t.Run(string(proxy), func(t *testing.T) { f(t, o) })
	}
}
