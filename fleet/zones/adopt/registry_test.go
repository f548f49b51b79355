package adopt

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

const origin = "example.org."

func records(t testing.TB, lines ...string) (rrs []dns.RR) {
	t.Helper()
	p := dns.NewZoneParser(strings.NewReader(strings.Join(lines, "\n")+"\n"), origin, "")
	for rr, ok := p.Next(); ok; rr, ok = p.Next() {
		rrs = append(rrs, rr)
	}
	if err := p.Err(); err != nil || len(rrs) != len(lines) {
		t.Fatalf("%d records of %q: %v", len(rrs), lines, err)
	}
	return rrs
}

// ours and others' registry records, as external-dns writes them.
const (
	mine  = `"heritage=external-dns,external-dns/owner=me,external-dns/resource=ingress/shop/app"`
	yours = `"heritage=external-dns,external-dns/owner=you,external-dns/resource=ingress/shop/app"`
	abc   = `"heritage=external-dns,external-dns/owner=abc,external-dns/version=1"` // Kuadrant's
	both  = `"heritage=external-dns,external-dns/owner=abc&&def"`                   // Kuadrant's before version 1
)

// reading is a zone, and what is read in it.
type reading struct {
	registry Registry
	zone     []string // NAME RECORD, or NAME TEXT of a TXT
	hosts    []string // host: number of addresses, number of registry records
	left     []string // prefixes
	fault    string
}

// The formats are those of external-dns' registry/txt and registry/mapper at 2bf1bf8, and of Kuadrant's internal/external-dns/registry at
// 57b9db5.
func readings() map[string]reading {
	me, kuadrant := Registry{From: ExternalDNS, Owner: "me"}, Registry{From: Kuadrant}
	affixed := func(prefix, suffix string) Registry {
		return Registry{From: ExternalDNS, Owner: "me", Prefix: prefix, Suffix: suffix}
	}
	const a, aaaa = " A 192.0.2.1", " AAAA 2001:db8::1"
	return map[string]reading{
		"the type in the name":        {me, []string{"app" + a, "app A 192.0.2.2", "a-app " + mine}, []string{"app: 2, 1"}, nil, ""},
		"Azure keeps quotation marks": {me, []string{"app" + a, `a-app "\"` + mine[1:len(mine)-1] + `\""`}, []string{"app: 1, 1"}, nil, ""},
		"both types": {me, []string{"app" + a, "app" + aaaa, "a-app " + mine, "aaaa-app " + mine},
			[]string{"app: 2, 2"}, nil, ""},
		"one type": {me, []string{"app" + a, "app" + aaaa, "a-app " + mine}, []string{"app: 1, 1"}, nil, ""},
		"before 0.18: no type in the name, which counts for no AAAA": {me,
			[]string{"app" + a, "app" + aaaa, "app " + mine}, []string{"app: 1, 1"}, nil, ""},
		"before 0.18: both names": {me, []string{"app" + a, "app " + mine, "a-app " + mine}, []string{"app: 1, 2"}, nil, ""},
		"before 0.18: a name that begins like a type is another host's": {me,
			[]string{"a-app" + a, "a-app " + mine}, nil, []string{"a-app.example.org. 60 TXT"}, ""},
		"another owner's":     {me, []string{"app" + a, "a-app " + yours, "b" + a, "a-b " + mine}, []string{"b: 1, 1"}, nil, ""},
		"no registry":         {me, []string{"app" + a, `app "v=spf1 -all"`}, nil, nil, ""},
		"of another heritage": {me, []string{"app" + a, `a-app "heritage=mine,external-dns/owner=me"`}, nil, nil, ""},
		"prefix":              {affixed("X-", ""), []string{"app" + a, "x-a-app " + mine, "a-app " + yours}, []string{"app: 1, 1"}, nil, ""},
		"prefix with a type": {affixed("%{record_type}-abc-.", ""), []string{"app" + a, "@" + a, "a-abc-.app " + mine, "a-abc- " + mine},
			[]string{"app: 1, 1", ": 1, 1"}, nil, ""},
		"suffix": {affixed("", "-reg"), []string{"app.shop" + a, "a-app-reg.shop " + mine, "app-reg.shop " + mine},
			[]string{"app.shop: 1, 2"}, nil, ""},
		"suffix with a type": {affixed("", "-.%{record_type}"), []string{"www" + a, "www-.a " + mine}, []string{"www: 1, 1"}, nil, ""},
		"wildcard, replaced": {Registry{From: ExternalDNS, Owner: "me", Wildcard: "any"}, []string{"*.app" + a, "a-any.app " + mine},
			[]string{"*.app: 1, 1"}, nil, ""},
		"wildcard, not replaced":        {me, []string{"*.app" + a, "a-*.app " + mine}, []string{"*.app: 1, 1"}, nil, ""},
		"another text at the same name": {me, []string{"app" + a, `app "v=spf1 -all"`, "app " + mine}, []string{"app: 1, 1"}, nil, ""},
		"what no DNSRecord can be": {me, []string{"www CNAME app", "cname-www " + mine, "lo A 127.0.0.1", "a-lo " + mine,
			"_u" + a, "a-_u " + mine, "a-gone " + mine}, nil,
			[]string{"_u.example.org. 60 A", "a-gone.example.org. 60 TXT", "lo.example.org. 60 A", "www.example.org. 60 CNAME"}, ""},
		"encrypted": {me, []string{"app" + a, `a-app "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5"`},
			nil, nil, "encrypted"},
		"another owner's encrypted": {me, []string{"app" + a, "b" + a, `a-app "\"MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5\""`, "a-b " + mine},
			[]string{"b: 1, 1"}, []string{"a-app.example.org. 60 TXT"}, ""},
		"signed": {me, []string{"app" + a, "app " + mine, "app NSEC b.example.org. A TXT RRSIG NSEC",
			"app RRSIG A 13 3 60 20300101000000 20200101000000 1 example.org. MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5"},
			[]string{"app: 1, 1"}, nil, ""},
		"Kuadrant": {kuadrant, []string{"app" + a, "kuadrant-1x2y3z4w-a-app " + abc, "a-app " + mine},
			[]string{"app: 1, 1"}, nil, ""},
		"Kuadrant, two owners": {kuadrant, []string{"app" + a, "kuadrant-1-a-app " + abc, "kuadrant-2-a-app " + abc},
			[]string{"app: 1, 2"}, nil, ""},
		"Kuadrant before version 1": {kuadrant, []string{"app" + a, "kuadrant-a-app " + both, "kuadrant-app " + both},
			[]string{"app: 1, 2"}, nil, ""},
		"Kuadrant, wildcard": {kuadrant, []string{"*.app" + a, "kuadrant-1-a-wildcard.app " + abc}, []string{"*.app: 1, 1"}, nil, ""},
		"Kuadrant, a tree of names": {kuadrant, []string{"app CNAME klb.app", "kuadrant-1-cname-app " + abc}, nil,
			[]string{"app.example.org. 60 CNAME"}, ""},
	}
}

