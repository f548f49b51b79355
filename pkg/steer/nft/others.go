package nft

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
)

// Chain is a chain of another program's nftables table. neardns uses it only for reports to people.
type Chain struct {
	Family string // ip, ip6, inet
	Table  string
	Name   string
	Input  bool // whether it is a base chain in the input hook
	Drops  bool // whether the policy or a rule of an input chain can drop packets
}

func (c Chain) String() string { return c.Family + " " + c.Table + " " + c.Name }

// Others lists the chains of all tables but neardns's own in a netns; -1 means the calling thread's. Drops is set only for base
// chains in the input hook. It does not consider which packets a rule matches, nor rules of chains that the base chain jumps to.
func Others(nsFD int) ([]Chain, error) {
	nsFD, err := hostnet.HoldNetNS(nsFD)
	if err != nil {
		return nil, err
	}
	defer unix.Close(nsFD) //nolint:errcheck // only read
	conn, err := nftables.New(nftables.WithNetNSFd(hostnet.ToEnter(nsFD)))
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	var out []Chain
	names := map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet"}
	for family, name := range names {
		chains, err := conn.ListChainsOfTableFamily(family)
		if err != nil {
			return nil, fmt.Errorf("list chains: %w", err)
		}
		for _, c := range chains {
			if family == nftables.TableFamilyINet && c.Table.Name == steer.TableName {
				continue
			}
			found := Chain{Family: name, Table: c.Table.Name, Name: c.Name}
			found.Input = c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookInput
			found.Drops = found.Input && (c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop || dropsByRule(conn, c))
			out = append(out, found)
		}
	}
	return out, nil
}

func dropsByRule(conn *nftables.Conn, c *nftables.Chain) bool {
	rules, err := conn.GetRules(c.Table, c)
	if err != nil {
		return false // the chain was deleted meanwhile, or has expressions that the library cannot read
	}
	for _, r := range rules {
		for _, e := range r.Exprs {
			switch e := e.(type) {
			case *expr.Reject:
				return true
			case *expr.Verdict:
				if e.Kind == expr.VerdictDrop {
					return true
				}
			}
		}
	}
	return false
}
