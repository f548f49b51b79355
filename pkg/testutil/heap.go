package testutil

import "runtime"

// Heap returns how many bytes of the heap are in use after two garbage collections. The second one frees what finalizers of the first
// released.
func Heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far below the limit
}
