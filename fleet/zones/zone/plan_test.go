package zone

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

// show writes a message as a person would: prerequisites with ?, additions with +, deletions with -.
func show(m Message) (out []string) {
	line := func(sign string, rr dns.RR) string {
		name := strings.TrimSuffix(rr.Header().Name, "."+origin)
		if x, ok := rr.(*dns.TXT); ok {
			return fmt.Sprintf("%s %s %s", sign, name, strings.Join(x.Txt[1:], " "))
		}
		if a, ok := addressOf(rr); ok {
			return fmt.Sprintf("%s %s %s", sign, name, a)
		}
		if c, ok := rr.(*dns.CNAME); ok {
			return fmt.Sprintf("%s %s CNAME %s", sign, name, c.Target)
		}
		return fmt.Sprintf("%s %s %s", sign, name, dns.TypeToString[rr.Header().Rrtype])
	}
	for _, rr := range m.Prereqs {
		out = append(out, line(map[uint16]string{dns.ClassNONE: "?no", dns.ClassINET: "?"}[rr.Header().Class], rr))
	}
	slices.Sort(out)
	for _, rr := range m.Changes {
		out = append(out, line(map[uint16]string{dns.ClassNONE: "-", dns.ClassANY: "-all", dns.ClassINET: "+"}[rr.Header().Class], rr))
	}
	return out
}

func claimOf(cluster string, p Publication) Claim {
	return Claim{Publication: p.Normal(), Identity: Identity{cluster, "x"}, Generation: 1}
}

// with is a zone in which these claims are published, each host with one strategy.
func with(t *testing.T, claims ...Claim) *State {
	t.Helper()
	p := &primary{t, map[string][]dns.RR{}}
	for _, c := range claims {
		for _, rr := range Compose(origin, c) {
			p.add(rr)
		}
	}
	return p.read()
}

var (
	self = Writer{Identity: Identity{"cluster1", "x"}}
	www  = Publication{Host: "www.example.org.", Strategy: Simple, TTL: 60, Addresses: addrs("192.0.2.1")}
	wwwB = Publication{Host: "www.example.org.", Strategy: LoadBalanced, TTL: 60, Addresses: addrs("192.0.2.1"), Geo: "ie"}
)

func edit(p Publication, f func(*Publication)) Publication { f(&p); return p }

