package iptables

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"

	"github.com/neardns/neardns/pkg/steer"
)

// hasRoutes reports whether the kernel has the match rpfilter, which strangers uses. It adds such a rule in a chain without
// jumps to it, and deletes the chain right after.
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

// Supported returns an error that wraps steer.ErrNotSupported if the kernel refuses a kind of rule that a host needs (all but the match
// rpfilter, see hasRoutes). It tries them, for the IP families of addrs (both if there are none), in chains without jumps to them, which it
// then deletes. The error names the program and the rule. If other programs were in the way, so that the result is unknown, Busy is true
// for the error.
func (b *Iptables) Supported(addrs ...netip.Addr) error {
	h := steer.Example()
	h.Ceded, h.Uplinks = []netip.Addr{h.Locals[0].Address, h.Locals[1].Address}, []string{"eth0"}
	var errs []error
	for _, s := range hosts(h, false) {
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
		// Try each table by itself, to name everything that is refused. Each attempt first empties chains that an earlier one
		// left.
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

// try adds the chains of a script, to which nothing jumps, to these tables, and deletes them. refusal is why they were refused.
// err means that the result is unknown or that the chains could not be deleted.
func (b *Iptables) try(s script, tables ...string) (refusal, err error) {
	err = b.restore(s.is4, s.restore(tables, func(chain, jump) placing { return inPlace }))
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() { // otherwise it was killed, could not be started, or had to wait for too long
		return err, nil
	} else if err == nil {
		err = b.restore(s.is4, s.discard(tables...))
	}
	return nil, err
}
