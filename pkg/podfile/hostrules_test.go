package podfile

import (
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHostRules(t *testing.T) {
	dir := t.TempDir()
	a, b := netip.MustParseAddr("169.254.20.11"), netip.MustParseAddr("fd00:90de:d95::b")
	for _, want := range []HostRules{{}, {Backend: "iptables-nft", Addresses: []netip.Addr{a}}, {Backend: "nftables"}} {
		if want.Backend != "" {
			if err := WriteHostRules(dir, want); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ReadHostRules(dir)
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || err != nil {
			t.Errorf("%v -want +got:\n%s", err, diff)
		}
	}
	if h := (HostRules{Addresses: []netip.Addr{a}}); !h.Cover() || !h.Cover(a) || h.Cover(a, b) {
		t.Errorf("%v covers the wrong addresses", h)
	}
	if err := os.WriteFile(HostRulesPath(dir), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadHostRules(dir); err == nil {
		t.Errorf("half a file is read as %v", got)
	}
	for range 2 {
		if err := RemoveHostRules(dir); err != nil {
			t.Error(err)
		}
	}
}