// Each message has the prerequisites that keep others' records, and no others: more would make clusters meet that have nothing to do with
// each other.
func TestPlan(t *testing.T) {
	geo := func(g string) Publication { return edit(wwwB, func(p *Publication) { p.Geo = g }) }
	for name, tt := range map[string]struct {
		state *State
		want  Publication
		plan  []string
	}{
		"first join": {with(t), www, []string{"?no www.cluster1._neardns TXT", "?no www.s._shared._neardns TXT",
			"+ www.s._shared._neardns strategy=simple ttl=60", "+ www.o._shared._neardns c=cluster1",
			"+ 192-0-2-1.www.r._shared._neardns c=cluster1", "+ www 192.0.2.1", "+ www.cluster1._neardns gen=1 inst=x weight=0 ttl=60 addr=192.0.2.1"}},
		"second join, the same address: nothing of the other's is compared": {with(t, claimOf("cluster2", www)), www, []string{
			"? www.s._shared._neardns strategy=simple ttl=60", "?no www.cluster1._neardns TXT",
			"+ www.o._shared._neardns c=cluster1", "+ 192-0-2-1.www.r._shared._neardns c=cluster1",
			"+ www.cluster1._neardns gen=1 inst=x weight=0 ttl=60 addr=192.0.2.1"}},
		"as wanted": {with(t, claimOf("cluster1", www)), www, nil},
		"another weight": {with(t, claimOf("cluster1", www)), edit(www, func(p *Publication) { p.Weight = 7 }), []string{
			"? www.cluster1._neardns gen=1 inst=x weight=0 ttl=60 addr=192.0.2.1", "? www.s._shared._neardns strategy=simple ttl=60",
			"-all www.cluster1._neardns TXT", "+ www.cluster1._neardns gen=2 inst=x weight=7 ttl=60 addr=192.0.2.1"}},
		"an address of mine alone goes": {with(t, claimOf("cluster1", www)), edit(www, func(p *Publication) { p.Addresses = addrs("192.0.2.2") }), []string{
			"? 192-0-2-1.www.r._shared._neardns c=cluster1", "? www.cluster1._neardns gen=1 inst=x weight=0 ttl=60 addr=192.0.2.1",
			"? www.s._shared._neardns strategy=simple ttl=60",
			"- 192-0-2-1.www.r._shared._neardns c=cluster1", "- www 192.0.2.1", "+ 192-0-2-2.www.r._shared._neardns c=cluster1", "+ www 192.0.2.2",
			"-all www.cluster1._neardns TXT", "+ www.cluster1._neardns gen=2 inst=x weight=0 ttl=60 addr=192.0.2.2"}},
		"a shared address goes: it stays": {with(t, claimOf("cluster1", www), claimOf("cluster2", www)), Publication{Host: www.Host}, []string{
			"? 192-0-2-1.www.r._shared._neardns c=cluster1", "? 192-0-2-1.www.r._shared._neardns c=cluster2",
			"? www.cluster1._neardns gen=1 inst=x weight=0 ttl=60 addr=192.0.2.1",
			"- 192-0-2-1.www.r._shared._neardns c=cluster1", "-all www.cluster1._neardns TXT", "- www.o._shared._neardns c=cluster1"}},
		"the last one leaves": {with(t, claimOf("cluster1", www)), Publication{Host: www.Host}, []string{
			"? 192-0-2-1.www.r._shared._neardns c=cluster1", "? www.cluster1._neardns gen=1 inst=x weight=0 ttl=60 addr=192.0.2.1",
			"? www.o._shared._neardns c=cluster1", "? www.s._shared._neardns strategy=simple ttl=60",
			"- 192-0-2-1.www.r._shared._neardns c=cluster1", "- www 192.0.2.1", "-all www.cluster1._neardns TXT", "- www.o._shared._neardns c=cluster1",
			"-all www.s._shared._neardns TXT", "-all www.o._shared._neardns TXT"}},
		"another region, shared with one in the old region": {with(t, claimOf("cluster1", geo("ie")), claimOf("cluster2", geo("ie"))), geo("fr"), []string{
			"? 192-0-2-1.www.r._shared._neardns c=cluster1 geo=ie", "? 192-0-2-1.www.r._shared._neardns c=cluster2 geo=ie",
			"? www.cluster1._neardns gen=1 inst=x geo=ie weight=0 ttl=60 addr=192.0.2.1", "? www.s._shared._neardns strategy=loadbalanced ttl=60",
			"- 192-0-2-1.www.r._shared._neardns c=cluster1 geo=ie", "+ 192-0-2-1.www.r._shared._neardns c=cluster1 geo=fr", "+ fr.klb.www 192.0.2.1",
			"-all www.cluster1._neardns TXT", "+ www.cluster1._neardns gen=2 inst=x geo=fr weight=0 ttl=60 addr=192.0.2.1"}},
		"another region, shared with one elsewhere: the old region loses it, the host keeps it": {
			with(t, claimOf("cluster1", geo("ie")), claimOf("cluster2", geo("de"))), geo("fr"), []string{
				"? 192-0-2-1.www.r._shared._neardns c=cluster1 geo=ie", "? 192-0-2-1.www.r._shared._neardns c=cluster2 geo=de",
				"? www.cluster1._neardns gen=1 inst=x geo=ie weight=0 ttl=60 addr=192.0.2.1", "? www.s._shared._neardns strategy=loadbalanced ttl=60",
				"- 192-0-2-1.www.r._shared._neardns c=cluster1 geo=ie", "- ie.klb.www 192.0.2.1",
				"+ 192-0-2-1.www.r._shared._neardns c=cluster1 geo=fr", "+ fr.klb.www 192.0.2.1",
				"-all www.cluster1._neardns TXT", "+ www.cluster1._neardns gen=2 inst=x geo=fr weight=0 ttl=60 addr=192.0.2.1"}},
		"a hostname in place of addresses": {with(t, claimOf("cluster1", wwwB), claimOf("cluster2", wwwB)),
			edit(wwwB, func(p *Publication) { p.Addresses, p.Target = nil, "lb.example.com." }), []string{
				"? 192-0-2-1.www.r._shared._neardns c=cluster1 geo=ie", "? 192-0-2-1.www.r._shared._neardns c=cluster2 geo=ie",
				"? www.cluster1._neardns gen=1 inst=x geo=ie weight=0 ttl=60 addr=192.0.2.1", "? www.s._shared._neardns strategy=loadbalanced ttl=60",
				"- 192-0-2-1.www.r._shared._neardns c=cluster1 geo=ie", "- cluster1.klb.www 192.0.2.1", "+ cluster1.klb.www CNAME lb.example.com.",
				"-all www.cluster1._neardns TXT", "+ www.cluster1._neardns gen=2 inst=x geo=ie weight=0 ttl=60 target=lb.example.com."}},
	} {
		t.Run(name, func(t *testing.T) {
			st := tt.state.Plan(self, Memory{}, tt.want)
			if st.Conflict != nil {
				t.Fatalf("%+v", st.Conflict)
			}
			// That no CNAME stands where an address comes is checked by its own test.
			got := slices.DeleteFunc(show(st.Message), func(l string) bool { return strings.HasPrefix(l, "?no") && strings.HasSuffix(l, " CNAME") })
			if d := cmp.Diff(tt.plan, got, comparable); d != "" {
				t.Error(d)
			}
		})
	}
}

