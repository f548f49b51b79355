package answers

import (
	"maps"
	"sync/atomic"
)

// CowMap is the copy-on-write map in which the query path finds its metric series. Readers need no lock; adding a key copies the map,
// which happens only a few times. The zero value is ready to use by many goroutines. It must not be copied.
type CowMap[K comparable, V any] struct{ p atomic.Pointer[map[K]V] }

// Get returns the value of key. If there is none, it adds find's result. If two calls add one key at the same time, both return the value
// that was added first.
func (m *CowMap[K, V]) Get(key K, find func(K) V) V {
	for {
		old := m.p.Load()
		if old != nil {
			if v, ok := (*old)[key]; ok {
				return v
			}
		}
		next := map[K]V{}
		if old != nil {
			maps.Copy(next, *old)
		}
		next[key] = find(key)
		if m.p.CompareAndSwap(old, &next) {
			return next[key]
		}
	}
}

// All returns the current map, which the caller must not change.
func (m *CowMap[K, V]) All() map[K]V {
	if p := m.p.Load(); p != nil {
		return *p
	}
	return nil
}
