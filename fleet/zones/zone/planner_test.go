package zone

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
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

// compose returns all RRs that a cluster publishes for a host if it is the only cluster there: its addresses or the CNAME to its target,
// its claim, and the TXT records that clusters share. It does not use Plan, which tests compare with it.
func compose(origin string, c Claim) []dns.RR {
	n := names{origin}
	rrs := []dns.RR{
		txt(n.claim(c.Host, c.Cluster), c.text()),
		txt(n.owners(c.Host), ownerText(c.Cluster)),
		txt(n.strategy(c.Host), strategyText(c.Strategy, c.TTL, nil)),
	}
	for _, a := range c.Addresses {
		rrs = append(rrs, txt(n.references(c.Host, a), Reference{c.Cluster, c.Geo}.text()))
		for _, at := range n.answers(&c) {
			rrs = append(rrs, addressRR(at, a, c.TTL))
		}
	}
	if c.Target != "" {
		rrs = append(rrs, cnameRR(n.level(c.Host, c.Cluster), c.Target, c.TTL))
	}
	return rrs
}

// with is a zone in which these claims are published, each host with one strategy.
func with(t *testing.T, claims ...Claim) *State {
	t.Helper()
	p := &primary{t, map[string][]dns.RR{}}
	for _, c := range claims {
		for _, rr := range compose(origin, c) {
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
			// TestPlanGuardsAgainstCNAME checks the prerequisites about CNAMEs.
			got := slices.DeleteFunc(show(st.Message), func(l string) bool { return strings.HasPrefix(l, "?no") && strings.HasSuffix(l, " CNAME") })
			testutil.Equal(t, "the message", tt.plan, got, comparable)
		})
	}
}

// BIND and Knot answer NOERROR and drop an address next to a CNAME. So a message that adds an address has the prerequisite that the name has
// no CNAME.
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
	inGeo := func(cluster, geo string, isDefault bool) Claim {
		return claimOf(cluster, edit(wwwB, func(p *Publication) { p.Geo, p.DefaultGeo = geo, isDefault }))
	}
	for name, tt := range map[string]struct {
		state  *State
		memory Memory
		want   Publication
		reason Reason
		note   Reason
	}{
		"another strategy":             {with(t, other), Memory{}, wwwB, ConflictingStrategy, ""},
		"another strategy, mine alone": {with(t, mine), Memory{}, wwwB, "", ""},
		"another strategy, both there": {with(t, other, mine), Memory{}, wwwB, "", ConflictingStrategy},
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
		"another default": {with(t, inGeo("cluster2", "ie", true), inGeo("cluster1", "fr", true)), Memory{},
			inGeo("", "fr", true).Publication, "", ConflictingDefault},
		"another default, mine alone": {with(t, inGeo("cluster1", "ie", true)), Memory{}, inGeo("", "fr", true).Publication, "", ""},
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
	defaults := with(t, inGeo("cluster2", "us", true), inGeo("cluster3", "geo-eu", true), inGeo("cluster1", "ca", false))
	notes := defaults.Plan(self, Memory{}, inGeo("", "ca", false).Publication).Notes
	if len(notes) != 1 || !strings.HasPrefix(notes[0].Message, "geo-eu, us are each called the default") ||
		!strings.Contains(notes[0].Message, "edges use geo-eu") {
		t.Errorf("others have two defaults: %+v", notes)
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

// The addresses of the zone's own name servers are written by hand: BIND refuses to take the last one away, and Knot and PowerDNS keep a
// zone whose name server has none. The name server of a zone below is a host as any other.
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
	// An address from before the clusters has a reference of its own: the last cluster deletes it, and the next one writes it again.
	p := &primary{t, map[string][]dns.RR{}}
	p.add(rrs(t, "www.example.org. 60 IN A 192.0.2.1")[0])
	p.write("cluster1", www)
	leave = p.write("cluster1", Publication{Host: www.Host})
	p.write("cluster2", www)
	if left := p.read().Dropped(&leave); left != nil {
		t.Errorf("the next cluster's reference is named: %v", left)
	}
}

// The removal of a dead cluster is what it would have done itself.
func TestPlanRemoval(t *testing.T) {
	s := with(t, claimOf("cluster1", wwwB), claimOf("cluster2", wwwB))
	want := show(s.Plan(self, Memory{}, Publication{Host: www.Host}).Message)
	st := s.PlanRemoval(www.Host, "cluster1")
	testutil.Equal(t, "the message", want, show(st.Message))
	if hosts := s.Of("cluster1"); len(hosts) != 1 || hosts[0] != www.Host || s.Of("cluster9") != nil {
		t.Errorf("%v", hosts)
	}
}
