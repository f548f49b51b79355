package steering

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// refuse drops what a pod sends to the node's own addresses, as an egress policy does that allows only kube-dns.
func (n *node) refuse(p *pod) (allow func()) {
	n.t.Helper()
	change := func(how string) {
		for _, a := range p.addrs {
			for _, ours := range []netip.Addr{steering4, local4, steering6, local6} {
				if command := map[bool]string{true: "iptables", false: "ip6tables"}[a.Is4()]; ours.Is4() == a.Is4() {
					n.Host.Run(command, "-w", how, "INPUT", "-s", a.String(), "-d", ours.String(), "-j", "DROP")
				}
			}
		}
	}
	change("-I")
	return func() { change("-D") }
}

// crowd has pods query steadily until end. note, if there is one, gets each query's result.
func (n *node) crowd(count int, note func(p *pod, at target, err error)) (end func()) {
	n.t.Helper()
	var pods []*pod
	for range count {
		pods = append(pods, n.addPod(nil))
	}
	f, all := n.newTraffic(nil, testutil.Attempt), n.all()
	for i, p := range pods {
		at, name := all[i%len(all)], freshName()
		f.pace(300*time.Millisecond, 0, func() error {
			_, err := p.client().ask(at, name, testutil.Attempt)
			if note != nil {
				note(p, at, err)
			}
			return err
		})
	}
	return f.end
}

// lapse stops the agent until it has no lease in the kernel, calls f, and lets it go on.
func (n *node) lapse(f func()) {
	n.t.Helper()
	n.agent.Stop()
	testutil.Eventually(n.t, func() error {
		leases := n.leases()
		return testutil.ErrorIf(len(leases) > 0, "leases are left: %v", leases)
	})
	f()
	n.agent.Cont()
}

// One pod of seventeen is behind a policy that lets it reach only kube-dns. kube-dns serves it, also after the agent was stopped or started
// again; it comes back, and is named. No other pod is bypassed. TestTimingEgressPolicy counts the queries that are lost.
func TestEgressPolicy(t *testing.T) {
	t.Parallel()
	n, p := newServed(t, setup{families: testutil.Dual, proxy: testutil.IPTables, install: true})
	end := n.crowd(16, nil)
	n.wantSteered(p.client(), "no policy", n.all()...)

	allow := n.refuse(p)
	n.awaitFallback(p.client(), "policy comes", n.all()...)
	n.wantBypassed(p)
	n.prints(anyCode, "status", "default/"+p.name)
	n.prints(anyCode, "doctor", "default/"+p.name)

	// A stopped agent sees no queries. It must not bypass any other pod.
	n.lapse(func() { n.wantFallback(p.client(), "stopped", n.all()...) })
	n.awaitReady()
	n.wantBypassed(p)
	n.awaitFallback(p.client(), "agent stopped and continued", n.all()...)

	n.agent.Kill()
	_ = n.agent.Wait() // killed
	n.startAgent()
	n.awaitFallback(p.client(), "another agent", n.all()...)
	n.wantBypassed(p)

	from := len(n.agent.Output())
	allow()
	// The pod sends nothing: the agent's own trials bring it back, over each address and protocol.
	n.wantBypassed(nil)
	n.wantGivenBack(nil)
	n.wantSteered(p.client(), "policy gone", n.all()...)
	n.awaitLog(from, "bypass ended")
	end()
}

// One pod of nine is hit at its own link, before the switch, some time after it was steered: the host counts nothing of it, so
// only its pod table and the agent's query from its netns can tell. It is answered by kube-dns, named, and steered again
// when the policy goes. No other pod is bypassed.
func TestLatePolicyAtTheLink(t *testing.T) {
	t.Parallel()
	n, p := newServed(t, setup{families: testutil.Dual, proxy: testutil.NFTables, install: true})
	end := n.crowd(8, nil)
	ats := targets(n.ClusterDNS()...)
	n.wantSteered(p.client(), "no policy", ats...)

	allow := n.refuseAtLink(p)
	n.awaitFallback(p.client(), "policy comes", ats...)
	n.wantGivenBack(p)
	n.wantFallback(p.client(), "policy stands", ats...)
	n.prints(anyCode, "doctor", "default/"+p.name)

	allow()
	testutil.Eventually(t, func() error { return p.client().steered(ats[0]) }) // it is tried after 15 s
	n.wantSteered(p.client(), "policy gone", ats...)
	n.wantGivenBack(nil)
	end()
}

// refuseAtLink drops what a pod sends to the node's own addresses where a tc or XDP program of a policy does.
func (n *node) refuseAtLink(p *pod) (allow func()) {
	n.t.Helper()
	var rules strings.Builder
	for _, a := range []netip.Addr{steering4, local4, steering6, local6} {
		fmt.Fprintf(&rules, "%s daddr %s drop\n", map[bool]string{true: "ip", false: "ip6"}[a.Is4()], a)
	}
	return chain(n.Host, "netdev at_link_of_"+p.name, fmt.Sprintf("hook ingress device %q priority 0", p.hostLink(n)), rules.String())
}

// chain makes an nftables table with a chain of filters in a netns.
func chain(ns *testutil.NetNS, table, hook, rules string) (end func()) {
	ns.RunInput("table "+table+" {\nchain filtered {\ntype filter "+hook+";\n"+rules+"\n}\n}\n", "nft", "-f", "-")
	return func() { ns.Run(append([]string{"nft", "delete", "table"}, strings.Fields(table)...)...) }
}

// hostLink is the host's end of the pod's veth.
func (p *pod) hostLink(n *node) string {
	n.t.Helper()
	out := n.Host.Run("ip", "-o", "route", "get", p.addr(true).String())
	fields := strings.Fields(out)
	at := slices.Index(fields, "dev")
	if at < 0 || at+1 == len(fields) {
		n.t.Fatalf("no link in %q", out)
	}
	return fields[at+1]
}

// wantGivenBack waits until the pods that the agent gave back are this one, or none.
func (n *node) wantGivenBack(p *pod) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		views, err := n.podViews()
		if err != nil {
			return err
		}
		bypassed := slices.DeleteFunc(slices.Clone(views), func(v podView) bool { return !v.bypassed() })
		right := p == nil && len(bypassed) == 0 || p != nil && len(bypassed) == 1 && bypassed[0].Pod == "default/"+p.name
		return testutil.ErrorIf(!right, "bypassed: %+v\nall: %+v", bypassed, views)
	})
}

// wantBypassed waits until the status lists one pod, over each of its addresses and protocols, and no other.
func (n *node) wantBypassed(p *pod) {
	n.t.Helper()
	want, of := 0, ""
	if p != nil {
		want, of = len(n.all()), "default/"+p.name
	}
	n.awaitStatus(func(s *agentStatus) error {
		wrong := len(s.Bypassed) != want
		for _, b := range s.Bypassed {
			wrong = wrong || b.Pod != of || !slices.Contains(p.addrs, b.Source) || b.NextTrial.Before(b.Since)
		}
		return testutil.ErrorIf(wrong, "want %d clients bypassed, all of %q: %+v", want, of, s.Bypassed)
	})
}
