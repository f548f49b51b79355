package searchpath

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func shop() *Search {
	return NewSearch(clusterList("shop", "corp.example."), 5, false, "cluster.local")
}

// text is an answer's answer section, one line a record.
func text(m *dns.Msg) string {
	var out []string
	for _, rr := range m.Answer {
		out = append(out, strings.Join(strings.Fields(rr.String()), " "))
	}
	return dns.RcodeToString[m.Rcode] + ": " + strings.Join(out, "; ")
}

func TestCompletes(t *testing.T) {
	r := newRig(t, map[string]string{
		"www.example.com.": "both", "v4.example.com.": "v4", "cdn.example.com.": "alias-v4", "web.shop.svc.cluster.local.": "v4",
		"db.data.svc.cluster.local.": "v4", "data.svc.cluster.local.": "empty", "wiki.corp.example.": "v4",
	})
	r.set(pod1, shop())
	const cluster = ".shop.svc.cluster.local."
	for _, tc := range []struct {
		question string
		qtype    uint16
		want     string
		result   result
	}{
		{"www.example.com" + cluster, dns.TypeA, "NOERROR: www.example.com" + cluster + " 5 IN CNAME www.example.com.; www.example.com. 30 IN A ", resultCompleted},
		{"www.example.com" + cluster, dns.TypeAAAA, "NOERROR: www.example.com" + cluster + " 5 IN CNAME www.example.com.; www.example.com. 30 IN AAAA ", resultCompleted},
		{"WWW.example.COM.Shop.svc.cluster.LOCAL.", dns.TypeA, "NOERROR: WWW.example.COM.Shop.svc.cluster.LOCAL. ", resultCompleted},
		// The SOA's minimum of 5 s limits the TTL.
		{"v4.example.com" + cluster, dns.TypeA, "NOERROR: v4.example.com" + cluster + " 5 IN CNAME v4.example.com.; v4.example.com. 30 IN A ", resultCompleted},
		{"v4.example.com" + cluster, dns.TypeAAAA, "NOERROR: ", resultCompleted},
		{"cdn.example.com" + cluster, dns.TypeA, "NOERROR: cdn.example.com" + cluster + " 5 IN CNAME cdn.example.com.; cdn.example.com. 20 IN CNAME target.cdn.example.com.; target", resultCompleted},
		{"cdn.example.com" + cluster, dns.TypeAAAA, "NOERROR: cdn.example.com" + cluster + " 5 IN CNAME cdn.example.com.; cdn.example.com. 20 IN CNAME target", resultCompleted},
		{"db.data" + cluster, dns.TypeA, "NOERROR: db.data" + cluster + " 5 IN CNAME db.data.svc.cluster.local.; db.data.svc", resultCompleted},
		{"wiki" + cluster, dns.TypeA, "NOERROR: wiki" + cluster + " 5 IN CNAME wiki.corp.example.; wiki", resultCompleted},
		{"web" + cluster, dns.TypeA, "NOERROR: web" + cluster + " 30 IN A ", resultFirst},
		{"nowhere" + cluster, dns.TypeA, "NXDOMAIN: ", resultAbsent},
	} {
		before := r.metrics.counts[tc.result].Load()
		got := r.ask(pod1, tc.question, tc.qtype)
		if !strings.HasPrefix(text(got), tc.want) {
			t.Errorf("%s %s:\n got %s\nwant %s", tc.question, dns.TypeToString[tc.qtype], text(got), tc.want)
		}
		if got.Question[0].Name != tc.question || !got.RecursionAvailable || got.Authoritative || got.AuthenticatedData {
			t.Errorf("%s: %v", tc.question, got)
		}
		if r.metrics.counts[tc.result].Load() != before+1 {
			t.Errorf("%s: not counted as %s", tc.question, resultNames[tc.result])
		}
		if got.Rcode == dns.RcodeSuccess && len(got.Answer) == 0 && (len(got.Ns) != 1 || got.Ns[0].Header().Rrtype != dns.TypeSOA) {
			t.Errorf("%s: no SOA: %v", tc.question, got)
		}
	}
}

