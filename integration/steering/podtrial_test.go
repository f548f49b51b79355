package steering

import (
	"fmt"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestPodTrialNeedsNoUpstream: whether a pod's path to the agent works is decided without any upstream, whatever these do with queries of a
// class that they do not serve. A pod that ran before is adopted, a bypassed pod comes back, and no trial is forwarded.
func TestPodTrialNeedsNoUpstream(t *testing.T) {
	for name, answer := range map[string]func(q testutil.Question) *dns.Msg{
		"drops it":   func(testutil.Question) *dns.Msg { return nil },
		"refuses it": func(q testutil.Question) *dns.Msg { return new(dns.Msg).SetRcode(q.Msg, dns.RcodeRefused) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, setup{external: true, proven: true, adopt: true, config: "upstreams: {external: [\"198.51.100.53\"]}\n"})
			for _, s := range []*testutil.DNSServer{n.External, n.DNS} {
				s.Behave(testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg {
					if q.Msg.Question[0].Qclass == dns.ClassCHAOS {
						t.Errorf("a trial is forwarded: %s", &q.Msg.Question[0])
						return answer(q)
					}
					return s.Answer(q)
				}})
			}
			p := n.addRunningPods(1, nil)[0]
			n.startAgent()
			testutil.Eventually(t, func() error { return p.adopted(podfile.Steered) })
			// The path is cut: the pod is bypassed by the next agent's trial, and comes back by a later one.
			n.Host.RunInput(fmt.Sprintf("table ip lost {\n\tchain c {\n\t\ttype filter hook prerouting priority -450; policy accept;\n\t\tip saddr %s ip daddr 169.254.20.0/24 drop\n\t}\n}\n", p.addr(true)), "nft", "-f", "-")
			at := target{n.ClusterDNS()[0], "udp"}
			testutil.Eventually(t, func() error {
				_, _ = p.client().ask(at, freshName(), testutil.Silence)
				return p.in(podfile.Pending)
			})
			n.Host.Run("nft", "delete", "table", "ip", "lost")
			testutil.Eventually(t, func() error { return p.in(podfile.Steered) })
		})
	}
}
