package healthcheck

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// owner is a cluster of a zone. Whoever may write a zone can publish any number of addresses, dead ones too, each of whose probes takes
// the longest. So no cluster's probes wait for another's: clusters share what there is, and one that has less than its share has all of it.
type owner struct{ zone, cluster string }

func (o owner) compare(p owner) int {
	return cmp.Or(cmp.Compare(o.zone, p.zone), cmp.Compare(o.cluster, p.cluster))
}

// maxPerAddress bounds the targets of one address, which may be anybody's: thousands of hosts could each have a path of their own there. 100
// targets are 10 to 13 probes a second.
const maxPerAddress = 100

// allot chooses what is probed, most targets in all, and on whose account. A check that several clusters want counts as that one's that
// wants the fewest: no cluster slows another's probes by publishing the same. What runs goes first within a cluster's share.
func allot(wanted map[owner]map[Check]bool, most int, runs func(Check) bool) map[Check]owner {
	runningFirst := func(a, b Check) int {
		if r, s := runs(a), runs(b); r != s {
			return map[bool]int{true: -1, false: 1}[r]
		}
		return a.compare(b)
	}
	out := map[Check]owner{}
	own := map[owner][]Check{}
	ofAddress := map[netip.Addr]int{}
	for _, o := range ascending(wanted, func(o owner) int { return len(wanted[o]) }) {
		for _, check := range slices.SortedFunc(maps.Keys(wanted[o]), runningFirst) {
			if _, taken := out[check]; !taken && ofAddress[check.Address] < maxPerAddress {
				out[check] = o
				own[o] = append(own[o], check)
				ofAddress[check.Address]++
			}
		}
	}
	if len(out) <= most {
		return out
	}
	left, all := most, ascending(own, func(o owner) int { return len(own[o]) })
	for i, o := range all {
		list, share := own[o], left/(len(all)-i)
		if len(list) > share {
			for _, check := range list[share:] {
				delete(out, check)
			}
			list = list[:share]
		}
		left -= len(list)
	}
	return out
}

// ascending are a map's owners by a size, the smallest first.
func ascending[V any](m map[owner]V, size func(owner) int) []owner {
	all := make([]owner, 0, len(m))
	for o := range m {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b owner) int { return cmp.Or(cmp.Compare(size(a), size(b)), a.compare(b)) })
	return all
}

// slots bound the probes that go on. One that is free goes to the waiting owner with the fewest probes going on, of several to the one that
// waits longest. Its methods are safe for concurrent use.
type slots struct {
	mu      sync.Mutex
	free    int
	turn    uint64
	going   map[owner]int
	waiting map[owner][]waiter // in the order of their coming
}

type waiter struct {
	turn  uint64
	ready chan struct{} // closed when the slot is its own
}

func newSlots(n int) *slots {
	return &slots{free: n, going: map[owner]int{}, waiting: map[owner][]waiter{}}
}

// take waits for a slot, and reports whether there is one before ctx ends. Whoever has one gives it back.
func (s *slots) take(ctx context.Context, o owner) bool {
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.going[o]++
		s.mu.Unlock()
		return true
	}
	s.turn++
	w := waiter{s.turn, make(chan struct{})}
	s.waiting[o] = append(s.waiting[o], w)
	s.mu.Unlock()
	select {
	case <-w.ready:
		return true
	case <-ctx.Done():
	}
	s.mu.Lock()
	at := slices.Index(s.waiting[o], w)
	if at >= 0 {
		s.keep(o, slices.Delete(s.waiting[o], at, at+1))
	}
	s.mu.Unlock()
	if at < 0 { // it came at the same time
		s.give(o)
	}
	return false
}

// give ends an owner's use of a slot.
func (s *slots) give(o owner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.going[o]--; s.going[o] == 0 {
		delete(s.going, o)
	}
	var next owner
	var first waiter
	for o, list := range s.waiting {
		if first.ready == nil || cmp.Or(cmp.Compare(s.going[o], s.going[next]), cmp.Compare(list[0].turn, first.turn)) < 0 {
			next, first = o, list[0]
		}
	}
	if first.ready == nil {
		s.free++
		return
	}
	s.keep(next, s.waiting[next][1:])
	s.going[next]++
	close(first.ready)
}

// keep is who of an owner still waits.
func (s *slots) keep(o owner, list []waiter) {
	if len(list) == 0 {
		delete(s.waiting, o)
		return
	}
	s.waiting[o] = list
}