// BIND and Knot say NOERROR and drop an address next to a CNAME: a message that adds one reports that none is there.
func TestPlanGuardsAgainstCNAME(t *testing.T) {
	st := with(t).Plan(self, Memory{}, wwwB)
	for _, name := range []string{"www", "ie.klb.www"} {
		if !slices.Contains(show(st.Message), "?no "+name+" CNAME") {
			t.Errorf("%s: %v", name, show(st.Message))
		}
	}
}

func TestPlanConflicts(t *testing.T) {
	other := claimOf("cluster2", www)
	mine := claimOf("cluster1", www)
	clone := mine
	clone.Instance = "y"
	text := func(c Claim) string { return joined(c.text()) }
	newer := mine
	newer.Generation = 9
	for name, tt := range map[string]struct {
		state  *State
		memory Memory
		want   Publication
		reason Reason
		note   Reason
	}{
		"another strategy":             {with(t, other), Memory{}, wwwB, ConflictingStrategy, ""},
		"another strategy, mine alone": {with(t, mine), Memory{}, wwwB, "", ""},
		"another TTL":                  {with(t, other), Memory{}, edit(www, func(p *Publication) { p.TTL = 61 }), "", ConflictingTTL},
		"another TTL, as all others want": {with(t, claimOf("cluster2", edit(www, func(p *Publication) { p.TTL = 61 })), mine), Memory{},
			edit(www, func(p *Publication) { p.TTL = 61 }), "", ""},
		"another TTL, mine alone":      {with(t, mine), Memory{}, edit(www, func(p *Publication) { p.TTL = 61 }), "", ""},
		"a CNAME":                      {parsed(t, rrs(t, "www.example.org. 60 IN CNAME a.")...), Memory{}, www, ConflictingName, ""},
		"a CNAME at the region":        {parsed(t, rrs(t, "ie.klb.www.example.org. 60 IN CNAME a.")...), Memory{}, wwwB, ConflictingName, ""},
		"a delegation":                 {parsed(t, rrs(t, "www.example.org. 60 IN NS a.")...), Memory{}, www, ConflictingName, ""},
		"a delegation above":           {parsed(t, rrs(t, "x.example.org. 60 IN NS a.")...), Memory{}, edit(www, func(p *Publication) { p.Host = "www.x.example.org." }), ConflictingName, ""},
		"a DNAME above":                {parsed(t, rrs(t, "x.example.org. 60 IN DNAME a.")...), Memory{}, edit(www, func(p *Publication) { p.Host = "*.x.example.org." }), ConflictingName, ""},
		"a DNAME of the zone":          {parsed(t, rrs(t, "example.org. 60 IN DNAME a.")...), Memory{}, www, ConflictingName, ""},
		"a DNAME at the host":          {parsed(t, rrs(t, "www.example.org. 60 IN DNAME a.")...), Memory{}, www, "", ""},
		"a DNAME above the level":      {parsed(t, rrs(t, "www.example.org. 60 IN DNAME a.")...), Memory{}, wwwB, ConflictingName, ""},
		"glue":                         {parsed(t, rrs(t, "x.example.org. 60 IN NS WWW.x.example.org.")...), Memory{}, edit(www, func(p *Publication) { p.Host = "www.x.example.org." }), "", ""},
		"a delegation of another name": {parsed(t, rrs(t, "x.example.org. 60 IN NS a.", "example.org. 60 IN NS a.")...), Memory{}, www, "", ""},
		"another instance":             {with(t, clone), Memory{}, www, ClusterIDInUse, ""},
		"another instance, leaving":    {with(t, clone), Memory{}, Publication{Host: www.Host}, ClusterIDInUse, ""},
		"another instance's heartbeat": {parsed(t, txt("cluster1._neardns."+origin, Beat{1, "y", time.Minute}.text())), Memory{}, www, ClusterIDInUse, ""},
		"not what I wrote, as new":     {with(t, mine), Memory{1, map[string]bool{"other": true}, nil}, www, ClusterIDInUse, ""},
		"not what I wrote, newer":      {with(t, newer), Memory{2, map[string]bool{text(mine): true}, nil}, www, ClusterIDInUse, ""},
		"older than what I wrote":      {with(t, mine), Memory{9, map[string]bool{text(newer): true}, nil}, www, "", ZoneRolledBack},
		"what I wrote":                 {with(t, newer), Memory{9, map[string]bool{text(newer): true}, nil}, www, "", ""},
		"after a start":                {with(t, newer), Memory{}, www, "", ""},
		"another default": {with(t, claimOf("cluster2", edit(wwwB, func(p *Publication) { p.DefaultGeo = true }))), Memory{},
			edit(wwwB, func(p *Publication) { p.Geo, p.DefaultGeo = "fr", true }), "", ConflictingDefault},
		"the same default": {with(t, claimOf("cluster2", edit(wwwB, func(p *Publication) { p.DefaultGeo = true }))), Memory{},
			edit(wwwB, func(p *Publication) { p.DefaultGeo = true }), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			st := tt.state.Plan(self, tt.memory, tt.want)
			reason, note := Reason(""), Reason("")
			if st.Conflict != nil {
				reason = st.Conflict.Reason
				if !st.Message.Empty() || st.Conflict.Message == "" {
					t.Errorf("%+v", st)
				}
			}
			if len(st.Notes) > 0 {
				note = st.Notes[0].Reason
			}
			if reason != tt.reason || note != tt.note {
				t.Errorf("conflict %q, note %q: %+v", reason, note, st)
			}
			if reason == "" && st.Next <= tt.memory.Generation && !st.Done() {
				t.Errorf("generation %d after %d", st.Next, tt.memory.Generation)
			}
		})
	}
	taken := with(t, clone).Plan(Writer{Identity: self.Identity, Takeover: true}, Memory{}, www)
	if taken.Conflict != nil {
		t.Errorf("a dead instance is not taken over: %+v", taken.Conflict)
	}
	heir := Writer{Identity: self.Identity, Heir: true}
	if st := with(t, clone).Plan(heir, Memory{}, www); st.Conflict != nil {
		t.Errorf("what a dead instance left is not its heir's: %+v", st.Conflict)
	}
	if st := with(t, claimOf(self.Cluster, www)).Plan(heir, Memory{Generation: 1, Sent: map[string]bool{"other": true}}, www); st.Conflict == nil {
		t.Error("an heir does not see that somebody else writes as itself")
	}
}

