package searchpath

import (
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// Bugs of CoreDNS's autopath that this plugin must not have, each with its issue's number.

// coredns/coredns#778: a completed answer was kept, and a pod of another namespace that sent the same query got it.
func TestAutopath778AnotherNamespaceGetsNoCompletedAnswer(t *testing.T) {
	r := newRig(t, map[string]string{"www.example.com.": "both"})
	r.set(pod1, shop())
	r.set(pod2, NewSearch(clusterList("data"), 5, false, "cluster.local"))
	const question = "www.example.com.shop.svc.cluster.local."
	for range 3 {
		if m := r.ask(pod1, question, dns.TypeA); len(m.Answer) != 2 {
			t.Errorf("the pod in shop: %s", text(m))
		}
		if m := r.ask(pod2, question, dns.TypeA); m.Rcode != dns.RcodeNameError || len(m.Answer) > 0 {
			t.Errorf("the pod in data: %s", text(m))
		}
	}
}

// The same issue's other half: queries after the first passed only the plugins behind autopath. Here they go through the whole
// server, as the pod's own would.
func TestAutopath778WholeChain(t *testing.T) {
	r := newRig(t, map[string]string{"www.example.com.": "v4"})
	r.set(pod1, shop())
	r.ask(pod1, "www.example.com.shop.svc.cluster.local.", dns.TypeA)
	for _, want := range []string{"com.shop.svc.cluster.local. A", "com.svc.cluster.local. A", "com.cluster.local. A",
		"www.example.com.corp.example. A", "www.example.com.corp.example. AAAA", "www.example.com. A", "www.example.com. AAAA"} {
		if !slices.Contains(r.world.asked, want) {
			t.Errorf("%s was not asked in the server: %q", want, r.world.asked)
		}
	}
}

// coredns/coredns#2842: a pod whose address was another pod's before got completions by that pod's list, or none.
func TestAutopath2842AddressGivenToAnotherPod(t *testing.T) {
	r := newRig(t, map[string]string{"www.example.com.": "both", "db.data.svc.cluster.local.": "v4", "db.shop.svc.cluster.local.": "v6"})
	r.set(pod1, shop())
	r.ask(pod1, "www.example.com.shop.svc.cluster.local.", dns.TypeA)
	r.set(pod1, NewSearch(clusterList("data"), 5, false, "cluster.local"))
	if m := r.ask(pod1, "www.example.com.data.svc.cluster.local.", dns.TypeA); len(m.Answer) != 2 {
		t.Errorf("the new pod's first question: %s", text(m))
	}
	if m := r.ask(pod1, "www.example.com.shop.svc.cluster.local.", dns.TypeA); len(m.Answer) != 0 {
		t.Errorf("a question that would have been the old pod's first: %s", text(m))
	}
	r.set(pod1, nil)
	if m := r.ask(pod1, "www.example.com.data.svc.cluster.local.", dns.TypeA); len(m.Answer) != 0 {
		t.Errorf("a pod that wants none: %s", text(m))
	}
	// The agent still has the list of the pod that had the address before.
	r.late = map[netip.Addr]*Search{pod1: shop()}
	for _, s := range []*Search{nil, NewSearch(clusterList("data"), 5, false, "cluster.local")} {
		r.set(pod1, s)
		if m := r.ask(pod1, "www.example.com.shop.svc.cluster.local.", dns.TypeA); len(m.Answer) != 0 {
			t.Errorf("by the list of a pod that just went: %s", text(m))
		}
	}
	r.set(pod1, shop())
	if m := r.ask(pod1, "www.example.com.shop.svc.cluster.local.", dns.TypeA); len(m.Answer) != 2 {
		t.Errorf("the same list: %s", text(m))
	}
}

// coredns/coredns#3765: one family's answer was completed and the other's was not, so that a host seemed to have only IPv6 addresses, or
// none.
func TestAutopath3765BothFamiliesAlike(t *testing.T) {
	for kind, want := range map[string][2]int{"both": {2, 2}, "v4": {2, 0}, "v6": {0, 2}, "alias": {3, 3}} {
		r := newRig(t, map[string]string{"www.example.com.": kind})
		r.set(pod1, shop())
		var wg sync.WaitGroup
		for i, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			for range 20 {
				wg.Go(func() {
					m := r.ask(pod1, "www.example.com.shop.svc.cluster.local.", qtype)
					if m.Rcode != dns.RcodeSuccess || len(m.Answer) != want[i] {
						t.Errorf("%s: %s", kind, text(m))
					}
				})
			}
		}
		wg.Wait()
	}
}

// coredns/coredns#4308: behind a node's cache, autopath saw the node's address instead of the pod's. Here the cache of the node itself
// completes, by the address that the query comes from. The node's own address has no list, also for pods in the host's network, which share
// it (coredns/coredns#7178).
func TestAutopath4308ByThePodsOwnAddress(t *testing.T) {
	r := newRig(t, map[string]string{"www.example.com.": "both"})
	r.set(pod1, shop())
	const question = "www.example.com.shop.svc.cluster.local."
	if m := r.ask(pod1, question, dns.TypeA); len(m.Answer) != 2 {
		t.Errorf("the pod: %s", text(m))
	}
	if m := r.ask(nodeAddr, question, dns.TypeA); len(m.Answer) != 0 {
		t.Errorf("the node: %s", text(m))
	}
}

// coredns/coredns#7179: a server without completion denies the name for A, and one with completion answers AAAA without addresses. If that
// answer had a CNAME, glibc would end the walk there.
func TestAutopath7179NothingIsNoEnd(t *testing.T) {
	list := clusterList("shop")
	r := newRig(t, map[string]string{"www.example.com.": "v4"})
	r.set(pod1, NewSearch(list, 5, false, "cluster.local"))
	for which, libc := range libcs() {
		first := true
		var n int
		plain, completed := r.as(pod2, &n), r.as(pod1, &n)
		got := libc("www.example.com", list, 5, []uint16{dns.TypeA, dns.TypeAAAA}, func(name string, qtype uint16) *dns.Msg {
			if qtype == dns.TypeA && first { // kube-dns answers this one
				first = false
				return plain(name, qtype)
			}
			return completed(name, qtype)
		})
		if len(got.addrs) != 1 {
			t.Errorf("%s: %+v", which, got)
		}
	}
}
