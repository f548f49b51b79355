// Package accept owns ACCEPT rules for our addresses in iptables' filter table, in chains of its own. They are needed only
// where that table's INPUT or OUTPUT policy is DROP: an accept in our own nftables table is not final there.
//
// It must never touch another chain but for one jump into its own, never a table of nftables' own making, and never
// firewalld's. It is apart from steer because it starts programs, which the plugin never does.
//
// Failure policy: no iptables on the node, or one that fails, is an error that says what to allow by hand; pods have
// kube-dns meanwhile, since the prober comes the way they do.
package accept

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer/legacy"
)

// The chains. They stand in the filter table of whichever iptables the host uses.
const (
	InputChain  = "NEARDNS-INPUT"
	OutputChain = "NEARDNS-OUTPUT"
)

const table = "filter"

// lockWait bounds, in seconds, how long an iptables waits for another one's lock.
const lockWait = 2

// Policy is a base chain of iptables' filter table that drops what no rule of it accepts.
type Policy struct {
	Is4    bool
	Legacy bool   // of iptables-legacy; else of iptables-nft
	Chain  string // INPUT, OUTPUT
}

func (p Policy) String() string {
	name := "iptables"
	if !p.Is4 {
		name = "ip6tables"
	}
	if p.Legacy {
		name += "-legacy"
	}
	return name + " filter " + p.Chain + " policy DROP"
}

// Policies lists what drops in the calling thread's netns, as the kernel has it: no program is started. iptables-legacy's
// are read only with legacy, and only where such a table is in use at all.
func Policies(legacy bool) ([]Policy, error) {
	out, err := nftPolicies()
	if !legacy {
		return out, err
	}
	old, oldErr := legacyPolicies()
	return append(out, old...), errors.Join(err, oldErr)
}

func legacyPolicies() ([]Policy, error) {
	var out []Policy
	var errs []error
	for _, is4 := range []bool{true, false} {
		t, err := legacy.Read(is4, table)
		errs = append(errs, err)
		for _, chain := range []string{"INPUT", "OUTPUT"} {
			if t.Policy(chain) == "DROP" {
				out = append(out, Policy{Is4: is4, Legacy: true, Chain: chain})
			}
		}
	}
	return out, errors.Join(errs...)
}

func nftPolicies() ([]Policy, error) {
	var out []Policy
	for _, is4 := range []bool{true, false} {
		chains, err := nftChains(is4, "INPUT", "OUTPUT")
		if err != nil {
			return nil, err
		}
		for _, c := range chains {
			if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
				out = append(out, Policy{Is4: is4, Chain: c.Name})
			}
		}
	}
	return out, nil
}

// nftChains returns those of the filter table's chains that are there. Asking iptables-nft instead could make the table.
// Each is asked for by name: kube-proxy in iptables mode has tens of thousands of chains in the same family, and the loop
// looks here at every round.
func nftChains(is4 bool, names ...string) ([]*nftables.Chain, error) {
	conn, err := nftables.New(nftables.AsLasting())
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
	var out []*nftables.Chain
	for _, name := range names {
		c, err := conn.ListChain(&nftables.Table{Name: table, Family: family}, name)
		// google/nftables v0.3.0 flattens the kernel's error to text.
		is := func(errno unix.Errno) bool { return strings.HasSuffix(err.Error(), errno.Error()) }
		switch {
		case err == nil:
			out = append(out, c)
		case is(unix.ENOENT):
		case is(unix.EOPNOTSUPP), is(unix.EAFNOSUPPORT), is(unix.EINVAL): // what nfnetlink says of a part that it has not
			return nil, nil
		default:
			return nil, fmt.Errorf("look for chain %s: %w", name, err)
		}
	}
	return out, nil
}

func name(is4, legacy bool) string {
	n := "ip6tables"
	if is4 {
		n = "iptables"
	}
	if legacy {
		return n + "-legacy"
	}
	return n + "-nft"
}

// open finds the program for one of the two tables that a kernel can hold: by its own name, or as plain iptables.
func open(is4, legacy bool) (*iptables.IPTables, error) {
	proto := iptables.ProtocolIPv6
	if is4 {
		proto = iptables.ProtocolIPv4
	}
	own := name(is4, legacy)
	plain, _, _ := strings.Cut(own, "-")
	for _, path := range []string{own, plain} {
		ipt, err := iptables.New(iptables.IPFamily(proto), iptables.Timeout(lockWait), iptables.Path(path))
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("start %s: %w", path, err)
		}
		return ipt, nil
	}
	return nil, fmt.Errorf("%s is not on this node: %w", own, exec.ErrNotFound)
}

// Missing names the programs of iptables that are not where this process could start them. Without those of its host an
// agent cannot keep rules under a policy that drops.
func Missing() []string {
	var out []string
	for _, legacy := range []bool{false, true} {
		for _, is4 := range []bool{true, false} {
			if _, err := open(is4, legacy); errors.Is(err, exec.ErrNotFound) {
				out = append(out, name(is4, legacy))
			}
		}
	}
	return out
}

