package zone

import (
	"net/netip"
	"slices"
	"testing"
)

// TestBounded moves a host to other addresses, one message at a time. The addresses that it keeps stay in each step.
func TestBounded(t *testing.T) {
	all := many(MaxAddresses)
	at := func(i, j int) []netip.Addr { return all[i:j] }
	n := MaxAddresses
	kept := at(n/2-5, n/2+5)
	have, want := at(0, n/2+5), at(n/2-5, n)
	for steps := 1; ; steps++ {
		p := &planner{want: Publication{Addresses: want}, mine: map[netip.Addr][]Reference{}}
		for _, a := range have {
			p.mine[a] = []Reference{}
		}
		next := p.bounded().Addresses
		changes := 0
		for _, a := range all {
			if slices.Contains(have, a) != slices.Contains(next, a) {
				changes++
			}
		}
		if changes == 0 || changes > atOnce || len(next) > MaxAddresses || len(slices.Compact(slices.Clone(next))) != len(next) {
			t.Fatalf("step %d: %d changes, %d addresses", steps, changes, len(next))
		}
		for _, a := range kept {
			if !slices.Contains(next, a) {
				t.Errorf("step %d: %s is gone for a while", steps, a)
			}
		}
		if have = next; slices.Equal(have, want) {
			return
		}
	}
}
