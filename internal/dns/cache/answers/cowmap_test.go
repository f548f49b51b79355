package answers

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestCowMap(t *testing.T) {
	var m CowMap[string, int]
	testutil.Equal(t, "keys of an empty map", 0, len(m.All()))
	found := 0
	find := func(k string) int { found++; return len(k) }
	for _, k := range []string{"a", "bb", "a", "ccc", "bb", ""} {
		testutil.Equal(t, k, len(k), m.Get(k, find))
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
		testutil.Equal(t, fmt.Sprint("counts of ", k), askers, v.Load())
	}
	testutil.Equal(t, "keys", keys, len(m.All()))
}