// TestPassesOn: a query is passed on unless it is the first query for addresses of a walk, by a pod with completion.
func TestPassesOn(t *testing.T) {
	r := newRig(t, map[string]string{"www.example.com.": "both"})
	r.set(pod1, shop())
	const first = "www.example.com.shop.svc.cluster.local."
	question := func(name string, qtype uint16, change ...func(*dns.Msg)) *dns.Msg {
		m := new(dns.Msg)
		m.SetQuestion(name, qtype)
		for _, c := range change {
			c(m)
		}
		return m
	}
	for name, tc := range map[string]struct {
		from netip.Addr
		m    *dns.Msg
	}{
		"another pod":          {pod2, question(first, dns.TypeA)},
		"another namespace":    {pod1, question("www.example.com.data.svc.cluster.local.", dns.TypeA)},
		"a service's record":   {pod1, question(first, dns.TypeSRV)},
		"another class":        {pod1, question(first, dns.TypeA, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS })},
		"no recursion":         {pod1, question(first, dns.TypeA, func(m *dns.Msg) { m.RecursionDesired = false })},
		"signatures wanted":    {pod1, question(first, dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) })},
		"checking disabled":    {pod1, question(first, dns.TypeA, func(m *dns.Msg) { m.CheckingDisabled = true })},
		"the domain itself":    {pod1, question("shop.svc.cluster.local.", dns.TypeA)},
		"part of a label":      {pod1, question("workshop.svc.cluster.local.", dns.TypeA)},
		"a dot inside a label": {pod1, question(`www\.example.com.shop.svc.cluster.local.`, dns.TypeA)},
		"too many dots":        {pod1, question("a.b.c.www.example.com.shop.svc.cluster.local.", dns.TypeA)},
	} {
		before := len(r.world.asked)
		m := r.send(tc.from, tc.m)
		if asked := r.world.asked[before:]; len(m.Answer) > 0 || len(asked) > 1 || len(asked) == 1 && asked[0] != strings.ToLower(tc.m.Question[0].Name)+" "+dns.TypeToString[tc.m.Question[0].Qtype] {
			t.Errorf("%s: %s, asked %v", name, text(m), asked)
		}
	}
	if got := r.ask(pod1, first, dns.TypeA); len(got.Answer) != 2 {
		t.Errorf("and the question itself: %s", text(got))
	}
}

// TestOneDecision: the queries for both families come at once. They share one walk, and so do those that follow.
func TestOneDecision(t *testing.T) {
	r := newRig(t, map[string]string{"www.example.com.": "both"})
	r.set(pod1, shop())
	var wg sync.WaitGroup
	for range 50 {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			wg.Go(func() {
				if m := r.ask(pod1, "www.example.com.shop.svc.cluster.local.", qtype); len(m.Answer) != 2 {
					t.Errorf("%s", text(m))
				}
			})
		}
	}
	wg.Wait()
	// One query for each of the cluster's three suffixes, two for each of the two other names, and one for each client's query.
	if got, want := len(r.world.asked), 3+2*2+100; got != want {
		t.Errorf("%d questions behind the plugin, want %d", got, want)
	}
}

// TestOneDenialForAll: below a suffix of the cluster, one denial is enough for all names with the same last label. If that label exists
// there, each name is queried.
func TestOneDenialForAll(t *testing.T) {
	r := newRig(t, map[string]string{"www.example.com.": "both", "api.example.com.": "both", "io.shop.svc.cluster.local.": "v4", "a.io.shop.svc.cluster.local.": "v6",
		"net.svc.cluster.local.": "dangling", "b.example.net.svc.cluster.local.": "v4", "org.shop.svc.cluster.local.": "fails", "www.example.org.": "both"})
	r.set(pod1, NewSearch(clusterList("shop"), 5, false, "cluster.local"))
	for _, tc := range []struct {
		name string
		want string // what is queried behind the plugin, in order of their names
	}{
		{"www.example.com", "com.cluster.local. A, com.shop.svc.cluster.local. A, com.svc.cluster.local. A, " +
			"www.example.com. A, www.example.com. A, www.example.com. AAAA"},
		{"a.io", "a.io.shop.svc.cluster.local. A, a.io.shop.svc.cluster.local. A, a.io.shop.svc.cluster.local. AAAA, io.shop.svc.cluster.local. A"},
		{"b.example.net", "b.example.net.svc.cluster.local. A, b.example.net.svc.cluster.local. A, b.example.net.svc.cluster.local. AAAA, " +
			"net.shop.svc.cluster.local. A, net.svc.cluster.local. A"},
	} {
		r.world.asked = nil
		if m := r.ask(pod1, tc.name+".shop.svc.cluster.local.", dns.TypeA); m.Rcode != dns.RcodeSuccess {
			t.Errorf("%s: %s", tc.name, text(m))
		}
		slices.Sort(r.world.asked)
		if got := strings.Join(r.world.asked, ", "); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.name, got, tc.want)
		}
	}
	for _, tc := range []struct{ name, question, want string }{
		{"www.example.com", "www.example.com.shop.svc.cluster.local.", "com.shop.svc.cluster.local."},
		{"web", "web.shop.svc.cluster.local.", ""},
		{"www.example.com", "www.example.com.", ""},
		{"www.example.com", "www.example.com.corp.example.", ""},
		{"www.example.com", "www.example.com.notcluster.local.", ""},
		{"a.b", "a.b.cluster.local.", "b.cluster.local."},
	} {
		if got := shop().parentOf(tc.name, tc.question); got != tc.want {
			t.Errorf("top of %s in %s: %q, want %q", tc.question, tc.name, got, tc.want)
		}
	}
}

