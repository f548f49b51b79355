package nft_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// upstream is a second Service's address for each family, as kube-dns-upstream of NodeLocal DNSCache.
func upstream(is4 bool) netip.Addr {
	if is4 {
		return addr("10.96.0.11")
	}
	return addr("fd00:10:96::b")
}

// nodecache makes of the rig what a NodeLocal DNSCache has: local and cluster DNS addresses on one link, no redirects, a
// second Service behind.
func nodecache(h *steer.Host) {
	for i := range h.Locals {
		h.Locals[i].ClusterDNS = upstream(h.Locals[i].Address.Is4())
	}
	for _, r := range h.Redirects {
		h.Locals = append(h.Locals, steer.Local{Address: r.ClusterDNS, ClusterDNS: upstream(r.Is4()), Service: true})
	}
	h.Redirects, h.OwnLocals = nil, true
}

func newNodecacheRig(t *testing.T, o testutil.Options) *rig {
	t.Helper()
	shape := nodecache
	if o.Proxy == testutil.IPVS { // which has the cluster DNS address itself: the manifest leaves it out
		shape = func(h *steer.Host) { h.Redirects = nil; nodecache(h) }
	}
	r := newRig(t, o, shape)
	for _, a := range r.node.KubeDNSAddrs() {
		r.node.Proxy.Add(testutil.DNSService(upstream(a.Is4()), a)...)
	}
	return r
}

// Where local and cluster DNS addresses stand on the link, pods and the node's own processes are answered in every state, also
// among the rules that a killed NodeLocal DNSCache left.
func TestClusterDNSOnTheLink(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		for _, left := range []bool{false, true} {
			t.Run(fmt.Sprintf("leftovers=%t", left), func(t *testing.T) {
				r := newNodecacheRig(t, o)
				if left {
					// Also for who comes after them: hooks of one priority run in the order in which they came.
					must(t, r.nft.Remove())
					r.node.Host.NodeCacheRules("nft", r.ours()...)
					must(t, r.nft.Apply(r.host))
				}
				pod := r.pod("pod")
				check := func(who, when string) {
					t.Helper()
					r.want(who, pod.NetNS, when+", from a pod", r.local()...)
					r.want(who, r.node.Host, when+", from the host", r.local()...)
				}
				check("KUBEDNS", "never started")
				r.addresses()
				check("KUBEDNS", "addresses there")
				r.listen()
				check("KUBEDNS", "listening without a lease")
				r.renew()
				check("AGENT", "lease")
				r.wantUntracked(pod.NetNS, r.local()...)
				r.wantUntracked(r.node.Host, r.local()...)
				r.withdraw()
				check("KUBEDNS", "lease withdrawn")
				r.renew()
				r.kill()
				r.want("KUBEDNS", pod.NetNS, "killed, lease stands", r.local()...)
				r.node.Host.DelLink("neardns0")
				r.withdraw()
				check("KUBEDNS", "the link gone")
			})
		}
	})
}

// A connection of a host process keeps its way when the lease comes and goes.
func TestOwnConnectionsKeepTheirWay(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		r := newNodecacheRig(t, o)
		r.addresses()
		r.listen()
		for _, server := range r.local() {
			fell := dialOwn(t, r, server)
			fell.want("KUBEDNS")
			r.renew()
			fell.want("KUBEDNS")
			served := dialOwn(t, r, server)
			served.want("AGENT")
			r.withdraw()
			served.want("AGENT")
			fell.want("KUBEDNS")
		}
	})
}

type ownConn struct {
	t *testing.T
	c *testutil.Conn
}

func dialOwn(t *testing.T, r *rig, server netip.AddrPort) ownConn {
	t.Helper()
	c, err := testutil.Dial(r.node.Host, "tcp", server, testutil.AskOptions{})
	must(t, err)
	t.Cleanup(c.Close)
	return ownConn{t, c}
}

func (o ownConn) want(who string) {
	o.t.Helper()
	if a, err := o.c.Ask("a.cluster.local", 16); err != nil || a.Who != who {
		o.t.Errorf("%v, %v; want %s", a, err, who)
	}
}

// What is ceded reaches another program's socket without a lease, and kube-dns where there is none or only a hung agent's. Nothing is
// written to the kernel meanwhile: whoever dies at whatever moment leaves it so.
func TestCeded(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		r := newNodecacheRig(t, o)
		pod := r.pod("pod")
		r.addresses()
		ceded := r.host
		ceded.Ceded = r.ours()
		must(t, r.nft.Apply(ceded))
		var at []netip.AddrPort
		for _, a := range r.ours() {
			at = append(at, netip.AddrPortFrom(a, 53))
		}
		r.agent = testutil.ServeDNS(t, r.node.Host, testutil.DNSConfig{Name: "AGENT", Listen: at, Transparent: true})
		r.want("KUBEDNS", pod.NetNS, "the agent without a lease", r.local()...)
		r.renew()
		r.want("AGENT", pod.NetNS, "the agent under its lease", r.local()...)
		r.want("AGENT", r.node.Host, "the agent under its lease, from the host", r.local()...)
		var open []ownConn
		for _, server := range r.local() {
			c, err := testutil.Dial(pod.NetNS, "tcp", server, testutil.AskOptions{})
			must(t, err)
			t.Cleanup(c.Close)
			open = append(open, ownConn{t, c})
		}
		r.withdraw()
		for _, c := range open {
			c.want("AGENT") // drained
		}
		r.kill()
		r.want("KUBEDNS", pod.NetNS, "the agent is dead", r.local()...)
		other := testutil.ServeDNS(t, r.node.Host, testutil.DNSConfig{Name: "OTHER", Listen: at})
		r.want("OTHER", pod.NetNS, "another program listens", r.local()...)
		r.wantUntrackedBy("OTHER", pod.NetNS, r.local()...)
		must(t, r.nft.Verify(ceded))
		other.Stop()
		r.want("KUBEDNS", pod.NetNS, "it is dead, too", r.local()...)
		other.Start()
		must(t, r.nft.Apply(r.host))
		r.want("KUBEDNS", pod.NetNS, "nothing is ceded", r.local()...)
	})
}

func TestCheckLocals(t *testing.T) {
	good := []steer.Local{{Address: local4.Address, ClusterDNS: upstream(true)}, {Address: redirect4.ClusterDNS, ClusterDNS: redirect4.ClusterDNS}, local6}
	if err := steer.CheckLocals(good); err != nil {
		t.Error(err)
	}
	for says, bad := range map[string]steer.Local{
		"missing":            {ClusterDNS: upstream(true)},
		"fallback of 169":    {Address: addr("169.254.20.9")},
		"different families": {Address: addr("169.254.20.9"), ClusterDNS: upstream(false)},
		"stands twice":       local4,
		"prober's own":       {Address: steer.ProbeSource4, ClusterDNS: upstream(true)},
	} {
		if err := steer.CheckLocals(append(good[:3:3], bad)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", bad, err, says)
		}
	}
}
