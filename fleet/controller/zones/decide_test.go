package zones

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

// at is a moment; a greater number is later.
func at(n int) metav1.Time { return metav1.NewTime(time.Unix(int64(1_000_000+n), 0)) }

func spec(t testing.TB, text string, into any) {
	t.Helper()
	testutil.Must(t, yaml.UnmarshalStrict([]byte(text), into))
}

func dnsZone(t testing.TB, age int, name, text string) (z v1alpha1.DNSZone) {
	t.Helper()
	z.Name, z.CreationTimestamp = name, at(age)
	spec(t, text, &z.Spec)
	return z
}

// record is one of namespace/name, with the defaults that the API server would set.
func record(t testing.TB, age int, name, text string) (r v1alpha1.DNSRecord) {
	t.Helper()
	r.Namespace, r.Name, _ = strings.Cut(name, "/")
	r.CreationTimestamp = at(age)
	r.Spec.Strategy, r.Spec.TTL = v1alpha1.StrategySimple, 60
	spec(t, text, &r.Spec)
	return r
}

const (
	shared = `{zone: shared.example, publishers: [
		{namespaces: [shop], hosts: ["*.shared.example", shared.example], targets: [192.0.2.0/24, "2001:db8::/32", 127.0.0.0/8]},
		{namespaces: ["*"], hosts: [any.shared.example], targets: [198.51.100.0/24], hostnames: ["*.elb.example"]}]}`
	below = `{zone: eu.shared.example, publishers: [{namespaces: [shop], hosts: ["*.eu.shared.example"], targets: [192.0.2.0/24]}]}`
)

