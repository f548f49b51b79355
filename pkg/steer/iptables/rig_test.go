package iptables_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/rig"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

// variantRig is a rig with its host's back end and hairpin.
type variantRig struct {
	*rig.Rig
	variant iptables.Variant
	rules   *iptables.Iptables
	hairpin *iptables.Hairpin
}

var must = testutil.Must

func open(t testing.TB, ns *testutil.NetNS, variant iptables.Variant) *iptables.Iptables {
	t.Helper()
	b, err := iptables.Open(ns.FD(), variant, nil)
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	return b
}

func newRig(t testing.TB, variant iptables.Variant, change ...func(*steer.Host)) *variantRig {
	t.Helper()
	return newRigOn(t, testutil.PTP, variant, change...)
}

func newRigOn(t testing.TB, attach testutil.Attach, variant iptables.Variant, change ...func(*steer.Host)) *variantRig {
	t.Helper()
	o := testutil.Options{Families: testutil.Dual, Proxy: testutil.IPTables, Attach: attach}
	return inside(t, variant, rig.New(t, rules.OfVariant(variant, nil), o, change...))
}

// newNodeCacheRig is newRig in node-cache mode, with ceded addresses.
func newNodeCacheRig(t testing.TB, variant iptables.Variant) *variantRig {
	t.Helper()
	o := testutil.Options{Families: testutil.Dual, Proxy: testutil.IPTables, Attach: testutil.PTP}
	return inside(t, variant, rig.NewNodeCache(t, rules.OfVariant(variant, nil), o, rig.Cede))
}

func inside(t testing.TB, variant iptables.Variant, of *rig.Rig) *variantRig {
	t.Helper()
	r := &variantRig{Rig: of, variant: variant, rules: open(t, of.Node.Host, variant), hairpin: openHairpin(t, of.Node.Host)}
	var err error
	r.Host.Bridges, err = r.hairpin.Bridges()
	must(t, err)
	return r
}

func openHairpin(t testing.TB, ns *testutil.NetNS) *iptables.Hairpin {
	t.Helper()
	h, err := iptables.OpenHairpin(ns.FD())
	must(t, err)
	t.Cleanup(func() { must(t, h.Close()) })
	return h
}

func wantPresent(t testing.TB, b *iptables.Iptables, want bool, when string) {
	t.Helper()
	present, err := b.Present()
	must(t, err)
	testutil.Equal(t, "rules are present "+when, want, present)
}

// behind lists the fallback's addresses.
func (r *variantRig) behind() []netip.Addr {
	out := r.Node.ClusterDNS()
	for _, l := range r.Host.Locals {
		if !slices.Contains(out, l.ClusterDNS) {
			out = append(out, l.ClusterDNS)
		}
	}
	return out
}

// variants runs a test with each variant; kube-proxy is in iptables mode. Tests of where packets go need only one, because the rules
// are the same (TestRestoredAtBoot); tests of how rules are written, kept and removed use both.
func variants(t *testing.T, f func(t *testing.T, variant iptables.Variant)) {
	t.Helper()
	for _, variant := range []iptables.Variant{iptables.NFT, iptables.Legacy} {
		t.Run(string(variant), func(t *testing.T) { f(t, variant) })
	}
}

// dump returns the rules in a netns's tables, of both variants.
func dump(ns *testutil.NetNS) string {
	var out strings.Builder
	for _, program := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		text, _ := ns.TryRun("", program)
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, ":") { // packet counts
				line, _, _ = strings.Cut(line, "[")
				line += "\n"
			}
			if !strings.HasPrefix(line, "#") {
				out.WriteString(line)
			}
		}
	}
	return out.String()
}