func TestRead(t *testing.T) {
	for name, tt := range readings() {
		t.Run(name, func(t *testing.T) {
			testutil.Must(t, tt.registry.Validate())
			for i, line := range tt.zone {
				tt.zone[i] = strings.Replace(strings.Replace(line, " ", " 60 ", 1), ` 60 "`, ` 60 TXT "`, 1)
			}
			hosts, left, _, err := tt.registry.Read(newPrimary(t, tt.zone...).read())
			if (err == nil) != (tt.fault == "") || err != nil && !strings.Contains(err.Error(), tt.fault) {
				t.Fatal(err)
			}
			if err != nil {
				return
			}
			var have, stays []string
			for _, h := range hosts {
				name := strings.TrimSuffix(strings.TrimSuffix(h.Name, origin), ".")
				have = append(have, fmt.Sprintf("%s: %d, %d", name, len(h.Records), len(h.Registry)))
			}
			testutil.Equal(t, "hosts", tt.hosts, have)
			for i, l := range left {
				stays = append(stays, l.Record)
				if i < len(tt.left) && strings.HasPrefix(l.Record, tt.left[i]) {
					stays[i] = tt.left[i]
				}
			}
			testutil.Equal(t, "left", tt.left, stays)
		})
	}
}

func TestRegistryIsChecked(t *testing.T) {
	for _, r := range []Registry{{}, {From: "k8gb"}, {From: ExternalDNS}, {From: Kuadrant, Owner: "me"},
		{From: ExternalDNS, Owner: "me", Prefix: "a", Suffix: "b"}} {
		testutil.WantError(t, r.Validate(), "--", fmt.Sprintf("%+v", r))
	}
}

func TestNoHost(t *testing.T) {
	_, err := New(Registry{From: ExternalDNS, Owner: "me"}, newPrimary(t, "app 1 A 192.0.2.1", "a-app 0 TXT "+yours).read(), start)
	testutil.WantError(t, err, `other owners in it: ["you"]`)
}

// A DNSRecord has one TTL, of at least a second.
func TestManifest(t *testing.T) {
	for records, want := range map[string]string{
		"app.example.org. 0 A 192.0.2.1":                                         "ttl: 60\n",
		"app.example.org. 300 A 192.0.2.1,app.example.org. 200 AAAA 2001:db8::1": "ttl: 200\n",
		"a. 30 AAAA 2001:db8::1,a. 30 AAAA 2001:db8::":                           `addresses: ["2001:db8::1", "2001:db8::"] #`,
		"app.example.org. 604800 A 192.0.2.1":                                    "ttl: 86400\n",
	} {
		h := Host{Name: "*.example.org.", Records: strings.Split(records, ","), Registry: []string{"app.example.org. 0 TXT " + mine}}
		for _, part := range []string{want, `name: "example.org.wildcard"`, `host: "*.example.org"`, `took them from "ingress/shop/app"; `} {
			if m := h.Manifest(); !strings.Contains(m, part) {
				t.Errorf("%s: no %s in %s", records, part, m)
			}
		}
	}
}

// Each host is excluded. It is named if that stops external-dns for a name below that stays with it.
func TestExclusion(t *testing.T) {
	lines := []string{"app 1 A 192.0.2.1", "a-app 0 TXT " + mine}
	for _, tt := range []struct {
		more []string
		want string
	}{
		{nil, "--exclude-domains=app.example.org\n"},
		{[]string{"x.app 1 CNAME www", "cname-x.app 0 TXT " + mine}, "Attention: this also stops external-dns for x.app.example.org,"},
		{[]string{"www 1 CNAME app", "cname-www 0 TXT " + mine}, "--exclude-domains=app.example.org\n"},
	} {
		e, err := New(Registry{From: ExternalDNS, Owner: "me"}, newPrimary(t, slices.Concat(lines, tt.more)...).read(), start)
		below := strings.Contains(tt.want, "Attention") == strings.Contains(e.Exclusion(), "Attention")
		if err != nil || !below || !strings.Contains(e.Exclusion(), tt.want) {
			t.Errorf("%v, %v", err, e.Exclusion())
		}
	}
}
