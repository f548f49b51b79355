package answers

import (
	"maps"
	"sync/atomic"
)

// CowMap is the map that the query path looks its metric series up in: read without a lock, copied when it grows, which it does
// a few times in its life. The zero value is ready to use, and for many goroutines at once. It must not be copied.
type CowMap[K comparable, V any] struct{ p atomic.Pointer[map[K]V] }

// Get returns the value of key, which find makes if there is none. Of two calls that find at once, one's value stays, and
// both return that one.
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

// All returns what the map holds now, to be read only.
func (m *CowMap[K, V]) All() map[K]V {
	if p := m.p.Load(); p != nil {
		return *p
	}
	return nil
}
