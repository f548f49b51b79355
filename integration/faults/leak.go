package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/integration/faults/load"
	"github.com/neardns/neardns/pkg/testutil"
)

// footprint is what an agent and its node hold.
type footprint struct {
	PID         int
	Goroutines  int
	Descriptors int
	Heap        float64 // that is alive: the least in use under a calm load, in MiB
	Resident    float64 // MiB, only reported: what a flood took is given back to the kernel late
	node
}

// node is what stands on the node whichever agent runs.
type node struct {
	Rules int // lines of the host's ruleset, sets' elements aside
	// Elements are how many our table's sets and maps hold that do not time out by themselves, by name; Passing are the others.
	Elements map[string]int
	Passing  int
	Tracked  int // connections of port 53
	Links    int
	Files    []string // in the agent's two folders
}

// What a footprint may grow by: pools that breathe, a cache whose entries differ in size, upstream connections.
const (
	spareGoroutines  = 20
	spareDescriptors = 12
	spareHeap        = 1.25 // times, and
	spareHeapMiB     = 4    // for what is in flight at the moment
	spareTracked     = 30
)

// leaks are what is more in b than in a, beyond what comes and goes.
func (a footprint) leaks(b footprint) []string {
	var out []string
	more := func(what string, before, after, spare int) {
		if after > before+spare {
			out = append(out, fmt.Sprintf("%s: %d, at first %d", what, after, before))
		}
	}
	more("goroutines", a.Goroutines, b.Goroutines, spareGoroutines)
	more("descriptors", a.Descriptors, b.Descriptors, spareDescriptors)
	more("lines of rules", a.Rules, b.Rules, 0)
	for _, set := range slices.Sorted(maps.Keys(b.Elements)) {
		more("elements of "+set, a.Elements[set], b.Elements[set], 0)
	}
	more("tracked connections", a.Tracked, b.Tracked, spareTracked)
	more("links", a.Links, b.Links, 0)
	if b.Heap > a.Heap*spareHeap+spareHeapMiB {
		out = append(out, fmt.Sprintf("heap: %.1f MiB alive, at first %.1f", b.Heap, a.Heap))
	}
	for _, f := range b.Files {
		if f != snapshotFile && !slices.Contains(a.Files, f) {
			out = append(out, "file: "+f)
		}
	}
	return out
}

func sideBySide(a, b footprint) string {
	total := func(f footprint) (n int) {
		for _, k := range f.Elements {
			n += k
		}
		return n
	}
	return fmt.Sprintf("goroutines %d → %d, descriptors %d → %d, heap alive %.1f → %.1f MiB, resident %.0f → %.0f MiB, lines of rules %d → %d, elements %d → %d (and %d → %d that time out), tracked %d → %d, links %d → %d, files %d → %d",
		a.Goroutines, b.Goroutines, a.Descriptors, b.Descriptors, a.Heap, b.Heap, a.Resident, b.Resident, a.Rules, b.Rules, total(a), total(b), a.Passing, b.Passing,
		a.Tracked, b.Tracked, a.Links, b.Links, len(a.Files), len(b.Files))
}

// snapshotFile comes with the first snapshot of the cache, after three minutes or at a stop, and is one file of a bounded size.
const snapshotFile = "/persist/cache.snapshot"

// footprint looks at the agent and its node.
func (s *stand) footprint() footprint {
	s.t.Helper()
	pid := s.server.PID()
	descriptors, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	s.must(err)
	f := footprint{PID: pid, Descriptors: len(descriptors), Resident: memory(pid)}
	goroutines, err := s.metric("go_goroutines")
	s.must(err)
	f.Goroutines = int(goroutines)
	f.Rules = strings.Count(s.node.Host.Run("nft", "-s", "-t", "list", "ruleset"), "\n")
	f.Elements, f.Passing, err = elements(s.node.Host.Run("nft", "-j", "list", "table", "inet", "neardns"))
	s.must(err)
	f.Tracked = len(testutil.Conntrack(s.node.Host))
	f.Links = strings.Count(s.node.Host.Run("ip", "-o", "link"), "\n")
	for _, dir := range []string{"state", "persist"} {
		s.must(filepath.WalkDir(s.path(dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				f.Files = append(f.Files, strings.TrimPrefix(path, s.dir))
			}
			return err
		}))
	}
	return f
}

// calm is the least heap that was in use while pods queried and nothing went wrong: garbage is collected every few seconds then,
// and what is left right after it is alive.
func (s *stand) calm() float64 {
	s.t.Helper()
	const long = 6 * time.Second
	g := s.launch(s.pod, load.Plan{Streams: usual(s), Duration: long})
	least := math.Inf(1)
	for time.Since(g.begun) < long && !s.gone() {
		bytes, err := s.metric("go_memstats_heap_alloc_bytes")
		s.must(err)
		least = min(least, bytes/(1<<20))
		s.pause(50 * time.Millisecond)
	}
	g.wait()
	return least
}

// elements counts what is in the sets and maps of a listing in JSON: by their names what stays, and in all what times out.
func elements(text string) (stay map[string]int, pass int, err error) {
	var listing struct {
		Nftables []map[string]struct {
			Name string            `json:"name"`
			Elem []json.RawMessage `json:"elem"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(text), &listing); err != nil {
		return nil, 0, fmt.Errorf("read the listing of rules: %w", err)
	}
	stay = map[string]int{}
	for _, object := range listing.Nftables {
		for _, kind := range []string{"set", "map"} {
			for _, raw := range object[kind].Elem {
				if bytes.Contains(raw, []byte(`"expires"`)) {
					pass++
				} else {
					stay[object[kind].Name]++
				}
			}
		}
	}
	return stay, pass, nil
}

// metric reads one of the agent's own metrics, by its name with all labels as they are written.
func (s *stand) metric(name string) (float64, error) {
	page, err := s.node.Host.Get("http://127.0.0.1:9253/metrics")
	if err != nil {
		return 0, err
	}
	return testutil.Metric(page, name)
}
