// Package iptables writes and reads neardns's packet rules in iptables, for nodes that use it: the KEP's NOTRACK and ACCEPT
// rules, and the chain NODE-LOCAL-DNS that sends packets to kube-dns while the agent does not answer. Its descriptions, leases
// by packets and prober are those of the nftables back end. It also has the hairpin, in which packets pass kube-proxy's nat a
// second time, the choice between the two variants of iptables, a reader of iptables-legacy's tables in the kernel
// (xtables.go), and the ACCEPT rules under a filter policy of DROP, which the nftables back end needs as well.
//
// It guarantees that it changes only its own chains and one jump into each from a base chain. It makes whole chains by
// iptables-restore --noflush, and never writes or refers to a chain of kube-proxy's, because kube-proxy cannot delete a chain
// that a rule refers to (ARCHITECTURE.md, D-022). The programs that it starts have a time limit and are counted.
//
// On failure it returns an error that names program and rule, and the chains of the table are as before; each table is one
// transaction.
package iptables

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
)

// Iptables is the back end for one netns. It is safe for concurrent use.
type Iptables struct {
	programs
	postponed atomic.Bool // something changed, and the check was postponed
	mu        sync.Mutex  // guards the fields below; held for a check and its repair
	checked   time.Time   // when programs were last started for a check
	checkTook time.Duration
	// good is the fingerprint of the kernel's rules when a check last found all rules of last correct.
	last, good string
	sizes      string    // of iptables-legacy's tables at that check
	compared   time.Time // when the fingerprint was last found to be good
	// printed is how the programs printed each of our chains right after making it, by family, table and stamp. The chains are
	// later compared with that as a whole: a replaced rule would have the same number.
	printed map[string][]string

	tried  sync.Mutex // guards the field below
	routes *bool      // whether the kernel has xt_rpfilter; nil: not tried yet
}

// recheckAfter is the minimum time between two checks that start programs. Damage in between is found by the next check, which
// Watch requests.
const recheckAfter = 300 * time.Millisecond

// checkedRecently reports whether it is too early to start programs for another check. After a slow check, for example behind
// another program's lock or on a node without CPU time, the next one waits longer: checks take a third of the time, or are as
// rare as Watch requests them.
func (b *Iptables) checkedRecently() bool {
	return time.Since(b.checked) < max(recheckAfter, min(2*b.checkTook, checkEvery))
}

// Open opens the back end for the netns behind nsFD; -1 means the calling thread's. The descriptor may be closed afterwards. It
// starts no program: missing programs are an error of the first call that needs them. stats may be nil.
func Open(nsFD int, variant Variant, stats *Stats) (*Iptables, error) {
	nsFD, err := hostnet.HoldNetNS(nsFD)
	if err != nil {
		return nil, err
	}
	if stats == nil {
		stats = new(Stats)
	}
	return &Iptables{programs: programs{variant: variant, nsFD: nsFD, stats: stats, maxRun: maxRun, sbin: true}}, nil
}

// Close releases the netns; rules stay.
func (b *Iptables) Close() error { return unix.Close(b.nsFD) }

// Variant is the one that it was made with.
func (b *Iptables) Variant() Variant { return b.variant }

func render(rs steer.Ruleset, routes bool) ([]script, error) {
	switch rs := rs.(type) {
	case steer.Host:
		if rs.InterceptNode {
			return nil, errors.New("interceptNode needs the nftables back end: set link.clusterDNSOnLink instead, or remove it")
		}
		return hosts(rs, routes), nil
	case steer.Pod:
		return pods(rs), nil
	}
	return nil, fmt.Errorf("unknown kind of rules %T", rs)
}

// render makes the scripts of a description. It omits a match that this kernel does not have.
func (b *Iptables) render(rs steer.Ruleset) ([]script, error) {
	if _, ok := rs.(steer.Host); !ok {
		return render(rs, false)
	}
	routes, err := b.hasRoutes()
	if err != nil {
		return nil, err
	}
	return render(rs, routes)
}

// Apply makes the chains equal to rs; if they are equal already, it does nothing. A chain is always complete or absent.
func (b *Iptables) Apply(rs steer.Ruleset) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, err := b.repair(rs)
	return err
}

