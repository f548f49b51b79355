package nodestate

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestHostRules(t *testing.T) {
	dir := t.TempDir()
	a, b := netip.MustParseAddr("169.254.20.11"), netip.MustParseAddr("fd00:90de:d95::b")
	for _, want := range []HostRules{{}, {Backend: "iptables-nft", Addresses: []netip.Addr{a}}, {Backend: "nftables"}} {
		if want.Backend != "" {
			testutil.Must(t, HostRulesFile(dir).Write(want))
		}
		got, _, err := HostRulesFile(dir).Read()
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || err != nil {
			t.Errorf("%v -want +got:\n%s", err, diff)
		}
	}
	if h := (HostRules{Addresses: []netip.Addr{a}}); !h.Cover() || !h.Cover(a) || h.Cover(a, b) {
		t.Errorf("%v covers the wrong addresses", h)
	}
	testutil.Must(t, os.WriteFile(HostRulesFile(dir).Path, []byte("{"), 0o644))
	if got, _, err := HostRulesFile(dir).Read(); err == nil {
		t.Errorf("half a file is read as %v", got)
	}
	for range 2 {
		testutil.Check(t, HostRulesFile(dir).Remove())
	}
}

// A reader can restore the rules from the file. With puts the caller's own addresses first and keeps the others, because pods may use them.
func TestHostRulesSwitch(t *testing.T) {
	addr := netip.MustParseAddr
	old := steer.Redirect{ClusterDNS: addr("10.96.0.9"), Steering: addr("169.254.20.12")}
	now := steer.Redirect{ClusterDNS: addr("10.96.0.10"), Steering: addr("169.254.20.11")}
	local := steer.Local{Address: addr("169.254.20.10"), ClusterDNS: addr("10.96.0.10")}
	whole := steer.Host{Redirects: []steer.Redirect{now}, FallbackOnly: []steer.Redirect{old}, Locals: []steer.Local{local},
		Uplinks: []string{"eth0"}, InterceptNode: true, Lifetime: time.Second, Exempt: []netip.Addr{addr("10.0.0.7")}}
	dir := t.TempDir()
	testutil.Must(t, HostRulesFile(dir).Write(HostRules{Backend: "nftables", Switch: SwitchOf(whole)}))
	read, _, err := HostRulesFile(dir).Read()
	if err != nil || read.Switch == nil {
		t.Fatal(read, err)
	}
	same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	kept := whole
	kept.Exempt = nil // not stored: only the agent knows it, from the pod files
	if diff := cmp.Diff(kept, read.Switch.Host(), same); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	moved := steer.Redirect{ClusterDNS: addr("10.96.0.11"), Steering: addr("169.254.20.13")}
	got := read.With(steer.Host{Redirects: []steer.Redirect{now, moved}, Uplinks: []string{"eth1"}})
	want := steer.Host{Redirects: []steer.Redirect{now, moved}, FallbackOnly: []steer.Redirect{old}, Locals: []steer.Local{local},
		Uplinks: []string{"eth1"}, InterceptNode: true, Lifetime: time.Second}
	if diff := cmp.Diff(want, got, same); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for name, h := range map[string]steer.Host{"ceded": {Ceded: []netip.Addr{local.Address}}, "own": {OwnLocals: true}} {
		if s := SwitchOf(h); s != nil {
			t.Errorf("%s: %v is kept, which only its own agent may put back", name, s)
		}
	}
}