// Ensure keeps the rules where a policy drops, and returns in words what it had to add. With legacy it also looks after
// iptables-legacy, of whose changes the kernel tells nobody.
func Ensure(addresses []netip.Addr, legacy bool) (mended string, err error) {
	policies, err := Policies(legacy)
	errs := []error{err}
	var done []string
	for _, p := range policies {
		var want []netip.Addr
		for _, a := range addresses {
			if a.Is4() == p.Is4 {
				want = append(want, a)
			}
		}
		if len(want) == 0 {
			continue
		}
		added, err := keep(p, want)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, and our rules are not in it (%w): accept udp and tcp port 53 for %s there yourself", p, err, joined(want)))
		} else if added {
			done = append(done, "rules for "+p.String())
		}
	}
	return strings.Join(done, ", "), errors.Join(errs...)
}

func joined(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}

// rules are the specifications for one chain, written as iptables -S prints them.
func rules(chain string, addrs []netip.Addr) [][]string {
	match, port := "-d", "--dport"
	if chain == "OUTPUT" {
		match, port = "-s", "--sport"
	}
	var out [][]string
	for _, a := range addrs {
		for _, p := range []string{"udp", "tcp"} {
			out = append(out, []string{match, netip.PrefixFrom(a, a.BitLen()).String(), "-p", p, "-m", p, port, "53", "-j", "ACCEPT"})
		}
	}
	return out
}

func ownChain(chain string) string {
	if chain == "OUTPUT" {
		return OutputChain
	}
	return InputChain
}

// Verify sorts the policies that drop for any of addresses into those under which our rules stand and those under which
// they do not. It changes nothing.
func Verify(addresses []netip.Addr) (kept, lacking []Policy, err error) {
	policies, err := Policies(true)
	errs := []error{err}
	for _, p := range policies {
		want := slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return a.Is4() != p.Is4 })
		if len(want) == 0 {
			continue
		}
		ipt, err := open(p.Is4, p.Legacy)
		if err != nil {
			errs, lacking = append(errs, err), append(lacking, p)
			continue
		}
		have, err := look(ipt, p, want)
		if err != nil {
			errs = append(errs, err)
		}
		if have.chain && have.jump {
			kept = append(kept, p)
		} else {
			lacking = append(lacking, p)
		}
	}
	return kept, lacking, errors.Join(errs...)
}

// standing is what of ours stands under one policy, as it should be.
type standing struct{ chain, jump bool }

func look(ipt *iptables.IPTables, p Policy, addrs []netip.Addr) (have standing, err error) {
	own := ownChain(p.Chain)
	texts := []string{"-N " + own}
	for _, r := range rules(p.Chain, addrs) {
		texts = append(texts, "-A "+own+" "+strings.Join(r, " "))
	}
	exists, err := ipt.ChainExists(table, own)
	if err != nil || !exists {
		return have, err
	}
	lines, err := ipt.List(table, own)
	if err != nil {
		return have, err
	}
	have.chain = slices.Equal(lines, texts)
	have.jump, err = ipt.Exists(table, p.Chain, "-j", own)
	return have, err
}

func keep(p Policy, addrs []netip.Addr) (added bool, err error) {
	ipt, err := open(p.Is4, p.Legacy)
	if err != nil {
		return false, err
	}
	have, err := look(ipt, p, addrs)
	if err != nil {
		return false, err
	}
	own := ownChain(p.Chain)
	if !have.chain {
		if err := ipt.ClearChain(table, own); err != nil { // makes it where it is not
			return false, err
		}
		for _, r := range rules(p.Chain, addrs) {
			if err := ipt.Append(table, own, r...); err != nil {
				return false, err
			}
		}
	}
	// First of all rules, but not moved where another program came before us later: two that both insist never end.
	if !have.jump {
		err = ipt.Insert(table, p.Chain, 1, "-j", own)
	}
	return !have.chain || !have.jump, err
}

// LegacyChain tells whether iptables-legacy has a chain in a table, such as kube-proxy's in nat.
func LegacyChain(table, chain string) bool {
	t, err := legacy.Read(true, table)
	return err == nil && slices.Contains(t.Chains, chain)
}

// present asks the kernel whether a chain of ours is there, so that a node without the programs is not an error.
func present(is4, isLegacy bool) (bool, error) {
	if !isLegacy {
		chains, err := nftChains(is4, InputChain, OutputChain)
		return len(chains) > 0, err
	}
	t, err := legacy.Read(is4, table)
	return slices.Contains(t.Chains, InputChain) || slices.Contains(t.Chains, OutputChain), err
}

// Remove takes the chains out of every iptables there is. It succeeds where there are none.
func Remove() error {
	var errs []error
	for _, is4 := range []bool{true, false} {
		for _, legacy := range []bool{false, true} {
			errs = append(errs, remove(is4, legacy))
		}
	}
	return errors.Join(errs...)
}

func remove(is4, legacy bool) error {
	if there, err := present(is4, legacy); err != nil || !there {
		return err
	}
	ipt, err := open(is4, legacy)
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("chains of neardns stand in its filter table, and %w: remove them there yourself, or run this where it is", err)
	} else if err != nil {
		return err
	}
	for _, chain := range []string{"INPUT", "OUTPUT"} {
		own := ownChain(chain)
		if exists, err := ipt.ChainExists(table, own); err != nil || !exists {
			if err != nil {
				return fmt.Errorf("look for chain %s: %w", own, err)
			}
			continue
		}
		if err := errors.Join(ipt.DeleteIfExists(table, chain, "-j", own), ipt.ClearAndDeleteChain(table, own)); err != nil {
			return fmt.Errorf("remove chain %s from %s: %w", own, name(is4, legacy), err)
		}
	}
	return nil
}