// Repair is Apply, and returns the differences that it found, as Verify would report them. It starts no program while the
// kernel's rules are those that a check found correct. It first rewrites a host's rules if another process made them, since it
// does not know how they are printed.
func (b *Iptables) Repair(rs steer.Ruleset) (drift []string, err error) {
	key := fmt.Sprintf("%+v", rs)
	b.mu.Lock()
	defer b.mu.Unlock()
	scripts, err := b.render(rs)
	if err != nil {
		return nil, err
	}
	if key == b.last {
		if b.unchanged(scripts) {
			return nil, b.restrictLists()
		} else if b.checkedRecently() {
			b.postponed.Store(true)
			return nil, nil
		}
	} else if _, ok := rs.(steer.Host); ok && b.last == "" {
		b.printed = nil
		if err := b.rewriteUnknown(scripts); err != nil {
			return nil, err
		}
	}
	begun := time.Now()
	b.postponed.Store(false)
	b.last, b.good = "", ""
	drift, err = b.repair(rs)
	b.checked, b.checkTook = time.Now(), time.Since(begun)
	if err != nil {
		return drift, err
	}
	b.last = key
	// Read before the second check, so that a change in between is found the next time.
	b.sizes, _ = b.tableSizes()
	now, err := b.fingerprint(scripts)
	b.compared = time.Now()
	if err != nil || len(drift) == 0 {
		b.good = now
		return drift, nil //nolint:nilerr // without a fingerprint, programs are started each time
	}
	if again, err := b.drift(scripts); err == nil && len(again) == 0 {
		b.good = now
	}
	return drift, nil
}

// unchanged reports whether the kernel's rules are those that a check found correct. The kernel returns a table of
// iptables-legacy only as a whole, which may be big, so for some seconds an unchanged size of the tables is enough.
func (b *Iptables) unchanged(scripts []script) bool {
	sizes, err := b.tableSizes()
	if err != nil || b.good == "" || sizes != b.sizes {
		return false
	}
	if b.variant == Legacy && time.Since(b.compared) < checkEvery-time.Second {
		return true
	}
	now, err := b.fingerprint(scripts)
	if err != nil || now != b.good {
		return false
	}
	b.compared = time.Now()
	return true
}

// repair rewrites the tables that differ, and remembers how they are printed. The caller holds mu.
func (b *Iptables) repair(rs steer.Ruleset) (drift []string, err error) {
	scripts, err := b.render(rs)
	if err != nil {
		return nil, err
	}
	for _, s := range scripts {
		have, err := b.readTables(s)
		if err != nil {
			return drift, err
		}
		items, tables := s.drift(have, b.printed)
		if len(items) == 0 {
			continue
		}
		drift = append(drift, items...)
		if err := b.write(s, tables, have); err != nil {
			return drift, err
		}
	}
	return drift, nil
}

// write rewrites tables of a script.
func (b *Iptables) write(s script, tables []string, have map[string]tableRules) error {
	// The order matters, because each table relies on the ones before: the program stops at the first table that is refused.
	text := s.restore(tables, func(c chain, j jump) placing { return c.place(have[c.table], j) })
	if err := b.restore(s.is4, text); err != nil {
		return err
	}
	if err := b.restrictLists(); err != nil {
		return err
	}
	now, err := b.readTables(s)
	if err != nil {
		return err
	}
	if b.printed == nil {
		b.printed = map[string][]string{}
	}
	for _, c := range s.chains {
		if slices.Contains(tables, c.table) && c.differs(now[c.table], nil) == "" {
			b.printed[s.key(c)] = now[c.table][c.name]
		}
	}
	return nil
}

// rewriteUnknown rewrites the tables with chains whose printed form is unknown.
func (b *Iptables) rewriteUnknown(scripts []script) error {
	for _, s := range scripts {
		have, err := b.readTables(s)
		if err != nil {
			return err
		}
		var tables []string
		for _, table := range s.tables() {
			if slices.ContainsFunc(s.in(table), func(c chain) bool { return len(have[table][c.name]) > 0 }) {
				tables = append(tables, table)
			}
		}
		if len(tables) > 0 {
			if err := b.write(s, tables, have); err != nil {
				return err
			}
		}
	}
	return nil
}

// drift describes the differences.
func (b *Iptables) drift(scripts []script) (items []string, err error) {
	for _, s := range scripts {
		have, err := b.readTables(s)
		if err != nil {
			return nil, err
		}
		more, _ := s.drift(have, b.printed)
		items = append(items, more...)
	}
	return items, nil
}

// Remove removes neardns's chains from the tables of both variants. It succeeds if there are none.
func (b *Iptables) Remove() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last, b.printed = "", nil
	var errs []error
	for _, variant := range Variants() {
		errs = append(errs, b.remove(variant))
	}
	return errors.Join(errs...)
}

func (b *Iptables) remove(variant Variant) error {
	p := b.programs
	p.variant = variant
	for _, is4 := range []bool{true, false} {
		for _, table := range slices.Backward(tableOrder()) {
			all := ownChains()[table]
			for _, name := range slices.Clone(all) {
				all = append(all, name+trialSuffix) // left by an agent that died during Supported
			}
			names, err := b.chains(variant, is4, table, all...)
			if err != nil {
				return err
			} else if len(names) == 0 {
				continue
			}
			text, err := p.list(is4, "-t", table, "-S")
			if err != nil {
				return err
			}
			if err := p.restore(is4, remove(table, parse(text), names)); err != nil {
				return fmt.Errorf("remove neardns's chains from table %s: %w", table, err)
			}
		}
	}
	return nil
}
