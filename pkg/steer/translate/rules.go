package translate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// kubeServices is the chain in which kube-proxy's iptables mode has a rule for each Service: in nat, and in filter for those
// that have no endpoint at the moment.
const kubeServices = "KUBE-SERVICES"

// isOurs tells the chains of our own back end for iptables, whose rules name the address too.
func isOurs(chain string) bool {
	return strings.HasPrefix(chain, "NEARDNS-") || chain == "NODE-LOCAL-DNS"
}

// inLegacy looks into the tables of iptables-legacy.
func inLegacy(a netip.Addr) (place, error) {
	kubeProxy := false
	for _, table := range []string{"nat", "filter"} {
		t, err := iptables.ReadLegacy(a.Is4(), table)
		if err != nil {
			return place{}, fmt.Errorf("iptables-legacy cannot be looked at: %w", err)
		}
		kubeProxy = kubeProxy || slices.Contains(t.Chains, kubeServices)
		for _, r := range t.Rules {
			// A rule in nat that only lets the address pass is no translation.
			turns := table == "nat" && r.Target != "ACCEPT" && r.Target != "RETURN" && r.Target != ""
			if !isOurs(r.Chain) && r.Dst == netip.PrefixFrom(a, a.BitLen()) && !r.Not && (r.Chain == kubeServices || turns) {
				return place{by: "iptables-legacy, table " + table + ", chain " + r.Chain}, nil
			}
		}
	}
	if kubeProxy {
		return place{near: "kube-proxy's rules in iptables-legacy name other addresses"}, nil
	}
	return place{}, nil
}

// nft is a socket for looking at nftables. Rules are read as they come from the kernel: a node may hold a hundred thousand,
// with expressions that no library knows, and all that matters of one is whether it names an address.
type nft struct{ conn *netlink.Conn }

// inNFT looks into every table that can change where a packet goes, but ours.
func inNFT(a netip.Addr) (place, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return place{}, fmt.Errorf("nftables cannot be looked at: %w", err)
	}
	defer conn.Close() //nolint:errcheck // only read
	n := nft{conn}
	own := byte(unix.NFPROTO_IPV6)
	if a.Is4() {
		own = unix.NFPROTO_IPV4
	}
	var near string
	for _, family := range []byte{own, unix.NFPROTO_INET} {
		p, err := n.family(family, a)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT):
			continue // a kernel without nf_tables, or without this family
		case err != nil:
			return place{}, fmt.Errorf("nftables cannot be looked at: %w", err)
		case p.by != "":
			return p, nil
		case p.near != "":
			near = p.near
		}
	}
	return place{near: near}, nil
}

func (n nft) family(family byte, a netip.Addr) (place, error) {
	// kube-proxy's iptables mode first, by its chain: its tables may be so big that nobody wants to read them whole.
	kubeProxy := false
	for _, table := range []string{"nat", "filter"} {
		there, named, err := n.kubeServices(family, table, a)
		if err != nil {
			return place{}, err
		}
		if named {
			return place{by: "iptables-nft, table " + table + ", chain " + kubeServices}, nil
		}
		kubeProxy = kubeProxy || there
	}
	if kubeProxy {
		return place{near: "kube-proxy's rules in iptables-nft name other addresses"}, nil
	}
	tables, err := n.translating(family)
	if err != nil {
		return place{}, err
	}
	for _, table := range tables {
		for _, look := range []func(byte, string, netip.Addr) (bool, error){n.mapped, n.ruled} {
			if found, err := look(family, table, a); err != nil {
				return place{}, err
			} else if found {
				return place{by: "nftables, table " + table}, nil
			}
		}
	}
	if slices.Contains(tables, "kube-proxy") {
		return place{near: "kube-proxy's rules in nftables name other addresses"}, nil
	}
	return place{}, nil
}

