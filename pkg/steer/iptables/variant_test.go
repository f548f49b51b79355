package iptables_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestVariants: Find lists the variant with neardns's chains first, then the kubelet's, then iptables-nft. KubeletVariant finds the
// kubelet's, and why.
func TestVariants(t *testing.T) {
	testutil.RequireRoot(t)
	const hint, canary, own = " mangle KUBE-IPTABLES-HINT", " mangle KUBE-KUBELET-CANARY", " raw NEARDNS-UDP"
	const nft, legacy = iptables.NFT, iptables.Legacy
	for name, c := range map[string]struct {
		made    []string // program, table and chain
		kubelet iptables.Variant
		why     string           // of the kubelet's variant
		first   iptables.Variant // "": the kubelet's
	}{
		"nothing":                        {nil, nft, "no kubelet's chain", ""},
		"others' rules alone":            {[]string{"iptables-legacy nat DOCKER"}, nft, "no kubelet's chain", ""},
		"nft, a recent kubelet":          {[]string{"iptables-nft" + hint}, nft, "KUBE-IPTABLES-HINT in iptables-nft", ""},
		"nft, an old kubelet":            {[]string{"iptables-nft" + canary}, nft, "KUBE-KUBELET-CANARY in iptables-nft", ""},
		"nft, IPv6 alone":                {[]string{"ip6tables-nft" + hint}, nft, "in iptables-nft", ""},
		"legacy, a recent kubelet":       {[]string{"iptables-legacy" + hint}, legacy, "KUBE-IPTABLES-HINT in iptables-legacy", ""},
		"legacy, an old kubelet":         {[]string{"iptables-legacy" + canary}, legacy, "in iptables-legacy", ""},
		"legacy, IPv6 alone":             {[]string{"ip6tables-legacy" + hint}, legacy, "in iptables-legacy", ""},
		"legacy, others' nft rules":      {[]string{"iptables-nft mangle DOCKER", "iptables-legacy" + hint}, legacy, "in iptables-legacy", ""},
		"nft, others' legacy rules":      {[]string{"iptables-legacy mangle DOCKER", "iptables-nft" + hint}, nft, "in iptables-nft", ""},
		"both: nft is what's newer":      {[]string{"iptables-legacy" + canary, "iptables-nft" + hint}, nft, "in iptables-nft", ""},
		"ours before the kubelet's":      {[]string{"iptables-nft" + hint, "iptables-legacy" + own}, nft, "in iptables-nft", legacy},
		"ours before the kubelet's, 2":   {[]string{"iptables-legacy" + hint, "ip6tables-nft" + own}, legacy, "in iptables-legacy", nft},
		"ours in both, so the kubelet's": {[]string{"iptables-legacy" + hint, "iptables-legacy" + own, "iptables-nft" + own}, legacy, "in iptables", ""},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testutil.NewNS(t, "find")
			for _, m := range c.made {
				words := strings.Fields(m)
				ns.Run(words[0], "-w", "-t", words[1], "-N", words[2])
			}
			before := dump(ns)
			found, err := iptables.Find(ns.FD())
			must(t, err)
			if found[0] != cmp.Or(c.first, c.kubelet) || len(found) != 2 || !slices.Contains(found, nft) || !slices.Contains(found, legacy) {
				t.Errorf("found %v, want %s first", found, cmp.Or(c.first, c.kubelet))
			}
			testutil.Equal(t, "rules after Find", before, dump(ns))
			ns.Do(func() {
				if got, why := iptables.KubeletVariant(); got != c.kubelet || !strings.Contains(why, c.why) {
					t.Errorf("the kubelet's is %s, by %q; want %s by %q", got, why, c.kubelet, c.why)
				}
			})
		})
	}
}