// TestLaterSteps: a resolver that walks by itself must not have its later queries taken for the first ones of shorter names.
func TestLaterSteps(t *testing.T) {
	for name, tc := range map[string]struct {
		kinds map[string]string
		asks  []string
	}{
		// www.google.shop, queried in the namespace shop, must not end as www.google.
		"a namespace like a top-level domain": {map[string]string{"www.google.": "both", "www.google.shop.cluster.local.": "fails"},
			[]string{"www.google.shop.shop.svc.cluster.local.", "www.google.shop.svc.cluster.local."}},
		// A full name that does not exist is queried as it is in the end.
		"the name itself": {map[string]string{"web.corp.example.": "both"},
			[]string{"web.shop.svc.cluster.local.shop.svc.cluster.local.", "web.shop.svc.cluster.local."}},
		// Enough dots: glibc begins with the name itself, and walks then.
		"enough dots": {map[string]string{"a.b.c.d.": "both"},
			[]string{"a.b.c.d.shop.shop.svc.cluster.local.", "a.b.c.d.shop.svc.cluster.local."}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tc.kinds)
			s := shop()
			if name == "enough dots" {
				s = NewSearch(clusterList("shop"), 4, false, "cluster.local")
			}
			r.set(pod1, s)
			for _, q := range tc.asks {
				if m := r.ask(pod1, q, dns.TypeA); len(m.Answer) > 0 {
					t.Errorf("%s: %s", q, text(m))
				}
			}
			if r.metrics.counts[resultLater].Load() != 1 {
				t.Error("not counted as a later question")
			}
		})
	}
}

// TestDecisionsEnd: a decision is kept as long as the walk's denials are valid, but at least minKeep and at most maxKeep. A reload of the
// configuration removes it at once.
func TestDecisionsEnd(t *testing.T) {
	const question = "www.example.com.shop.svc.cluster.local."
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]string{"www.example.com.": "both"})
		r.set(pod1, shop())
		target := func() string {
			t.Helper()
			m := r.ask(pod1, question, dns.TypeA)
			if c, ok := m.Answer[0].(*dns.CNAME); ok {
				return fmt.Sprint(c.Target, " ", c.Hdr.Ttl)
			}
			return "itself"
		}
		if got := target(); got != "www.example.com. 5" {
			t.Errorf("at first: %s", got)
		}
		r.world.kinds["www.example.com.svc.cluster.local."], r.world.kinds["com.svc.cluster.local."] = "both", "empty"
		<-time.After(3 * time.Second)
		if got := target(); got != "www.example.com. 2" {
			t.Errorf("after 3 s: %s", got)
		}
		<-time.After(2 * time.Second)
		if got := target(); got != "www.example.com.svc.cluster.local. 5" {
			t.Errorf("after 5 s: %s", got)
		}
		r.world.kinds[question], r.world.kinds["com.shop.svc.cluster.local."] = "both", "empty"
		r.memory.forget()
		if got := target(); got != "itself" {
			t.Errorf("under another configuration: %s", got)
		}
	})
}

