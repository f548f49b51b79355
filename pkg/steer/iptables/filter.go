package iptables

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"github.com/neardns/neardns/pkg/steer"
)

// Chains with ACCEPT rules for queries to, and answers from, steering and local addresses. A node needs them if the policy of
// its filter table's INPUT or OUTPUT is DROP: that table still drops a packet that the neardns nftables table has accepted. So
// the agent uses them with the nftables back end too, through coreos/go-iptables, in each filter table with such a policy. In
// other chains it adds only one jump to each of these; it does not change native nftables tables or firewalld's.
//
// If the node has no iptables, or it fails, the error names what the operator has to allow. Pods use kube-dns until then,
// because the prober's queries pass the same filter, so no lease is granted.
func acceptChain(base string) string { return "NEARDNS-" + base }

const filterTable = "filter"

// filterLockWait is how many seconds an iptables program waits for the xtables lock.
const filterLockWait = 2

// DropPolicy is a base chain of a filter table, INPUT or OUTPUT, with policy DROP.
type DropPolicy struct {
	Is4    bool
	Legacy bool   // whether the table is that of iptables-legacy; otherwise of iptables-nft
	Chain  string // INPUT, OUTPUT
}

func (p DropPolicy) String() string {
	name := familyProgram(p.Is4)
	if p.Legacy {
		name += "-legacy"
	}
	return name + " filter " + p.Chain + " policy DROP"
}

func filterPrograms(legacy bool) programs {
	if legacy {
		return programs{variant: Legacy}
	}
	return programs{variant: NFT}
}

// DropPolicies lists the chains INPUT and OUTPUT with policy DROP in the calling thread's netns. It reads them from the kernel, without a
// program. It reads iptables-legacy's table only if legacy is true, and only if that table is in use.
func DropPolicies(legacy bool) ([]DropPolicy, error) {
	var out []DropPolicy
	var errs []error
	for _, is4 := range []bool{true, false} {
		chains, err := nftChains(here, is4, filterTable, "INPUT", "OUTPUT")
		errs = append(errs, err)
		for _, c := range chains {
			if c.drops {
				out = append(out, DropPolicy{Is4: is4, Chain: c.name})
			}
		}
		if !legacy {
			continue
		}
		_, t, err := readLegacy(is4, filterTable, false)
		errs = append(errs, err)
		for _, chain := range []string{"INPUT", "OUTPUT"} {
			if t.policy(chain) == "DROP" {
				out = append(out, DropPolicy{Is4: is4, Legacy: true, Chain: chain})
			}
		}
	}
	return out, errors.Join(errs...)
}

// openFilter finds the iptables program of a variant. If the node lacks it, the error wraps exec.ErrNotFound.
func openFilter(is4, legacy bool) (*iptables.IPTables, error) {
	path, err := filterPrograms(legacy).path(is4, "")
	if err != nil {
		return nil, err
	}
	proto := iptables.ProtocolIPv6
	if is4 {
		proto = iptables.ProtocolIPv4
	}
	ipt, err := iptables.New(iptables.IPFamily(proto), iptables.Timeout(filterLockWait), iptables.Path(path))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return ipt, nil
}

// MissingPrograms lists the iptables programs that this process cannot find. Without the programs of its host, an agent cannot
// add ACCEPT rules where a policy is DROP.
func MissingPrograms() []string {
	var out []string
	for _, legacy := range []bool{false, true} {
		for _, is4 := range []bool{true, false} {
			if p := filterPrograms(legacy); p.missing(is4) {
				out = append(out, p.name(is4))
			}
		}
	}
	return out
}

// EnsureAccepts adds the missing ACCEPT rules where a policy is DROP, and describes what it added. With legacy it also checks
// iptables-legacy's tables; the kernel reports no events for those, so the caller has to check them periodically.
func EnsureAccepts(addresses []netip.Addr, legacy bool) (added string, err error) {
	policies, err := DropPolicies(legacy)
	errs := []error{err}
	var done []string
	for _, p := range policies {
		want := steer.OfFamily(addresses, p.Is4)
		if len(want) == 0 {
			continue
		}
		added, err := addAccepts(p, want)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: could not add the ACCEPT rules (%w): accept udp and tcp port 53 for %s there yourself",
				p, err, steer.JoinAddrs(want, ", ")))
		} else if added {
			done = append(done, "rules for "+p.String())
		}
	}
	return strings.Join(done, ", "), errors.Join(errs...)
}

// acceptRules returns the ACCEPT rules that belong to a base chain, written as iptables -S prints them.
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

// VerifyAccepts lists the DROP policies that affect these addresses: kept are those under which neardns has its ACCEPT rules,
// lacking the others. It changes nothing.
func VerifyAccepts(addresses []netip.Addr) (kept, lacking []DropPolicy, err error) {
	policies, err := DropPolicies(true)
	errs := []error{err}
	for _, p := range policies {
		want := steer.OfFamily(addresses, p.Is4)
		if len(want) == 0 {
			continue
		}
		ipt, err := openFilter(p.Is4, p.Legacy)
		if err != nil {
			errs, lacking = append(errs, err), append(lacking, p)
			continue
		}
		have, err := readAccepts(ipt, p, want)
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

// accepted reports whether the chain of ACCEPT rules is complete, and whether the base chain jumps to it.
type accepted struct{ chain, jump bool }

func readAccepts(ipt *iptables.IPTables, p DropPolicy, addrs []netip.Addr) (have accepted, err error) {
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

func addAccepts(p DropPolicy, addrs []netip.Addr) (added bool, err error) {
	ipt, err := openFilter(p.Is4, p.Legacy)
	if err != nil {
		return false, err
	}
	have, err := readAccepts(ipt, p, addrs)
	if err != nil {
		return false, err
	}
	own := acceptChain(p.Chain)
	if !have.chain {
		if err := ipt.ClearChain(filterTable, own); err != nil { // creates the chain if it is missing
			return false, err
		}
		for _, r := range acceptRules(p.Chain, addrs) {
			if err := ipt.Append(filterTable, own, r...); err != nil {
				return false, err
			}
		}
	}
	// Insert the jump before all other rules. If another program later puts a rule before it, leave it there: two programs that
	// both insist on being first would never stop.
	if !have.jump {
		err = ipt.Insert(filterTable, p.Chain, 1, "-j", own)
	}
	return !have.chain || !have.jump, err
}

// RemoveAccepts removes the chains of ACCEPT rules from the filter tables of both variants. If there are none, it succeeds.
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
	p := filterPrograms(legacy)
	// Look in the kernel first, without a program, so that a node without iptables is no error.
	found, err := chainsOf(here, p.variant, is4, filterTable, acceptChain("INPUT"), acceptChain("OUTPUT"))
	if err != nil || len(found) == 0 {
		return err
	}
	ipt, err := openFilter(is4, legacy)
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("the filter table has chains of neardns, and %w: remove them yourself, or run this where iptables is installed", err)
	} else if err != nil {
		return err
	}
	for _, own := range found {
		chain := strings.TrimPrefix(own, acceptChain(""))
		if err := errors.Join(ipt.DeleteIfExists(filterTable, chain, "-j", own), ipt.ClearAndDeleteChain(filterTable, own)); err != nil {
			return fmt.Errorf("remove chain %s from %s: %w", own, p.name(is4), err)
		}
	}
	return nil
}
