// Package iptables writes and reads neardns's packet rules with iptables, for nodes that use it: the NOTRACK and ACCEPT rules
// of KEP-1024, and the chain NODE-LOCAL-DNS, which sends packets to kube-dns while the agent does not answer. It also has: the
// hairpin, in which packets pass kube-proxy's nat rules a second time; the choice between iptables-nft and iptables-legacy; a
// reader of iptables-legacy's tables (xtables.go); and ACCEPT rules for hosts with a filter policy of DROP, which the nftables
// back end uses as well.
//
// It guarantees that, in the tables of iptables, it changes only its own chains and the jumps to them from base chains. It never
// writes to or refers to a chain of kube-proxy, because kube-proxy cannot delete a chain that another rule refers to (D-022).
// Except in filter.go, it writes whole chains with iptables-restore --noflush, in one transaction for each table, and its runs of
// iptables-restore and iptables -S have a time limit and are counted.
//
// On failure it returns an error that names the program and, if the program reports it, the rule. The chains of a table that
// could not be written are as before.
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

// Iptables is the iptables back end in one netns. It is safe for concurrent use.
type Iptables struct {
	programs
	postponed atomic.Bool   // the rules may have changed, but Repair has postponed the check
	mu        sync.Mutex    // guards the fields below; locked during a check and the repair after it
	checked   time.Time     // when Repair's last check that started programs ended
	checkTook time.Duration // duration of that check
	// last is the description that this check wrote or found; "" if it failed. good is the fingerprint of the kernel's rules
	// then; zero if it is not known, or if they still differed.
	last     string
	good     fingerprint
	sizes    string    // sizes of iptables-legacy's tables when that check last computed the fingerprint
	compared time.Time // when the fingerprint was last computed by that check, or found equal to good

	tried  sync.Mutex // guards the field below
	routes *bool      // whether the kernel has the match rpfilter; nil if not tried yet
}

// recheckAfter is the minimum time from a successful check of Repair that starts programs to the next one of the same description.
// Damage in between is found by that next check, for which Watch ticks.
const recheckAfter = 300 * time.Millisecond

// checkedRecently reports whether it is too early for another check that starts programs. After a slow check, for example
// because another program had the xtables lock, the next one has to wait twice the time it took, but at most checkEvery.
func (b *Iptables) checkedRecently() bool {
	return time.Since(b.checked) < max(recheckAfter, min(2*b.checkTook, checkEvery))
}

// Open opens the back end in the netns behind nsFD; -1 means the calling thread's. The descriptor may be closed afterwards. It
// starts no program: if programs are missing, the first call that needs them returns an error. stats may be nil.
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

// Variant returns the variant that the back end was opened with.
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

// render returns the scripts for a description, without the match rpfilter if this kernel lacks it.
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

// Apply makes the chains equal to rs. It does not write a table whose chains have the stamps of rs and as many rules. A chain is
// always complete or absent.
func (b *Iptables) Apply(rs steer.Ruleset) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	scripts, err := b.render(rs)
	if err != nil {
		return err
	}
	b.last, b.good = "", fingerprint{}
	_, _, err = b.repair(scripts, false)
	return err
}

// Repair is Apply, and also returns the differences that it found, as Verify reports them. While the kernel's rules are the
// ones that the last check found correct, it starts no program. If a check ended too short a time ago, Repair postpones the next
// one and returns nil; Watch then ticks again. It writes all tables if it does not know that the rules of neardns's chains are as
// it wrote them: in its first call, after one that failed, and after another program changed such a rule.
func (b *Iptables) Repair(rs steer.Ruleset) (drift []string, err error) {
	key := fmt.Sprintf("%+v", rs)
	b.mu.Lock()
	defer b.mu.Unlock()
	scripts, err := b.render(rs)
	if err != nil {
		return nil, err
	}
	same, good := key == b.last, b.good
	if same {
		if b.unchanged(scripts) {
			return nil, b.restrictLists()
		} else if b.checkedRecently() {
			b.postponed.Store(true)
			return nil, nil
		}
	}
	begun := time.Now()
	b.postponed.Store(false)
	b.last, b.good = "", fingerprint{}
	// Take the fingerprint before the check, so that a change after it is found the next time.
	now := b.takeFingerprint(scripts)
	drift, wrote, err := b.repair(scripts, good.own == "" || now.own != good.own)
	b.checked, b.checkTook = time.Now(), time.Since(begun)
	if err != nil {
		return drift, err
	}
	if len(drift) == 0 && same && good.own != "" && now.own != "" && now.own != good.own {
		drift = []string{"a rule of neardns's chains was replaced"}
	}
	b.last = key
	if wrote {
		now = b.takeFingerprint(scripts)
		if again, err := b.drift(scripts); err != nil || len(again) > 0 {
			return drift, nil //nolint:nilerr // without a good fingerprint, programs are started each time
		}
	}
	b.good = now
	return drift, nil
}

// takeFingerprint returns the fingerprint of the kernel's rules, zero if it is not known, and stores the time and the tables' sizes.
func (b *Iptables) takeFingerprint(scripts []script) fingerprint {
	b.sizes, _ = b.tableSizes()
	now, _ := b.fingerprint(scripts)
	b.compared = time.Now()
	return now
}

// unchanged reports whether the kernel's rules are the ones that the last check found correct. The kernel returns a table of
// iptables-legacy only as a whole, which can be many megabytes. So until 9 s after it last compared those tables' rules, it
// compares only their sizes.
func (b *Iptables) unchanged(scripts []script) bool {
	sizes, err := b.tableSizes()
	if err != nil || b.good.own == "" || sizes != b.sizes {
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

// repair writes the tables that differ, or all. The caller has locked mu.
func (b *Iptables) repair(scripts []script, all bool) (drift []string, wrote bool, err error) {
	for _, s := range scripts {
		have, err := b.readTables(s)
		if err != nil {
			return drift, wrote, err
		}
		items, tables := s.drift(have)
		if all {
			tables = s.tables()
		}
		if len(tables) == 0 {
			continue
		}
		drift, wrote = append(drift, items...), true
		// The program stops at the first table that is refused, so a table is never written without those that it relies on.
		text := s.restore(tables, func(c chain, j jump) placing { return c.place(have[c.table], j) })
		if err := b.restore(s.is4, text); err != nil {
			return drift, wrote, err
		}
		if err := b.restrictLists(); err != nil {
			return drift, wrote, err
		}
	}
	return drift, wrote, nil
}

// drift describes how the kernel's chains differ from the scripts.
func (b *Iptables) drift(scripts []script) (items []string, err error) {
	for _, s := range scripts {
		have, err := b.readTables(s)
		if err != nil {
			return nil, err
		}
		more, _ := s.drift(have)
		items = append(items, more...)
	}
	return items, nil
}

// Remove removes this back end's chains from the tables of both variants. If there are none, it succeeds.
func (b *Iptables) Remove() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last, b.good = "", fingerprint{}
	return errors.Join(b.remove(NFT), b.remove(Legacy))
}

func (b *Iptables) remove(variant Variant) error {
	p := b.programs
	p.variant = variant
	for _, is4 := range []bool{true, false} {
		for _, table := range slices.Backward(tableOrder()) {
			all := ownChains()[table]
			for _, name := range slices.Clone(all) {
				all = append(all, name+trialSuffix) // an agent that was killed during try may have left such chains
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
