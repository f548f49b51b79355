package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLeaks(t *testing.T) {
	base := footprint{PID: 1, Goroutines: 50, Descriptors: 40, Heap: 10, node: node{Rules: 200, Elements: map[string]int{"ours4": 2}, Tracked: 5, Links: 6, Files: []string{"/state/agent.sock"}}}
	for name, c := range map[string]struct {
		change func(*footprint)
		want   string
	}{
		"the same":       {func(*footprint) {}, ""},
		"less":           {func(f *footprint) { *f = footprint{} }, ""},
		"breathing":      {func(f *footprint) { f.Goroutines, f.Descriptors, f.Heap, f.Tracked, f.Passing = 60, 45, 12, 20, 99 }, ""},
		"goroutines":     {func(f *footprint) { f.Goroutines = 90 }, "goroutines: 90, at first 50"},
		"descriptors":    {func(f *footprint) { f.Descriptors = 60 }, "descriptors: 60"},
		"memory":         {func(f *footprint) { f.Heap = 17 }, "heap: 17.0 MiB alive, at first 10.0"},
		"a rule":         {func(f *footprint) { f.Rules++ }, "lines of rules: 201"},
		"elements":       {func(f *footprint) { f.Elements = map[string]int{"ours4": 3} }, "elements of ours4: 3, at first 2"},
		"connections":    {func(f *footprint) { f.Tracked = 99 }, "tracked connections: 99"},
		"a link":         {func(f *footprint) { f.Links++ }, "links: 7"},
		"a file":         {func(f *footprint) { f.Files = []string{"/state/agent.sock", "/state/x.tmp"} }, "file: /state/x.tmp"},
		"a snapshot":     {func(f *footprint) { f.Files = []string{"/state/agent.sock", "/persist/cache.snapshot"} }, ""},
		"half a one":     {func(f *footprint) { f.Files = []string{"/persist/cache.snapshot.tmp"} }, "file: /persist/cache.snapshot.tmp"},
		"another's file": {func(f *footprint) { f.Files = []string{"/state/x.tmp"} }, "file: /state/x.tmp"},
	} {
		f := base
		c.change(&f)
		got := strings.Join(base.leaks(f), "; ")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestElements(t *testing.T) {
	stay, pass, err := elements(`{"nftables": [{"metainfo": {}}, {"set": {"name": "a", "elem": ["10.0.0.1", {"elem": {"val": 1, "timeout": 9, "expires": 3}}]}},
		{"set": {"name": "empty"}}, {"map": {"name": "m", "elem": [["a", "b"], ["c", "d"]]}}, {"rule": {"expr": [{}]}}]}`)
	if diff := cmp.Diff(map[string]int{"a": 1, "m": 2}, stay); diff != "" || pass != 1 || err != nil {
		t.Errorf("%d pass, %v (-want +got):\n%s", pass, err, diff)
	}
	if _, _, err := elements("nonsense"); err == nil {
		t.Error("nonsense is read")
	}
}
