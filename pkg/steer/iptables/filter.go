package iptables

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

	"github.com/neardns/neardns/pkg/steer"
)

// The chains of ACCEPT rules for our addresses. They are needed only where the filter table's INPUT or OUTPUT policy is DROP: an
// accept in our own nftables table is not final there. So they are kept also where the back end is nftables, in the filter table
// of whichever iptables the host uses, and reach their programs by coreos/go-iptables. No other chain is touched but for one jump
// into each of these, no table of nftables' own making, and none of firewalld's.
//
// Failure policy: no iptables on the node, or one that fails, is an error that tells what to allow by hand. Pods have kube-dns
// meanwhile, since the prober comes the way they do.
const (
	acceptInput  = "NEARDNS-INPUT"
	acceptOutput = "NEARDNS-OUTPUT"
)

const filterTable = "filter"

// filterLockWait bounds, in seconds, how long an iptables waits for another one's lock.
const filterLockWait = 2

// DropPolicy is a base chain of iptables' filter table that drops what no rule of it accepts.
type DropPolicy struct {
	Is4    bool
	Legacy bool   // of iptables-legacy; else of iptables-nft
	Chain  string // INPUT, OUTPUT
}

func (p DropPolicy) String() string {
	name := "iptables"
	if !p.Is4 {
		name = "ip6tables"
	}
	if p.Legacy {
		name += "-legacy"
	}
	return name + " filter " + p.Chain + " policy DROP"
}

// DropPolicies lists what drops in the calling thread's netns, as the kernel has it: no program is started. iptables-legacy's
// are read only with legacy, and only where such a table is in use at all.
func DropPolicies(legacy bool) ([]DropPolicy, error) {
	out, err := nftDropPolicies()
	if !legacy {
		return out, err
	}
	old, oldErr := legacyDropPolicies()
	return append(out, old...), errors.Join(err, oldErr)
}

func legacyDropPolicies() ([]DropPolicy, error) {
	var out []DropPolicy
	var errs []error
	for _, is4 := range []bool{true, false} {
		t, err := ReadLegacy(is4, filterTable)
		errs = append(errs, err)
		for _, chain := range []string{"INPUT", "OUTPUT"} {
			if t.Policy(chain) == "DROP" {
				out = append(out, DropPolicy{Is4: is4, Legacy: true, Chain: chain})
			}
		}
	}
	return out, errors.Join(errs...)
}

func nftDropPolicies() ([]DropPolicy, error) {
	var out []DropPolicy
	for _, is4 := range []bool{true, false} {
		chains, err := nftChains(here, is4, filterTable, "INPUT", "OUTPUT")
		if err != nil {
			return nil, err
		}
		for _, c := range chains {
			if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
				out = append(out, DropPolicy{Is4: is4, Chain: c.Name})
			}
		}
	}
	return out, nil
}

func programName(is4, legacy bool) string {
	n := "ip6tables"
	if is4 {
		n = "iptables"
	}
	if legacy {
		return n + "-legacy"
	}
	return n + "-nft"
}

// openFilter finds the program for one of the two tables that a kernel can hold: by its own name, or as plain iptables.
func openFilter(is4, legacy bool) (*iptables.IPTables, error) {
	proto := iptables.ProtocolIPv6
	if is4 {
		proto = iptables.ProtocolIPv4
	}
	own := programName(is4, legacy)
	plain, _, _ := strings.Cut(own, "-")
	for _, path := range []string{own, plain} {
		ipt, err := iptables.New(iptables.IPFamily(proto), iptables.Timeout(filterLockWait), iptables.Path(path))
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("start %s: %w", path, err)
		}
		return ipt, nil
	}
	return nil, fmt.Errorf("%s is not on this node: %w", own, exec.ErrNotFound)
}

// MissingPrograms names the programs of iptables that are not where this process could start them. Without those of its host an
// agent cannot keep rules under a policy that drops.
func MissingPrograms() []string {
	var out []string
	for _, legacy := range []bool{false, true} {
		for _, is4 := range []bool{true, false} {
			if _, err := openFilter(is4, legacy); errors.Is(err, exec.ErrNotFound) {
				out = append(out, programName(is4, legacy))
			}
		}
	}
	return out
}

// EnsureAccepts keeps the rules where a policy drops, and returns in words what it had to add. With legacy it also looks after
// iptables-legacy, of whose changes the kernel tells nobody.
func EnsureAccepts(addresses []netip.Addr, legacy bool) (mended string, err error) {
	policies, err := DropPolicies(legacy)
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
		added, err := keepAccepts(p, want)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, and our rules are not in it (%w): accept udp and tcp port 53 for %s there yourself", p, err, steer.JoinAddrs(want, ", ")))
		} else if added {
			done = append(done, "rules for "+p.String())
		}
	}
	return strings.Join(done, ", "), errors.Join(errs...)
}

