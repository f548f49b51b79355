package zone

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// A set that is full takes nothing new, and a higher limit is used. If the set of owners is full, the host gets a conflict.
func TestPlanLimit(t *testing.T) {
	p := edit(www, func(p *Publication) { p.Addresses = many(5) })
	w := self
	w.Limit = 3
	z := &primary{t, map[string][]dns.RR{}}
	st := z.read().Plan(w, Memory{}, p)
	if len(st.Unserved) != 2 || len(st.Notes) != 1 || st.Notes[0].Reason != RRsetFull || !z.update(st.Message) {
		t.Fatalf("%+v", st)
	}
	h := z.read().Hosts[p.Host]
	if len(h.Addresses) != 3 || len(h.Levels["cluster1"]) != 2 || len(h.Held()) != 5 || len(h.References) != 5 {
		t.Errorf("%+v", h)
	}
	if again := z.read().Plan(w, Memory{}, p); !again.Done() || len(again.Unserved) != 2 {
		t.Errorf("it is tried again: %v", show(again.Message))
	}
	w.Limit = 4
	if st := z.read().Plan(w, Memory{}, p); !z.update(st.Message) || len(st.Unserved) != 1 {
		t.Errorf("room is not used: %v", show(st.Message))
	}
	if h := z.read().Hosts[p.Host]; len(h.Addresses) != 4 || len(h.Levels["cluster1"]) != 1 {
		t.Errorf("%+v", h)
	}
	crowd := with(t, claimOf("cluster2", www), claimOf("cluster3", www))
	w.Limit = 2
	if st := crowd.Plan(w, Memory{}, www); st.Conflict == nil || st.Conflict.Reason != RRsetFull || !st.Message.Empty() {
		t.Errorf("more owners than fit: %+v", st)
	}
}

// The cluster's own level first has the addresses that the host lacks: edges find each address somewhere. A level that an older version
// filled with the host's is exchanged.
func TestPlanLimitLoadBalanced(t *testing.T) {
	p := edit(wwwB, func(p *Publication) { p.Addresses = many(140) })
	w := self
	w.Limit = 100
	z := &primary{t, map[string][]dns.RR{}}
	older := func() {
		own := "cluster1.klb." + p.Host
		delete(z.sets, own)
		for _, a := range z.read().Hosts[p.Host].Addresses {
			z.add(addressRR(own, a, p.TTL))
		}
	}
	for _, name := range []string{"new", "as an older version wrote it"} {
		if name != "new" {
			older()
		}
		st := z.read().Plan(w, Memory{}, p)
		if len(st.Unserved) != 40 || !strings.Contains(st.Notes[0].Message, "40 are left to edges.") || !z.update(st.Message) {
			t.Fatalf("%s: %+v", name, st.Notes)
		}
		h := z.read().Hosts[p.Host]
		if len(h.Held()) != 140 || len(h.Addresses) != 100 || len(h.Levels["cluster1"]) != 100 {
			t.Errorf("%s: %d addresses, %d at the host, %d at the cluster's level", name, len(h.Held()), len(h.Addresses), len(h.Levels["cluster1"]))
		}
		if again := z.read().Plan(w, Memory{}, p); !again.Done() {
			t.Errorf("%s: it is tried again: %v", name, show(again.Message))
		}
	}
	full := edit(www, func(p *Publication) { p.Strategy, p.Addresses = LoadBalanced, addrs("2001:db8::1", "2001:db8::2") })
	w.Limit = 2
	st := with(t, claimOf("cluster2", full)).Plan(w, Memory{}, edit(full, func(p *Publication) { p.Addresses = many(5) }))
	if len(st.Notes) != 1 || !strings.Contains(st.Notes[0].Message, "2 are left to edges, 3 fit neither at the host nor at the cluster's name.") {
		t.Errorf("more addresses than the level takes: %+v", st.Notes)
	}
}