// A set that is full takes nothing new, what goes from it makes room, and a host of many clusters reports which set is full.
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

// The addresses of the zone's own name servers are written by hand: BIND refuses to take the last one away, and Knot and PowerDNS keep a zone
// whose name server has none. The name server of a zone below is a host as any other.
func TestPlanNameServer(t *testing.T) {
	z := &primary{t, map[string][]dns.RR{}}
	for name, server := range map[string]string{origin: "WWW." + origin, "child." + origin: "edges." + origin} {
		z.add(&dns.NS{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeNS, Class: dns.ClassINET, Ttl: 60}, Ns: server})
	}
	if st := z.read().Plan(self, Memory{}, www); st.Conflict == nil || st.Conflict.Reason != ConflictingName || !strings.Contains(st.Conflict.Message, "name server of the zone") {
		t.Errorf("%+v", st.Conflict)
	}
	if st := z.read().Plan(self, Memory{}, edit(www, func(p *Publication) { p.Host = "edges." + origin })); st.Conflict != nil || st.Message.Empty() {
		t.Errorf("%+v", st.Conflict)
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
	if len(st.Notes) != 1 || !strings.Contains(st.Notes[0].Message, "2 are left to edges, 3 are nowhere.") {
		t.Errorf("more addresses than the level takes: %+v", st.Notes)
	}
}

