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
)

// TestDifferences shows each difference of README.md by example: one that is gone is to be taken out of the table, and out of
// explain.
func TestDifferences(t *testing.T) {
	k := newKubelet(t)
	n := node{
		file: "nameserver 10.0.0.1\nsearch a\noptions a:1 b:2 c:3 d:4 e:5\n", hasFile: true,
		clusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, clusterDomain: "cluster.local",
	}
	both := func(t *testing.T, n node, p pod) (ours, theirs resolvconf.Settings) {
		t.Helper()
		node, err := ourNode(n)
		if err != nil {
			t.Fatal(err)
		}
		pod := resolvconf.Pod{Policy: resolvconf.Policy(p.policy), Config: ourConfig(p.config)}
		got, err := k.form(n, v1.DNSPolicy(p.policy), p, p.config)
		if err != nil {
			t.Fatal(err)
		}
		return resolvconf.Form(node, pod, nil).Settings, got.Settings
	}

	t.Run("D1 the order of options", func(t *testing.T) {
		orders := map[string]bool{}
		for range 1000 { // of 120 orders, the chance of drawing one alone is nil
			ours, theirs := both(t, n, pod{policy: "Default"})
			if got := strings.Join(ours.Options, " "); got != "a:1 b:2 c:3 d:4 e:5" {
				t.Fatalf("ours: %s", got)
			}
			orders[strings.Join(theirs.Options, " ")] = true
		}
		if len(orders) < 2 {
			t.Errorf("the kubelet has an order by now: %v", orders)
		}
	})
	t.Run("D2 Custom", func(t *testing.T) {
		ours, theirs := both(t, n, pod{policy: "Custom", config: &v1.PodDNSConfig{Nameservers: []string{"1.2.3.4"}}})
		if !slices.Equal(ours.Nameservers, []string{"1.2.3.4"}) || !slices.Equal(theirs.Nameservers, []string{"10.96.0.10", "1.2.3.4"}) {
			t.Errorf("ours %v, the kubelet's %v", ours, theirs)
		}
	})
	t.Run("D3 a colon in an option's name", func(t *testing.T) {
		ours, theirs := both(t, n, pod{policy: "ClusterFirst", config: &v1.PodDNSConfig{Options: []v1.PodDNSConfigOption{{Name: "ndots:2"}}}})
		slices.Sort(theirs.Options)
		if !slices.Equal(ours.Options, []string{"ndots:2"}) || !slices.Equal(theirs.Options, []string{"ndots:2", "ndots:5"}) {
			t.Errorf("ours %v, the kubelet's %v", ours.Options, theirs.Options)
		}
	})
	t.Run("D4 a file of more than 10 MiB", func(t *testing.T) {
		n := n
		n.file += strings.Repeat("#", 10<<20)
		if ours, err := ourNode(n); err != nil || !slices.Equal(ours.Host.Nameservers, []string{"10.0.0.1"}) {
			t.Errorf("ours: %v", err)
		}
		if _, err := k.form(n, v1.DNSDefault, pod{}, nil); err == nil {
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
		_, err = resolvconf.DecodeOverlay("dns", doc)

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
