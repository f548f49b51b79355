package steering

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// policies drop a pod's DNS in the host's filters, as network policies do.
var policies = map[string]string{
	"all DNS":             "chain through {\ntype filter hook forward priority 0;\nip saddr %[1]s meta l4proto { tcp, udp } drop\n}\n",
	"all but to kube-dns": "",
}

// deny lays a policy for a pod.
func (n *node) deny(p *pod, policy string) (allow func()) {
	n.t.Helper()
	rules := "table ip guard_%[4]s {\nchain in {\ntype filter hook input priority 0;\nip saddr %[1]s ip daddr { %[2]s, %[3]s } drop\n}\n" +
		policies[policy] + "}\n"
	n.Host.RunInput(fmt.Sprintf(rules, p.addr(true), steering4, local4, p.name), "nft", "-f", "-")
	return func() { n.Host.Run("nft", "delete", "table", "ip", "guard_"+p.name) }
}

// denied is a node on which two pods query one name all the time. The first is the one that a policy is laid for.
type denied struct {
	*node
	p, other *pod
	at       target
	hot      string
}

func newDenied(t *testing.T) *denied {
	t.Helper()
	n := newKernelNode(t, setup{families: testutil.IPv4})
	return &denied{node: n, p: n.addPod(nil), other: n.addPod(nil), at: target{n.ClusterDNS()[0], "udp"}, hot: "ttl-600." + freshName()}
}

// query starts the pods' queries. They end with the test.
func (d *denied) query() {
	for _, p := range []*pod{d.p, d.other} {
		d.newTraffic(p, retry).pace(50*time.Millisecond, 0, func() error {
			_, err := p.client().ask(d.at, d.hot, retry)
			p.ended.Add(1)
			return err
		})
	}
}

// hits waits until some hits more of a pod are answered.
func (d *denied) hits(when string, p *pod) {
	d.t.Helper()
	_, before := d.countsInKernel(p)
	testutil.Eventually(d.t, func() error {
		_, now := d.countsInKernel(p)
		return testutil.ErrorIf(now < before+10, "%s: %d hits of %s", when, now-before, p.name)
	})
}

// noHits waits until no hit of the first pod is answered while it sends several queries, and those of the other are. One query is too few:
// the kernel passes on a name that expires soon, so that the agent refreshes it, and the policy drops that query.
func (d *denied) noHits(when string) {
	d.t.Helper()
	testutil.Eventually(d.t, func() error {
		_, before := d.countsInKernel(d.p)
		ended := d.p.ended.Load()
		d.hits(when, d.other)
		testutil.Eventually(d.t, func() error {
			n := d.p.ended.Load() - ended
			return testutil.ErrorIf(n < 4, "%s: %d queries of %s ended", when, n, d.p.name) // the first may have begun before the counts were read
		})
		_, now := d.countsInKernel(d.p)
		return testutil.ErrorIf(now != before, "%s: %d hits of %s", when, now-before, d.p.name)
	})
}

// end is what becomes of the first pod's other queries.
func (d *denied) end(policy string) {
	d.t.Helper()
	if policy == "all DNS" {
		if a, err := d.p.client().ask(d.at, d.hot, retry); err == nil {
			d.t.Errorf("answered: %s", a.Msg)
		}
		return
	}
	testutil.Eventually(d.t, func() error { return d.p.client().fellBack(d.at, retry) })
}

// silenceUpstream has kube-dns answer nothing but the hot name, whose entry would else expire while the test waits.
func (d *denied) silenceUpstream() {
	d.DNS.Behave(testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg {
		if !strings.EqualFold(q.Name, d.hot) {
			return nil
		}
		return d.DNS.Answer(q)
	}})
}

// TestKernelHitsEndWithThePath: a policy that drops a pod's DNS ends its hits, whether or not the upstream answers. While the agent hangs
// they go on, so that a hang alone ends none; they end when it goes on. Without the policy they are back. TestDefaultInstall has both
// policies while all is well.
func TestKernelHitsEndWithThePath(t *testing.T) {
	for _, fault := range []struct {
		policy, name    string
		stopped, silent bool
	}{
		{"all DNS", "agent stopped", true, false}, {"all but to kube-dns", "upstream silent", false, true},
		{"all DNS", "both", true, true}, {"all but to kube-dns", "both", true, true},
	} {
		t.Run(fault.policy+"/"+fault.name, func(t *testing.T) {
			t.Parallel()
			d := newDenied(t)
			d.startAgent()
			d.wantInKernel(2, 0)
			d.query()
			d.hits("at first", d.p)
			d.hits("at first", d.other)
			if fault.silent {
				d.silenceUpstream()
			}
			if fault.stopped {
				d.agent.Stop()
			}
			allow := d.deny(d.p, fault.policy)
			if fault.stopped {
				a, err := d.p.client().ask(d.at, d.hot, testutil.Attempt)
				if err != nil || d.p.client().direct(a) {
					t.Errorf("without the agent the kernel answers no more: %v", err)
				}
				d.agent.Cont()
			}
			d.noHits("cut off")
			d.DNS.Behave(testutil.Behaviour{})
			d.end(fault.policy)
			allow()
			d.hits("no longer cut off", d.p)
		})
	}
}

// TestKernelHitsNeedThePath: a pod whose DNS is dropped from its beginning has no hit. Without the policy it has.
func TestKernelHitsNeedThePath(t *testing.T) {
	for policy := range policies {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			d := newDenied(t)
			allow := d.deny(d.p, policy)
			d.startAgent()
			d.query()
			d.hits("others", d.other)
			if _, got := d.countsInKernel(d.p); got != 0 {
				t.Errorf("%d hits", got)
			}
			d.end(policy)
			allow()
			d.hits("no longer cut off", d.p)
		})
	}
}

// TestKernelHitsOfASilentUpstream: samples are queries that the agent answers from its cache, so a silent upstream ends no hits.
func TestKernelHitsOfASilentUpstream(t *testing.T) {
	t.Parallel()
	d := newDenied(t)
	d.startAgent()
	d.wantInKernel(2, 0)
	d.query()
	d.hits("at first", d.p)
	d.silenceUpstream()
	queries, kernel := d.countsInKernel(d.p)
	testutil.Eventually(t, func() error { // longer than hits go on without an answer to a sample
		q, k := d.countsInKernel(d.p)
		return testutil.ErrorIf((q-queries)-(k-kernel) < 3, "the agent has not answered three samples")
	})
	d.hits("upstream silent", d.p)
	d.wantInKernel(2, 0)
}

// TestKernelHitsOutliveAHang: while the agent hangs, no query for an offloaded entry is lost, the samples among them.
func TestKernelHitsOutliveAHang(t *testing.T) {
	n, p, at, hot := newHot(t)
	f := n.startUDP(p, at.server(), 200, hot)
	f.more(400)
	n.agent.Stop()
	f.more(1200)
	n.agent.Cont()
	f.more(200)
	f.allAnswered()
}
