package steering

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestPodTrialNeedsNoUpstream: whether a pod's path to the agent works is decided without any upstream, whatever these do with queries of a
// class that they do not serve, or with all queries. A pod that ran before is adopted, a bypassed one comes back, and no trial is forwarded.
func TestPodTrialNeedsNoUpstream(t *testing.T) {
	const trials = ".probe.neardns.invalid."
	for name, row := range map[string]struct {
		every  bool // the server outside of the cluster answers every query so, and else those of class CHAOS
		answer func(testutil.Question, *testutil.DNSServer) *dns.Msg
	}{
		"drops CHAOS": {answer: func(testutil.Question, *testutil.DNSServer) *dns.Msg { return nil }},
		"refuses CHAOS": {answer: func(q testutil.Question, _ *testutil.DNSServer) *dns.Msg {
			return new(dns.Msg).SetRcode(q.Msg, dns.RcodeRefused)
		}},
		"silent": {every: true, answer: func(testutil.Question, *testutil.DNSServer) *dns.Msg { return nil }},
		"slow": {every: true, answer: func(q testutil.Question, s *testutil.DNSServer) *dns.Msg {
			q.Late(2 * time.Second)
			return s.Answer(q)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, setup{external: true, proven: true, adopt: true, config: "upstreams: {external: [\"198.51.100.53\"]}\n"})
			handle := func(s *testutil.DNSServer, answer func(q testutil.Question, trial bool) *dns.Msg) {
				s.Behave(testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg {
					if q.Msg.Question[0].Qclass == dns.ClassCHAOS {
						t.Errorf("a trial is forwarded: %s", &q.Msg.Question[0])
						return row.answer(q, s)
					}
					return answer(q, strings.HasSuffix(q.Name, trials))
				}})
			}
			handle(n.External, func(q testutil.Question, trial bool) *dns.Msg {
				if trial {
					t.Errorf("a trial is forwarded: %s", &q.Msg.Question[0])
				}
				if row.every {
					return row.answer(q, n.External)
				}
				return n.External.Answer(q)
			})
			handle(n.DNS, func(q testutil.Question, trial bool) *dns.Msg {
				if trial { // without a lease it falls back, and would go on to the other server
					return new(dns.Msg).SetRcode(q.Msg, dns.RcodeNameError)
				}
				return n.DNS.Answer(q)
			})
			p := n.addRunningPods(1, nil)[0]
			n.startAgent()
			testutil.Eventually(t, func() error { return p.adopted(podfile.Steered) })
			// The path is cut: the pod is bypassed by the next agent's trial, and comes back by a later one.
			end := chain(n.Host, "ip lost", "hook prerouting priority -450", fmt.Sprintf("ip saddr %s ip daddr 169.254.20.0/24 drop", p.addr(true)))
			at := target{n.ClusterDNS()[0], "udp"}
			testutil.Eventually(t, func() error {
				_, _ = p.client().ask(at, freshName(), testutil.Silence)
				return p.in(podfile.Pending)
			})
			end()
			testutil.Eventually(t, func() error { return p.in(podfile.Steered) })
		})
	}
}

// policy drops, from now on, what any pod sends to the node's own addresses, as an egress policy does that allows only kube-dns.
func (n *node) policy() (end func()) {
	n.t.Helper()
	var rules strings.Builder
	for _, a := range n.ClusterDNS() {
		family, ours := "ip6", []netip.Addr{steering6, local6}
		if a.Is4() {
			family, ours = "ip", []netip.Addr{steering4, local4}
		}
		for _, to := range ours {
			fmt.Fprintf(&rules, "\t\t%s saddr %s %s daddr %s counter drop\n", family, n.PodRange(a.Is4()), family, to)
		}
	}
	return chain(n.Host, "inet denied", "hook prerouting priority -450", rules.String())
}

