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
	err := b.restore(true, trial.restore(trial.tables(), func(chain, jump) placing { return inPlace }))
	if Busy(err) {
		return false, err
	}
	has := err == nil
	if has {
		if err := b.restore(true, trial.discard(trial.tables()...)); err != nil {
			return false, err
		}
	}
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
		none := func(chain, jump) placing { return inPlace }
		err := b.restore(s.is4, s.restore(s.tables(), none))
		if err == nil {
			err = b.restore(s.is4, s.discard(s.tables()...))
		}
		if err == nil {
			continue
		} else if Busy(err) {
			return err
		}
		// Table by table, to name everything that is refused. Chains left by the attempt above are flushed first.
		for _, table := range s.tables() {
			err := b.restore(s.is4, s.restore([]string{table}, none))
			if err != nil && !Busy(err) {
				errs = append(errs, fmt.Errorf("%w: %w", steer.ErrNotSupported, err))
				continue
			}
			if err == nil {
				err = b.restore(s.is4, s.discard(table))
			}
			if err != nil {
				return err
			}
		}
	}
	return errors.Join(errs...)
}
