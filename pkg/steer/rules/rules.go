// Package rules is the one door to neardns's packet rules, for programs that work by whichever back end the node has: nftables or
// iptables. A Kind names a back end and opens one netns's Rules; its Caps tell what the back end cannot do, so that nobody above the
// door has to know which one it is. Agent and plugin learn of each other's choice by the Kind's name in a file (podfile.Backend).
//
// It must never choose: that is the agent's, once a start.
//
// Failure policy: that of the back ends. Every call either leaves the kernel as described or returns an error.
package rules

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
)

// Rules are one netns's packet rules of ours. Several processes may work on one netns at the same time: the plugin and the agent both
// do on the host's. One value is for one goroutine at a time; a second goroutine opens its own.
type Rules interface {
	// Repair makes the rules equal to rs in one transaction, and returns in words what it found different. It does nothing where
	// they are equal already. Leases, counters and what the plugin put into sets of its own are kept.
	Repair(rs steer.Ruleset) (drift []string, err error)
	// Ensure adds what rs has and the rules lack, and edits or removes nothing that another version of neardns made otherwise.
	Ensure(rs steer.Ruleset) error
	// Whole is true where the rules have all that Ensure could add. It is cheap, and asks less than Lacks does.
	Whole(rs steer.Ruleset) (bool, error)
	// Lacks says in words what is gone of a host's rules. What another version does differently is not gone: a caller that brings
	// back only this takes nothing from a newer agent.
	Lacks(rs steer.Host) ([]string, error)
	// Verify returns nil when the rules mean what rs says, a *steer.DriftError that names the differences otherwise.
	Verify(rs steer.Ruleset) error
	// Present reports whether anything of ours is there.
	Present() (bool, error)
	// Remove takes our rules away. It succeeds where there are none.
	Remove() error
	// IsUplink is true where the rules drop what comes by this link for our addresses.
	IsUplink(name string) (bool, error)
	// Exempt changes which pods node interception leaves alone. Addresses that are exempt already, or not there, do no harm. Without
	// Caps.Intercept it does nothing.
	Exempt(add, gone []netip.Addr) error
	// Counters reads the host's counters, by name.
	Counters() (map[string]steer.Counter, error)
	// Leases lists those in force. renew and lifetime are the agent's terms: iptables' take two renewals to tell.
	Leases(renew, lifetime time.Duration) ([]steer.LeaseState, error)
	// Watch ticks when the rules may have been changed, until ctx ends, which closes the channel.
	Watch(ctx context.Context) (<-chan struct{}, error)
	// Close releases what was opened; rules stay.
	Close() error
}

// Caps are what a back end's rules can do, and what they cost.
type Caps struct {
	// Evidence: the kernel notes of each pod whether its questions are heard, see OpenEvidence.
	Evidence bool
	// Intercept: rules for node interception (steer.Host.InterceptNode).
	Intercept bool
	// Step is the unit in which the back end counts a lease's lifetime: another one is rounded up. 0: it takes any.
	Step time.Duration
	// Adds: Ensure adds single addresses to rules that others made. A back end that makes whole chains instead would take away what
	// only the agent knows of.
	Adds bool
	// TakesAny: pods with these rules accept an answer that the host gave back by any back end's rules, not by these alone.
	TakesAny bool
	// Programs: each look starts programs, and takes as long as the rest of a call of the plugin.
	Programs bool
}

// Lifetime is how long a lease of the given lifetime lasts in this back end; 0 is the default where it is
// rounded.
func (c Caps) Lifetime(lifetime time.Duration) time.Duration {
	if c.Step == 0 {
		return lifetime
	}
	if lifetime <= 0 {
		lifetime = steer.DefaultLifetime
	}
	return (lifetime + c.Step - 1) / c.Step * c.Step
}

// Uplinks names the interfaces of the calling thread's netns that lead away from this node, as hostnet.Uplinks finds them; podSide are
// links known to carry steered pods, which never are.
func Uplinks(podSide ...string) ([]string, error) {
	return hostnet.Uplinks(slices.Concat(steer.OwnLinks(), podSide)...)
}

// Addresses lists those of ours that a host's rules are about, sorted.
func Addresses(rs steer.Ruleset) []netip.Addr {
	return addresses(rs, func(r steer.Redirect) netip.Addr { return r.Steering }, func(l steer.Local) netip.Addr { return l.Address })
}