func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory()
		slow, busy, next := shop(), shop(), shop()
		release, begun := make(chan struct{}), make(chan struct{})
		go m.decide(decisionKey{slow, "slow"}, func(*end) { close(begun); <-release })
		<-begun
		for i := range 3 * remembered {
			m.decide(decisionKey{busy, fmt.Sprint(i)}, func(e *end) { e.ttl = 30 })
			if len(m.known) > remembered {
				t.Fatalf("%d decisions", len(m.known))
			}
		}
		if !m.walked(decisionKey{slow, "slow"}) {
			t.Error("what is being decided was dropped")
		}
		close(release)
		<-time.After(maxKeep)
		for i := range remembered / 2 {
			m.decide(decisionKey{next, fmt.Sprint(i)}, func(*end) {})
		}
		for k := range m.known {
			if k.search == busy {
				t.Fatalf("%v has ended and is kept where room was made", k)
			}
		}
	})
}

// TestNeighbourClearsNothing: a pod that queries ever new names loses its own decisions, not those of other pods. Pods with equal search
// lists do not share decisions.
func TestNeighbourClearsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemory()
		var quiet []*Search
		for range 100 {
			quiet = append(quiet, shop())
		}
		busy, busier := shop(), shop()
		for i, s := range quiet {
			for n := range 10 {
				m.decide(decisionKey{s, fmt.Sprint(i, n)}, func(e *end) { e.ttl = 30 })
			}
		}
		for i := range remembered {
			m.decide(decisionKey{busy, fmt.Sprint(i)}, func(e *end) { e.ttl = 30 })
			m.decide(decisionKey{busier, fmt.Sprint(i)}, func(e *end) { e.ttl = 30 })
			m.decide(decisionKey{busier, fmt.Sprint("more", i)}, func(e *end) { e.ttl = 30 })
		}
		for i, s := range quiet {
			for n := range 10 {
				if !m.walked(decisionKey{s, fmt.Sprint(i, n)}) {
					t.Fatalf("decision %d of pod %d was dropped for a neighbour's", n, i)
				}
			}
		}
		if len(m.known) > remembered || len(m.known) < remembered/2 {
			t.Errorf("%d decisions", len(m.known))
		}
		if m.walked(decisionKey{quiet[1], fmt.Sprint(0, 0)}) {
			t.Error("another pod's walk is taken for one's own")
		}
	})
}

// After a panic behind the plugin no query waits and the server runs.
func TestDecidePanics(t *testing.T) {
	m, s := NewMemory(), shop()
	if d := m.decide(decisionKey{s, "n"}, func(e *end) { e.target = "half"; panic("oh") }); d.target != "" {
		t.Errorf("%+v", d)
	}
	if d := m.decide(decisionKey{s, "n"}, func(*end) { t.Error("decided again at once") }); d.target != "" {
		t.Errorf("%+v", d)
	}
}

// TestSilenceOnTheWay: if a name of the walk gets no answer, the first query waits so briefly for the walk that it ends before musl sends
// it again. Both families get the same result.
func TestSilenceOnTheWay(t *testing.T) {
	for name, kinds := range map[string]map[string]string{
		"at the end":         {"hole.example.com.": "silent"},
		"everywhere":         {"hole.example.com.": "silent", "hole.example.com.shop.svc.cluster.local.": "silent"},
		"from the beginning": {"com.shop.svc.cluster.local.": "silent", "hole.example.com.shop.svc.cluster.local.": "silent"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, kinds)
			r.set(pod1, shop())
			begun := time.Now()
			var wg sync.WaitGroup
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
				wg.Go(func() {
					want := dns.RcodeNameError
					if kinds["hole.example.com.shop.svc.cluster.local."] != "" {
						want = dns.RcodeServerFailure
					}
					if m := r.ask(pod1, "hole.example.com.shop.svc.cluster.local.", qtype); m.Rcode != want || len(m.Answer) > 0 {
						t.Errorf("%s: %s", name, text(m))
					}
				})
				<-time.After(100 * time.Millisecond)
			}
			wg.Wait()
			if took := time.Since(begun); took > 2500*time.Millisecond {
				t.Errorf("%s: answered after %s", name, took)
			}
			if n := r.metrics.counts[resultLeft].Load(); n != 2 {
				t.Errorf("%s: %d questions are left to the pod", name, n)
			}
			<-time.After(time.Minute)
		})
	}
}

