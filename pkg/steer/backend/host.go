package backend

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/turn"
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
	// RemoveOthers takes away what stands in another flavour of the same back end.
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
	b, err := iptables.Open(nsFD, k.flavour, k.stats)
	if err != nil {
		return nil, err
	}
	t, err := turn.Open(nsFD)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return turned{Iptables: b, turn: t}, nil
}

// plain are nftables' rules, which need nothing beside them.
type plain struct{ *steer.Nftables }

func (p plain) Leases(time.Duration, time.Duration) ([]steer.LeaseState, error) {
	return p.Nftables.Leases()
}

// Entered is the same for both families, which have one table.
func (p plain) Entered(bool) (bool, error) { return p.Whole(steer.Host{}) }

func (plain) RemoveOthers() error { return nil }

// turned are iptables' rules with the turn that they send packets by.
type turned struct {
	*iptables.Iptables
	turn *turn.Turn
}

// Repair makes the turn before the rules that use it.
func (t turned) Repair(rs steer.Ruleset) ([]string, error) {
	drift, turnErr := t.turn.Ensure(givenBackTo(rs), hasOwn(rs))
	rs, err := t.onBridges(rs)
	if err != nil {
		return drift, errors.Join(turnErr, err)
	}
	more, err := t.Iptables.Repair(rs) // of use without the turn, too: hits need none
	return append(drift, more...), errors.Join(turnErr, err)
}

// Watch joins the events of both.
func (t turned) Watch(ctx context.Context) (<-chan struct{}, error) {
	ctx, stop := context.WithCancel(ctx)
	rules, err := t.Iptables.Watch(ctx)
	if err != nil {
		stop()
		return nil, err
	}
	routes, err := t.turn.Watch(ctx)
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
func (t turned) Verify(rs steer.Ruleset) error {
	rs, err := t.onBridges(rs)
	if err != nil {
		return err
	}
	return t.Iptables.Verify(rs)
}

// onBridges adds the bridges and detours that there are to a host's rules.
func (t turned) onBridges(rs steer.Ruleset) (steer.Ruleset, error) {
	host, ok := rs.(steer.Host)
	if !ok {
		return rs, nil
	}
	bridges, err := t.turn.Bridges()
	if err != nil {
		return nil, err
	}
	host.Bridges = bridges
	if host.Detours == nil {
		if host.Detours, err = t.turn.Detours(); err != nil {
			return nil, err
		}
	}
	return host, nil
}

func (t turned) Apply(rs steer.Ruleset) error {
	_, err := t.Repair(rs)
	return err
}

// Lacks also makes the turn whole, as it is nobody's but ours and of every version alike: to see what it lacks is to ask for as much.
func (t turned) Lacks(rs steer.Host) ([]string, error) {
	mended, turnErr := t.turn.Ensure(givenBackTo(rs), hasOwn(rs))
	gone, err := t.Iptables.Lacks(rs)
	return append(mended, gone...), errors.Join(turnErr, err)
}

// Restore makes chains whole, as Ensure does, whenever it was last asked to.
func (t turned) Restore(rs steer.Host) error {
	_, turnErr := t.turn.Ensure(givenBackTo(rs), hasOwn(rs))
	on, err := t.onBridges(rs)
	if err == nil {
		err = t.Iptables.Apply(on)
	}
	return errors.Join(turnErr, err)
}

func (t turned) Ensure(rs steer.Ruleset) error { return t.Apply(rs) }

func (t turned) Leases(renew, lifetime time.Duration) ([]steer.LeaseState, error) {
	return t.Iptables.Leases(2*renew+100*time.Millisecond, iptables.Lifetime(lifetime))
}

// Remove takes the rules away and then the turn.
func (t turned) Remove() error { return errors.Join(t.Iptables.Remove(), t.turn.Remove()) }

func (t turned) Close() error { return errors.Join(t.Iptables.Close(), t.turn.Close()) }

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
