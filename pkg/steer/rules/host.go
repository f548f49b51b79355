package rules

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/tick"
)

// Open opens the rules of the netns behind nsFD, -1 for the calling thread's. It is enough to read a host's rules; writing them
// needs OpenHost. The descriptor may be closed afterwards.
func (k Kind) Open(nsFD int) (Rules, error) {
	// The calls' results are not returned directly: a nil pointer in an interface is not nil.
	if !k.isIptables() {
		n, err := nft.Open(nsFD)
		if err != nil {
			return nil, err
		}
		return byNftables{n}, nil
	}
	b, err := iptables.Open(nsFD, k.variant, k.stats)
	if err != nil {
		return nil, err
	}
	return byIptables{b}, nil
}

// OpenHost opens the rules of a host's netns; -1 means the calling thread's.
func (k Kind) OpenHost(nsFD int) (Rules, error) {
	if !k.isIptables() {
		return k.Open(nsFD)
	}
	b, err := iptables.Open(nsFD, k.variant, k.stats)
	if err != nil {
		return nil, err
	}
	h, err := iptables.OpenHairpin(nsFD)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return withHairpin{byIptables: byIptables{b}, hairpin: h}, nil
}

// byNftables are nftables' rules.
type byNftables struct{ *nft.Nftables }

// Ensure restores a host's rules, without the quick check that the plugin makes first.
func (n byNftables) Ensure(rs steer.Ruleset) error {
	if host, ok := rs.(steer.Host); ok {
		return n.Restore(host)
	}
	return n.Nftables.Ensure(rs)
}

func (n byNftables) Leases(time.Duration, time.Duration) ([]steer.LeaseState, error) {
	return n.Nftables.Leases()
}

type byIptables struct{ *iptables.Iptables }

// Ensure is Apply, because chains are complete or absent.
func (b byIptables) Ensure(rs steer.Ruleset) error { return b.Apply(rs) }

// Exempt does nothing: the agent renders the pods that opted out from their files.
func (byIptables) Exempt(_, _ []netip.Addr) error { return nil }

func (b byIptables) Leases(renew, lifetime time.Duration) ([]steer.LeaseState, error) {
	return b.Iptables.Leases(2*renew+100*time.Millisecond, iptables.Lifetime(lifetime))
}

// IsComplete reports whether packets of rs's families still enter the rules. Checking more would start iptables programs.
func (b byIptables) IsComplete(rs steer.Ruleset) (bool, error) {
	families := map[bool]bool{}
	for _, a := range Addresses(rs) {
		families[a.Is4()] = true
	}
	for is4 := range families {
		if in, err := b.Entered(is4); err != nil || !in {
			return false, err
		}
	}
	return true, nil
}

// withHairpin are iptables' rules on a host, with the hairpin that they use.
type withHairpin struct {
	byIptables
	hairpin *iptables.Hairpin
}

// Repair makes the hairpin before the rules that use it.
func (t withHairpin) Repair(rs steer.Ruleset) ([]string, error) {
	drift, hairpinErr := t.hairpin.Ensure(fallbackAddresses(rs), hasOwn(rs))
	rs, err := t.onBridges(rs)
	if err != nil {
		return drift, errors.Join(hairpinErr, err)
	}
	more, err := t.Iptables.Repair(rs) // useful even without the hairpin, which only the fallback needs
	return append(drift, more...), errors.Join(hairpinErr, err)
}

// Watch joins the events of both. If it fails, one of them may continue until ctx ends.
func (t withHairpin) Watch(ctx context.Context) (<-chan struct{}, error) {
	rules, err := t.Iptables.Watch(ctx)
	if err != nil {
		return nil, err
	}
	routes, err := t.hairpin.Watch(ctx)
	if err != nil {
		return nil, err
	}
	return tick.Join(rules, routes), nil
}

func (t withHairpin) Verify(rs steer.Ruleset) error {
	rs, err := t.onBridges(rs)
	if err != nil {
		return err
	}
	return t.Iptables.Verify(rs)
}

// onBridges adds the node's bridges and detours to a host's rules.
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

// Missing also repairs the hairpin. Only neardns uses it and all versions make it alike, and to find what is missing takes the
// same work.
func (t withHairpin) Missing(rs steer.Host) ([]string, error) {
	repaired, hairpinErr := t.hairpin.Ensure(fallbackAddresses(rs), hasOwn(rs))
	gone, err := t.Iptables.Missing(rs)
	return append(repaired, gone...), errors.Join(hairpinErr, err)
}

func (t withHairpin) Ensure(rs steer.Ruleset) error {
	_, hairpinErr := t.hairpin.Ensure(fallbackAddresses(rs), hasOwn(rs))
	on, err := t.onBridges(rs)
	if err == nil {
		err = t.byIptables.Ensure(on)
	}
	return errors.Join(hairpinErr, err)
}

func (t withHairpin) Remove() error { return errors.Join(t.Iptables.Remove(), t.hairpin.Remove()) }

func (t withHairpin) Close() error { return errors.Join(t.Iptables.Close(), t.hairpin.Close()) }

// hasOwn reports whether the node's own processes get the fallback, too.
func hasOwn(rs steer.Ruleset) bool {
	host, ok := rs.(steer.Host)
	return ok && host.OwnLocals
}

// fallbackAddresses lists the cluster DNS addresses that the fallback sends packets to.
func fallbackAddresses(rs steer.Ruleset) []netip.Addr {
	return addresses(rs, func(r steer.Redirect) netip.Addr { return r.ClusterDNS }, func(l steer.Local) netip.Addr { return l.ClusterDNS })
}

func addresses(rs steer.Ruleset, redirect func(steer.Redirect) netip.Addr, local func(steer.Local) netip.Addr) []netip.Addr {
	host, ok := rs.(steer.Host)
	if !ok {
		return nil
	}
	var out []netip.Addr
	for _, r := range slices.Concat(host.Redirects, host.FallbackOnly) {
		out = append(out, redirect(r))
	}
	for _, l := range host.Locals {
		out = append(out, local(l))
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
