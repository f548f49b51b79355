package main

import "github.com/neardns/neardns/integration/bench/peers"

// How -with names neardns without hits answered before CoreDNS, and with hits answered in the kernel.
const (
	plainOption  = "plain"
	kernelOption = "kernel"
)

// allServers are what neardns is measured alongside.
func allServers() []string {
	out := []string{kernelOption, plainOption, stock}
	for _, p := range peers.All() {
		out = append(out, p.Name)
	}
	return out
}
