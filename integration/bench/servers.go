package main

import "github.com/neardns/neardns/integration/bench/peers"

// plainOption is how -with names neardns without hits answered before CoreDNS.
const plainOption = "plain"

// allServers are what neardns is measured beside.
func allServers() []string {
	out := []string{plainOption, stock}
	for _, p := range peers.All() {
		out = append(out, p.Name)
	}
	return out
}
