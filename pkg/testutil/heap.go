package testutil

import "runtime"

// Heap is how many bytes of the heap are in use, after garbage was collected: the second time takes what the first one finalized.
func Heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far below the limit
}
