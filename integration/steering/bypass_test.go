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
func (n *node) crowd(count int, note func(p *pod, at target, a *testutil.Answer, err error)) (end func()) {
	n.t.Helper()
	all := n.all()
	var clients []func(stop <-chan struct{})
	for i := range count {
		p, at := n.addPod(nil), all[i%len(all)]
		clients = append(clients, func(stop <-chan struct{}) {
			tick := time.NewTicker(300 * time.Millisecond)
			defer tick.Stop()
			name := freshName()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				if a, err := p.client().ask(at, name, testutil.Attempt); note != nil {
					note(p, at, a, err)
				}
			}
		})
	}
	return background(n.t, clients...)
}

// One pod of seventeen is behind a policy that lets it reach only kube-dns. kube-dns serves it, also after the agent was stopped or started
// again; it comes back, and is named. No other pod is bypassed. TestTimingEgressPolicy counts the queries that are lost.
func TestEgressPolicy(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{families: testutil.Dual, proxy: testutil.IPTables, install: true})
	p := n.addPod(nil)
	n.startAgent()
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
	n := newNode(t, setup{families: testutil.Dual, proxy: testutil.NFTables, install: true})
	p := n.addPod(nil)
	n.startAgent()
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
	table := "at_link_of_" + p.name
	n.Host.RunInput(fmt.Sprintf("table netdev %s {\nchain c {\ntype filter hook ingress device %q priority 0;\n%s}\n}\n", table, p.hostLink(n), rules.String()), "nft", "-f", "-")
	return func() { n.Host.Run("nft", "delete", "table", "netdev", table) }
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
		if p == nil && len(bypassed) == 0 || p != nil && len(bypassed) == 1 && bypassed[0].Pod == "default/"+p.name {
			return nil
		}
		return fmt.Errorf("bypassed: %+v\nall: %+v", bypassed, views)
	})
}

// wantBypassed waits until the status lists one pod, over each of its addresses and protocols, and no other.
func (n *node) wantBypassed(p *pod) {
	n.t.Helper()
	want := 0
	if p != nil {
		want = len(n.all())
	}
	testutil.Eventually(n.t, func() error {
		s, err := n.agentStatus()
		if err != nil || len(s.Bypassed) != want {
			return fmt.Errorf("want %d clients bypassed: %+v, %w", want, s, err)
		}
		for _, b := range s.Bypassed {
			if b.Pod != "default/"+p.name || !slices.Contains(p.addrs, b.Source) || b.NextTrial.Before(b.Since) {
				return fmt.Errorf("not %s: %+v", p.name, b)
			}
		}
		return nil
	})
}