// dump asks for all objects of a kind that the attributes choose, and calls f with each one's.
func (n nft) dump(kind uint16, family byte, attributes []netlink.Attribute, f func(*netlink.AttributeDecoder) error) error {
	attrs, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		return err
	}
	request := netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...),
	}
	var replies []netlink.Message
	// A commit in the middle of a dump ends it; the next one may be luckier.
	for range 10 {
		if replies, err = n.conn.Execute(request); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return err
	}
	for _, m := range replies {
		const head = 4 // struct nfgenmsg
		if len(m.Data) < head {
			return errors.New("short message of nftables")
		}
		dec, err := netlink.NewAttributeDecoder(m.Data[head:])
		if err != nil {
			return err
		}
		dec.ByteOrder = binary.BigEndian
		if err := f(dec); err != nil {
			return err
		}
	}
	return nil
}

func name(kind uint16, value string) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: append([]byte(value), 0)}
}

// kubeServices tells whether a table has the chain, and whether a rule in it names the address.
func (n nft) kubeServices(family byte, table string, a netip.Addr) (there, named bool, err error) {
	err = n.dump(unix.NFT_MSG_GETRULE, family, []netlink.Attribute{name(unix.NFTA_RULE_TABLE, table), name(unix.NFTA_RULE_CHAIN, kubeServices)}, func(dec *netlink.AttributeDecoder) error {
		var chain string
		var expressions []byte
		for dec.Next() {
			switch dec.Type() {
			case unix.NFTA_RULE_CHAIN:
				chain = dec.String()
			case unix.NFTA_RULE_EXPRESSIONS:
				expressions = dec.Bytes()
			}
		}
		if chain == kubeServices { // older kernels give those of other chains, too
			r := readRule(expressions, a)
			there, named = true, named || r.names
		}
		return dec.Err()
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return there, named, err
}

// translating lists the tables that have a chain of type nat at prerouting, but ours.
func (n nft) translating(family byte) ([]string, error) {
	var out []string
	err := n.dump(unix.NFT_MSG_GETCHAIN, family, nil, func(dec *netlink.AttributeDecoder) error {
		var table, kind string
		hook := -1
		for dec.Next() {
			switch dec.Type() {
			case unix.NFTA_CHAIN_TABLE:
				table = dec.String()
			case unix.NFTA_CHAIN_TYPE:
				kind = dec.String()
			case unix.NFTA_CHAIN_HOOK:
				dec.Nested(func(h *netlink.AttributeDecoder) error {
					for h.Next() {
						if h.Type() == unix.NFTA_HOOK_HOOKNUM {
							hook = int(h.Uint32())
						}
					}
					return nil
				})
			}
		}
		if kind == "nat" && hook == unix.NF_INET_PRE_ROUTING && table != steer.TableName && !slices.Contains(out, table) {
			out = append(out, table)
		}
		return dec.Err()
	})
	return out, err
}

// mapped tells whether a map of the table has a key that begins with the address, as kube-proxy's nftables mode has them.
func (n nft) mapped(family byte, table string, a netip.Addr) (found bool, err error) {
	var maps []string
	err = n.dump(unix.NFT_MSG_GETSET, family, []netlink.Attribute{name(unix.NFTA_SET_TABLE, table)}, func(dec *netlink.AttributeDecoder) error {
		var set string
		var flags uint32
		for dec.Next() {
			switch dec.Type() {
			case unix.NFTA_SET_NAME:
				set = dec.String()
			case unix.NFTA_SET_FLAGS:
				flags = dec.Uint32()
			}
		}
		if flags&unix.NFT_SET_MAP != 0 {
			maps = append(maps, set)
		}
		return dec.Err()
	})
	if errors.Is(err, unix.ENOENT) {
		return false, nil // the table is gone meanwhile
	}
	for i := 0; err == nil && !found && i < len(maps); i++ {
		set := []netlink.Attribute{name(unix.NFTA_SET_ELEM_LIST_TABLE, table), name(unix.NFTA_SET_ELEM_LIST_SET, maps[i])}
		err = n.dump(unix.NFT_MSG_GETSETELEM, family, set, func(dec *netlink.AttributeDecoder) error {
			for dec.Next() {
				if dec.Type() == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
					found = found || bytesIn(dec.Bytes(), bytes.HasPrefix, a.AsSlice(), unix.NFTA_LIST_ELEM, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)
				}
			}
			return dec.Err()
		})
		if errors.Is(err, unix.ENOENT) {
			err = nil
		}
	}
	return found, err
}

// ruled tells whether a rule of the table names the address and sends the packet on: by nat itself, or by another chain.
func (n nft) ruled(family byte, table string, a netip.Addr) (found bool, err error) {
	err = n.dump(unix.NFT_MSG_GETRULE, family, []netlink.Attribute{name(unix.NFTA_RULE_TABLE, table)}, func(dec *netlink.AttributeDecoder) error {
		var of, chain string
		var expressions []byte
		for dec.Next() {
			switch dec.Type() {
			case unix.NFTA_RULE_TABLE:
				of = dec.String()
			case unix.NFTA_RULE_CHAIN:
				chain = dec.String()
			case unix.NFTA_RULE_EXPRESSIONS:
				expressions = dec.Bytes()
			}
		}
		if of == table && !isOurs(chain) {
			r := readRule(expressions, a)
			found = found || r.names && r.turns
		}
		return dec.Err()
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return found, err
}

// rule is what matters of one.
type rule struct {
	names bool // it compares something with the address
	turns bool // it translates, or sends the packet to a chain that may
}

// readRule reads a rule's expressions. What it cannot read names nothing.
func readRule(expressions []byte, a netip.Addr) (r rule) {
	visit(expressions, func(_ uint16, expression []byte) {
		var kind string
		var data []byte
		visit(expression, func(t uint16, value []byte) {
			switch t {
			case unix.NFTA_EXPR_NAME:
				kind = string(bytes.TrimRight(value, "\x00"))
			case unix.NFTA_EXPR_DATA:
				data = value
			}
		})
		switch kind {
		case "cmp":
			visit(data, func(t uint16, value []byte) {
				if t == unix.NFTA_CMP_DATA {
					r.names = r.names || bytesIn(value, bytes.Equal, a.AsSlice(), unix.NFTA_DATA_VALUE)
				}
			})
		case "nat", "redir", "target": // target: an extension of iptables, such as DNAT
			r.turns = true
		case "immediate":
			visit(data, func(t uint16, value []byte) {
				if t == unix.NFTA_IMMEDIATE_DATA {
					r.turns = r.turns || jumps(value)
				}
			})
		}
	})
	return r
}

// jumps tells whether an immediate's data is a verdict to go on in another chain.
func jumps(data []byte) (yes bool) {
	visit(data, func(t uint16, value []byte) {
		if t != unix.NFTA_DATA_VERDICT {
			return
		}
		visit(value, func(t uint16, value []byte) {
			if t == unix.NFTA_VERDICT_CODE && len(value) == 4 {
				code := int32(binary.BigEndian.Uint32(value)) //nolint:gosec // signed in the kernel
				yes = yes || code == unix.NFT_JUMP || code == unix.NFT_GOTO
			}
		})
	})
	return yes
}

// bytesIn tells whether nested attributes hold a value, at the end of a path of types, that is want or begins with it.
func bytesIn(attributes []byte, is func(value, want []byte) bool, want []byte, path ...uint16) (found bool) {
	visit(attributes, func(t uint16, value []byte) {
		switch {
		case t != path[0]:
		case len(path) == 1:
			found = found || is(value, want)
		default:
			found = found || bytesIn(value, is, want, path[1:]...)
		}
	})
	return found
}

// visit calls f with each attribute, as far as they can be read.
func visit(attributes []byte, f func(kind uint16, value []byte)) {
	dec, err := netlink.NewAttributeDecoder(attributes)
	if err != nil {
		return
	}
	for dec.Next() {
		f(dec.Type(), dec.Bytes())
	}
}
