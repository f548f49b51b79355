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

// Open opens the rules of the netns behind nsFD; -1 means the calling thread's. To write a host's rules, use
// OpenHost instead. The descriptor may be closed afterwards.
func (k Kind) Open(nsFD int) (Rules, error) {
	// Do not return the results of these calls directly: a nil pointer in an interface would not be nil.
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

// OpenHost opens the rules of a host's netns, for reading and writing; -1 means the calling thread's.
func (k Kind) OpenHost(nsFD int) (Rules, error) {
	r, err := k.Open(nsFD)
	b, ok := r.(byIptables)
	if err != nil || !ok {
		return r, err
	}
	h, err := iptables.OpenHairpin(nsFD)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return withHairpin{byIptables: b, hairpin: h}, nil
}

// byNftables implements Rules with nftables.
type byNftables struct{ *nft.Nftables }

func (n byNftables) Leases(time.Duration, time.Duration) ([]steer.LeaseState, error) {
	return n.Nftables.Leases()
}

type byIptables struct{ *iptables.Iptables }

// Ensure makes the chains equal to rs. It does not add single rules: this back end always writes a chain as a whole.
func (b byIptables) Ensure(rs steer.Host) error { return b.Apply(rs) }

// Exempt does nothing: with iptables, the agent writes the exemptions into its rules from the pods' state files.
func (byIptables) Exempt(_, _ []netip.Addr) error { return nil }

func (b byIptables) Leases(renew, lifetime time.Duration) ([]steer.LeaseState, error) {
	return b.Iptables.Leases(2*renew+100*time.Millisecond, Caps{Step: time.Second}.Lifetime(lifetime))
}

// IsComplete reports whether packets of the IP families of a host's description still enter neardns's chains. It does not
// compare the rules, because that would start iptables programs.
func (b byIptables) IsComplete(rs steer.Host) (bool, error) {
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

// withHairpin implements Rules for a host with iptables, together with the hairpin that its rules use (see steer.HairpinOut).
type withHairpin struct {
	byIptables
	hairpin *iptables.Hairpin
}

// Repair makes the hairpin first, because the rules use it.
func (t withHairpin) Repair(rs steer.Ruleset) ([]string, error) {
	host, _ := rs.(steer.Host)
	drift, hairpinErr := t.hairpin.Ensure(fallbackAddresses(host), host.OwnLocals)
	host, err := t.onBridges(host)
	if err != nil {
		return drift, errors.Join(hairpinErr, err)
	}
	more, err := t.Iptables.Repair(host) // repair the rules even if the hairpin failed: only packets to kube-dns need the hairpin
	return append(drift, more...), errors.Join(hairpinErr, err)
}

// Watch returns a channel that ticks when the rules, or the hairpin's routes, routing rules and reverse path filter, may have
// changed. If it returns an error, the watch of the rules may run until ctx ends.
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
	host, _ := rs.(steer.Host)
	host, err := t.onBridges(host)
	if err != nil {
		return err
	}
	return t.Iptables.Verify(host)
}

// onBridges adds the names of the node's bridges to a host's description, and those of its detours if the description has none
// (nil).
func (t withHairpin) onBridges(host steer.Host) (steer.Host, error) {
	var err error
	if host.Bridges, err = t.hairpin.Bridges(); err == nil && host.Detours == nil {
		host.Detours, err = t.hairpin.Detours()
	}
	return host, err
}

// Missing repairs the hairpin, and does not only report what the hairpin lacks, because finding out takes the same work and only
// neardns uses the hairpin. It does not change the chains.
func (t withHairpin) Missing(rs steer.Host) ([]string, error) {
	repaired, hairpinErr := t.hairpin.Ensure(fallbackAddresses(rs), rs.OwnLocals)
	gone, err := t.Iptables.Missing(rs)
	return append(repaired, gone...), errors.Join(hairpinErr, err)
}

func (t withHairpin) Ensure(rs steer.Host) error {
	_, hairpinErr := t.hairpin.Ensure(fallbackAddresses(rs), rs.OwnLocals)
	on, err := t.onBridges(rs)
	if err == nil {
		err = t.byIptables.Ensure(on)
	}
	return errors.Join(hairpinErr, err)
}

func (t withHairpin) Remove() error { return errors.Join(t.Iptables.Remove(), t.hairpin.Remove()) }

func (t withHairpin) Close() error { return errors.Join(t.Iptables.Close(), t.hairpin.Close()) }

// fallbackAddresses lists the cluster DNS addresses to which the host's rules may send packets.
func fallbackAddresses(host steer.Host) []netip.Addr {
	return addresses(host, func(r steer.Redirect) netip.Addr { return r.ClusterDNS }, func(l steer.Local) netip.Addr { return l.ClusterDNS })
}

func addresses(host steer.Host, redirect func(steer.Redirect) netip.Addr, local func(steer.Local) netip.Addr) []netip.Addr {
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
