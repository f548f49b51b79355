package iptables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/neardns/neardns/pkg/steer"
)

// hasRoutes reports whether the kernel has the match that strangers needs. It tries it in a chain that nothing jumps to, and
// deletes that chain right after.
func (b *Iptables) hasRoutes() (bool, error) {
	b.tried.Lock()
	defer b.tried.Unlock()
	if b.routes != nil {
		return *b.routes, nil
	}
	trial := script{is4: true, chains: []chain{{table: "raw", name: udpChain + trialSuffix, rules: host{routes: true}.strangers()}}}
	refusal, err := b.try(trial, trial.tables()...)
	if err != nil {
		return false, err
	}
	has := refusal == nil
	b.routes = &has
	return has, nil
}

// Supported has the kernel check every kind of rule, in chains that nothing jumps to and that are deleted right after, for the
// families of these addresses, without addresses for both. The error names program and rule and wraps steer.ErrNotSupported. If
// other programs were in the way, so that the result is unknown, Busy is true for it.
func (b *Iptables) Supported(addrs ...netip.Addr) error {
	addr := netip.MustParseAddr
	redirects := []steer.Redirect{
		{ClusterDNS: addr("192.0.2.1"), Steering: addr("192.0.2.2")}, {ClusterDNS: addr("2001:db8::1"), Steering: addr("2001:db8::2")},
	}
	locals := []steer.Local{{Address: addr("192.0.2.3"), ClusterDNS: addr("192.0.2.1")}, {Address: addr("2001:db8::3"), ClusterDNS: addr("2001:db8::1")}}
	ceded := []netip.Addr{locals[0].Address, locals[1].Address}
	var errs []error
	for _, s := range hosts(steer.Host{Redirects: redirects, Locals: locals, OwnLocals: true, Ceded: ceded, Uplinks: []string{"eth0"}}, false) {
		if len(addrs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Is4() == s.is4 }) {
			continue
		}
		s = s.asTrial()
		refusal, err := b.try(s, s.tables()...)
		if err != nil {
			return err
		} else if refusal == nil {
			continue
		}
		// Table by table, to name everything that is refused. Chains left by the attempt above are flushed first.
		for _, table := range s.tables() {
			refusal, err := b.try(s, table)
			if err != nil {
				return err
			} else if refusal != nil {
				errs = append(errs, fmt.Errorf("%w: %w", steer.ErrNotSupported, refusal))
			}
		}
	}
	return errors.Join(errs...)
}

// try makes tables of a script, to whose chains nothing jumps, and deletes them. refusal is why the kernel does not take them.
func (b *Iptables) try(s script, tables ...string) (refusal, err error) {
	err = b.restore(s.is4, s.restore(tables, func(chain, jump) placing { return inPlace }))
	if err != nil && !Busy(err) {
		return err, nil
	} else if err == nil {
		err = b.restore(s.is4, s.discard(tables...))
	}
	return nil, err
}
