// Package rig makes a node with the host's packet rules and a stand-in for the agent: a DNS server on neardns's addresses, and leases that
// the test renews and withdraws. The tests of both back ends (nftables, iptables) and the cases that both must pass use it
// (pkg/steer/rules).
//
// It must not know what a rule looks like: it opens a back end through pkg/steer/rules.
//
// Failure policy: as testutil's. A method that waits for an event fails the test at its deadline.
package rig

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
)

// Forever is a lifetime of leases that is longer than any test, so that leases end only if the test withdraws them.
const Forever = 10 * time.Minute

// Secret is the secret of all leases of a Rig.
const Secret steer.Secret = 0x6e65617264736e64

// Rig is a node with rules and a stand-in agent, for one goroutine. The test's Cleanup removes all of it.
type Rig struct {
	Node  *testutil.Node
	Kind  rules.Kind
	Host  steer.Host // as New applied it
	Rules rules.Rules
	Lease *steer.Lease
	Agent *testutil.DNSServer // nil until Listen

	t     testing.TB
	there bool   // whether neardns's addresses are on a link
	ports uint16 // how many source ports WantUntracked has used
}

// New makes a node and applies the host rules that the agent would make. The functions in change may modify their description first.
func New(t testing.TB, kind rules.Kind, o testutil.Options, change ...func(*steer.Host)) *Rig {
	t.Helper()
	testutil.RequireRoot(t)
	if o.Attach == testutil.BridgeNF {
		testutil.RequireSysctl(t, testutil.NewNS(t, "sysctl"), "net.bridge.bridge-nf-call-iptables")
	}
	o.Legacy = kind.String() == rules.IptablesLegacy
	r := &Rig{t: t, Kind: kind, Node: testutil.NewNode(t, o), Host: steer.Host{Lifetime: Forever, Secret: Secret}}
	var redirects []steer.Redirect
	var locals []netip.Addr
	for _, a := range r.Node.ClusterDNS() {
		redirects = append(redirects, steer.Redirect{ClusterDNS: a})
		locals = append(locals, local(a.Is4()))
	}
	var err error
	r.Host.Redirects, err = steer.Complete(redirects)
	r.must(err)
	r.Host.Locals, err = steer.Locals(locals, r.Host.Redirects)
	r.must(err)
	r.Node.Host.Do(func() { r.Host.Uplinks, err = rules.Uplinks() })
	r.must(err)
	for _, f := range change {
		f(&r.Host)
	}
	r.Node.Host.Settle("kubedns0")
	r.Node.KubeDNS.Settle("eth0")
	r.Rules, err = kind.OpenHost(r.Node.Host.FD())
	r.must(err)
	t.Cleanup(func() { r.must(r.Rules.Close()) })
	r.Apply(r.Host)
	r.Node.Host.Do(func() { r.Lease, err = steer.OpenLease(Secret) })
	r.must(err)
	t.Cleanup(func() { r.must(r.Lease.Close()) })
	return r
}

// NewNodeCache is New for the addresses of a NodeLocal DNSCache: local and cluster DNS addresses on one link, no redirects, and a second
// Service (Upstream) that leads to kube-dns. With kube-proxy in IPVS mode, the cluster DNS address is left out, as in NodeLocal DNSCache's
// manifest, because kube-proxy has that address on its own link.
func NewNodeCache(t testing.TB, kind rules.Kind, o testutil.Options, change ...func(*steer.Host)) *Rig {
	t.Helper()
	shape := func(h *steer.Host) {
		for i := range h.Locals {
			h.Locals[i].ClusterDNS = Upstream(h.Locals[i].Address.Is4())
		}
		if o.Proxy != testutil.IPVS {
			for _, r := range h.Redirects {
				h.Locals = append(h.Locals, steer.Local{Address: r.ClusterDNS, ClusterDNS: Upstream(r.Is4()), Service: true})
			}
		}
		h.Redirects, h.OwnLocals = nil, true
	}
	r := New(t, kind, o, append([]func(*steer.Host){shape}, change...)...)
	for _, a := range r.Node.KubeDNSAddrs() {
		r.Node.Proxy.Add(testutil.DNSService(Upstream(a.Is4()), a)...)
	}
	return r
}

// Cede cedes all local addresses: packets go to the sockets that other programs bind there.
func Cede(h *steer.Host) {
	for _, l := range h.Locals {
		h.Ceded = append(h.Ceded, l.Address)
	}
}

// Upstream returns the address of a second Service for kube-dns, like kube-dns-upstream of NodeLocal DNSCache.
func Upstream(is4 bool) netip.Addr {
	if is4 {
		return netip.MustParseAddr("10.96.0.11")
	}
	return netip.MustParseAddr("fd00:10:96::b")
}

