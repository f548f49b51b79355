package zone

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// What is read as a claim is read the same when it is written again.
func FuzzClaim(f *testing.F) {
	for _, c := range claims {
		f.Add(strings.Join(c.text(), "\n"))
	}
	f.Add("v=1\ngen=0\ninst=x\nweight=0\npath=%2")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseClaim(strings.Split(text, "\n"), "aaaaaaaa", "www.example.org.")
		if err != nil {
			return
		}
		again, err := parseClaim(c.text(), "aaaaaaaa", "www.example.org.")
		if d := cmp.Diff(c, again, comparable); d != "" || err != nil {
			t.Fatalf("%v %s", err, d)
		}
	})
}

// The other values are written as they are read.
func FuzzValues(f *testing.F) {
	f.Add("v=1\nc=aaaaaaaa\ngeo=ie")
	f.Add("v=1\nstrategy=simple\nttl=60")
	f.Add(strings.Join(Beat{7, "x", 300 * time.Second}.text(), "\n"))
	f.Fuzz(func(t *testing.T, text string) {
		lines := strings.Split(text, "\n")
		if r, err := parseReference(lines); err == nil {
			if again, err := parseReference(r.text()); err != nil || again != r {
				t.Errorf("%+v is %+v, %v", r, again, err)
			}
		}
		if s, ttl, err := parseHost(lines); err == nil {
			if s2, ttl2, err := parseHost(strategyText(s, ttl, parseBefore(lines))); err != nil || s2 != s || ttl2 != ttl {
				t.Errorf("%s %d is %s %d, %v", s, ttl, s2, ttl2, err)
			}
		}
		if b, err := parseBeat(lines); err == nil {
			if again, err := parseBeat(b.text()); err != nil || again != b {
				t.Errorf("%+v is %+v, %v", b, again, err)
			}
		}
	})
}

// Each name has one meaning, and a name of the scheme is the one that is written for that meaning, or that an older version wrote.
func FuzzName(f *testing.F) {
	n := names{origin}
	for _, c := range claims {
		for _, rr := range compose(origin, c) {
			f.Add(rr.Header().Name)
		}
	}
	f.Add("_neardns.example.org.")
	f.Fuzz(func(t *testing.T, name string) {
		if _, ok := dns.IsDomainName(name); !ok || !dns.IsSubDomain(origin, dns.CanonicalName(name)) {
			return
		}
		name = dns.CanonicalName(name)
		p := n.place(name)
		written := name
		switch p.kind {
		case beatName:
			written = n.beat(p.cluster)
		case claimName:
			written = n.claim(p.host, p.cluster)
		case ownersName:
			written = n.owners(p.host)
		case strategyName:
			written = n.strategy(p.host)
		case referencesName:
			written = n.references(p.host, p.addr)
		case levelName:
			written = n.level(p.host, p.label)
		}
		if written != name && (p.kind != levelName || n.oldLevel(p.host, p.label) != name) {
			t.Errorf("%s is read as %+v, which is written %s", name, p, written)
		}
	})
}

// Each valid host has names for all of its bookkeeping, and they fit in a message.
func FuzzHost(f *testing.F) {
	for _, c := range claims {
		f.Add(c.Host)
	}
	f.Add(strings.Repeat("abcdefgh.", 18) + origin)
	n, a := names{origin}, netip.MustParseAddr("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff")
	f.Fuzz(func(t *testing.T, host string) {
		if checkHost(host, origin) != nil {
			return
		}
		for _, name := range []string{n.claim(host, "aaaaaaaaaaaa"), n.references(host, a), n.strategy(host), n.owners(host), n.level(host, "geo-eu")} {
			_, err := dns.PackDomainName(name, make([]byte, 300), 0, nil, false)
			testutil.Check(t, err, name)
			if p := n.place(name); p.host != host {
				t.Errorf("%s of %s is read as %+v", name, host, p)
			}
		}
	})
}

// A zone of any RRs is read without a failure, and the same after each RR was taken out and put back.
func FuzzParse(f *testing.F) {
	var all []string
	for name, c := range claims {
		if name == "tcp" {
			continue // its 150 addresses are 150 times the work
		}
		for _, rr := range compose(origin, c) {
			all = append(all, rr.String())
		}
	}
	f.Add(strings.Join(all, "\n"))
	f.Add(`www.aaaaaaaa._neardns.example.org. 60 IN TXT "v=1"`)
	f.Add(`*.klb.example.org. 60 IN A 192.0.2.1`)
	f.Fuzz(func(t *testing.T, text string) {
		records := rrs(t, soa)
		for line := range strings.SplitSeq(text, "\n") {
			if rr, err := dns.NewRR(line); err == nil && rr != nil {
				if _, ok := rr.(*dns.SOA); !ok {
					records = append(records, rr)
				}
			}
		}
		records = dns.Dedup(records, nil)
		s, err := Parse(origin, records)
		if err != nil {
			return
		}
		for _, rr := range records[1:] {
			without, err := s.Apply(Delta{s.Serial, []dns.RR{rr}, nil})
			testutil.Must(t, err)
			back, err := without.Apply(Delta{s.Serial, nil, []dns.RR{rr}})
			testutil.Must(t, err)
			if d := cmp.Diff(s.Hosts, back.Hosts, comparable); d != "" || back.Ignored != s.Ignored {
				t.Fatalf("%d, %d ignored: %s", s.Ignored, back.Ignored, d)
			}
		}
	})
}
