package healthcheck

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// owner is a cluster in a zone, which shares the capacity for probes with other clusters. Every writer of a zone can publish many
// addresses, and dead ones take longest to probe. So each cluster has an equal share, and what a cluster does not need goes to the others.
type owner struct{ zone, cluster string }

func (o owner) compare(p owner) int {
	return cmp.Or(cmp.Compare(o.zone, p.zone), cmp.Compare(o.cluster, p.cluster))
}

// maxPerAddress is the maximum number of checks of one address. The address can belong to a third party; without a limit, thousands of
// hosts could each check another path there. With the default interval, 100 checks are 10 to 13 probes per second.
const maxPerAddress = 100

// allot returns the checks to probe, no more than `most`, each with the cluster to which it counts. A check that several clusters have
// counts to the cluster with the fewest checks, so that a cluster cannot delay another's probes by publishing the same check. If a
// cluster's share is too small for all its checks, those for which runs returns true come first.
func allot(wanted map[owner]map[Check]bool, most int, runs func(Check) bool) map[Check]owner {
	runningFirst := func(a, b Check) int {
		if runsA := runs(a); runsA != runs(b) {
			if runsA {
				return -1
			}
			return 1
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

// ascending returns a map's owners, sorted by size, smallest first.
func ascending[V any](m map[owner]V, size func(owner) int) []owner {
	all := make([]owner, 0, len(m))
	for o := range m {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b owner) int { return cmp.Or(cmp.Compare(size(a), size(b)), a.compare(b)) })
	return all
}

// slots limit the number of concurrent probes. A free slot goes to the waiting owner that has the fewest probes running; among equals,
// to the one that has waited longest. The methods are safe for concurrent use.
type slots struct {
	mu      sync.Mutex
	free    int                // number of free slots
	turn    uint64             // turn of the newest waiter
	going   map[owner]int      // number of slots that each owner has
	waiting map[owner][]waiter // in order of arrival
}

type waiter struct {
	turn  uint64        // increases with each waiter
	ready chan struct{} // closed when the waiter gets its slot
}

func newSlots(n int) *slots {
	return &slots{free: n, going: map[owner]int{}, waiting: map[owner][]waiter{}}
}

// take waits for a slot, which the caller must return with give. It returns false if ctx ends first.
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
	if at < 0 { // the waiter got a slot at the same time
		s.give(o)
	}
	return false
}

// give returns an owner's slot, and passes it on to the next waiter.
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

// keep stores the list of an owner's waiters, or deletes it if it is empty.
func (s *slots) keep(o owner, list []waiter) {
	if len(list) == 0 {
		delete(s.waiting, o)
		return
	}
	s.waiting[o] = list
}
