package iptables_test

import (
	"slices"
	"testing"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestFind: if both variants have rules, the one with neardns's chains comes first, then the kubelet's, then iptables-nft.
func TestFind(t *testing.T) {
	testutil.RequireRoot(t)
	const hint, own = "KUBE-IPTABLES-HINT", "NEARDNS-UDP"
	for name, c := range map[string]struct {
		made  [][3]string // program, table, chain
		first iptables.Variant
	}{
		"nothing":                        {nil, iptables.NFT},
		"others' rules alone":            {[][3]string{{"iptables-legacy", "nat", "DOCKER"}}, iptables.NFT},
		"the kubelet's":                  {[][3]string{{"iptables-legacy", "mangle", hint}, {"iptables-nft", "nat", "DOCKER"}}, iptables.Legacy},
		"ours before the kubelet's":      {[][3]string{{"iptables-nft", "mangle", hint}, {"iptables-legacy", "raw", own}}, iptables.Legacy},
		"ours before the kubelet's, 2":   {[][3]string{{"iptables-legacy", "mangle", hint}, {"ip6tables-nft", "raw", own}}, iptables.NFT},
		"ours in both, so the kubelet's": {[][3]string{{"iptables-legacy", "mangle", hint}, {"iptables-legacy", "raw", own}, {"iptables-nft", "raw", own}}, iptables.Legacy},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testutil.NewNS(t, "find")
			for _, m := range c.made {
				ns.Run(m[0], "-w", "-t", m[1], "-N", m[2])
			}
			before := dump(ns)
			found, err := iptables.Find(ns.FD())
			must(t, err)
			if found[0] != c.first || len(found) != 2 || !slices.Contains(found, iptables.NFT) || !slices.Contains(found, iptables.Legacy) {
				t.Errorf("found %v, want %s first", found, c.first)
			}
			if after := dump(ns); after != before {
				t.Errorf("looking left\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}
