package zone

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

const origin = "example.org."

func addrs(text ...string) []netip.Addr {
	var a []netip.Addr
	for _, t := range text {
		a = append(a, netip.MustParseAddr(t))
	}
	return a
}

func rrs(t testing.TB, lines ...string) []dns.RR {
	t.Helper()
	var rrs []dns.RR
	for _, l := range lines {
		rr, err := dns.NewRR(l)
		testutil.Must(t, err)
		rrs = append(rrs, rr)
	}
	return rrs
}

const soa = "example.org. 60 IN SOA ns.example.org. root.example.org. 7 60 60 600 60"

// parsed is the zone with these RRs next to its SOA.
func parsed(t testing.TB, records ...dns.RR) *State {
	t.Helper()
	s, err := Parse(origin, append(rrs(t, soa), records...))
	testutil.Must(t, err)
	return s
}

var comparable = cmp.Options{cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()}

var claims = map[string]Claim{
	"simple": {Identity: Identity{"aaaaaaaa", "one"}, Generation: 1, Publication: Publication{Host: "www.example.org.", Strategy: Simple,
		TTL: 60, Addresses: addrs("192.0.2.1", "2001:db8::1")}},
	"balanced": {Identity: Identity{"bbbbbbbb", "two"}, Generation: 1<<64 - 1, Publication: Publication{Host: "a.b.example.org.",
		Strategy: LoadBalanced, TTL: 300, Addresses: addrs("192.0.2.1"), Geo: "geo-eu", DefaultGeo: true, Weight: MaxWeight,
		Health: &Health{Protocol: HTTPS, Port: 8443, Path: "/Healthz?a=B%20\"c\\", Host: "probe.example.org."}}},
	"target": {Identity: Identity{"cccccc", "3"}, Publication: Publication{Host: "www.example.org.", Strategy: LoadBalanced, TTL: 1,
		Target: "lb.example.com.", Geo: "us-ca", Weight: 1}},
	"apex":             {Identity: Identity{"aaaaaaaa", "one"}, Publication: Publication{Host: origin, Strategy: LoadBalanced, TTL: 60, Addresses: addrs("::1"), Geo: "ie"}},
	"wildcard":         {Identity: Identity{"aaaaaaaa", "one"}, Publication: Publication{Host: "*.x.example.org.", Strategy: LoadBalanced, TTL: 60, Addresses: addrs("192.0.2.9"), Geo: "ie"}},
	"wildcard at apex": {Identity: Identity{"aaaaaaaa", "one"}, Publication: Publication{Host: "*.example.org.", Strategy: LoadBalanced, TTL: 60, Addresses: addrs("1::"), Geo: "ie"}},
	"long names": {Identity: Identity{"aaaaaaaa", "one"}, Publication: Publication{Host: "www.example.org.", Strategy: LoadBalanced, TTL: 60,
		Target: longest, Health: &Health{Protocol: HTTP, Port: 1, Path: "/", Host: longest}}},
	"tcp": {Identity: Identity{"aaaaaaaa", "one"}, Publication: Publication{Host: "www.example.org.", Strategy: Simple, TTL: 60,
		Addresses: many(MaxAddresses), Health: &Health{Protocol: TCP, Port: 1}}},
}

// longest is a name that just fits in a claim, as a target or as the host of a health check.
var longest = strings.Repeat("abcdefgh.", 27) + "abcd."

// many are n addresses of the longest form.
func many(n int) []netip.Addr {
	var out []netip.Addr
	for i := range n {
		out = append(out, netip.AddrFrom16([16]byte{0x20, 0x01, 0xd, 0xb8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 16, byte(i)}))
	}
	return out
}