// An exchange of all addresses goes in messages that fit, each of them a state that the host may be in.
func TestPlanInBounds(t *testing.T) {
	all := many(MaxAddresses)
	old := edit(wwwB, func(p *Publication) { p.Addresses = all[:75] })
	z := &primary{t, map[string][]dns.RR{}}
	for _, want := range []Publication{old, edit(wwwB, func(p *Publication) { p.Addresses = all[75:] }), edit(wwwB, func(p *Publication) { p.Addresses = all }),
		edit(wwwB, func(p *Publication) { p.Addresses, p.Geo = all, "fr" }), {Host: www.Host}} {
		for n := 0; ; n++ {
			st := z.read().Plan(self, Memory{}, want)
			if st.Done() {
				break
			}
			m := new(dns.Msg)
			m.SetUpdate(origin)
			m.Compress = true
			m.Answer, m.Ns = st.Message.Prereqs, st.Message.Changes
			if wire, err := m.Pack(); err != nil || len(wire) > dns.MaxMsgSize-300 || n > 5 {
				t.Fatalf("message %d of %d bytes: %v", n, len(wire), err)
			}
			if !z.update(st.Message) {
				t.Fatal("not taken")
			}
			if h := z.read().Hosts[www.Host]; !want.Empty() && len(h.Addresses) < 75 {
				t.Errorf("%d addresses on the way", len(h.Addresses))
			}
		}
	}
	if len(z.sets) > 0 {
		t.Errorf("left over: %v", z.sets)
	}
}

// NOERROR proves nothing: what a server left out is named.
func TestDropped(t *testing.T) {
	st := with(t).Plan(self, Memory{}, www)
	for i, rr := range st.Message.Changes {
		z := &primary{t, map[string][]dns.RR{}}
		part := Message{st.Message.Prereqs, slices.Delete(slices.Clone(st.Message.Changes), i, i+1)}
		z.update(part)
		if left := z.read().Dropped(&st); len(left) != 1 || !strings.HasPrefix(left[0], rr.Header().Name) {
			t.Errorf("%s was dropped, and %v is named", rr, left)
		}
	}
	leave := with(t, claimOf("cluster1", www)).Plan(self, Memory{}, Publication{Host: www.Host})
	if left := with(t, claimOf("cluster1", www)).Dropped(&leave); len(left) != 3 { // the address stays with its reference
		t.Errorf("%v", left)
	}
	if left := parsed(t, rrs(t, "www.example.org. 60 IN A 192.0.2.1")...).Dropped(&leave); len(left) != 1 {
		t.Errorf("an address without a reference: %v", left)
	}
	longer := with(t, claimOf("cluster1", www)).Plan(self, Memory{}, edit(www, func(p *Publication) { p.TTL = 90 }))
	z := with(t, claimOf("cluster1", www))
	if left := z.Dropped(&longer); !slices.Contains(left, "www.example.org. A") {
		t.Errorf("the old TTL: %v", left)
	}
	z = with(t, claimOf("cluster1", edit(www, func(p *Publication) { p.TTL = 120 })))
	if left := z.Dropped(&longer); slices.Contains(left, "www.example.org. A") {
		t.Errorf("a TTL that another cluster set since: %v", left)
	}
	if left := with(t, claimOf("cluster2", www)).Dropped(&leave); left != nil {
		t.Errorf("another cluster's are named: %v", left)
	}
}

