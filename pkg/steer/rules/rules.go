// Package rules opens neardns's packet rules in the back end that the node uses, nftables or iptables, so that its callers work
// with either. A Kind names a back end and opens the Rules of one netns; its Caps list what the back end can do. The agent and
// the plugin tell each other which one they used by the Kind's name in a state file.
//
// It guarantees the same interface for both back ends. It never chooses one: its callers do.
//
// On failure every call returns an error.
package rules

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
)

// Rules has the operations on neardns's packet rules in one netns. The plugin and the agent may work on one netns at the same
// time. A value is for one goroutine at a time; other goroutines open their own.
type Rules interface {
	// Repair makes the rules equal to rs, with nftables in one transaction, with iptables in one for each table and IP family.
	// It describes the differences that it found. If there are none, nftables rules do not change; iptables may rewrite chains
	// (see iptables.Repair). Leases stay, and with nftables also counters and the exemptions that the plugin added.
	Repair(rs steer.Ruleset) (drift []string, err error)
	// Ensure adds what rs has and a host's rules lack. With Caps.Adds, it neither changes nor removes anything that another version
	// of neardns wrote; other back ends replace their chains.
	Ensure(rs steer.Host) error
	// IsComplete is a cheap check whether Ensure would find nothing to add. It may overlook damage that Missing finds.
	IsComplete(rs steer.Host) (bool, error)
	// Missing describes what a host's rules lack, and with iptables repairs the hairpin. A rule that another version of neardns
	// wrote in another form does not count as missing, so that the installer's watch does not replace a newer agent's rules
	// because of it.
	Missing(rs steer.Host) ([]string, error)
	// Verify returns nil if the rules are as rs describes them. If they differ, the error is a *steer.DriftError.
	Verify(rs steer.Ruleset) error
	// Supported is for Kind.Supported.
	Supported(addrs ...netip.Addr) error
	// Present reports whether the netns has any of this back end's rules.
	Present() (bool, error)
	// Remove removes all of this back end's rules. If there are none, it succeeds.
	Remove() error
	// IsUplink reports whether the rules treat this link as leading away from the node, so that clients behind it are not
	// served.
	IsUplink(name string) (bool, error)
	// Exempt adds pods that node interception is to ignore, and removes those in gone. An address that is already exempt, or
	// not exempt, is no error. Without Caps.Intercept it does nothing.
	Exempt(add, gone []netip.Addr) error
	// Counters returns the host's counters by name.
	Counters() (map[string]steer.Counter, error)
	// Leases lists the leases in force. renew and lifetime are the agent's settings; iptables needs them, because there only a
	// renewal during this call shows that a lease is in force.
	Leases(renew, lifetime time.Duration) ([]steer.LeaseState, error)
	// Watch returns a channel that ticks when the rules may have changed. It is closed when ctx ends, and with nftables also if
	// the netlink socket fails.
	Watch(ctx context.Context) (<-chan struct{}, error)
	// Close releases descriptors and sockets; the rules stay.
	Close() error
}

// Caps lists what the rules of a back end can do, and what they cost.
type Caps struct {
	// Evidence: the kernel records for each client whether its queries pass the host's filters; see OpenEvidence.
	Evidence bool
	// Intercept: node interception (steer.Host.InterceptNode) is possible.
	Intercept bool
	// Step is the unit to which a lease's lifetime is rounded up. 0 means a unit too small to matter (20 ms with nftables).
	Step time.Duration
	// Adds: Ensure can add single addresses to existing rules. Other back ends replace whole chains, which would remove
	// addresses that only the agent knows.
	Adds bool
	// Leaves: a pod's rules rewrite each packet by itself, so a pod that is no longer steered keeps rules as steer.Pod.Leaving
	// for a while. With other back ends, conntrack entries outlive the rules and have that effect.
	Leaves bool
	// Programs: a full check of the rules starts programs, which takes as long as everything else in a plugin call.
	Programs bool
}

// Lifetime returns how long a lease lasts in this back end, given the configured lifetime: rounded up to Step. If Step is not
// 0, lifetime 0 means steer.DefaultLifetime.
func (c Caps) Lifetime(lifetime time.Duration) time.Duration {
	if c.Step == 0 {
		return lifetime
	}
	if lifetime <= 0 {
		lifetime = steer.DefaultLifetime
	}
	return (lifetime + c.Step - 1) / c.Step * c.Step
}

// Uplinks names the interfaces in the calling thread's netns that lead away from the node; see hostnet.Uplinks. podSide are
// links behind which steered pods are, so they are never uplinks.
func Uplinks(podSide ...string) ([]string, error) {
	return hostnet.Uplinks(slices.Concat(steer.OwnLinks(), podSide)...)
}

// Addresses lists, sorted, the steering and local addresses of a host's description.
func Addresses(host steer.Host) []netip.Addr {
	return addresses(host, func(r steer.Redirect) netip.Addr { return r.Steering }, func(l steer.Local) netip.Addr { return l.Address })
}
