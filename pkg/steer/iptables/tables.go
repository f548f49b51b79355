package iptables

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer/nfnetlink"
)

// readTables reads the script's tables, as the programs print them. In table nat it lists only the script's chains and the base
// chains that jump to them, because kube-proxy may have a hundred thousand rules there.
func (b *Iptables) readTables(s script) (map[string]tableRules, error) {
	have := map[string]tableRules{}
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

func (b *Iptables) readChains(s script) (tableRules, error) {
	var names []string
	for _, c := range s.in("nat") {
		names = append(names, c.name)
		for _, j := range c.from {
			names = append(names, j.base)
		}
	}
	slices.Sort(names)
	// Look in the kernel which chains exist, because each version of the programs reports a missing chain in other words.
	there, err := b.chains(b.variant, s.is4, "nat", slices.Compact(names)...)
	if err != nil {
		return nil, err
	}
	have := tableRules{}
	for _, name := range there {
		one, err := b.read(s.is4, "nat", name)
		if err != nil {
			return nil, err
		}
		maps.Copy(have, one)
	}
	return have, nil
}

func (b *Iptables) read(is4 bool, table string, name ...string) (tableRules, error) {
	text, err := b.list(is4, append([]string{"-t", table, "-S"}, name...)...)
	if err != nil {
		return nil, err
	}
	return parse(text), nil
}

func (b *Iptables) ownIn(v Variant, is4 bool, table string) ([]string, error) {
	return b.chains(v, is4, table, ownChains()[table]...)
}

func (b *Iptables) chains(v Variant, is4 bool, table string, names ...string) ([]string, error) {
	return chainsOf(hostnet.ToEnter(b.nsFD), v, is4, table, names...)
}

// chainsOf returns those of the named chains that exist in a table of one variant, in the netns ns. It reads from the kernel,
// because a program that lists a table creates it.
func chainsOf(ns int, v Variant, is4 bool, table string, names ...string) (out []string, err error) {
	if v == NFT {
		found, err := nftChains(ns, is4, table, names...)
		for _, c := range found {
			out = append(out, c.name)
		}
		return out, err
	}
	read := func() error {
		_, t, err := readLegacy(is4, table, false)
		out = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(t.chains, name) })
		return err
	}
	if ns == here {
		return out, read()
	}
	err = hostnet.InNetNS(ns, read)
	return out, err
}

// here, as a netns descriptor, means the calling thread's netns.
const here = 0

// nftChain is a chain in a table of iptables-nft.
type nftChain struct {
	name  string
	drops bool // a base chain whose policy is DROP
}

// nftChains returns those of the named chains that exist in a table of iptables-nft, in the netns ns. It reads from the kernel,
// because a program may create the table. It requests each chain by name: kube-proxy may have tens of thousands of chains in
// the same family, and the agent checks often.
func nftChains(ns int, is4 bool, table string, names ...string) (out []nftChain, err error) {
	conn, err := hostnet.Dial(unix.NETLINK_NETFILTER, ns)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil // the kernel has no nfnetlink
	} else if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // only read
	for _, name := range names {
		found, err := nfnetlink.Request(conn, nfFamily(is4), "look for chain "+name, unix.NFT_MSG_GETCHAIN, 0,
			nfnetlink.Named(unix.NFTA_CHAIN_TABLE, table), nfnetlink.Named(unix.NFTA_CHAIN_NAME, name))
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EINVAL) {
			return nil, nil // the kernel has no nf_tables, or not for this family
		} else if err != nil {
			return nil, err
		}
		for _, m := range found {
			c := nftChain{name: name}
			if err := nfnetlink.Each(m, func(dec *netlink.AttributeDecoder) {
				c.drops = c.drops || dec.Type() == unix.NFTA_CHAIN_POLICY && dec.Uint32() == 0 // NF_DROP
			}); err != nil {
				return nil, fmt.Errorf("look for chain %s: %w", name, err)
			}
			out = append(out, c)
		}
	}
	return out, nil
}
