package pods

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// wantLeaving wants a table that steers no new query, and lets answers pass.
func (n *node) wantLeaving(pod *testutil.Pod, redirects ...steer.Redirect) {
	n.t.Helper()
	testutil.Check(n.t, n.table(pod.NetNS).Verify(steer.Pod{Redirects: redirects, Leaving: true}))
}

// TestAnswersOnTheirWay: a pod that steer.mode turns back to kube-dns still gets the answers that the agent owes it, over UDP and over open
// TCP connections, from the address that it queried. Its next queries go to kube-dns. The table is removed later.
func TestAnswersOnTheirWay(t *testing.T) {
	n, pod := steeredPod(t, r4, r6)
	n.Host.Serving("neardns0", r4.Steering, r6.Steering, r4.ClusterDNS, r6.ClusterDNS)
	arrived, released := make(chan struct{}, 8), make(chan struct{})

	agent := testutil.ServeDNS(t, n.Host, testutil.DNSConfig{Name: "AGENT",
		Listen: []netip.AddrPort{netip.AddrPortFrom(r4.Steering, 53), netip.AddrPortFrom(r6.Steering, 53)}})
	testutil.ServeDNS(t, n.Host, testutil.DNSConfig{Name: "KUBEDNS",
		Listen: []netip.AddrPort{netip.AddrPortFrom(r4.ClusterDNS, 53), netip.AddrPortFrom(r6.ClusterDNS, 53)}})
	servers := []netip.AddrPort{netip.AddrPortFrom(r4.ClusterDNS, 53), netip.AddrPortFrom(r6.ClusterDNS, 53)}
	var open []*testutil.Conn
	for _, s := range servers {
		c, err := testutil.Dial(pod.NetNS, "tcp", s, testutil.AskOptions{})
		testutil.Must(t, err)
		t.Cleanup(c.Close)
		if a, err := c.Ask("a.cluster.local", dns.TypeTXT); err != nil || a.Who != "AGENT" {
			t.Fatalf("%s over TCP before: %v, %v", s, a, err)
		}
		open = append(open, c)
	}
	agent.Behave(testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg {
		if q.Network == "udp" {
			arrived <- struct{}{}
			<-released
		}
		return agent.Answer(q)
	}})
	answers := make(chan error, len(servers))
	for _, s := range servers {
		go func() {
			a, err := testutil.Ask(pod.NetNS, s, "a.cluster.local", dns.TypeTXT, "udp", testutil.AskOptions{Timeout: testutil.Patience()})
			if err == nil && a.Who != "AGENT" {
				err = errors.New(a.Who + " answered")
			}
			answers <- err
		}()
	}
	for range servers {
		testutil.Receive(t, arrived)
	}
	n.Excludes = func(podfile.File) string { return "steer.mode is none" }
	n.reconcile(yes, true, map[string]int{LeftAlone: 1})
	n.wantLeaving(pod, r4, r6)
	for _, s := range servers {
		for _, proto := range []string{"udp", "tcp"} {
			a, err := testutil.Ask(pod.NetNS, s, "b.cluster.local", dns.TypeTXT, proto, testutil.AskOptions{})
			if err != nil || a.Who != "KUBEDNS" {
				t.Errorf("the next query to %s over %s: %v, %v", s, proto, a, err)
			}
		}
	}
	close(released)
	for range servers {
		testutil.Check(t, testutil.Receive(t, answers), "an answer on its way")
	}
	for i, c := range open {
		if a, err := c.Ask("c.cluster.local", dns.TypeTXT); err != nil || a.Who != "AGENT" {
			t.Errorf("an open connection to %s: %v, %v", servers[i], a, err)
		}
	}
	n.leaving.Store(pod.Inode(), time.Now()) // leaveTime is over
	n.reconcile(yes, true, map[string]int{LeftAlone: 1})
	n.wantTable(pod)
}

// fillDirect fills a pod table's record of TCP connections with those of other ports.
func fillDirect(pod *testutil.Pod) {
	pod.Run("nft", "flush", "set", "inet", "neardns", "direct1")
	pod.Run("sh", "-c", "for i in $(seq 512); do echo add element inet neardns direct1 { ipv4 . $i timeout 10m }; done | nft -f -")
}

// A pod that leaves may open more connections than its table remembers: each goes one way, to kube-dns or to the agent, and is answered.
func TestManyConnectionsOfALeavingPod(t *testing.T) {
	n, pod, at := podBetween(t)
	write(t, n.dir, fileOf(pod, "a", "eth0", decisions(podfile.Pending, r4)))
	n.reconcile(yes, true, map[string]int{Steered: 1})
	n.Excludes = func(podfile.File) string { return "steer.mode is none" }
	n.reconcile(yes, false, map[string]int{LeftAlone: 1})
	testutil.WantWho(t, "KUBEDNS", pod.NetNS, at, "a.cluster.local", "tcp")
	fillDirect(pod)
	testutil.WantWho(t, "AGENT", pod.NetNS, at, "a.cluster.local", "tcp")
}

// TestPodComesBackAtOnce: the table of a pod that is selected again before leaveTime is over would hide its trial, so the trial removes it.
func TestPodComesBackAtOnce(t *testing.T) {
	n, pod := steeredPod(t, r4, r6)
	n.serve()
	for range 2 {
		n.Excludes = func(podfile.File) string { return "steer.mode is none" }
		n.reconcile(yes, false, map[string]int{LeftAlone: 1})
		n.Excludes = func(podfile.File) string { return "" }
		n.reconcile(yes, false, map[string]int{Pending: 1})
		n.try(held, true)
		n.reconcile(yes, false, map[string]int{Steered: 1})
		n.wantTable(pod, r4, r6)
	}
}

// A table that no file records goes, whenever it appears.
func TestLateTableIsRemoved(t *testing.T) {
	n, pod := onePod(t, podfile.LeftAlone, r4)
	table := n.table(pod.NetNS)
	for range 3 {
		testutil.Must(t, table.Apply(steer.Pod{Redirects: []steer.Redirect{r4}}))
		n.reconcile(yes, true, map[string]int{LeftAlone: 1})
		n.wantTable(pod)
	}
}
