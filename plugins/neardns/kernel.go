package main

import (
	"net/netip"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// kernel has the calls to the kernel that tests replace, to inject faults that a real kernel does not produce on demand.
type kernel interface {
	// Open opens the rules of a back end in the netns of the file descriptor nsFD. -1 means the netns of the calling thread,
	// which is the host's.
	Open(k rules.Kind, nsFD int) (rules.Rules, error)
	Ways(podNS int, clusterDNS ...netip.Addr) []hostnet.Found
	Uplinks(podSide ...string) ([]string, error)
}

// realKernel is the running kernel.
type realKernel struct{}

func (realKernel) Open(k rules.Kind, nsFD int) (rules.Rules, error) {
	if nsFD < 0 {
		return k.OpenHost(nsFD)
	}
	return k.Open(nsFD)
}

func (realKernel) Ways(podNS int, clusterDNS ...netip.Addr) []hostnet.Found {
	return hostnet.Ways(podNS, 0, clusterDNS...) // the calling thread is in the host's netns
}

func (realKernel) Uplinks(podSide ...string) ([]string, error) { return rules.Uplinks(podSide...) }