// TestDenialGrowsOlder: the TTL of a completed denial falls as the walk's denials get older, so no client keeps it longer than they are
// valid.
func TestDenialGrowsOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]string{"v4.example.com.": "v4"})
		r.set(pod1, shop())
		for _, want := range []uint32{5, 3, 1} { // the SOA's minimum is 5 s
			m := r.ask(pod1, "v4.example.com.shop.svc.cluster.local.", dns.TypeAAAA)
			if len(m.Answer) != 0 || len(m.Ns) != 1 || min(m.Ns[0].Header().Ttl, m.Ns[0].(*dns.SOA).Minttl) != want {
				t.Errorf("want a denial for %d s: %v", want, m)
			}
			<-time.After(2 * time.Second)
		}
	})
}

func TestSearch(t *testing.T) {
	for _, tc := range []struct {
		list  []string
		noTLD bool
		name  string
		want  []string // nil: no list to complete by
	}{
		{nil, false, "", nil},
		{[]string{"."}, false, "", nil},
		{[]string{"."}, false, "", nil},
		{[]string{".svc"}, false, "", nil},
		{[]string{"a..b"}, false, "", nil},
		{[]string{`a\.b`}, false, "", nil},
		{[]string{strings.Repeat("a.", 127) + "a"}, false, "", nil},
		// glibc before 2.26 takes six, and musl nothing of a longer line.
		{clusterList("shop", "a.", "b.", "c.", "d."), false, "", nil},
		{[]string{"shop.svc", strings.Repeat("a.", 119) + "a"}, false, "", nil},
		{clusterList("shop", "a.", "b.", "c."), false, "web", []string{"web.shop.svc.cluster.local.", "web.svc.cluster.local.", "web.cluster.local.", "web.a.", "web.b.", "web.c.", "web."}},
		{[]string{"Shop.SVC", "svc."}, false, "web", []string{"web.shop.svc.", "web.svc.", "web."}},
		{[]string{"shop.svc", ".", "svc."}, false, "web.data", []string{"web.data.shop.svc.", "web.data.", "web.data.svc."}},
		{[]string{"shop.svc"}, true, "web", []string{"web.shop.svc."}},
		{[]string{"shop.svc"}, true, "web.data", []string{"web.data.shop.svc.", "web.data."}},
	} {
		s := NewSearch(tc.list, 5, tc.noTLD, "cluster.local")
		if s == nil {
			if tc.want != nil {
				t.Errorf("%q: no list", tc.list)
			}
			continue
		}
		if diff := cmp.Diff(tc.want, s.steps(tc.name)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tc.list, diff)
		}
	}
	s := shop()
	if got, want := s.earlier("web.shop.svc.cluster.local."), []string{"web.shop.svc.cluster.local", "web.shop", "web.shop.svc"}; !slices.Equal(got, want) {
		t.Errorf("later: %q, want %q", got, want)
	}
}

func TestSetup(t *testing.T) {
	for text, ok := range map[string]bool{"searchpath": true, "searchpath x": false, "searchpath {\nx\n}": false, "searchpath\nsearchpath": false} {
		c := caddy.NewTestController("dns", text)
		memory := NewMemory()
		memory.decide(decisionKey{shop(), "n"}, func(*end) {})
		if err := Setup(memory, new(Metrics))(c); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
		if len(memory.known) != 1 {
			t.Errorf("%q: a configuration that is not yet taken changed something", text)
		}
		if plugins := dnsserver.GetConfig(c).Plugin; len(plugins) != 1 && ok {
			t.Errorf("%q: %d plugins", text, len(plugins))
		}
	}
}

func TestMetrics(t *testing.T) {
	m := new(Metrics)
	m.count(resultCompleted)
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.Collector())
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || len(families[0].GetMetric()) != int(results) {
		t.Fatalf("%v, %v", families, err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// BenchmarkComplete compares a query that this plugin ignores with one that it completes from a stored decision.
func BenchmarkComplete(b *testing.B) {
	for name, wanted := range map[string]bool{"off": false, "on": true} {
		b.Run(name, func(b *testing.B) {
			r := newRig(b, map[string]string{"www.example.com.": "both"})
			if wanted {
				r.set(pod1, shop())
			}
			for b.Loop() {
				r.world.asked = r.world.asked[:0]
				r.ask(pod1, "www.example.com.shop.svc.cluster.local.", dns.TypeA)
			}
		})
	}
}
