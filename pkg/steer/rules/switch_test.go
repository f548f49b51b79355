package rules_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/rig"
)

// cells runs a test with each back end, next to each mode of kube-proxy that it is for.
func cells(t *testing.T, f func(t *testing.T, k rules.Kind, proxy testutil.ProxyMode)) {
	t.Helper()
	for _, k := range kinds() {
		for _, proxy := range testutil.Proxies() {
			if k.Caps().Programs && proxy == testutil.NFTables {
				continue // kube-proxy would reject packets that take the fallback; its kernel has nf_tables, so neardns uses nftables
			}
			t.Run(k.String()+"/"+string(proxy), func(t *testing.T) { f(t, k, proxy) })
		}
	}
}

// attaches are the ways to attach a pod that could matter to a back end, each with one of kube-proxy's modes, because the tracer tests
// all combinations of what rules depend on. iptables' rules match no link of a pod.
func attaches(k rules.Kind, proxy testutil.ProxyMode) []testutil.Attach {
	switch {
	case k.Caps().Programs:
		return []testutil.Attach{testutil.PTP}
	case proxy == testutil.NFTables:
		return []testutil.Attach{testutil.BridgeCNI, testutil.ProxyARP}
	}
	return []testutil.Attach{testutil.PTP, testutil.BridgeNF}
}

// Whatever state the agent is in, a steered pod is answered, and so is another pod that queries the local address.
func TestSwitch(t *testing.T) {
	cells(t, func(t *testing.T, k rules.Kind, proxy testutil.ProxyMode) {
		for _, attach := range attaches(k, proxy) {
			t.Run(string(attach), func(t *testing.T) {
				r := rig.New(t, k, testutil.Options{Families: testutil.Dual, Proxy: proxy, Attach: attach})
				pod, plain := r.Steered("steered"), r.Pod("plain")
				r.Apply(r.Host) // as the agent repairs them after a link's event
				all := r.Servers()
				check := func(who, when string) {
					t.Helper()
					r.Want(who, pod.NetNS, when+", steered", all...)
					r.Want(who, plain.NetNS, when+", by the local address", r.Local()...)
					r.Want("KUBEDNS", plain.NetNS, when+", not steered", r.ClusterDNS()...)
				}
				check("KUBEDNS", "agent never started, addresses absent")
				r.Addresses()
				check("KUBEDNS", "addresses present, nobody listens")
				r.Listen()
				check("KUBEDNS", "listening without a lease")
				r.Agent.Behave(testutil.Behaviour{Drop: true})
				check("KUBEDNS", "hung, lease gone")
				r.Agent.Behave(testutil.Behaviour{})
				r.Renew()
				check("AGENT", "listening with a lease")

				r.WantUntracked("AGENT", pod.NetNS, all...)
				if !k.Caps().Programs { // a pod's iptables rules translate addresses, which needs conntrack
					testutil.WantNoConntrack(t, pod.NetNS)
				}

				r.Withdraw()
				check("KUBEDNS", "lease withdrawn")
				r.Renew()
				check("AGENT", "lease again")
				r.Kill()
				check("KUBEDNS", "killed, lease stands")
				r.Listen()
				check("AGENT", "back under the old lease")
				r.Node.Host.DelLink("neardns0")
				r.Withdraw()
				check("KUBEDNS", "the link gone")
				must(t, r.Rules.Verify(r.Host))
			})
		}
	})
}

// onTheLink returns a node in node-cache mode, without steered pods. With an iptables back end, its rules cede the addresses that other
// programs may bind, as the agent's do.
func onTheLink(t *testing.T, k rules.Kind, proxy testutil.ProxyMode) *rig.Rig {
	t.Helper()
	o := testutil.Options{Families: testutil.Dual, Proxy: proxy, Attach: testutil.PTP}
	if k.Caps().Programs {
		return rig.NewNodeCache(t, k, o, rig.Cede)
	}
	return rig.NewNodeCache(t, k, o)
}