// Clusters that all want another TTL get it, whatever the order of their messages is, and write address changes meanwhile.
func TestTTLConverges(t *testing.T) {
	p := &primary{t, map[string][]dns.RR{}}
	ids := []string{"cluster1", "cluster2", "cluster3"}
	send := func(id string, want Publication) (noted bool) {
		st := p.read().Plan(Writer{Identity: Identity{id, "x"}}, Memory{}, want)
		if st.Conflict != nil || !p.update(st.Message) {
			t.Fatalf("%s: %+v", id, st)
		}
		return len(st.Notes) > 0
	}
	for i, id := range ids {
		send(id, edit(www, func(p *Publication) { p.Addresses = many(3)[i : i+1] }))
	}
	for i, id := range ids {
		want := edit(www, func(p *Publication) { p.TTL, p.Addresses = 300, many(6)[i+3:i+4] })
		if noted := send(id, want); noted != (i < 2) {
			t.Errorf("%s: a disagreement is noted: %v", id, noted)
		}
		if !slices.Contains(p.read().addresses(www.Host), want.Addresses[0]) {
			t.Errorf("%s: the address waits for the TTL", id)
		}
	}
	if h := p.read().Hosts[www.Host]; h.TTL != 300 || len(h.Addresses) != 3 {
		t.Errorf("%+v", h)
	}
	for _, rr := range p.sets[www.Host] {
		if rr.Header().Ttl != 300 {
			t.Errorf("%s", rr)
		}
	}
}

// Clusters that all want another strategy get it, whatever the order of their messages is, and write address changes meanwhile. A cluster that
// does not publish the host waits for them.
func TestStrategyConverges(t *testing.T) {
	for _, from := range []Strategy{Simple, LoadBalanced} {
		to := map[Strategy]Strategy{Simple: LoadBalanced, LoadBalanced: Simple}[from]
		of := func(s Strategy, addresses []netip.Addr) Publication {
			return edit(wwwB, func(p *Publication) { p.Addresses = addresses }).under(s)
		}
		p := &primary{t, map[string][]dns.RR{}}
		send := func(id string, want Publication) Step {
			st := p.read().Plan(Writer{Identity: Identity{id, "x"}}, Memory{}, want)
			if !st.Message.Empty() && !p.update(st.Message) {
				t.Fatalf("%s: %+v", id, st)
			}
			return st
		}
		ids, all := []string{"cluster1", "cluster2", "cluster3"}, many(7)
		for i, id := range ids {
			send(id, of(from, all[i:i+1]))
		}
		for i, id := range ids {
			if st := send("cluster4", of(to, all[6:])); st.Conflict == nil || st.Conflict.Reason != ConflictingStrategy {
				t.Errorf("%s: a new cluster does not wait: %+v", to, st)
			}
			if noted := len(send(id, of(to, all[i+3:i+4])).Notes) > 0; noted != (i < 2) {
				t.Errorf("%s: a disagreement is noted: %v", id, noted)
			}
			if !slices.Contains(p.read().addresses(www.Host), all[i+3]) {
				t.Errorf("%s: the address waits for the strategy", id)
			}
		}
		for i, id := range ids { // what comes with the strategy: names of regions and clusters, or none
			send(id, of(to, all[i+3:i+4]))
		}
		send("cluster4", of(to, all[6:]))
		h := p.read().Hosts[www.Host]
		if h.Strategy != to || len(h.Addresses) != 4 || len(h.Levels) != map[Strategy]int{Simple: 0, LoadBalanced: 5}[to] {
			t.Errorf("%+v", h)
		}
		for _, id := range append(ids, "cluster4") {
			if st := send(id, Publication{Host: www.Host}); st.Conflict != nil {
				t.Errorf("%+v", st)
			}
		}
		if left := p.records(); len(left) > 0 {
			t.Errorf("left over: %v", left)
		}
	}
}

