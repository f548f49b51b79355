// Package iptables is the back end of pkg/steer for nodes whose rules are iptables': the KEP's NOTRACK and ACCEPT rules, and
// the chain NODE-LOCAL-DNS that gives packets back to kube-dns while the agent does not answer. It has the same words, the
// same leases by packets and the same prober as the nftables back end.
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
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

// Iptables is the back end for one netns. It is safe for concurrent use.
type Iptables struct {
	programs
	mu sync.Mutex // guards the fields below, and keeps one look and its repair together
	// looked is when the rules were last found or made as last says.
	looked time.Time
	last   string
}

var _ steer.Backend = (*Iptables)(nil)

// lookAgain is how soon after a look that found all right the next one is worth its processes. What is damaged meanwhile is
// found by the look after it: Watch asks for one.
const lookAgain = time.Second

// Open opens the back end for the netns behind nsFD; -1 means the calling thread's. The descriptor may be closed afterwards.
// It starts nothing: programs that are missing are an error of the first call that needs them. stats may be nil.
func Open(nsFD int, flavour Flavour, stats *Stats) (*Iptables, error) {
	nsFD, err := steer.HoldNetNS(nsFD)
	if err != nil {
		return nil, err
	}
	if stats == nil {
		stats = new(Stats)
	}
	return &Iptables{programs: programs{flavour: flavour, nsFD: nsFD, stats: stats}}, nil
}

// Close releases the netns; rules stay.
func (b *Iptables) Close() error { return unix.Close(b.nsFD) }

// Flavour is whose programs it uses.
func (b *Iptables) Flavour() Flavour { return b.flavour }

func render(rs steer.Ruleset) ([]script, error) {
	switch rs := rs.(type) {
	case steer.Host:
		if rs.InterceptNode {
			return nil, errors.New("interceptNode needs the nftables back end: set link.clusterDNSOnLink instead, or take it out")
		}
		return hosts(rs), nil
	case steer.Pod:
		return pods(rs), nil
	}
	return nil, fmt.Errorf("unknown kind of rules %T", rs)
}

// Apply implements steer.Backend.
func (b *Iptables) Apply(rs steer.Ruleset) error {
	_, err := b.repair(rs)
	return err
}

// Repair is Apply that tells what it found different, as Verify would have. Where the same was asked for and found a moment
// ago, it does not look again.
func (b *Iptables) Repair(rs steer.Ruleset) (drift []string, err error) {
	key := fmt.Sprintf("%+v", rs)
	b.mu.Lock()
	fresh := key == b.last && time.Since(b.looked) < lookAgain
	b.mu.Unlock()
	if fresh {
		return nil, nil
	}
	drift, err = b.repair(rs)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last = key; err != nil {
		b.last = ""
	}
	b.looked = time.Now()
	return drift, err
}

// Ensure implements steer.Backend. Chains are whole or not, so it is Apply.
func (b *Iptables) Ensure(rs steer.Ruleset) error { return b.Apply(rs) }

func (b *Iptables) repair(rs steer.Ruleset) (drift []string, err error) {
	scripts, err := render(rs)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range scripts {
		have, err := b.standing(s)
		if err != nil {
			return drift, err
		}
		items, tables := s.drift(have)
		if len(items) == 0 {
			continue
		}
		drift = append(drift, items...)
		// One by one, in order: each table's rules stand on the ones before.
		for _, table := range tables {
			text := s.restore([]string{table}, func(c chain, j jump) bool { return c.lacks(have[c.table], j) })
			if err := b.restore(s.is4, text); err != nil {
				return drift, err
			}
		}
	}
	return drift, nil
}

// standing reads what the script's tables hold of ours and of the base chains. nat is read chain by chain, since kube-proxy
// may have a hundred thousand rules there.
func (b *Iptables) standing(s script) (map[string]standing, error) {
	have := map[string]standing{}
	for _, table := range s.tables() {
		var err error
		if table != "nat" {
			have[table], err = b.read(s.is4, table, "")
		} else {
			have[table], err = b.readChains(s)
		}
		if err != nil {
			return nil, err
		}
	}
	return have, nil
}

func (b *Iptables) readChains(s script) (standing, error) {
	have := standing{}
	var names []string
	for _, c := range s.in("nat") {
		names = append(names, c.name)
		for _, j := range c.from {
			names = append(names, j.base)
		}
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		one, err := b.read(s.is4, "nat", name)
		if err != nil {
			return nil, err
		}
		for k, v := range one {
			have[k] = v
		}
	}
	return have, nil
}

// read lists a table, or one chain of it. A chain that is not there is none.
func (b *Iptables) read(is4 bool, table, name string) (standing, error) {
	args := []string{"-t", table, "-S"}
	if name != "" {
		args = append(args, name)
	}
	if name != "" && b.flavour == NFT {
		// The programs say of a missing chain what they also say of other faults, each version in other words.
		if there, err := b.nftChains(is4, table, name); err != nil || len(there) == 0 {
			return standing{}, err
		}
	}
	text, err := b.run(is4, "", "", args...)
	if err != nil {
		if name != "" && strings.Contains(err.Error(), "No chain/target/match by that name") {
			return standing{}, nil
		}
		return nil, err
	}
	return parse(text), nil
}