// If local and cluster DNS addresses are on neardns's link, pods and the node's own processes are answered in every state, also with the
// rules that a killed NodeLocal DNSCache left, written before neardns's or, where programs write both, afterwards.
func TestClusterDNSOnTheLink(t *testing.T) {
	cells(t, func(t *testing.T, k rules.Kind, proxy testutil.ProxyMode) {
		cases := []string{"left before"}
		if proxy == testutil.NFTables || k == rules.OfVariant(iptables.NFT, nil) {
			cases[0] = "alone" // each kind of back end has a case with leftovers and one without; TestCeded runs all without
		}
		if k.Caps().Programs {
			cases = append(cases, "made afterwards")
		}
		for _, left := range cases {
			t.Run(left, func(t *testing.T) {
				r := onTheLink(t, k, proxy)
				switch left {
				case "left before":
					// Write neardns's rules after them: chains of one priority at a hook run in the order in which they were added.
					must(t, r.Rules.Remove())
					r.Leftovers()
					r.Apply(r.Host)
				case "made afterwards":
					r.Leftovers()
					var drift *steer.DriftError
					if err := r.Rules.Verify(r.Host); !errors.As(err, &drift) || !strings.Contains(err.Error(), "after another program's rules") {
						t.Errorf("rules that stand before ours are not seen: %v", err)
					}
					r.Apply(r.Host)
				}
				must(t, r.Rules.Verify(r.Host))
				pod := r.Pod("pod")
				check := func(who, when string) {
					t.Helper()
					r.Want(who, pod.NetNS, when+", from a pod", r.Local()...)
					r.Want(who, r.Node.Host, when+", from the host", r.Local()...)
				}
				check("KUBEDNS", "never started")
				r.Addresses()
				check("KUBEDNS", "addresses there")
				r.Listen()
				check("KUBEDNS", "listening without a lease")
				r.Renew()
				check("AGENT", "lease")
				r.WantUntracked("AGENT", pod.NetNS, r.Local()...)
				r.WantUntracked("AGENT", r.Node.Host, r.Local()...)
				r.Withdraw()
				check("KUBEDNS", "lease withdrawn")
				r.Renew()
				r.Kill()
				r.Want("KUBEDNS", pod.NetNS, "killed, lease stands", r.Local()...)
				r.Node.Host.DelLink("neardns0")
				r.Withdraw()
				check("KUBEDNS", "the link gone")
			})
		}
	})
}

// Without a lease, packets to a ceded address reach another program's socket, or kube-dns if there is none or only the agent's. No
// neardns process has to notice when a program starts or dies.
func TestCeded(t *testing.T) {
	cells(t, func(t *testing.T, k rules.Kind, proxy testutil.ProxyMode) {
		r := rig.NewNodeCache(t, k, testutil.Options{Families: testutil.Dual, Proxy: proxy, Attach: testutil.PTP}, rig.Cede)
		pod := r.Pod("pod")
		r.Listen()
		r.Apply(r.Host) // as the agent repairs them after a link's event
		r.Want("KUBEDNS", pod.NetNS, "the agent without a lease", r.Local()...)
		r.Renew()
		r.Want("AGENT", pod.NetNS, "the agent under its lease", r.Local()...)
		r.Want("AGENT", r.Node.Host, "the agent under its lease, from the host", r.Local()...)
		var open []rig.Conn
		for _, server := range r.Local() {
			open = append(open, r.Dial(pod.NetNS, server))
		}
		r.Withdraw()
		for _, c := range open {
			c.Want("AGENT") // drained
		}
		r.Kill()
		r.Want("KUBEDNS", pod.NetNS, "the agent is dead", r.Local()...)
		other := r.Server("OTHER", false)
		r.Want("OTHER", pod.NetNS, "another program listens", r.Local()...)
		r.WantUntracked("OTHER", pod.NetNS, r.Local()...)
		must(t, r.Rules.Verify(r.Host))
		if k.Caps().Programs {
			// As node-cache does once it listens. No neardns process runs that could notice it.
			r.Leftovers()
			r.Want("OTHER", pod.NetNS, "it has put rules of its own before ours", r.Local()...)
			r.Apply(r.Host)
			r.Want("OTHER", pod.NetNS, "ours stand before them", r.Local()...)
		}
		other.Stop()
		r.Want("KUBEDNS", pod.NetNS, "it is dead, too", r.Local()...)
		other.Start()
		kept := r.Host
		kept.Ceded = nil
		r.Apply(kept)
		r.Want("KUBEDNS", pod.NetNS, "nothing is ceded", r.Local()...)
	})
}
