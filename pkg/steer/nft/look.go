package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
)

// ask sends one request about our table and returns the kernel's answers; none where the thing asked for is not there.
func (n *Nftables) ask(what string, kind uint16, flags netlink.HeaderFlags, attributes ...netlink.Attribute) ([]netlink.Message, error) {
	attrs, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	replies, err := n.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   append(nfgenmsg(inet, 0), attrs...),
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	for _, m := range replies {
		if m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 {
			return nil, hostnet.ErrInterrupted
		}
	}
	return replies, nil
}

// named is an attribute that holds a name, which the kernel wants with its closing zero.
func named(kind uint16, name string) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: append([]byte(name), 0)}
}

// present tells whether our table is there.
func (n *Nftables) present() (bool, error) {
	replies, err := n.ask("look for table", unix.NFT_MSG_GETTABLE, 0, named(unix.NFTA_TABLE_NAME, steer.TableName))
	return len(replies) > 0, err
}

// hasRules tells whether a chain has any.
func (n *Nftables) hasRules(chain string) (bool, error) {
	replies, err := n.ask("list rules", unix.NFT_MSG_GETRULE, netlink.Dump,
		named(unix.NFTA_RULE_TABLE, steer.TableName), named(unix.NFTA_RULE_CHAIN, chain))
	return len(replies) > 0, err
}

// elements reads a set or map by name; one that is not there has none.
func (n *Nftables) elements(name string) ([]element, error) {
	what := "list elements of " + name
	replies, err := n.ask(what, unix.NFT_MSG_GETSETELEM, netlink.Dump,
		named(unix.NFTA_SET_ELEM_LIST_TABLE, steer.TableName), named(unix.NFTA_SET_ELEM_LIST_SET, name))
	if err != nil {
		return nil, err
	}
	var out []element
	for _, m := range replies {
		if out, err = readElements(m.Data, out); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	return out, nil
}

// readElements appends the elements of one message of a dump.
func readElements(data []byte, out []element) ([]element, error) {
	err := hostnet.Each(data, len(nfgenmsg(inet, 0)), func(dec *netlink.AttributeDecoder) {
		if dec.Type() == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			dec.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					var e element
					list.Nested(e.read)
					out = append(out, e)
				}
				return nil
			})
		}
	})
	return out, err
}

func (e *element) read(dec *netlink.AttributeDecoder) error {
	value := func(to *[]byte) func(*netlink.AttributeDecoder) error {
		return func(data *netlink.AttributeDecoder) error {
			for data.Next() {
				if data.Type() == unix.NFTA_DATA_VALUE {
					*to = data.Bytes()
				}
			}
			return nil
		}
	}
	for dec.Next() {
		switch dec.Type() {
		case unix.NFTA_SET_ELEM_KEY:
			dec.Nested(value(&e.key))
		case unix.NFTA_SET_ELEM_DATA:
			dec.Nested(value(&e.value))
		case unix.NFTA_SET_ELEM_EXPIRATION:
			if ms := dec.Bytes(); len(ms) == 8 {
				e.expires = time.Duration(binary.BigEndian.Uint64(ms)) * time.Millisecond //nolint:gosec // minutes
			}
		}
	}
	return nil
}

// wholeFor is the cheap look of an ADD beside a healthy table: the first base chain has rules and the addresses are there.
// It never decides to change anything by itself.
func (n *Nftables) wholeFor(rs steer.Ruleset) (bool, error) {
	ruled, err := n.hasRules("prerouting")
	if err != nil || !ruled {
		return false, err
	}
	for _, s := range addressSets(rs) {
		if s.contents == dynamic || len(s.elements) == 0 || s.ofLinks() {
			continue
		}
		have, err := n.elements(s.name)
		if err != nil {
			return false, err
		}
		if len(missing(s.elements, have)) > 0 {
			return false, nil
		}
	}
	return true, nil
}

// addressSets are the sets with what a description names, without the rules, which are most of the work of rendering it.
func addressSets(rs steer.Ruleset) []set {
	h, isHost := rs.(steer.Host)
	if !isHost {
		return render(rs).sets
	}
	var out []set
	for _, f := range families() {
		out = append(out, hostOf(h, f).sets()...)
	}
	return out
}

// Lacks says in words what of a host's rules is gone, so that Restore brings it back: the table, its first chain, rules of
// chains that stand empty, addresses. What another version does differently is not gone, and a chain that it may not have at all is
// not asked for.
func (n *Nftables) Lacks(rs steer.Host) ([]string, error) {
	want := render(rs)
	var gone []string
	err := n.retry("look for what is gone", func() error {
		have, err := n.load()
		gone = gone[:0]
		if err != nil {
			return err
		}
		if len(have.chains) == 0 {
			gone = append(gone, "table inet "+steer.TableName)
			return nil
		}
		for _, c := range want.chains {
			h, there := have.chains[c.name]
			if len(c.rules) > 0 && len(h.rules) == 0 && (there || c.name == "prerouting") {
				gone = append(gone, "rules of chain "+c.name)
			}
		}
		for _, s := range want.sets {
			if s.contents != exact || s.ofLinks() {
				continue
			}
			for _, e := range missingKeys(s.elements, have.sets[s.name].elements) {
				gone = append(gone, fmt.Sprintf("%s in set %s", e.text, s.name))
			}
		}
		return nil
	})
	return gone, err
}