// local returns the local address of an IP family, which is the same on every node.
func local(is4 bool) netip.Addr {
	if is4 {
		return netip.MustParseAddr("169.254.20.10")
	}
	return netip.MustParseAddr("fd00:90de:d95::a")
}

func (r *Rig) must(err error) {
	r.t.Helper()
	testutil.Must(r.t, err)
}

// Apply makes the host's rules as h has them. A back end that starts programs may postpone its check. Apply then repairs again
// until Verify finds no difference, as the agent's loop does.
func (r *Rig) Apply(h steer.Host) {
	r.t.Helper()
	_, err := r.Rules.Repair(h)
	r.must(err)
	if !r.Kind.Caps().Programs {
		return
	}
	testutil.Eventually(r.t, func() error {
		differs := r.Rules.Verify(h)
		if differs == nil {
			return nil
		}
		_, err := r.Rules.Repair(h)
		return errors.Join(differs, err)
	})
}

// Leftovers makes the rules that a killed NodeLocal DNSCache leaves, in the tables that the back end's programs write.
func (r *Rig) Leftovers() {
	r.t.Helper()
	kind := "nft"
	if r.Kind.String() == rules.IptablesLegacy {
		kind = "legacy"
	}
	r.Node.Host.NodeCacheRules(kind, r.Ours()...)
}

// Ours returns neardns's addresses on the node, the steering addresses first.
func (r *Rig) Ours() []netip.Addr {
	var out []netip.Addr
	for _, d := range r.Host.Redirects {
		out = append(out, d.Steering)
	}
	for _, l := range r.Host.Locals {
		out = append(out, l.Address)
	}
	return out
}

// Addresses puts neardns's addresses on a bridge without ports, as the agent does if the kernel has no dummy links.
func (r *Rig) Addresses() {
	r.t.Helper()
	r.Node.Host.Serving("neardns0", r.Ours()...)
	r.there = true
}

// Listen starts the stand-in agent on neardns's addresses.
func (r *Rig) Listen() {
	r.t.Helper()
	if r.Agent != nil {
		r.Agent.Start()
		return
	}
	if !r.there {
		r.Addresses()
	}
	r.Agent = r.Server("AGENT", len(r.Host.Ceded) > 0)
}

// Server starts a DNS server on neardns's addresses. transparent sets IP_TRANSPARENT on its sockets, as the agent does if it cedes
// addresses.
func (r *Rig) Server(name string, transparent bool) *testutil.DNSServer {
	r.t.Helper()
	return testutil.ServeDNS(r.t, r.Node.Host, testutil.DNSConfig{Name: name, Listen: ports(r.Ours()), Transparent: transparent})
}

func ports(addrs []netip.Addr) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range addrs {
		out = append(out, netip.AddrPortFrom(a, 53))
	}
	return out
}

// Kill stops the stand-in agent. The leases stay.
func (r *Rig) Kill() { r.Agent.Stop() }

// Renew renews all leases.
func (r *Rig) Renew() { r.t.Helper(); r.each(r.Lease.Renew) }

// Withdraw ends all leases.
func (r *Rig) Withdraw() { r.t.Helper(); r.each(r.Lease.Withdraw) }

// Turns alternately withdraws and renews all leases. It makes turns changes in all. After each change it calls f with the name of the
// server that must answer.
func (r *Rig) Turns(turns int, f func(turn int, want string)) {
	r.t.Helper()
	for turn := range turns {
		if turn%2 == 0 {
			r.Withdraw()
			f(turn, "KUBEDNS")
		} else {
			r.Renew()
			f(turn, "AGENT")
		}
	}
}

func (r *Rig) each(f func(netip.Addr, steer.Protocol) error) {
	r.t.Helper()
	for _, a := range r.Ours() {
		for _, p := range []steer.Protocol{steer.UDP, steer.TCP} {
			r.must(f(a, p))
		}
	}
}

// Serve starts the stand-in agent and renews all leases.
func (r *Rig) Serve() {
	r.t.Helper()
	r.Listen()
	r.Renew()
}

// Pod adds a pod without a pod table, and waits until its addresses are usable.
func (r *Rig) Pod(name string) *testutil.Pod {
	r.t.Helper()
	pod := r.Node.AddPod(name)
	pod.NetNS.Settle("eth0")
	if pod.HostInterface != "" {
		r.Node.Host.Settle(pod.HostInterface)
	}
	return pod
}

// Steered adds a pod and makes its pod rules, which steer its queries.
func (r *Rig) Steered(name string) *testutil.Pod {
	r.t.Helper()
	pod := r.Pod(name)
	r.Steer(pod.NetNS)
	return pod
}

