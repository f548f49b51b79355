//go:build timing

package steering

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestTimingClusterUpstreamDead measures what a cluster upstream that never answers costs a client: a second at most, and soon nothing.
//
// State: TestClusterUpstreamDead (here). Bound: TestWaits (internal/dns/forward).
func TestTimingClusterUpstreamDead(t *testing.T) {
	n := newNode(t, setup{external: true, config: fmt.Sprintf("upstreams: {cluster: [%q], external: []}\n", second)})
	n.External.Behave(testutil.Behaviour{Drop: true})
	n.Proxy.Add(elsewhere(n)...)
	pod := n.addPod(nil)
	n.startAgent()
	var known []time.Duration // waits when the dead upstream is known
	for i := range 12 {
		began := time.Now()
		answer, err := pod.client().ask(n.all()[0], freshName(), 2*time.Second)
		took := time.Since(began)
		if err != nil || pod.client().direct(answer) || took > time.Second+slack {
			t.Errorf("query %d: %v after %s, answer %v", i, err, took.Round(time.Millisecond), answer)
		}
		if i >= 5 {
			known = append(known, took)
		}
	}
	// A silent one that is queried first costs 300 ms.
	slices.Sort(known)
	if usual := known[len(known)/2]; usual > 200*time.Millisecond {
		t.Errorf("most queries took %s and more: the dead upstream is known by then", usual.Round(time.Millisecond))
	}
}

// TestTimingKubeDNSRestarts measures how soon a miss ends in SERVFAIL if the only upstream hangs or has ended, and how soon the first query
// after its return is answered.
//
// State: TestKubeDNSRestarts (here). Bound: TestWaits, TestAlone (internal/dns/forward).
func TestTimingKubeDNSRestarts(t *testing.T) {
	n := newNode(t, setup{families: testutil.Dual})
	pod := n.addPod(nil)
	n.startAgent()
	// A SERVFAIL comes after 1.9 s, so the quickest of several shows the bound.
	want := func(when, rcode string, times int, bound time.Duration) {
		t.Helper()
		quickest := time.Hour
		for range times {
			began := time.Now()
			a, err := testutil.Ask(pod.NetNS, n.all()[0].server(), freshName(), dns.TypeA, "udp", testutil.AskOptions{Timeout: 4 * time.Second})
			took := time.Since(began)
			if err != nil || a.Rcode() != rcode || took > bound+slack {
				t.Errorf("%s: %v, %v after %s, want %s within %v", when, a, err, took.Round(time.Millisecond), rcode, bound)
			}
			quickest = min(quickest, took)
		}
		if quickest > bound {
			t.Errorf("%s: the quickest %s came after %s, want one within %v", when, rcode, quickest.Round(time.Millisecond), bound)
		}
	}
	want("before", "NOERROR", 1, time.Second)
	n.DNS.Behave(testutil.Behaviour{Drop: true})
	want("hung", "SERVFAIL", failLimit, 2*time.Second)
	n.DNS.Behave(testutil.Behaviour{})
	want("after the hang", "NOERROR", 1, time.Second)
	n.DNS.Stop()
	want("ended", "SERVFAIL", failLimit+1, 2*time.Second)
	n.DNS.Start()
	want("after the restart", "NOERROR", 1, time.Second)
}

// TestTimingWithoutTCP measures how soon queries are answered while kube-dns cannot be reached over TCP, and after that.
//
// State: TestUpstreamInTrouble (here). Bound: TestWaits (internal/dns/forward).
func TestTimingWithoutTCP(t *testing.T) {
	n := newNode(t, setup{})
	n.DNS.Behave(troubled(n.DNS))
	p := n.addPod(nil)
	n.startAgent()
	want := func(when string, at target, name string, records int) {
		t.Helper()
		began := time.Now()
		a, err := testutil.Ask(p.NetNS, at.server(), name, dns.TypeA, at.network, testutil.AskOptions{EDNS: 1232})
		if took := time.Since(began); err != nil || len(a.Msg.Answer) != records || took > 2*time.Second {
			t.Errorf("%s: %v, %v after %s", when, a, err, took.Round(time.Millisecond))
		}
	}
	udp, tcp := n.all()[0], n.all()[1]
	n.withoutTCP("drop", func() { want("a SYN is lost", udp, freshName(), 1) })
	want("after a lost SYN", tcp, longName(), endpoints)
	n.withoutTCP("reject with tcp reset", func() { _, _ = p.client().ask(tcp, longName(), time.Second) })
	want("after refused connections", tcp, longName(), endpoints)
}