// TestDecide has one record each, and what becomes of it.
func TestDecide(t *testing.T) {
	sources := map[Reference]Source{
		{"shop", "Service", "web"}:     {Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("192.0.2.7")}},
		{"shop", "Service", "pending"}: {Problem: "Service shop/pending has no address yet"},
		{"shop", "Service", "near"}:    {Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}},
		{"shop", "Gateway", "named"}:   {Hostname: "a.elb.example"},
		{"other", "Gateway", "named"}:  {Hostname: "a.elb.example"},
	}
	for name, c := range map[string]struct{ record, zone, reason, message, publication string }{
		"addresses":            {`{host: a.shared.example, addresses: [192.0.2.2, 192.0.2.1, "2001:db8::1"]}`, "shared", Accepted, "shared.example", "a.shared.example. Simple 60 [192.0.2.1 192.0.2.2 2001:db8::1]  0"},
		"the apex":             {`{host: shared.example, addresses: [192.0.2.1]}`, "shared", Accepted, "", "shared.example. Simple 60 [192.0.2.1]  0"},
		"a dot at its end":     {`{host: a.shared.example., addresses: [192.0.2.1]}`, "shared", Invalid, "spec.host: a.shared.example. ends with a dot; write a.shared.example", ""},
		"a wildcard":           {`{host: "*.shared.example", addresses: [192.0.2.1]}`, "shared", Accepted, "", "*.shared.example. Simple 60 [192.0.2.1]  0"},
		"the longer zone":      {`{host: a.eu.shared.example, addresses: [192.0.2.1]}`, "below", Accepted, "", "a.eu.shared.example. Simple 60 [192.0.2.1]  0"},
		"its apex":             {`{host: eu.shared.example, addresses: [192.0.2.1]}`, "below", NotAllowed, "DNSZone below lets namespace shop not publish eu.shared.example", ""},
		"a weight by default":  {`{host: a.shared.example, strategy: LoadBalanced, addresses: [192.0.2.1]}`, "shared", Accepted, "", "a.shared.example. LoadBalanced 60 [192.0.2.1]  100"},
		"a standby":            {`{host: a.shared.example, strategy: LoadBalanced, addresses: [192.0.2.1], weight: 0, geo: IE}`, "shared", Accepted, "", "a.shared.example. LoadBalanced 60 [192.0.2.1] ie 0"},
		"no zone":              {`{host: a.other.example, addresses: [192.0.2.1]}`, "", NoZone, "no DNSZone has the host a.other.example; there are eu.shared.example, shared.example", ""},
		"a name that ends so":  {`{host: ashared.example, addresses: [192.0.2.1]}`, "", NoZone, "", ""},
		"a foreign address":    {`{host: a.shared.example, addresses: [192.0.2.1, 203.0.113.1]}`, "shared", NotAllowed, "spec.addresses: DNSZone shared lets namespace shop not publish the address 203.0.113.1", ""},
		"another's range":      {`{host: a.shared.example, addresses: [198.51.100.1]}`, "shared", NotAllowed, "198.51.100.1", ""},
		"either's range":       {`{host: any.shared.example, addresses: [192.0.2.1, 198.51.100.1]}`, "shared", Accepted, "", "any.shared.example. Simple 60 [192.0.2.1 198.51.100.1]  0"},
		"a Service":            {`{host: a.shared.example, addressesFrom: {kind: Service, name: web}}`, "shared", Accepted, "", "a.shared.example. Simple 60 [192.0.2.7]  0"},
		"a Service in waiting": {`{host: a.shared.example, addressesFrom: {kind: Service, name: pending}}`, "shared", NoAddresses, "spec.addressesFrom: Service shop/pending has no address yet", ""},
		"a Service nearby":     {`{host: a.shared.example, addressesFrom: {kind: Service, name: near}}`, "shared", NotAllowed, "spec.addressesFrom", ""},
		"a hostname":           {`{host: any.shared.example, strategy: LoadBalanced, hostname: a.elb.example}`, "shared", Accepted, "only edges", "any.shared.example. LoadBalanced 60 []  100 a.elb.example."},
		"a foreign hostname":   {`{host: any.shared.example, strategy: LoadBalanced, hostname: elb.example}`, "shared", NotAllowed, "spec.hostname: DNSZone shared lets namespace shop not publish the hostname elb.example", ""},
		"a Gateway's hostname": {`{host: any.shared.example, strategy: LoadBalanced, addressesFrom: {kind: Gateway, name: named}}`, "shared", Accepted, "", "any.shared.example. LoadBalanced 60 []  100 a.elb.example."},
		"a hostname, simple":   {`{host: any.shared.example, hostname: a.elb.example}`, "shared", Invalid, "spec.hostname: the hostname a.elb.example needs", ""},
		"nothing to publish":   {`{host: a.shared.example}`, "shared", Invalid, "spec.addresses: there is none; write", ""},
		"a port too high": {`{host: a.shared.example, addresses: [192.0.2.1], healthCheck: {protocol: TCP, port: 65616}}`, "shared", Invalid,
			"spec.healthCheck.port: 65616 is not from 1 to 65535", ""},
		"a port below 0": {`{host: a.shared.example, addresses: [192.0.2.1], healthCheck: {protocol: TCP, port: -1}}`, "shared", Invalid,
			"spec.healthCheck.port: -1 is not from 1 to 65535", ""},
		"a Gateway's, simple": {`{host: any.shared.example, addressesFrom: {kind: Gateway, name: named}}`, "shared", Invalid,
			"spec.addressesFrom: the hostname a.elb.example needs", ""},
		"a Gateway's, foreign": {`{host: a.shared.example, strategy: LoadBalanced, addressesFrom: {kind: Gateway, name: named}}`, "shared",
			NotAllowed, "spec.addressesFrom: DNSZone shared lets", ""},
	} {
		in := Input{Zones: []v1alpha1.DNSZone{dnsZone(t, 1, "shared", shared), dnsZone(t, 2, "below", below)}, Records: []v1alpha1.DNSRecord{record(t, 1, "shop/r", c.record)}, Sources: sources}
		p := Decide(in)
		got := p.Records[Key{Namespace: "shop", Name: "r"}]
		if got.Zone != c.zone || got.Reason != c.reason || !strings.Contains(got.Message, c.message) {
			t.Errorf("%s: %+v", name, got)
		}
		var published []string
		for zone, z := range p.Zones {
			for host, publication := range z.Hosts {
				if zone != c.zone || host != got.Host {
					t.Errorf("%s: published as %s in %s", name, host, zone)
				}
				published = append(published, text(publication))
			}
		}
		if s := strings.Join(published, "\n"); s != c.publication {
			t.Errorf("%s: published %q, want %q", name, s, c.publication)
		}
	}
	// Whom the zone does not name.
	p := Decide(Input{Zones: []v1alpha1.DNSZone{dnsZone(t, 1, "shared", shared)}, Sources: sources, Records: []v1alpha1.DNSRecord{
		record(t, 1, "other/r", `{host: a.shared.example, addresses: [192.0.2.1]}`),
		record(t, 1, "other/s", `{host: any.shared.example, strategy: LoadBalanced, addressesFrom: {kind: Gateway, name: named}}`)}})
	if r := p.Records[Key{Namespace: "other", Name: "r"}]; r.Reason != NotAllowed || !strings.Contains(r.Message, "namespace other") {
		t.Errorf("another namespace: %+v", r)
	}
	if r := p.Records[Key{Namespace: "other", Name: "s"}]; r.Reason != Accepted {
		t.Errorf("a host that all may publish: %+v", r)
	}
}