// A claim of an older version has no TTL. Its cluster stops writing if the host's TTL is not its own, so the zone's TTL stays.
func TestTTLOfOlderVersion(t *testing.T) {
	p := &primary{t, map[string][]dns.RR{}}
	for _, rr := range Compose(origin, claimOf("cluster2", www)) {
		if x, ok := rr.(*dns.TXT); ok && strings.HasPrefix(x.Hdr.Name, "www.cluster2.") {
			x.Txt = slices.DeleteFunc(x.Txt, func(s string) bool { return s == "ttl=60" })
		}
		p.add(rr)
	}
	st := p.read().Plan(self, Memory{}, edit(www, func(p *Publication) { p.TTL = 300 }))
	if len(st.Notes) != 1 || !strings.Contains(st.Notes[0].Message, "60 by cluster2; 300 by cluster1") || !p.update(st.Message) {
		t.Fatalf("%+v", st)
	}
	if h := p.read().Hosts[www.Host]; h.TTL != 60 || len(h.Owners) != 2 {
		t.Errorf("%+v", h)
	}
}

// BIND's default check-names refuses an address at a name that is no hostname (RFC 1123, a leading * apart).
func TestAddressesAreAtHostnames(t *testing.T) {
	for _, host := range []string{"www.example.org.", origin, "*.x.example.org.", "*." + origin} {
		for _, rr := range Compose(origin, claimOf("cluster1", edit(wwwB, func(p *Publication) { p.Host = host }))) {
			if name := rr.Header().Name; rr.Header().Rrtype == dns.TypeA && checkName(strings.TrimPrefix(name, "*.")) != nil {
				t.Errorf("%s: an address at %s", host, name)
			}
		}
	}
}

// A wildcard's level of an older version is read, and moves with the next message. An older cluster's stays.
func TestWildcardLevelMoves(t *testing.T) {
	for _, host := range []string{"*.x.example.org.", "*." + origin} {
		want := edit(wwwB, func(p *Publication) { p.Host = host })
		p := &primary{t, map[string][]dns.RR{}}
		for _, id := range []string{"cluster1", "cluster2"} {
			c := claimOf(id, edit(want, func(p *Publication) { p.Addresses = addrs("192.0.2." + id[7:]) }))
			for _, rr := range Compose(origin, c) {
				rr.Header().Name = strings.Replace(rr.Header().Name, ".klb.klb.", ".klb._any.", 1)
				p.add(rr)
			}
		}
		if h := p.read().Hosts[host]; len(h.Levels["ie"]) != 2 || len(h.Levels["cluster1"]) != 1 {
			t.Fatalf("%+v", h)
		}
		st := p.read().Plan(self, Memory{}, want)
		if st.Conflict != nil || !p.update(st.Message) || p.read().Dropped(&st) != nil {
			t.Fatalf("%+v", st)
		}
		n, s := names{origin}, p.read()
		for name, count := range map[string]int{n.level(host, "ie"): 1, n.level(host, "cluster1"): 1, n.oldLevel(host, "cluster1"): 0, n.oldLevel(host, "ie"): 1,
			n.oldLevel(host, "cluster2"): 1, host: 2} {
			if len(s.addresses(name)) != count {
				t.Errorf("%s has %v, not %d addresses", name, s.addresses(name), count)
			}
		}
		if again := s.Plan(self, Memory{}, want); !again.Done() {
			t.Errorf("%+v", again)
		}
		for _, id := range []string{"cluster1", "cluster2"} {
			p.update(p.read().Plan(Writer{Identity: Identity{id, "x"}}, Memory{}, Publication{Host: host}).Message)
		}
		if left := p.records(); len(left) > 0 {
			t.Errorf("left over: %v", left)
		}
	}
}

