package rules_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

func kinds() []rules.Kind {
	return []rules.Kind{{}, rules.OfVariant(iptables.NFT, nil), rules.OfVariant(iptables.Legacy, nil)}
}

func must(t *testing.T, err error) {
	t.Helper()
	testutil.Must(t, err)
}

// TestNames: Named finds each back end by the name that state files have.
func TestNames(t *testing.T) {
	for _, k := range kinds() {
		for _, name := range []string{k.String(), k.Recorded()} {
			if got, err := rules.Named(name); err != nil || got != k {
				t.Errorf("by %q: %v, %v, want %v", name, got, err, k)
			}
		}
	}
	if _, err := rules.Named("ebpf"); err == nil {
		t.Error("an unknown name is taken")
	}
}

// TestCandidates tests the order in which back ends are tried.
func TestCandidates(t *testing.T) {
	testutil.RequireRoot(t)
	nftables, byNFT, byLegacy := kinds()[0], kinds()[1], kinds()[2]
	for name, tc := range map[string]struct {
		word   string
		stands rules.Kind
		want   []rules.Kind
	}{
		"told nftables":       {word: rules.Nftables, stands: byNFT, want: []rules.Kind{nftables}},
		"told a variant":      {word: rules.IptablesLegacy, want: []rules.Kind{byLegacy}},
		"told iptables":       {word: rules.Iptables, want: []rules.Kind{byNFT, byLegacy}},
		"a new node":          {word: "auto", want: []rules.Kind{nftables, byNFT, byLegacy}},
		"iptables stands":     {word: "auto", stands: byLegacy, want: []rules.Kind{byNFT, byLegacy, nftables}},
		"nftables stands yet": {word: "auto", stands: nftables, want: []rules.Kind{nftables, byNFT, byLegacy}},
	} {
		testutil.NewNS(t, "host").Do(func() {
			if got, err := rules.Candidates(tc.word, func() (rules.Kind, error) { return tc.stands, nil }, nil); err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("%s: %v, %v, want %v", name, got, err, tc.want)
			}
		})
	}
}

// TestLifetime: a lease's lifetime is rounded up to the back end's unit.
func TestLifetime(t *testing.T) {
	for _, k := range kinds() {
		for lifetime, seconds := range map[time.Duration]time.Duration{0: 1, 800 * time.Millisecond: 1, time.Second: 1, 1200 * time.Millisecond: 2} {
			want := lifetime
			if k.Caps().Step > 0 {
				want = seconds * time.Second
			}
			if got := k.Caps().Lifetime(lifetime); got != want {
				t.Errorf("%s: %v becomes %v, want %v", k, lifetime, got, want)
			}
		}
	}
}

// TestDoor uses each back end only by Kind and Rules, from the first Ensure to Remove, which leaves nothing.
func TestDoor(t *testing.T) {
	testutil.RequireRoot(t)
	for _, k := range kinds() {
		t.Run(k.String(), func(t *testing.T) {
			ns := testutil.NewNS(t, "host")
			host := steer.Host{Redirects: []steer.Redirect{{ClusterDNS: netip.MustParseAddr("10.96.0.10"), Steering: netip.MustParseAddr("169.254.20.11")}}}
			must(t, k.Supported(ns.FD(), rules.Addresses(host)...))
			r, err := k.OpenHost(ns.FD())
			must(t, err)
			defer r.Close() //nolint:errcheck // of a test
			stands := func(want bool) {
				t.Helper()
				present, err := r.Present()
				must(t, err)
				whole, err := r.IsComplete(host)
				must(t, err)
				gone, err := r.Missing(host)
				must(t, err)
				if present != want || whole != want || (len(gone) == 0) != want {
					t.Errorf("present %t, whole %t, gone %q; want that all stands: %t", present, whole, gone, want)
				}
			}
			stands(false)
			must(t, r.Ensure(host))
			stands(true)
			if _, err := r.Repair(host); err != nil {
				t.Error(err)
			}
			must(t, r.Verify(host))
			must(t, r.Exempt([]netip.Addr{netip.MustParseAddr("10.244.1.7")}, nil))
			must(t, r.Exempt(nil, []netip.Addr{netip.MustParseAddr("10.244.1.7")}))
			if is, err := r.IsUplink("eth0"); is || err != nil {
				t.Errorf("an uplink that the rules do not have: %t, %v", is, err)
			}
			if counters, err := r.Counters(); err != nil || len(counters) == 0 {
				t.Errorf("counters %v, %v", counters, err)
			}
			ns.Do(func() {
				if left, err := k.Other().OpenStanding(); left != nil || err != nil {
					t.Errorf("leftovers of %s: %v, want none", k.Other(), err)
				}
				own, err := k.OpenStanding()
				if err != nil || own == nil {
					t.Fatalf("what stands is not found: %v", err)
				}
				must(t, own.Remove())
				must(t, own.Close())
				must(t, k.RemoveVariants())
			})
			if present, err := r.Present(); present || err != nil {
				t.Errorf("after Remove: %t, %v", present, err)
			}
		})
	}
}