// newPods are the nodes of the tests of new pods: each back end, both families, an attachment of each kind.
var newPods = []setup{
	{families: testutil.Dual, attach: testutil.PTP, proven: true},
	{families: testutil.Dual, proxy: testutil.IPTables, attach: testutil.BridgeCNI, proven: true, backend: string(iptables.NFT)},
}

// TestNewPodUnderPolicy: a pod that a policy lets reach only kube-dns from its start, or when it is adopted, loses no query, because it is
// not steered. It is steered once the policy ends. A pod that opted out sends no trial.
func TestNewPodUnderPolicy(t *testing.T) {
	for _, s := range newPods {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			s.adopt = true
			n := newNode(t, s)
			n.startAgent()
			end := n.policy()
			out := n.makePod(true, optOut)
			for range 4 {
				n.wantFallback(out.client(), "opted out", targets(n.ClusterDNS()...)...)
			}
			if rules := n.Host.Run("nft", "list", "table", "inet", "denied"); strings.Count(rules, "packets 0 bytes 0") != 2*len(n.ClusterDNS()) {
				t.Errorf("a pod that opted out is tried:\n%s", rules)
			}
			running := n.addRunningPods(1, nil)[0]
			f := n.startTraffic(running, "a.default.svc.cluster.local.", 50)
			pods := []*pod{n.makePod(true, nil), running}
			testutil.Eventually(t, func() error { return running.adopted(podfile.Pending) })
			for _, p := range pods {
				testutil.Eventually(t, func() error { // until its trial has failed
					n.wantFallback(p.client(), "under the policy", targets(n.ClusterDNS()...)...)
					for _, d := range p.decisions() {
						if len(d.Unanswered) == 0 {
							return fmt.Errorf("not tried: %+v", d)
						}
					}
					return p.in(podfile.Pending)
				})
				for range 10 {
					n.wantFallback(p.client(), "under the policy", targets(n.ClusterDNS()...)...)
				}
				p.wantNoRules("under the policy")
				testutil.Must(t, p.check())
			}
			f.allAnswered()
			n.awaitLog(0, `not steered, kube-dns answers them: its test query got no answer" pod=default/`+running.name)
			end()
			for _, p := range pods {
				testutil.Eventually(t, func() error { return p.in(podfile.Steered) })
				n.wantSteered(p.client(), "the policy ended", targets(n.ClusterDNS()...)...)
			}
		})
	}
}

// TestNewPodIsSteered: a new pod loses no query while it is tried and steered, CHECK finds it as recorded at any moment, and DEL leaves
// nothing. A policy that comes later bypasses it. On a busy machine the pod is not young any more by then, so it looks names up: by these
// its table, or a periodic trial, notices the policy. TestTable of podstate has the trials of a young pod that looks nothing up.
func TestNewPodIsSteered(t *testing.T) {
	for _, s := range newPods {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, s)
			n.startAgent()
			p := n.makePod(true, nil)
			testutil.Eventually(t, func() error {
				for _, at := range targets(n.ClusterDNS()...) {
					if _, err := p.client().ask(at, freshName(), testutil.Patience()); err != nil {
						t.Errorf("a new pod's query to %s: %v", at, err)
					}
				}
				testutil.Check(t, p.check(), "CHECK")
				return p.in(podfile.Steered)
			})
			n.wantSteered(p.client(), "steered", targets(n.ClusterDNS()...)...)
			end := n.policy()
			testutil.Eventually(t, func() error {
				for _, at := range n.ClusterDNS() {
					_, _ = p.client().ask(target{at, "udp"}, freshName(), testutil.Silence)
				}
				return p.in(podfile.Pending)
			})
			p.wantNoneTranslated("a policy came")
			n.wantFallback(p.client(), "a policy came", targets(n.ClusterDNS()...)...)
			end()
			testutil.Eventually(t, func() error { return p.in(podfile.Steered) })
			p.del()
			if exists(podfile.Path(n.stateDir(), p.container(), "eth0")) {
				t.Error("the pod's file is left")
			}
		})
	}
}