// TestEscape fixes the text, because clusters of several versions read it.
func TestEscape(t *testing.T) {
	for path, want := range map[string]string{"/a-z/09._~": "/a-z/09._~", "/Healthz?a=B%20": "/%48ealthz%3fa%3d%42%2520"} {
		if got := escape(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// A claim comes back from its records as it was, over the wire and over a zone file.
func TestComposeParse(t *testing.T) {
	for name, c := range claims {
		t.Run(name, func(t *testing.T) {
			p := c.Normal()
			testutil.Must(t, p.Validate(origin))
			composed := compose(origin, c)
			var read []dns.RR
			for _, rr := range composed {
				wire := make([]byte, 70000)
				end, err := dns.PackRR(rr, wire, 0, nil, false)
				testutil.Must(t, err)
				back, _, err := dns.UnpackRR(wire[:end], 0)
				testutil.Must(t, err)
				read = append(read, rrs(t, back.String())...)
				if s := rr.String(); rr.Header().Rrtype == dns.TypeTXT && s != strings.ToLower(s[:len(c.Host)])+s[len(c.Host):] {
					t.Errorf("upper case in %s", s)
				}
			}
			s := parsed(t, read...)
			h := s.Hosts[c.Host]
			if h == nil || len(s.Hosts) != 1 || s.Ignored != 0 {
				t.Fatalf("hosts %v, %d ignored", s.Hosts, s.Ignored)
			}
			testutil.Equal(t, "the claim", c, h.Claims[c.Cluster], comparable)
			if h.Strategy != c.Strategy || h.TTL != c.TTL || len(h.Owners) != 1 || h.Owners[0] != c.Cluster {
				t.Errorf("%s %d owned by %v", h.Strategy, h.TTL, h.Owners)
			}
			testutil.Equal(t, "addresses", c.Addresses, h.Addresses, comparable)
			for _, a := range c.Addresses {
				testutil.Equal(t, a.String(), []Reference{{c.Cluster, c.Geo}}, h.References[a])
			}
			if c.Strategy == LoadBalanced && c.Target == "" {
				for _, label := range []string{c.Geo, c.Cluster} {
					testutil.Equal(t, label, c.Addresses, h.Levels[label], comparable)
				}
			}
			if c.Target != "" && h.Targets[c.Cluster] != c.Target {
				t.Errorf("targets %v", h.Targets)
			}
		})
	}
}

// Values are lower case: PowerDNS compares TXT prerequisites without case.
func TestValuesAreLowerCase(t *testing.T) {
	for name, c := range claims {
		for _, s := range c.text() {
			if s != strings.ToLower(s) || len(s) > maxString {
				t.Errorf("%s: %q", name, s)
			}
		}
	}
}

func TestNames(t *testing.T) {
	n := names{origin}
	for host, want := range map[string][]string{
		"www.example.org.": {"www.aaaaaaaa._neardns.example.org.", "www.o._shared._neardns.example.org.", "www.s._shared._neardns.example.org.",
			"192-0-2-1.www.r._shared._neardns.example.org.", "ie.klb.www.example.org."},
		origin: {"_apex.aaaaaaaa._neardns.example.org.", "_apex.o._shared._neardns.example.org.", "_apex.s._shared._neardns.example.org.",
			"192-0-2-1._apex.r._shared._neardns.example.org.", "ie.klb.example.org."},
		"*.a.example.org.": {"_any.a.aaaaaaaa._neardns.example.org.", "_any.a.o._shared._neardns.example.org.",
			"_any.a.s._shared._neardns.example.org.", "192-0-2-1._any.a.r._shared._neardns.example.org.", "ie.klb.klb.a.example.org."},
		"*.example.org.": {"_any._apex.aaaaaaaa._neardns.example.org.", "_any._apex.o._shared._neardns.example.org.",
			"_any._apex.s._shared._neardns.example.org.", "192-0-2-1._any._apex.r._shared._neardns.example.org.", "ie.klb.klb.example.org."},
		"r.example.org.": {"r.aaaaaaaa._neardns.example.org.", "r.o._shared._neardns.example.org.", "r.s._shared._neardns.example.org.",
			"192-0-2-1.r.r._shared._neardns.example.org.", "ie.klb.r.example.org."},
	} {
		got := []string{n.claim(host, "aaaaaaaa"), n.owners(host), n.strategy(host), n.references(host, netip.MustParseAddr("192.0.2.1")), n.level(host, "ie")}
		testutil.Equal(t, host, want, got)
		for i, k := range []kind{claimName, ownersName, strategyName, referencesName, levelName} {
			if p := n.place(got[i]); p.kind != k || p.host != host {
				t.Errorf("%s is read as %+v", got[i], p)
			}
		}
	}
	if p := n.place(n.beat("aaaaaaaa")); p.kind != beatName || p.cluster != "aaaaaaaa" {
		t.Errorf("heartbeat: %+v", p)
	}
	for _, a := range addrs("192.0.2.1", "::", "::1", "1::", "2001:db8::ffff:1") {
		if p := n.place(n.references(origin, a)); p.addr != a {
			t.Errorf("%s is read as %+v", a, p)
		}
	}
	for _, name := range []string{"_neardns", "_shared._neardns", "x._shared._neardns", "o._shared._neardns", "x.y._shared._neardns",
		"www.short._neardns", "UPPERCASE._neardns", "a_b.aaaaaaaa._neardns", "1-2.www.r._shared._neardns", "01-1-1-1.www.r._shared._neardns",
		"_any.aaaaaaaa._neardns", "x._any.aaaaaaaa._neardns", "klb.aaaaaaaa._neardns", "a..b._neardns"} {
		if p := n.place(name + "." + origin); p.kind != broken {
			t.Errorf("%s is read as %+v", name, p)
		}
	}
}

func TestValidate(t *testing.T) {
	good := Publication{Host: "www.example.org.", Strategy: LoadBalanced, TTL: 60, Addresses: addrs("192.0.2.1")}
	for want, spoil := range map[string]func(*Publication){
		"host: www.example.com. is not in the zone": func(p *Publication) { p.Host = "www.example.com." },
		"host: \"www\" is no absolute name":         func(p *Publication) { p.Host = "www" },
		"host: label \"a_b\"":                       func(p *Publication) { p.Host = "a_b.example.org." },
		"host: label \"*\"":                         func(p *Publication) { p.Host = "a.*.example.org." },
		"host: label \"-a\"":                        func(p *Publication) { p.Host = "-a.example.org." },
		"the label klb is kept":                     func(p *Publication) { p.Host = "a.klb.example.org." },
		"leave room for its bookkeeping":            func(p *Publication) { p.Host = strings.Repeat("abcdefghi.", 18) + origin },
		"strategy: \"RoundRobin\"":                  func(p *Publication) { p.Strategy = "RoundRobin" },
		"ttl: 0 is not":                             func(p *Publication) { p.TTL = 0 },
		"ttl: 604801":                               func(p *Publication) { p.TTL = MaxTTL + 1 },
		"addresses: 151":                            func(p *Publication) { p.Addresses = many(MaxAddresses + 1) },
		"fe80::1%eth0 is no address":                func(p *Publication) { p.Addresses = addrs("fe80::1%eth0") },
		"0.0.0.0 is no address":                     func(p *Publication) { p.Addresses = addrs("0.0.0.0") },
		"224.0.0.1 is no address":                   func(p *Publication) { p.Addresses = addrs("224.0.0.1") },
		"invalid IP is no address":                  func(p *Publication) { p.Addresses = []netip.Addr{{}} },
		"geo: \"europe\"":                           func(p *Publication) { p.Geo = "europe" },
		"geo: \"geo-eur\"":                          func(p *Publication) { p.Geo = "geo-eur" },
		"geo: \"us-\"":                              func(p *Publication) { p.Geo = "us-" },
		"geo: is only for LoadBalanced":             func(p *Publication) { p.Strategy, p.Geo = Simple, "ie" },
		"defaultGeo: needs a geo":                   func(p *Publication) { p.DefaultGeo = true },
		"weight: 65537":                             func(p *Publication) { p.Weight = MaxWeight + 1 },
		"target: replaces addresses":                func(p *Publication) { p.Target = "a.example.com." },
		"target: is only for LoadBalanced":          func(p *Publication) { p.Strategy, p.Target, p.Addresses = Simple, "a.example.com.", nil },
		"target: is the host itself":                func(p *Publication) { p.Target, p.Addresses = p.Host, nil },
		"target: \"10\" is no absolute":             func(p *Publication) { p.Target, p.Addresses = "10", nil },
		"healthCheck.protocol: \"UDP\"":             func(p *Publication) { p.Health = &Health{Protocol: "UDP", Port: 1, Path: "/"} },
		"healthCheck.port: 0":                       func(p *Publication) { p.Health = &Health{Protocol: TCP} },
		"healthCheck.path: is for HTTP":             func(p *Publication) { p.Health = &Health{Protocol: TCP, Port: 1, Path: "/"} },
		"does not begin with /":                     func(p *Publication) { p.Health = &Health{Protocol: HTTP, Port: 1, Path: "x"} },
		"healthCheck.path: 81 bytes":                func(p *Publication) { p.Health = &Health{Protocol: HTTP, Port: 1, Path: "/" + strings.Repeat("A", 80)} },
		"healthCheck.host: label":                   func(p *Publication) { p.Health = &Health{Protocol: HTTP, Port: 1, Path: "/", Host: "a b."} },
		"target: a" + longest + " has 249": func(p *Publication) {
			p.Target, p.Addresses = "a"+longest, nil
		},
		"healthCheck.host: a" + longest + " has 249": func(p *Publication) {
			p.Health = &Health{Protocol: HTTP, Port: 1, Path: "/", Host: "a" + longest}
		},
	} {
		p := good
		spoil(&p)
		testutil.WantError(t, p.Validate(origin), want, fmt.Sprintf("%+v", p))
	}
	testutil.Check(t, good.Validate(origin))
}

func TestNormal(t *testing.T) {
	p := Publication{Host: "WWW.Example.org", Geo: "GEO-EU", Target: "LB.example.com", Addresses: addrs("192.0.2.2", "::ffff:192.0.2.1", "192.0.2.2"),
		Health: &Health{Host: "A.example.org"}}
	n := p.Normal()
	want := Publication{Host: "www.example.org.", Geo: "geo-eu", Target: "lb.example.com.", Addresses: addrs("192.0.2.1", "192.0.2.2"),
		Health: &Health{Host: "a.example.org."}}
	testutil.Equal(t, "normal", want, n, comparable)
	if p.Health.Host != "A.example.org" || p.Addresses[0] != netip.MustParseAddr("192.0.2.2") {
		t.Error("the publication itself was changed")
	}
}

// The ids are part of every name in a zone: no release may change them.
func TestClusterID(t *testing.T) {
	seen := map[string]bool{}
	for i := range 100_000 {
		id := ClusterID(netip.AddrFrom4([4]byte{byte(i >> 16), byte(i >> 8), byte(i), 1}).String())
		if seen[id] || !validCluster(id) {
			t.Fatalf("%s of %d is taken or invalid", id, i)
		}
		seen[id] = true
	}
	if id := ClusterID("3d2c4a52-0d5e-4f0a-9c38-6a6cf9a8e1b7"); id != "5g0kapps" {
		t.Error(id)
	}
}

// What is foreign or broken below _neardns is counted and changes nothing else. If a name has two valid claims, neither counts.
func TestIgnored(t *testing.T) {
	good := compose(origin, claims["simple"])
	for name, tt := range map[string]struct {
		line    string
		ignored int
		hidden  bool
	}{
		"foreign TXT at a claim":       {`www.aaaaaaaa._neardns.example.org. 60 IN TXT "v=spf1"`, 1, false},
		"a second claim":               {`www.aaaaaaaa._neardns.example.org. 60 IN TXT "v=1" "gen=9" "inst=x" "weight=0"`, 2, true},
		"another version":              {`www.bbbbbbbb._neardns.example.org. 60 IN TXT "v=2" "gen=1" "inst=x" "weight=0"`, 1, false},
		"upper case":                   {`www.bbbbbbbb._neardns.example.org. 60 IN TXT "v=1" "gen=1" "inst=X" "weight=0"`, 1, false},
		"a claim without a generation": {`www.bbbbbbbb._neardns.example.org. 60 IN TXT "v=1" "inst=x" "weight=0"`, 1, false},
		"a needless zero":              {`www.bbbbbbbb._neardns.example.org. 60 IN TXT "v=1" "gen=01" "inst=x" "weight=0"`, 1, false},
		"a weight out of bounds":       {`www.bbbbbbbb._neardns.example.org. 60 IN TXT "v=1" "gen=1" "inst=x" "weight=65537"`, 1, false},
		"an address that is none":      {`www.bbbbbbbb._neardns.example.org. 60 IN TXT "v=1" "gen=1" "inst=x" "weight=1" "addr=1.2.3"`, 1, false},
		"addresses and a target":       {`www.bbbbbbbb._neardns.example.org. 60 IN TXT "v=1" "gen=1" "inst=x" "weight=1" "addr=1.2.3.4" "target=a.example."`, 1, false},
		"a path in upper case escapes": {`www.bbbbbbbb._neardns.example.org. 60 IN TXT "v=1" "gen=1" "inst=x" "weight=1" "check=http:1" "path=/%61"`, 1, false},
		"a heartbeat that is none":     {`bbbbbbbb._neardns.example.org. 60 IN TXT "v=1" "n=x" "inst=x" "every=300"`, 1, false},
		"a heartbeat once a year":      {`bbbbbbbb._neardns.example.org. 60 IN TXT "v=1" "n=1" "inst=x" "every=31536000"`, 1, false},
		"an A below _neardns":          {`www.aaaaaaaa._neardns.example.org. 60 IN A 192.0.2.1`, 1, false},
		"no name of ours":              {`mail._neardns.example.org. 60 IN TXT "v=1"`, 1, false},
		"a second strategy":            {`www.s._shared._neardns.example.org. 60 IN TXT "v=1" "strategy=loadbalanced" "ttl=60"`, 2, false},
		"an owner that is none":        {`www.o._shared._neardns.example.org. 60 IN TXT "v=1" "c=x"`, 1, false},
		"a reference that is none":     {`192-0-2-1.www.r._shared._neardns.example.org. 60 IN TXT "v=1" "c=bbbbbbbb" "geo=x"`, 1, false},
		"a claim's signature":          {"www.aaaaaaaa._neardns.example.org. 60 IN RRSIG TXT 13 5 60 20261201000000 20261101000000 1 example.org. AA==", 0, false},
		"the next name of a heartbeat": {"bbbbbbbb._neardns.example.org. 60 IN NSEC www.example.org. TXT RRSIG NSEC", 0, false},
		"the next name of no name":     {"mail._neardns.example.org. 60 IN NSEC www.example.org. RRSIG NSEC", 0, false},
		"a TXT beside":                 {`www.example.org. 60 IN TXT "v=1"`, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			base := parsed(t, good...)
			added, err := base.Apply(Delta{8, nil, rrs(t, tt.line)})
			testutil.Must(t, err)
			for _, s := range []*State{parsed(t, append(rrs(t, tt.line), good...)...), added} {
				_, there := s.Hosts["www.example.org."].Claims["aaaaaaaa"]
				if s.Ignored != tt.ignored || there == tt.hidden || len(s.Beats) != 0 {
					t.Errorf("%d ignored, want %d; claim there: %v; beats %v", s.Ignored, tt.ignored, there, s.Beats)
				}
			}
			if back, err := added.Apply(Delta{9, rrs(t, tt.line), nil}); err != nil || back.Ignored != 0 {
				t.Errorf("taken away again: %v, %d ignored", err, back.Ignored)
			}
			if base.Ignored != 0 {
				t.Error("the state before was changed")
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for name, records := range map[string][]dns.RR{
		"no SOA":        rrs(t, "www.example.org. 60 IN A 192.0.2.1"),
		"another's SOA": rrs(t, "example.com. 60 IN SOA a. b. 1 1 1 1 1"),
		"two serials":   rrs(t, soa, strings.Replace(soa, " 7 ", " 8 ", 1)),
		"outside":       rrs(t, soa, "www.example.com. 60 IN A 192.0.2.1"),
	} {
		if s, err := Parse(origin, records); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if s, err := Parse("Example.ORG", rrs(t, soa, "WWW.Example.org. 60 IN A 192.0.2.1", soa)); err != nil || s.Serial != 7 || s.Names() != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestApplyRefuses(t *testing.T) {
	s := parsed(t, compose(origin, claims["simple"])...)
	for name, f := range map[string]func() (*State, error){
		"delete what is not there": func() (*State, error) { return s.Apply(Delta{8, rrs(t, "www.example.org. 60 IN A 192.0.2.99"), nil}) },
		"add what is there":        func() (*State, error) { return s.Apply(Delta{8, nil, rrs(t, "www.example.org. 60 IN A 192.0.2.1")}) },
		"add outside":              func() (*State, error) { return s.Apply(Delta{8, nil, rrs(t, "www.example.com. 60 IN A 192.0.2.1")}) },
	} {
		if _, err := f(); err == nil {
			t.Error(name, "is taken")
		}
	}
}

// Applied step by step, a zone is as if it had been read whole.
func TestApplyIsParse(t *testing.T) {
	simple, apex, wild := compose(origin, claims["simple"]), compose(origin, claims["apex"]), compose(origin, claims["wildcard"])
	beat := rrs(t, `aaaaaaaa._neardns.example.org. 60 IN TXT "v=1" "n=1" "inst=one" "every=300"`)
	steps := []struct{ del, add []dns.RR }{
		{nil, simple}, {nil, append(apex, beat...)}, {simple[:1], wild}, {simple[1:], nil}, {append(beat, wild...), nil}, {apex, nil}}
	s, have := parsed(t), []dns.RR{}
	first, all := s, []Delta(nil)
	for i, step := range steps {
		var err error
		delta := Delta{7, step.del, step.add}
		if s, err = s.Apply(delta); err != nil {
			t.Fatal(err)
		}
		gone := map[dns.RR]bool{}
		for _, rr := range step.del {
			gone[rr] = true
		}
		var next []dns.RR
		for _, rr := range append(have, step.add...) {
			if !gone[rr] {
				next = append(next, rr)
			}
		}
		have = next
		want := parsed(t, have...)
		opts := cmp.Options{comparable, cmp.AllowUnexported(State{}, names{}), cmpopts.IgnoreFields(State{}, "sets")}
		if d := cmp.Diff(want, s, opts); d != "" {
			t.Fatalf("step %d: %s", i, d)
		}
		if s.Names() != want.Names() {
			t.Errorf("step %d: %d names, want %d", i, s.Names(), want.Names())
		}
		all = append(all, delta)
		if at, err := first.Apply(all...); err != nil || cmp.Diff(want, at, opts) != "" {
			t.Errorf("%d steps at once: %v%s", i+1, err, cmp.Diff(want, at, opts))
		}
	}
	if len(first.Hosts)+first.Names() != len(parsed(t).Hosts)+parsed(t).Names() {
		t.Errorf("the first state was changed: %+v", first)
	}
	if len(s.Hosts)+len(s.Beats)+s.Names() != 0 {
		t.Errorf("left over: %+v", s)
	}
}