// Steer makes the pod rules in a pod's netns.
func (r *Rig) Steer(ns *testutil.NetNS) {
	r.t.Helper()
	in, err := r.Kind.Open(ns.FD())
	r.must(err)
	_, err = in.Repair(steer.Pod{Redirects: r.Host.Redirects})
	r.must(errors.Join(err, in.Close()))
}

// ClusterDNS returns the redirected cluster DNS addresses with port 53.
func (r *Rig) ClusterDNS() []netip.AddrPort {
	var out []netip.AddrPort
	for _, d := range r.Host.Redirects {
		out = append(out, netip.AddrPortFrom(d.ClusterDNS, 53))
	}
	return out
}

// Local returns the local addresses with port 53.
func (r *Rig) Local() []netip.AddrPort {
	var out []netip.AddrPort
	for _, l := range r.Host.Locals {
		out = append(out, netip.AddrPortFrom(l.Address, 53))
	}
	return out
}

// Servers returns all addresses that steered pods query: those of ClusterDNS, then those of Local.
func (r *Rig) Servers() []netip.AddrPort { return slices.Concat(r.ClusterDNS(), r.Local()) }

// Networks returns the protocols over which the methods query a server.
func Networks() []string { return []string{"udp", "tcp"} }

// Want queries each server over UDP and TCP. It fails the test unless the server named who gives each answer, from the queried address.
func (r *Rig) Want(who string, from *testutil.NetNS, when string, servers ...netip.AddrPort) {
	r.t.Helper()
	for _, server := range servers {
		for _, network := range Networks() {
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

// WantNone queries each server over UDP and TCP. It fails the test if one answers.
func (r *Rig) WantNone(from *testutil.NetNS, when string, servers ...netip.AddrPort) {
	r.t.Helper()
	r.WantSilence(when, servers, func(server netip.AddrPort, network string) (*testutil.Answer, error) {
		return testutil.Ask(from, server, "a.cluster.local", dns.TypeTXT, network, testutil.AskOptions{Timeout: testutil.Silence})
	})
}

// WantSilence calls ask concurrently for each server over UDP and TCP, because each call waits. It fails the test if a query is answered.
func (r *Rig) WantSilence(when string, servers []netip.AddrPort, ask func(server netip.AddrPort, network string) (*testutil.Answer, error)) {
	r.t.Helper()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, server := range servers {
		for _, network := range Networks() {
			wg.Go(func() {
				if answer, err := ask(server, network); err == nil {
					r.t.Errorf("%s: %s over %s is answered: %v", when, server, network, answer)
				}
			})
		}
	}
}

// WantUntracked queries each server over UDP and TCP, each time from a port that nothing had before. It fails the test unless the server
// named who answers, and if a query leaves an entry in the host's connection tracking. With the iptables back end, only UDP counts, because
// its rules track TCP.
func (r *Rig) WantUntracked(who string, from *testutil.NetNS, servers ...netip.AddrPort) {
	r.t.Helper()
	for _, server := range servers {
		for _, network := range Networks() {
			r.ports++
			own := netip.AddrPortFrom(netip.Addr{}, 20000+r.ports) // the kernel gives out higher ones, which late packets may have
			answer, err := testutil.Ask(from, server, "a.cluster.local", dns.TypeTXT, network, testutil.AskOptions{EDNS: 1232, Source: own})
			entries := strings.Join(testutil.Conntrack(r.Node.Host), "\n")
			tracked := strings.Contains(entries, fmt.Sprintf(":%d > ", own.Port())) && (network == "udp" || !r.Kind.Caps().Programs)
			if err != nil || answer.Who != who || tracked {
				r.t.Errorf("%s over %s from %s: %v, %v; want %s, and no entry in\n%s", server, network, own, answer, err, who, entries)
			}
		}
	}
}

// Conn is an open TCP connection to a DNS server.
type Conn struct {
	t    testing.TB
	conn *testutil.Conn
}

// Dial opens a connection to a server. The test's Cleanup closes it.
func (r *Rig) Dial(from *testutil.NetNS, server netip.AddrPort) Conn {
	r.t.Helper()
	c, err := testutil.Dial(from, "tcp", server, testutil.AskOptions{})
	r.must(err)
	r.t.Cleanup(c.Close)
	return Conn{r.t, c}
}

// Want sends a query over the connection, and fails the test unless the server named who answers it.
func (c Conn) Want(who string) {
	c.t.Helper()
	if answer, err := c.conn.Ask("a.cluster.local", dns.TypeTXT); err != nil || answer.Who != who {
		c.t.Errorf("an open connection: %v, %v; want %s", answer, err, who)
	}
}
