// Package rules opens neardns's packet rules in whichever back end the node uses, nftables or iptables, so that callers need
// not know which. A Kind names a back end and opens the Rules of one netns; its Caps list what the back end can do. The agent
// and the plugin learn each other's choice from the Kind's name in a file (podfile.Backend).
//
// It guarantees the same interface for both back ends, and never chooses one: the agent does, once at each start.
//
// On failure it behaves as the back ends do: every call either leaves the kernel as described or returns an error.
package rules

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
)

// Rules are neardns's packet rules in one netns. Several processes may work on one netns at the same time, as the plugin and
// the agent do on the host. A value is for one goroutine at a time; a second goroutine opens its own.
type Rules interface {
	// Repair makes the rules equal to rs in one transaction, and describes the differences it found. If they are equal already
	// it does nothing. Leases, counters and the plugin's elements in the exempt sets stay.
	Repair(rs steer.Ruleset) (drift []string, err error)
	// Ensure adds what rs has and the rules lack. It does not change or remove anything that another version of neardns made.
	Ensure(rs steer.Ruleset) error
	// IsComplete reports whether the rules have everything that Ensure could add. It is cheap, and checks less than Missing does.
	IsComplete(rs steer.Ruleset) (bool, error)
	// Missing describes what is missing from a host's rules. Other versions' differences are not missing: a caller that
	// restores only this removes nothing of a newer agent.
	Missing(rs steer.Host) ([]string, error)
	// Verify returns nil if the rules mean the same as rs, else a *steer.DriftError that names the differences.
	Verify(rs steer.Ruleset) error
	// Present reports whether there are any neardns rules.
	Present() (bool, error)
	// Remove removes neardns's rules. It succeeds if there are none.
	Remove() error
	// IsUplink reports whether the rules treat a link as leading away from the node, so that clients behind it are not served.
	IsUplink(name string) (bool, error)
	// Exempt adds and removes pods that node interception ignores. Addresses that are exempt already, or not present, do no
	// harm. Without Caps.Intercept it does nothing.
	Exempt(add, gone []netip.Addr) error
	// Counters returns the host's counters by name.
	Counters() (map[string]steer.Counter, error)
	// Leases lists the leases in force. renew and lifetime are the agent's settings: iptables can tell a lease only by watching
	// for two renewals.
	Leases(renew, lifetime time.Duration) ([]steer.LeaseState, error)
	// Watch ticks when the rules may have changed, until ctx ends, which closes the channel.
	Watch(ctx context.Context) (<-chan struct{}, error)
	// Close releases what was opened; rules stay.
	Close() error
}

// Caps are what a back end's rules can do, and what they cost.
type Caps struct {
	// Evidence: the kernel records for each pod whether its queries pass the host's filters, see OpenEvidence.
	Evidence bool
	// Intercept: the back end supports node interception (steer.Host.InterceptNode).
	Intercept bool
	// Step is the unit of a lease's lifetime, which is rounded up to it. 0: any lifetime.
	Step time.Duration
	// Adds: Ensure adds single addresses to existing rules. A back end that replaces whole chains instead would remove
	// addresses that only the agent knows.
	Adds bool
	// TakesAny: pods with these rules accept a fallback answer from a host with any back end's rules, not these alone.
	TakesAny bool
	// Leaves: pod rules rewrite packet by packet, so a pod that is no longer steered needs its rules as steer.Pod.Leaving for a while.
	// The conntrack entries of other back ends outlive the rules.
	Leaves bool
	// Programs: each check starts programs, and takes as long as the rest of a plugin call.
	Programs bool
}

// Lifetime is how long a lease of the given lifetime lasts in this back end; if it rounds, 0 means the default.
func (c Caps) Lifetime(lifetime time.Duration) time.Duration {
	if c.Step == 0 {
		return lifetime
	}
	if lifetime <= 0 {
		lifetime = steer.DefaultLifetime
	}
	return (lifetime + c.Step - 1) / c.Step * c.Step
}

// Uplinks names the interfaces of the calling thread's netns that lead away from this node, as hostnet.Uplinks finds them.
// podSide are links that carry steered pods and therefore never are uplinks.
func Uplinks(podSide ...string) ([]string, error) {
	return hostnet.Uplinks(slices.Concat(steer.OwnLinks(), podSide)...)
}

// Addresses lists, sorted, the steering and local addresses of a host's rules.
func Addresses(rs steer.Ruleset) []netip.Addr {
	return addresses(rs, func(r steer.Redirect) netip.Addr { return r.Steering }, func(l steer.Local) netip.Addr { return l.Address })
}
