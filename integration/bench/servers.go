package main

import (
	"slices"

	"github.com/neardns/neardns/integration/bench/peers"
	"github.com/neardns/neardns/integration/bench/workload"
)

// How -with names neardns without hits answered before CoreDNS, with hits answered in the kernel, and a node without a cache.
const (
	plainOption  = "plain"
	kernelOption = "kernel"
	bareOption   = "bare"
)

// caches are the stands that have a cache, and so memory, an idle load and a restart.
func caches(stands []*stand) []*stand {
	return slices.DeleteFunc(slices.Clone(stands), func(s *stand) bool { return s.name == bare })
}

// sends reports whether a workload is sent to a server: without a cache all cost the same, so it gets hits and misses alone.
func sends(name, server string) bool { return server != bare || name == "W1" || name == workload.Miss }

// allServers are what neardns is measured alongside.
func allServers() []string {
	out := []string{kernelOption, plainOption, stock}
	for _, p := range peers.All() {
		out = append(out, p.Name)
	}
	return append(out, bareOption)
}
