package healthcheck

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
)

// TestAccount: if a cluster with fewer checks publishes a target too, the target's probes count to that cluster from then on.
func TestAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t.Context(), slog.New(slog.DiscardHandler), Options{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no") }})
		t.Cleanup(c.Wait)
		var list []Check
		for i := range 3 {
			list = append(list, Check{Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Protocol: TCP, Port: 443})
		}
		ranges := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		first := c.Set("z.", map[string][]Check{"greedy": list}, ranges)[list[0]]
		again := c.Set("z.", map[string][]Check{"greedy": list, "victim": list[:1]}, ranges)[list[0]]
		if first == nil || first != again || again.owner.Load().cluster != "victim" {
			t.Errorf("the target was %p, and is %p on the account of %v", first, again, *again.owner.Load())
		}
	})
}

// TestSlots: a slot that is free goes to the owner with the fewest probes going on now, whatever it had before, and of several to the one
// that waits longest.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := owner{"z.", "a"}, owner{"z.", "b"}, owner{"z.", "c"}
		s := newSlots(3)
		for range 2 {
			s.take(t.Context(), a)
		}
		s.give(a)
		s.give(a)
		for range 3 {
			s.take(t.Context(), b)
		}
		got := make(chan owner, 3)
		for _, o := range []owner{b, a, c} { // in the order of their coming
			go func() {
				s.take(t.Context(), o)
				got <- o
			}()
			synctest.Wait()
		}
		for _, want := range []owner{a, c, b} {
			s.give(b)
			if o := <-got; o != want {
				t.Errorf("it goes to %s, want %s", o.cluster, want.cluster)
			}
		}
		s.give(a)
		s.give(b)
		s.give(c)
		if s.free != 3 || len(s.going)+len(s.waiting) > 0 {
			t.Errorf("%d are free, %v go on, %v wait", s.free, s.going, s.waiting)
		}
	})
}

// TestSlotsEnd: a slot that is given to a waiter whose context ends at the same time is not lost.
func TestSlotsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, o := newSlots(1), owner{"z.", "a"}
		taken := 0
		for range 200 { // which of the two is seen is chance
			s.take(t.Context(), o)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan bool)
			go func() { done <- s.take(ctx, o) }()
			synctest.Wait()
			cancel()
			s.give(o)
			if <-done {
				taken++
				s.give(o)
			}
			if s.free != 1 || len(s.going)+len(s.waiting) > 0 {
				t.Fatalf("%d are free, %v go on, %v wait", s.free, s.going, s.waiting)
			}
		}
		t.Logf("%d of 200 had it", taken)
	})
}
