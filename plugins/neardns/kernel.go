package main

import (
	"net/netip"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// kernel is what the verbs need of the kernel. It is the seam where tests inject faults that a kernel does not give on demand;
// everything else in them runs against the real one.
type kernel interface {
	// Open opens a back end's rules of the netns behind a descriptor, -1 for this thread's, which is the host.
	Open(k rules.Kind, nsFD int) (rules.Rules, error)
	Ways(podNS, hostNS int, clusterDNS ...netip.Addr) []hostnet.Found
	Uplinks(podSide ...string) ([]string, error)
}

// realKernel is the real one.
type realKernel struct{}

func (realKernel) Open(k rules.Kind, nsFD int) (rules.Rules, error) {
	if nsFD < 0 {
		return k.OpenHost(nsFD)
	}
	return k.Open(nsFD)
}

func (realKernel) Ways(podNS, hostNS int, clusterDNS ...netip.Addr) []hostnet.Found {
	return hostnet.Ways(podNS, hostNS, clusterDNS...)
}

func (realKernel) Uplinks(podSide ...string) ([]string, error) { return rules.Uplinks(podSide...) }