func text(p zone.Publication) string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %d %v %s %d %s", p.Host, p.Strategy, p.TTL, p.Addresses, p.Geo, p.Weight, p.Target))
}

// Of two DNSZones with one zone, the older has it, whatever the order in which they are listed.
func TestDuplicateZone(t *testing.T) {
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		both := []v1alpha1.DNSZone{dnsZone(t, 1, "z", shared), dnsZone(t, 2, "a", shared)}
		p := Decide(Input{Zones: []v1alpha1.DNSZone{both[order[0]], both[order[1]]}, Records: []v1alpha1.DNSRecord{record(t, 1, "shop/r", `{host: a.shared.example, addresses: [192.0.2.1]}`)}})
		if !p.Zones["z"].Good() || p.Zones["a"].Reason != Duplicate || !strings.Contains(p.Zones["a"].Message, "DNSZone z") || len(p.Zones["a"].Hosts) > 0 {
			t.Errorf("%+v %+v", p.Zones["z"], p.Zones["a"])
		}
		if p.Zones["z"].Records != 1 {
			t.Errorf("%d records", p.Zones["z"].Records)
		}
	}
}

// Of two records for one host, the addresses are added; where they contradict each other, the older one is published alone.
func TestMerge(t *testing.T) {
	const old = `host: a.shared.example, strategy: LoadBalanced, ttl: 30, weight: 5, geo: IE, healthCheck: {protocol: HTTP, port: 80}`
	for field, young := range map[string]string{
		"":            old + `, addresses: [192.0.2.1, 192.0.2.2]`,
		"strategy":    `host: a.shared.example, ttl: 30, healthCheck: {protocol: HTTP, port: 80}, addresses: [192.0.2.2]`,
		"ttl":         strings.Replace(old, "30", "31", 1) + `, addresses: [192.0.2.2]`,
		"weight":      strings.Replace(old, "5", "6", 1) + `, addresses: [192.0.2.2]`,
		"geo":         strings.Replace(old, "IE", "US", 1) + `, addresses: [192.0.2.2]`,
		"defaultGeo":  old + `, defaultGeo: true, addresses: [192.0.2.2]`,
		"healthCheck": strings.Replace(old, "HTTP", "HTTPS", 1) + `, addresses: [192.0.2.2]`,
		"hostname":    old + `, hostname: b.shared.example`,
	} {
		zones := []v1alpha1.DNSZone{dnsZone(t, 1, "shared", shared)}
		zones[0].Spec.Publishers[0].Hostnames = []v1alpha1.HostName{"*.shared.example"}
		a, b := record(t, 1, "shop/z", `{`+old+`, addresses: [192.0.2.1]}`), record(t, 2, "shop/a", `{`+young+`}`)
		p := Decide(Input{Zones: zones, Records: []v1alpha1.DNSRecord{b, a}})
		was, is := p.Records[Key{Namespace: "shop", Name: "z"}], p.Records[Key{Namespace: "shop", Name: "a"}]
		addresses := fmt.Sprint(p.Zones["shared"].Hosts["a.shared.example."].Addresses)
		switch {
		case !was.Good():
			t.Errorf("%s: the older: %+v", field, was)
		case field == "" && (!is.Good() || addresses != "[192.0.2.1 192.0.2.2]" || p.Zones["shared"].Records != 2):
			t.Errorf("%+v, published %s", is, addresses)
		case field != "" && (is.Reason != Contradiction || !strings.Contains(is.Message, "spec."+field+": DNSRecord shop/z") || addresses != "[192.0.2.1]"):
			t.Errorf("%s: %+v, published %s", field, is, addresses)
		}
		// The older one goes, and the other is what counts.
		now := at(9)
		a.DeletionTimestamp = &now
		p = Decide(Input{Zones: zones, Records: []v1alpha1.DNSRecord{b, a}})
		if is := p.Records[Key{Namespace: "shop", Name: "a"}]; !is.Good() || p.Records[Key{Namespace: "shop", Name: "z"}].Reason != Deleting || p.Zones["shared"].Records != 1 {
			t.Errorf("%s: alone: %+v of %d", field, is, len(p.Records))
		}
	}
}

