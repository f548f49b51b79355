package nft_test

import (
	"testing"

	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestOthers(t *testing.T) {
	testutil.RequireRoot(t)
	ns, _ := node(t, host())
	ns.RunInput(`table inet foreign {
	chain byPolicy { type filter hook input priority 5; policy drop; }
	chain byRule { type filter hook input priority 6; tcp dport 22 accept; meta mark 7 reject; }
	chain harmless { type filter hook input priority 7; tcp dport 22 accept; }
	chain forward { type filter hook forward priority 0; policy drop; }
	chain plain { drop; }
}
table ip6 nat { chain KUBE-SERVICES { }
}
`, "nft", "-f", "-")
	chains, err := nft.Others(ns.FD())
	must(t, err)
	got := map[string]nft.Chain{}
	for _, c := range chains {
		got[c.String()] = c
	}
	for name, want := range map[string][2]bool{
		"inet foreign byPolicy": {true, true}, "inet foreign byRule": {true, true}, "inet foreign harmless": {true, false},
		"inet foreign forward": {false, false}, "inet foreign plain": {false, false}, "ip6 nat KUBE-SERVICES": {false, false},
	} {
		if c, ok := got[name]; !ok || c.Input != want[0] || c.Drops != want[1] {
			t.Errorf("%s: seen %t, input %t, drops %t; want %v", name, ok, c.Input, c.Drops, want)
		}
	}
	if len(got) != 6 {
		t.Errorf("our own chains are among the others': %v", chains)
	}
}
