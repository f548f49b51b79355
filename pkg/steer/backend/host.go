package backend

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// Host is the host's rules with all that belongs to them.
type Host interface {
	steer.Table
	// Watch ticks when the rules may have been changed, until ctx ends, which closes the channel.
	Watch(ctx context.Context) (<-chan struct{}, error)
	// Leases lists those in force. renew and lifetime are the agent's terms: iptables' take two renewals to tell.
	Leases(renew, lifetime time.Duration) ([]steer.LeaseState, error)
	// Lacks says in words what is gone of the rules, and Restore brings it back. What another version does differently is not
	// gone: who restores only what is takes nothing from a newer agent.
	Lacks(rs steer.Host) ([]string, error)
	Restore(rs steer.Host) error
	// Entered tells whether a family's packets still come into the rules. It is cheap.
	Entered(is4 bool) (bool, error)
	// RemoveOthers takes away what stands in another variant of the same back end.
	RemoveOthers() error
}

// OpenHost opens the back end for a host's netns; -1 means the calling thread's.
func (k Kind) OpenHost(nsFD int) (Host, error) {
	if !k.IsIptables() {
		n, err := steer.OpenNftables(nsFD)
		if err != nil {
			return nil, err
		}
		return plain{n}, nil
	}
	b, err := iptables.Open(nsFD, k.variant, k.stats)
	if err != nil {
		return nil, err
	}
	h, err := iptables.OpenHairpin(nsFD)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return withHairpin{Iptables: b, hairpin: h}, nil
}

// plain are nftables' rules, which need nothing beside them.
type plain struct{ *steer.Nftables }

func (p plain) Leases(time.Duration, time.Duration) ([]steer.LeaseState, error) {
	return p.Nftables.Leases()
}

// Entered is the same for both families, which have one table.
func (p plain) Entered(bool) (bool, error) { return p.Whole(steer.Host{}) }

func (plain) RemoveOthers() error { return nil }

// withHairpin are iptables' rules with the hairpin that they send packets by.
type withHairpin struct {
	*iptables.Iptables
	hairpin *iptables.Hairpin
}

// Repair makes the hairpin before the rules that use it.
func (t withHairpin) Repair(rs steer.Ruleset) ([]string, error) {
	drift, hairpinErr := t.hairpin.Ensure(givenBackTo(rs), hasOwn(rs))
	rs, err := t.onBridges(rs)
	if err != nil {
		return drift, errors.Join(hairpinErr, err)
	}
	more, err := t.Iptables.Repair(rs) // of use without the hairpin, too: hits need none
	return append(drift, more...), errors.Join(hairpinErr, err)
}

// Watch joins the events of both.
func (t withHairpin) Watch(ctx context.Context) (<-chan struct{}, error) {
	ctx, stop := context.WithCancel(ctx)
	rules, err := t.Iptables.Watch(ctx)
	if err != nil {
		stop()
		return nil, err
	}
	routes, err := t.hairpin.Watch(ctx)
	if err != nil {
		stop()
		return nil, err
	}
	ticks := make(chan struct{}, 1)
	go func() { // ends with ctx, which closes both
		defer close(ticks)
		defer stop()
		for rules != nil || routes != nil {
			var ok bool
			select {
			case _, ok = <-rules:
				if !ok {
					rules = nil
				}
			case _, ok = <-routes:
				if !ok {
					routes = nil
				}
			}
			select {
			case ticks <- struct{}{}:
			default:
			}
		}
	}()
	return ticks, nil
}

// Verify looks at the rules as Repair makes them.
func (t withHairpin) Verify(rs steer.Ruleset) error {
	rs, err := t.onBridges(rs)
	if err != nil {
		return err
	}
	return t.Iptables.Verify(rs)
}

// onBridges adds the bridges and detours that there are to a host's rules.
func (t withHairpin) onBridges(rs steer.Ruleset) (steer.Ruleset, error) {
	host, ok := rs.(steer.Host)
	if !ok {
		return rs, nil
	}
	bridges, err := t.hairpin.Bridges()
	if err != nil {
		return nil, err
	}
	host.Bridges = bridges
	if host.Detours == nil {
		if host.Detours, err = t.hairpin.Detours(); err != nil {
			return nil, err
		}
	}
	return host, nil
}

func (t withHairpin) Apply(rs steer.Ruleset) error {
	_, err := t.Repair(rs)
	return err
}

// Lacks also makes the hairpin whole, as it is nobody's but ours and of every version alike: to see what it lacks is to ask for as much.
func (t withHairpin) Lacks(rs steer.Host) ([]string, error) {
	mended, hairpinErr := t.hairpin.Ensure(givenBackTo(rs), hasOwn(rs))
	gone, err := t.Iptables.Lacks(rs)
	return append(mended, gone...), errors.Join(hairpinErr, err)
}

// Restore makes chains whole, as Ensure does, whenever it was last asked to.
func (t withHairpin) Restore(rs steer.Host) error {
	_, hairpinErr := t.hairpin.Ensure(givenBackTo(rs), hasOwn(rs))
	on, err := t.onBridges(rs)
	if err == nil {
		err = t.Iptables.Apply(on)
	}
	return errors.Join(hairpinErr, err)
}

func (t withHairpin) Ensure(rs steer.Ruleset) error { return t.Apply(rs) }

func (t withHairpin) Leases(renew, lifetime time.Duration) ([]steer.LeaseState, error) {
	return t.Iptables.Leases(2*renew+100*time.Millisecond, iptables.Lifetime(lifetime))
}

// Remove takes the rules away and then the hairpin.
func (t withHairpin) Remove() error { return errors.Join(t.Iptables.Remove(), t.hairpin.Remove()) }

func (t withHairpin) Close() error { return errors.Join(t.Iptables.Close(), t.hairpin.Close()) }

// hasOwn tells whether the node's own processes get the fallback, too.
func hasOwn(rs steer.Ruleset) bool {
	host, ok := rs.(steer.Host)
	return ok && host.OwnLocals
}

// givenBackTo lists the cluster DNS addresses that the rules give packets back to.
func givenBackTo(rs steer.Ruleset) []netip.Addr {
	host, ok := rs.(steer.Host)
	if !ok {
		return nil
	}
	var out []netip.Addr
	for _, r := range slices.Concat(host.Redirects, host.FallbackOnly) {
		out = append(out, r.ClusterDNS)
	}
	for _, l := range host.Locals {
		out = append(out, l.ClusterDNS)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// Addresses lists those of ours that a host's rules are about, sorted.
func Addresses(rs steer.Ruleset) []netip.Addr {
	host, ok := rs.(steer.Host)
	if !ok {
		return nil
	}
	var out []netip.Addr
	for _, r := range slices.Concat(host.Redirects, host.FallbackOnly) {
		out = append(out, r.Steering)
	}
	for _, l := range host.Locals {
		out = append(out, l.Address)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
