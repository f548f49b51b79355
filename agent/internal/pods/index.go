package pods

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/neardns/neardns/pkg/podfile"
)

// Index maps pods' addresses to data of type T, for a lookup at each query. Find is safe for concurrent use.
type Index[T any] struct {
	pods *Pods
	keep func(f podfile.File, old *T) *T

	mu   sync.Mutex // held while the index is rebuilt
	made atomic.Pointer[index[T]]
}

type index[T any] struct {
	version uint64
	byAddr  map[netip.Addr]*T
	byKey   map[[2]string]*T // container ID and interface
}

// NewIndex makes an index of p's pods. keep returns the data for a pod file, given the previous data for the same container and interface
// (nil if it is new). The first Find or All after a pod file may have changed calls keep for all pod files, one after the other.
func NewIndex[T any](p *Pods, keep func(f podfile.File, old *T) *T) *Index[T] {
	x := &Index[T]{pods: p, keep: keep}
	x.made.Store(&index[T]{})
	return x
}

// Find returns the data of the pod that has an address; nil for none. If two pod files name the address, it returns the data of the one
// whose netns still exists: if the runtime skipped a DEL, the pod that has the address now must not get a dead pod's settings. If both
// netns exist, or neither, it returns nil.
func (x *Index[T]) Find(addr netip.Addr) *T { return x.current().byAddr[addr] }

// All returns the data by container ID and interface. The caller must not change the map.
func (x *Index[T]) All() map[[2]string]*T { return x.current().byKey }

func (x *Index[T]) current() *index[T] {
	made := x.made.Load()
	if made.version == x.pods.version.Load() {
		return made
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	made = x.made.Load()
	version := x.pods.version.Load() // loaded before the files are read, so that a change meanwhile causes another rebuild
	if made.version == version {
		return made
	}
	files, _ := x.pods.read()
	next := &index[T]{version: version, byAddr: map[netip.Addr]*T{}, byKey: map[[2]string]*T{}}
	owners := map[netip.Addr][]podfile.File{}
	for _, f := range files {
		key := [2]string{f.ContainerID, f.IfName}
		next.byKey[key] = x.keep(f, made.byKey[key])
		for _, a := range f.Addresses {
			owners[a] = append(owners[a], f)
		}
	}
	for addr, files := range owners {
		if len(files) > 1 {
			files = slices.DeleteFunc(files, func(f podfile.File) bool { return !leadsToNetNS(f) })
		}
		if len(files) == 1 {
			next.byAddr[addr] = next.byKey[[2]string{files[0].ContainerID, files[0].IfName}]
		}
	}
	x.made.Store(next)
	return next
}