// What is decided does not depend on the order in which objects are listed, and two records of one host add up or one reports why not.
func TestDecideAnyOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		zones := []v1alpha1.DNSZone{dnsZone(t, 1, "shared", shared), dnsZone(t, random.IntN(3), "below", below)}
		var records []v1alpha1.DNSRecord
		for i := range 6 {
			records = append(records, record(t, random.IntN(3), fmt.Sprintf("shop/r%d", i), fmt.Sprintf("{host: %s.shared.example, ttl: %d, addresses: [192.0.2.%d]}",
				[]string{"a", "b", "a.eu"}[random.IntN(3)], 60+random.IntN(2), 1+random.IntN(4))))
		}
		one := Decide(Input{Zones: slices.Clone(zones), Records: slices.Clone(records)})
		random.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
		other := Decide(Input{Zones: []v1alpha1.DNSZone{zones[1], zones[0]}, Records: slices.Clone(records)})
		if !reflect.DeepEqual(one, other) {
			t.Fatalf("%v\nin another order:\n%v", one, other)
		}
		for _, r := range records {
			verdict := one.Records[Key{Namespace: "shop", Name: r.Name}]
			published := one.Zones[verdict.Zone].Hosts[verdict.Host]
			if has := slices.Contains(published.Addresses, netip.MustParseAddr(string(r.Spec.Addresses[0]))) && published.TTL == uint32(r.Spec.TTL); verdict.Good() != has {
				t.Fatalf("%s: %+v, published %+v", r.Name, verdict, published)
			}
		}
		if total := one.Zones["shared"].Records + one.Zones["below"].Records; total != len(slices.Collect(maps.Keys(one.Records)))-count(one, Contradiction) {
			t.Fatalf("%d records counted", total)
		}
	}
}

func count(p *Plan, reason string) (n int) {
	for _, r := range p.Records {
		if r.Reason == reason {
			n++
		}
	}
	return n
}

// A sick address is left out while another is well.
func TestWithoutSick(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	p := zone.Publication{Addresses: []netip.Addr{a, b}}
	for want, sick := range map[string][]netip.Addr{"[192.0.2.1 192.0.2.2]": nil, "[192.0.2.2]": {a}, "[192.0.2.1]": {b}} {
		if got := fmt.Sprint(WithoutSick(p, func(x netip.Addr) bool { return slices.Contains(sick, x) }).Addresses); got != want {
			t.Errorf("without %v: %s", sick, got)
		}
	}
	if got := WithoutSick(p, func(netip.Addr) bool { return true }).Addresses; len(got) != 2 || len(p.Addresses) != 2 {
		t.Errorf("all are sick: %v", got)
	}
}
