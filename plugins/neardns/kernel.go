package main

import (
	"net/netip"

	"github.com/neardns/neardns/pkg/steer"
)

// kernel is what the verbs need of pkg/steer. It is the seam where tests inject faults that a kernel does not give on
// demand; everything else in them runs against the real one.
type kernel interface {
	// Open opens the rules of the netns behind a descriptor, -1 for this thread's.
	Open(nsFD int) (rules, error)
	Ways(podNS, hostNS int, redirects ...steer.Redirect) []steer.Found
	Uplinks(podSide ...string) ([]string, error)
	// Backend is whose rules they are, as pod files have it: "" is nftables.
	Backend() string
	// Lacks is why no pod may be steered to these addresses yet, whatever is proven; nil where one may.
	Lacks(addrs ...netip.Addr) error
}

// rules are the tables of one netns.
type rules interface {
	steer.Backend
	Present() (bool, error)
	// Whole is true where Ensure would change nothing. It is cheap and needs no uplinks.
	Whole(rs steer.Ruleset) (bool, error)
	// IsUplink is true where the table drops what comes by this link for our addresses.
	IsUplink(name string) (bool, error)
	Supported(addrs ...netip.Addr) error
	Exempt(addrs ...netip.Addr) error
	Unexempt(addrs ...netip.Addr) error
	Close() error
}

// nftablesKernel is the real one.
type nftablesKernel struct{}

func (nftablesKernel) Open(nsFD int) (rules, error) {
	n, err := steer.OpenNftables(nsFD)
	if err != nil {
		return nil, err // not n: a nil pointer in an interface is not nil
	}
	return n, nil
}

func (nftablesKernel) Backend() string { return "" }

// Lacks is nil: what the table lacks is added.
func (nftablesKernel) Lacks(...netip.Addr) error { return nil }

func (nftablesKernel) Ways(podNS, hostNS int, redirects ...steer.Redirect) []steer.Found {
	return steer.Ways(podNS, hostNS, redirects...)
}

func (nftablesKernel) Uplinks(podSide ...string) ([]string, error) { return steer.Uplinks(podSide...) }
