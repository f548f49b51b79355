package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/podfile"
)

// traces names what there is of a pod: its rules, its file, its place in the host's table, its link, its address.
func (s *show) traces(p *pod) string {
	var found []string
	if s.tables(p.NetNS) != "none" {
		found = append(found, "pod table")
	}
	if _, err := os.Lstat(podfile.Path(stateDir, p.id, "eth0")); err == nil {
		found = append(found, "pod file")
	}
	rules := s.node.Host.Run("nft", "list", "ruleset")
	routes := s.node.Host.Run("ip", "route") + s.node.Host.Run("ip", "-6", "route")
	for _, a := range p.addrs {
		if lasting(rules, a) {
			found = append(found, "element "+a.String())
		}
		if strings.Contains(routes, a.String()+" dev ") {
			found = append(found, "route to "+a.String())
		}
	}
	if _, err := os.Lstat(filepath.Join(cniCache, "results", "demo-"+p.id+"-eth0")); err == nil {
		found = append(found, "the runtime's record")
	}
	if len(found) == 0 {
		return "nothing"
	}
	return strings.Join(found, ", ")
}

// tracesSoon gives the agent a moment to take part in a pod's end.
func (s *show) tracesSoon(p *pod) string {
	for deadline := time.Now().Add(2 * time.Second); ; {
		left := s.traces(p)
		if left == "nothing" || time.Now().After(deadline) {
			return left
		}
	}
}

// lasting reports whether rules name an address in an element that does not expire. Those that do expire are the kernel's own
// memory of single TCP connections.
func lasting(rules string, a netip.Addr) bool {
	elements := strings.FieldsFunc(rules, func(r rune) bool { return strings.ContainsRune(",{}\n", r) })
	return slices.ContainsFunc(elements, func(e string) bool {
		words := strings.Fields(e)
		return slices.Contains(words, a.String()) && !slices.Contains(words, "expires")
	})
}
