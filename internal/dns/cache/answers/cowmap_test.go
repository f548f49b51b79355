package answers

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestCowMap(t *testing.T) {
	var m CowMap[string, int]
	if all := m.All(); len(all) != 0 {
		t.Errorf("an empty map holds %v", all)
	}
	found := 0
	find := func(k string) int { found++; return len(k) }
	for _, k := range []string{"a", "bb", "a", "ccc", "bb", ""} {
		if got := m.Get(k, find); got != len(k) {
			t.Errorf("%q: %d", k, got)
		}
	}
	before := m.All()
	m.Get("dddd", find)
	if found != 5 || len(m.All()) != 5 || len(before) != 4 {
		t.Errorf("found %d times; %v, before %v", found, m.All(), before)
	}
}

// TestCowMapAtOnce: goroutines that get one key at the same time all get the same value.
func TestCowMapAtOnce(t *testing.T) {
	const askers, keys = 8, 50
	var m CowMap[int, *atomic.Int64]
	var wg sync.WaitGroup
	for range askers {
		wg.Go(func() {
			for k := range keys {
				m.Get(k, func(int) *atomic.Int64 { return new(atomic.Int64) }).Add(1)
			}
		})
	}
	wg.Wait()
	for k, v := range m.All() {
		if v.Load() != askers {
			t.Errorf("%d was counted %d times, not %d", k, v.Load(), askers)
		}
	}
	if n := len(m.All()); n != keys {
		t.Errorf("%d keys", n)
	}
}
