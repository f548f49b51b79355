package kubeletdns

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/strict"
)

// TestDifferences shows each difference of README.md by example: one that is gone is to be taken out of the table, and out of
// explain.
func TestDifferences(t *testing.T) {
	k := newKubelet(t)
	n := node{
		file:       "nameserver 10.0.0.1\nsearch a\noptions a:1 b:2 c:3 d:4 e:5\n",
		clusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, clusterDomain: "cluster.local",
	}

	t.Run("D1 the order of options", func(t *testing.T) {
		orders := map[string]bool{}
		for range 1000 { // of 120 orders, the chance of drawing one alone is nil
			ours, err := ourNode(n)
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := k.form(n, v1.DNSDefault, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(ours.Settings(resolvconf.Default, namespace).Options, " "); got != "a:1 b:2 c:3 d:4 e:5" {
				t.Fatalf("ours: %s", got)
			}
			orders[strings.Join(theirs.Options, " ")] = true
		}
		if len(orders) < 2 {
			t.Errorf("the kubelet has an order by now: %v", orders)
		}
	})
	t.Run("D4 a file of more than 10 MiB", func(t *testing.T) {
		n := n
		n.file += strings.Repeat("#", 10<<20)
		if ours, err := ourNode(n); err != nil || !slices.Equal(ours.Host.Nameservers, []string{"10.0.0.1"}) {
			t.Errorf("ours: %v", err)
		}
		if _, err := k.form(n, v1.DNSDefault, nil); err == nil {
			t.Error("the kubelet reads it by now")
		}
	})
}

// TestSearchNames compares what may stand in an overlay's search list with what the API server accepts in a dnsConfig's.
func TestSearchNames(t *testing.T) {
	g, accepted := newGenerator(1), 0
	for range 50_000 {
		var b strings.Builder
		for range g.IntN(12) {
			b.WriteString(g.one("a", "b9", "-", "_", ".", "A", strings.Repeat("x", 62), g.one(" ", "ä", "*", "\n")))
		}
		name := b.String()
		doc, err := json.Marshal(map[string][]string{"searches": {name}})
		if err != nil {
			t.Fatal(err)
		}
		v, err := strict.JSON("", "dns", doc)
		if err != nil {
			t.Fatal(err)
		}
		var r strict.Reader
		resolvconf.ReadOverlay(&r, v.Members())
		err = r.Err(0)

		bare := strings.TrimSuffix(name, ".")
		shape := strings.ReplaceAll(strings.ToLower(bare), "_", "x")                             // O1, O2
		want := name == "." || len(utilvalidation.IsDNS1123Subdomain(shape)) == 0                // what is left of the rule
		theirs := name == "." || len(utilvalidation.IsDNS1123SubdomainWithUnderscore(bare)) == 0 // the whole of it
		for label := range strings.SplitSeq(bare, ".") {
			want, theirs = want && len(label) <= 63, theirs && len(label) <= 63 // O3
		}
		if theirs {
			accepted++
		}
		if (err == nil) != want || theirs && err != nil {
			t.Fatalf("%q: we say %v; the API server accepts it: %v", name, err, theirs)
		}
	}
	if accepted < 1000 {
		t.Errorf("only %d names were good ones", accepted)
	}
}
