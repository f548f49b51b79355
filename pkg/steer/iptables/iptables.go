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
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/legacy"
)

// Iptables is the back end for one netns. It is safe for concurrent use.
type Iptables struct {
	programs
	mu sync.Mutex // guards the fields below, and keeps one look and its repair together
	// looked is when the rules were last found or made as last says.
	looked time.Time
	took   time.Duration // by that look
	last   string
}

var _ steer.Table = (*Iptables)(nil)

// lookAgain is how soon after a look that found all right the next one is worth its processes. What is damaged meanwhile is
// found by the look after it: Watch asks for one.
const lookAgain = time.Second

// isFresh tells whether these rules were looked at a moment ago. A look that took long, as behind somebody's lock or on a node
// without CPU time, is not followed by the next at once: looks take a tenth of the time, or come no oftener than Watch asks.
func (b *Iptables) isFresh(key string) bool {
	return key == b.last && time.Since(b.looked) < max(lookAgain, min(10*b.took, lookEvery))
}

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
	return &Iptables{programs: programs{flavour: flavour, nsFD: nsFD, stats: stats, most: runMost}}, nil
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
	fresh := b.isFresh(key)
	b.mu.Unlock()
	if fresh {
		return nil, nil
	}
	begun := time.Now()
	drift, err = b.repair(rs)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last = key; err != nil {
		b.last = ""
	}
	b.looked, b.took = time.Now(), time.Since(begun)
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
		// In order, each table's rules stand on the ones before: the program ends at the first table that is refused.
		text := s.restore(tables, func(c chain, j jump) placing { return c.place(have[c.table], j) })
		if err := b.restore(s.is4, text); err != nil {
			return drift, err
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
			have[table], err = b.read(s.is4, table)
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
	var names []string
	for _, c := range s.in("nat") {
		names = append(names, c.name)
		for _, j := range c.from {
			names = append(names, j.base)
		}
	}
	slices.Sort(names)
	// Asked of the kernel: the programs say of a missing chain what they also say of other faults, and each version in other
	// words.
	there, err := b.chains(b.flavour, s.is4, "nat", slices.Compact(names)...)
	if err != nil {
		return nil, err
	}
	have := standing{}
	for _, name := range there {
		one, err := b.read(s.is4, "nat", name)
		if err != nil {
			return nil, err
		}
		maps.Copy(have, one)
	}
	return have, nil
}

// read lists a table, or some chains of it by name.
func (b *Iptables) read(is4 bool, table string, name ...string) (standing, error) {
	text, err := b.list(is4, append([]string{"-t", table, "-S"}, name...)...)
	if err != nil {
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
	for _, flavour := range Flavours() {
		errs = append(errs, b.remove(flavour))
	}
	return errors.Join(errs...)
}

func (b *Iptables) remove(flavour Flavour) error {
	p := b.programs
	p.flavour = flavour
	for _, is4 := range []bool{true, false} {
		for _, table := range slices.Backward(tableOrder()) {
			all := ownChains()[table]
			for _, name := range slices.Clone(all) {
				all = append(all, name+trialSuffix) // of an agent that died in its trial
			}
			names, err := b.chains(flavour, is4, table, all...)
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

// ownIn lists the chains of ours in a table of one flavour.
func (b *Iptables) ownIn(f Flavour, is4 bool, table string) ([]string, error) {
	return b.chains(f, is4, table, ownChains()[table]...)
}

// chains returns those of the chains that a table of one flavour has, as the kernel has it: the programs make tables that they
// are asked for.
func (b *Iptables) chains(f Flavour, is4 bool, table string, names ...string) ([]string, error) {
	if f == NFT {
		return b.nftChains(is4, table, names...)
	}
	return b.legacyChains(is4, table, names...)
}

func (b *Iptables) legacyChains(is4 bool, table string, names ...string) ([]string, error) {
	var out []string
	err := steer.InNetNS(b.nsFD, func() error {
		t, err := legacy.Read(is4, table)
		for _, name := range names {
			if slices.Contains(t.Chains, name) {
				out = append(out, name)
			}
		}
		return err
	})
	return out, err
}

func (b *Iptables) nftChains(is4 bool, table string, names ...string) ([]string, error) {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(steer.ToEnter(b.nsFD)))
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil // a kernel without nfnetlink
	} else if err != nil {
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
		case strings.HasSuffix(err.Error(), unix.EOPNOTSUPP.Error()), strings.HasSuffix(err.Error(), unix.EAFNOSUPPORT.Error()),
			strings.HasSuffix(err.Error(), unix.EINVAL.Error()): // what nfnetlink says of a part that it has not
			return nil, nil // a kernel without nf_tables, or without this family in it
		default:
			return nil, fmt.Errorf("look for chain %s: %w", name, err)
		}
	}
	return out, nil
}

// Supported has the kernel check every kind of rule that we use, in chains that nothing jumps to and that are gone right
// after, for the families of these addresses or, where none is named, for both. The error names the program and the rule, and
// wraps steer.ErrNotSupported; where other programs were in the way and nothing is known, it is one of those that Busy knows.
func (b *Iptables) Supported(addrs ...netip.Addr) error {
	addr := netip.MustParseAddr
	redirects := []steer.Redirect{
		{ClusterDNS: addr("192.0.2.1"), Steering: addr("192.0.2.2")}, {ClusterDNS: addr("2001:db8::1"), Steering: addr("2001:db8::2")},
	}
	locals := []steer.Local{{Address: addr("192.0.2.3"), ClusterDNS: addr("192.0.2.1")}, {Address: addr("2001:db8::3"), ClusterDNS: addr("2001:db8::1")}}
	ceded := []netip.Addr{locals[0].Address, locals[1].Address}
	var errs []error
	for _, s := range hosts(steer.Host{Redirects: redirects, Locals: locals, OwnLocals: true, Ceded: ceded, Uplinks: []string{"eth0"}}) {
		if len(addrs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Is4() == s.is4 }) {
			continue
		}
		s = s.apart()
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
		// One by one, to name all that is refused. Chains that stand from just now are emptied first.
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

// Exempt and Unexempt do nothing: the agent renders the pods that opted out from their files.
func (b *Iptables) Exempt(...netip.Addr) error { return nil }

// Lacks says in words which chains and jumps of a host's rules are gone: what another version put into a chain is not.
func (b *Iptables) Lacks(rs steer.Host) ([]string, error) {
	scripts, err := render(rs)
	if err != nil {
		return nil, err
	}
	var gone []string
	for _, s := range scripts {
		have, err := b.standing(s)
		if err != nil {
			return nil, err
		}
		gone = append(gone, s.gone(have)...)
	}
	return gone, nil
}

// Unexempt does nothing, see Exempt.
func (b *Iptables) Unexempt(...netip.Addr) error { return nil }

// IsUplink reports whether the host's rules drop what comes by this link for our addresses.
func (b *Iptables) IsUplink(name string) (bool, error) {
	for _, is4 := range []bool{true, false} {
		if there, err := b.ownIn(b.flavour, is4, "raw"); err != nil {
			return false, err
		} else if len(there) == 0 {
			continue
		}
		have, err := b.read(is4, "raw")
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(have[udpChain], func(r string) bool { return strings.HasPrefix(r, "-i "+name+" ") && strings.HasSuffix(r, " -j DROP") }) {
			return true, nil
		}
	}
	return false, nil
}

// Whole is Verify's answer in one word.
func (b *Iptables) Whole(rs steer.Ruleset) (bool, error) {
	err := b.Verify(rs)
	var drift *steer.DriftError
	if errors.As(err, &drift) {
		return false, nil
	}
	return err == nil, err
}