// Verify implements steer.Backend.
func (b *Iptables) Verify(rs steer.Ruleset) error {
	scripts, err := render(rs)
	if err != nil {
		return err
	}
	var items []string
	for _, s := range scripts {
		have, err := b.standing(s)
		if err != nil {
			return err
		}
		more, _ := s.drift(have)
		items = append(items, more...)
	}
	if len(items) > 0 {
		return &steer.DriftError{Items: items}
	}
	return nil
}

// Remove implements steer.Backend: it takes ours out of the tables of both flavours.
func (b *Iptables) Remove() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = ""
	var errs []error
	for _, flavour := range []Flavour{NFT, Legacy} {
		errs = append(errs, b.remove(flavour))
	}
	return errors.Join(errs...)
}

func (b *Iptables) remove(flavour Flavour) error {
	p := b.programs
	p.flavour = flavour
	for _, is4 := range []bool{true, false} {
		for _, table := range slices.Backward(tableOrder()) {
			names, err := b.ownIn(flavour, is4, table)
			if err != nil {
				return err
			} else if len(names) == 0 {
				continue
			}
			text, err := p.run(is4, "", "", "-t", table, "-S")
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

// Present reports whether any chain of ours is there.
func (b *Iptables) Present() (bool, error) {
	for _, flavour := range []Flavour{NFT, Legacy} {
		for _, is4 := range []bool{true, false} {
			for _, table := range tableOrder() {
				if names, err := b.ownIn(flavour, is4, table); err != nil || len(names) > 0 {
					return len(names) > 0, err
				}
			}
		}
	}
	return false, nil
}

// ownIn lists the chains of ours in a table of one flavour. iptables-nft's are asked of the kernel, since the program makes
// tables that it is asked for; iptables-legacy's only where the kernel says that such a table was ever used.
func (b *Iptables) ownIn(flavour Flavour, is4 bool, table string) ([]string, error) {
	if flavour == NFT {
		return b.nftChains(is4, table, ownChains()[table]...)
	}
	if used, err := b.legacyUses(is4, table); err != nil || !used {
		return nil, err
	}
	p := b.programs
	if p.flavour = Legacy; p.missing(is4) {
		return nil, nil // without it nothing of ours was made
	}
	var out []string
	text, err := p.run(is4, "", "", "-t", table, "-S")
	have := parse(text)
	for _, name := range ownChains()[table] {
		if _, ok := have[name]; ok {
			out = append(out, name)
		}
	}
	return out, err
}

// nftChains returns those of the chains that iptables-nft's table has.
func (b *Iptables) nftChains(is4 bool, table string, names ...string) ([]string, error) {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(b.nsFD))
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	defer conn.CloseLasting() //nolint:errcheck // only read
	family := nftables.TableFamilyIPv6
	if is4 {
		family = nftables.TableFamilyIPv4
	}
	var out []string
	for _, name := range names {
		_, err := conn.ListChain(&nftables.Table{Name: table, Family: family}, name)
		switch {
		case err == nil:
			out = append(out, name)
		case strings.HasSuffix(err.Error(), unix.ENOENT.Error()): // google/nftables v0.3.0 flattens the kernel's error to text
		case strings.HasSuffix(err.Error(), unix.EOPNOTSUPP.Error()), strings.HasSuffix(err.Error(), unix.EAFNOSUPPORT.Error()):
			return nil, nil // a kernel without nf_tables, or without this family in it
		default:
			return nil, fmt.Errorf("look for chain %s: %w", name, err)
		}
	}
	return out, nil
}

// legacyUses asks the kernel, which lists the legacy tables that were ever used in this netns.
func (b *Iptables) legacyUses(is4 bool, table string) (bool, error) {
	file := "/proc/thread-self/net/ip6_tables_names"
	if is4 {
		file = "/proc/thread-self/net/ip_tables_names"
	}
	var used bool
	err := steer.InNetNS(b.nsFD, func() error {
		data, err := os.ReadFile(file)
		used = err == nil && slices.Contains(strings.Fields(string(data)), table)
		return nil
	})
	return used, err
}

// Supported has the kernel check every kind of rule that we use, in chains that nothing jumps to and that are gone right
// after. The error names the program and the rule, and wraps steer.ErrNotSupported.
func (b *Iptables) Supported() error {
	addr := netip.MustParseAddr
	redirects := []steer.Redirect{
		{ClusterDNS: addr("192.0.2.1"), Steering: addr("192.0.2.2")}, {ClusterDNS: addr("2001:db8::1"), Steering: addr("2001:db8::2")},
	}
	var errs []error
	for _, s := range hosts(steer.Host{Redirects: redirects, Uplinks: []string{"eth0"}}) {
		s = s.apart()
		for _, table := range s.tables() {
			none := func(chain, jump) bool { return false }
			err := b.restore(s.is4, s.restore([]string{table}, none))
			if err != nil {
				errs = append(errs, fmt.Errorf("%w: %w", steer.ErrNotSupported, err))
				continue
			}
			errs = append(errs, b.restore(s.is4, s.discard(table)))
		}
	}
	return errors.Join(errs...)
}

// Exempt and Unexempt do nothing: the agent renders the pods that opted out from their files.
func (b *Iptables) Exempt(...netip.Addr) error { return nil }

// Unexempt does nothing, see Exempt.
func (b *Iptables) Unexempt(...netip.Addr) error { return nil }

// IsUplink is always false: the plugin changes nothing on the host in this back end, so it need not know.
func (b *Iptables) IsUplink(string) (bool, error) { return false, nil }