// acceptRules are the specifications for one chain, written as iptables -S prints them.
func acceptRules(chain string, addrs []netip.Addr) [][]string {
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

func acceptChain(chain string) string {
	if chain == "OUTPUT" {
		return acceptOutput
	}
	return acceptInput
}

// VerifyAccepts sorts the policies that drop for any of addresses into those under which our rules stand and those under which
// they do not. It changes nothing.
func VerifyAccepts(addresses []netip.Addr) (kept, lacking []DropPolicy, err error) {
	policies, err := DropPolicies(true)
	errs := []error{err}
	for _, p := range policies {
		want := slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return a.Is4() != p.Is4 })
		if len(want) == 0 {
			continue
		}
		ipt, err := openFilter(p.Is4, p.Legacy)
		if err != nil {
			errs, lacking = append(errs, err), append(lacking, p)
			continue
		}
		have, err := lookAtAccepts(ipt, p, want)
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

// accepted is what of ours stands under one policy, as it should be.
type accepted struct{ chain, jump bool }

func lookAtAccepts(ipt *iptables.IPTables, p DropPolicy, addrs []netip.Addr) (have accepted, err error) {
	own := acceptChain(p.Chain)
	texts := []string{"-N " + own}
	for _, r := range acceptRules(p.Chain, addrs) {
		texts = append(texts, "-A "+own+" "+strings.Join(r, " "))
	}
	exists, err := ipt.ChainExists(filterTable, own)
	if err != nil || !exists {
		return have, err
	}
	lines, err := ipt.List(filterTable, own)
	if err != nil {
		return have, err
	}
	have.chain = slices.Equal(lines, texts)
	have.jump, err = ipt.Exists(filterTable, p.Chain, "-j", own)
	return have, err
}

func keepAccepts(p DropPolicy, addrs []netip.Addr) (added bool, err error) {
	ipt, err := openFilter(p.Is4, p.Legacy)
	if err != nil {
		return false, err
	}
	have, err := lookAtAccepts(ipt, p, addrs)
	if err != nil {
		return false, err
	}
	own := acceptChain(p.Chain)
	if !have.chain {
		if err := ipt.ClearChain(filterTable, own); err != nil { // makes it where it is not
			return false, err
		}
		for _, r := range acceptRules(p.Chain, addrs) {
			if err := ipt.Append(filterTable, own, r...); err != nil {
				return false, err
			}
		}
	}
	// First of all rules, but not moved where another program came before us later: two that both insist never end.
	if !have.jump {
		err = ipt.Insert(filterTable, p.Chain, 1, "-j", own)
	}
	return !have.chain || !have.jump, err
}

// HasLegacyChain tells whether iptables-legacy has a chain in a table, such as kube-proxy's in nat.
func HasLegacyChain(table, chain string) bool {
	t, err := ReadLegacy(true, table)
	return err == nil && slices.Contains(t.Chains, chain)
}

// acceptsPresent asks the kernel whether a chain of ours is there, so that a node without the programs is not an error.
func acceptsPresent(is4, isLegacy bool) (bool, error) {
	if !isLegacy {
		chains, err := nftChains(here, is4, filterTable, acceptInput, acceptOutput)
		return len(chains) > 0, err
	}
	t, err := ReadLegacy(is4, filterTable)
	return slices.Contains(t.Chains, acceptInput) || slices.Contains(t.Chains, acceptOutput), err
}

// RemoveAccepts takes the chains out of every iptables there is. It succeeds where there are none.
func RemoveAccepts() error {
	var errs []error
	for _, is4 := range []bool{true, false} {
		for _, legacy := range []bool{false, true} {
			errs = append(errs, removeAccepts(is4, legacy))
		}
	}
	return errors.Join(errs...)
}

func removeAccepts(is4, legacy bool) error {
	if there, err := acceptsPresent(is4, legacy); err != nil || !there {
		return err
	}
	ipt, err := openFilter(is4, legacy)
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("chains of neardns stand in its filter table, and %w: remove them there yourself, or run this where it is", err)
	} else if err != nil {
		return err
	}
	for _, chain := range []string{"INPUT", "OUTPUT"} {
		own := acceptChain(chain)
		if exists, err := ipt.ChainExists(filterTable, own); err != nil || !exists {
			if err != nil {
				return fmt.Errorf("look for chain %s: %w", own, err)
			}
			continue
		}
		if err := errors.Join(ipt.DeleteIfExists(filterTable, chain, "-j", own), ipt.ClearAndDeleteChain(filterTable, own)); err != nil {
			return fmt.Errorf("remove chain %s from %s: %w", own, programName(is4, legacy), err)
		}
	}
	return nil
}