// A host that a person made is as before when the clusters that published it are gone, in whatever order they leave: TTLs too, and the address that a
// cluster published as well. With adopt that address goes.
func TestForeignAddressesStay(t *testing.T) {
	byHand := rrs(t, "www.example.org. 300 IN A 192.0.2.10", "www.example.org. 300 IN A 192.0.2.11", "www.example.org. 600 IN AAAA 2001:db8::1")
	for _, adopt := range []bool{false, true} {
		for _, first := range []string{"cluster1", "cluster2"} {
			p := &primary{t, map[string][]dns.RR{}}
			for _, rr := range byHand {
				p.add(rr)
			}
			change := func(id string, pub Publication) {
				t.Helper()
				st := p.read().Plan(Writer{Identity: Identity{id, "x"}}, Memory{}, pub)
				if st.Conflict != nil || !p.update(st.Message) {
					t.Fatalf("%s: %+v", id, st)
				}
				after := p.read()
				again := after.Plan(Writer{Identity: Identity{id, "x"}}, Memory{}, pub)
				if after.Dropped(&st) != nil || after.Ignored != 0 || !again.Done() {
					t.Fatalf("%s is not at rest: %+v", id, again)
				}
				if noted := slices.ContainsFunc(st.Notes, func(c Conflict) bool {
					return c.Reason == ForeignAddresses && strings.Contains(c.Message, "192.0.2.11") && strings.Contains(c.Message, "192.0.2.10") == !adopt
				}); noted == pub.Empty() {
					t.Errorf("%s: %+v", id, st.Notes)
				}
			}
			mine := edit(www, func(p *Publication) { p.Addresses, p.Adopt = addrs("192.0.2.10", "192.0.2.50"), adopt })
			change("cluster1", mine)
			change("cluster2", edit(mine, func(p *Publication) { p.Addresses = addrs("192.0.2.10", "192.0.2.60", "2001:db8::2") }))
			change(first, Publication{Host: www.Host})
			for _, id := range []string{"cluster1", "cluster2"} {
				if id != first {
					change(id, Publication{Host: www.Host})
				}
			}
			want := byHand
			if adopt {
				want = byHand[1:]
			}
			have := p.records()
			if len(have) != len(want) || slices.ContainsFunc(want, func(w dns.RR) bool {
				return !slices.ContainsFunc(have, func(h dns.RR) bool { return h.String() == w.String() })
			}) {
				t.Errorf("adopt %v, %s first: %v", adopt, first, have)
			}
		}
	}
}

// An address that one cluster published as a person's becomes the clusters' when a record has adopt.
func TestAdoptLater(t *testing.T) {
	p := &primary{t, map[string][]dns.RR{}}
	p.add(rrs(t, "www.example.org. 300 IN A 192.0.2.1")[0])
	for _, adopt := range []bool{false, true} {
		if st := p.read().Plan(self, Memory{}, edit(www, func(p *Publication) { p.Adopt = adopt })); st.Message.Empty() || !p.update(st.Message) {
			t.Fatalf("adopt %v: %+v", adopt, st)
		}
	}
	p.update(p.read().Plan(self, Memory{}, Publication{Host: www.Host}).Message)
	if left := p.records(); len(left) > 0 {
		t.Errorf("%v", left)
	}
}

// The removal of a dead cluster is what it would have done itself.
func TestPlanRemoval(t *testing.T) {
	s := with(t, claimOf("cluster1", wwwB), claimOf("cluster2", wwwB))
	want := show(s.Plan(self, Memory{}, Publication{Host: www.Host}).Message)
	st := s.PlanRemoval(www.Host, "cluster1")
	if d := cmp.Diff(want, show(st.Message)); d != "" {
		t.Error(d)
	}
	if hosts := s.Of("cluster1"); len(hosts) != 1 || hosts[0] != www.Host || s.Of("cluster9") != nil {
		t.Errorf("%v", hosts)
	}
}
