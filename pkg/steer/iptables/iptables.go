// Package iptables is the back end of package steer's words for nodes whose rules are iptables': the KEP's NOTRACK and ACCEPT rules, and
// the chain NODE-LOCAL-DNS that gives packets back to kube-dns while the agent does not answer. It has the same words, the
// same leases by packets and the same prober as the nftables back end. Beside the rules it has what goes with them: the hairpin by
// which packets meet kube-proxy's nat again, the two variants of iptables and which one a node uses, iptables-legacy's tables as the
// kernel tells them (xtables.go), and the ACCEPT rules under a filter policy of DROP, which the nftables back end needs as well.
//
// It keeps to chains of its own and one jump into each from a base chain, makes whole chains by iptables-restore --noflush,
// and never writes a chain of kube-proxy's or refers to one: what refers to a chain keeps kube-proxy from deleting it
// (ARCHITECTURE.md, D-022). It starts programs, whose waits are bounded and counted.
//
// Failure policy: every call either leaves the chains as described or returns an error that names program and rule; each
// table is one transaction.
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
	owed   atomic.Bool // something changed, and the look at it was put off
	mu     sync.Mutex  // guards the fields below, and keeps one look and its repair together
	looked time.Time   // when programs were last started to look
	took   time.Duration
	// good is the kernel's content, as fingerprint tells it, when a look last found all of the rules that last names right.
	last, good string
	sizes      string    // of iptables-legacy's tables at that look
	compared   time.Time // when the content was last found to be good
	// printed is what the programs said of each of our chains right after they had made it, by family, table and stamp. What
	// stands is compared with that, whole: a rule in another's place has the same number.
	printed map[string][]string

	tried  sync.Mutex // guards the field below
	routes *bool      // whether the kernel has xt_rpfilter, once it was tried
}

// lookAgain is how soon after a look that started programs the next one may. What is damaged meanwhile is found by the look after
// it: Watch asks for one.
const lookAgain = 300 * time.Millisecond

// rests tells whether programs were started to look a moment ago. A look that took long, as behind somebody's lock or on a node
// without CPU time, is not followed by the next at once: looks take a third of the time, or come no oftener than Watch asks.
func (b *Iptables) rests() bool {
	return time.Since(b.looked) < max(lookAgain, min(2*b.took, lookEvery))
}

// Open opens the back end for the netns behind nsFD; -1 means the calling thread's. The descriptor may be closed afterwards.
// It starts nothing: programs that are missing are an error of the first call that needs them. stats may be nil.
func Open(nsFD int, variant Variant, stats *Stats) (*Iptables, error) {
	nsFD, err := hostnet.HoldNetNS(nsFD)
	if err != nil {
		return nil, err
	}
	if stats == nil {
		stats = new(Stats)
	}
	return &Iptables{programs: programs{variant: variant, nsFD: nsFD, stats: stats, most: runMost}}, nil
}

// Close releases the netns; rules stay.
func (b *Iptables) Close() error { return unix.Close(b.nsFD) }

// Variant is whose programs it uses.
func (b *Iptables) Variant() Variant { return b.variant }

func render(rs steer.Ruleset, routes bool) ([]script, error) {
	switch rs := rs.(type) {
	case steer.Host:
		if rs.InterceptNode {
			return nil, errors.New("interceptNode needs the nftables back end: set link.clusterDNSOnLink instead, or take it out")
		}
		return hosts(rs, routes), nil
	case steer.Pod:
		return pods(rs), nil
	}
	return nil, fmt.Errorf("unknown kind of rules %T", rs)
}

// render is what stands for a description here: a match that not every kernel has is left out where this one has it not.
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

// Apply makes the chains equal to rs, and does nothing where they are equal already. Chains are whole or not.
func (b *Iptables) Apply(rs steer.Ruleset) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, err := b.repair(rs)
	return err
}

// Repair is Apply that tells what it found different, as Verify would have. It starts no program while the kernel has what a
// look found right before. A host's rules that this process did not make are made anew at first, since nobody remembers how
// they are printed.
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
			return nil, b.closeLists()
		} else if b.rests() {
			b.owed.Store(true)
			return nil, nil
		}
	} else if _, ok := rs.(steer.Host); ok && b.last == "" {
		b.printed = nil
		if err := b.anew(scripts); err != nil {
			return nil, err
		}
	}
	begun := time.Now()
	b.owed.Store(false)
	b.last, b.good = "", ""
	drift, err = b.repair(rs)
	b.looked, b.took = time.Now(), time.Since(begun)
	if err != nil {
		return drift, err
	}
	b.last = key
	// Read before it is looked at again, so that what changes in between is found the next time.
	b.sizes, _ = b.tableSizes()
	now, err := b.fingerprint(scripts)
	b.compared = time.Now()
	if err != nil || len(drift) == 0 {
		b.good = now
		return drift, nil //nolint:nilerr // then programs look each time
	}
	if again, err := b.drift(scripts); err == nil && len(again) == 0 {
		b.good = now
	}
	return drift, nil
}

// unchanged tells whether the kernel has what a look found to be good. Where it has a big table of iptables-legacy's, which it
// gives as a whole or not at all, the table's size says so for some seconds.
func (b *Iptables) unchanged(scripts []script) bool {
	sizes, err := b.tableSizes()
	if err != nil || b.good == "" || sizes != b.sizes {
		return false
	}
	if b.variant == Legacy && time.Since(b.compared) < lookEvery-time.Second {
		return true
	}
	now, err := b.fingerprint(scripts)
	if err != nil || now != b.good {
		return false
	}
	b.compared = time.Now()
	return true
}

// repair makes what differs, and remembers how that is printed. The caller holds mu.
func (b *Iptables) repair(rs steer.Ruleset) (drift []string, err error) {
	scripts, err := b.render(rs)
	if err != nil {
		return nil, err
	}
	for _, s := range scripts {
		have, err := b.standing(s)
		if err != nil {
			return drift, err
		}
		items, tables := s.drift(have, b.printed)
		if len(items) == 0 {
			continue
		}
		drift = append(drift, items...)
		if err := b.make(s, tables, have); err != nil {
			return drift, err
		}
	}
	return drift, nil
}

// make makes tables of a script anew.
func (b *Iptables) make(s script, tables []string, have map[string]standing) error {
	// In order, each table's rules stand on the ones before: the program ends at the first table that is refused.
	text := s.restore(tables, func(c chain, j jump) placing { return c.place(have[c.table], j) })
	if err := b.restore(s.is4, text); err != nil {
		return err
	}
	if err := b.closeLists(); err != nil {
		return err
	}
	now, err := b.standing(s)
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

// anew makes chains of which it is not known how they are printed, where they stand.
func (b *Iptables) anew(scripts []script) error {
	for _, s := range scripts {
		have, err := b.standing(s)
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
			if err := b.make(s, tables, have); err != nil {
				return err
			}
		}
	}
	return nil
}

// drift is what differs, in words.
func (b *Iptables) drift(scripts []script) (items []string, err error) {
	for _, s := range scripts {
		have, err := b.standing(s)
		if err != nil {
			return nil, err
		}
		more, _ := s.drift(have, b.printed)
		items = append(items, more...)
	}
	return items, nil
}

// Remove takes ours out of the tables of both variants. It succeeds where there is none.
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
				all = append(all, name+trialSuffix) // of an agent that died in its trial
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
				return fmt.Errorf("take our chains out of %s: %w", table, err)
			}
		}
	}
	return nil
}
