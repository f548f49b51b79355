package nft

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nfnetlink"
)

// list requests objects of the family inet, and returns one T for each. read is called with each attribute of an object. If the requested
// object does not exist, the list is empty.
func list[T any](n *Nftables, what string, kind uint16, flags netlink.HeaderFlags, read func(*T, *netlink.AttributeDecoder),
	attributes ...netlink.Attribute,
) ([]T, error) {
	replies, err := nfnetlink.Request(n.conn, inet, what, kind, flags, attributes...)
	if err != nil {
		return nil, err
	}
	out := make([]T, len(replies))
	for i, m := range replies {
		if err := nfnetlink.Each(m, func(dec *netlink.AttributeDecoder) { read(&out[i], dec) }); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	return out, nil
}

// tables returns the flags of the neardns table, the only element of the result; none if there is no table.
func (n *Nftables) tables() ([]uint32, error) {
	return list(n, "look for table", unix.NFT_MSG_GETTABLE, 0, func(flags *uint32, dec *netlink.AttributeDecoder) {
		if dec.Type() == unix.NFTA_TABLE_FLAGS {
			*flags = dec.Uint32()
		}
	}, nfnetlink.Named(unix.NFTA_TABLE_NAME, steer.TableName))
}

// elements returns the elements of a set or map. If there is no such set, it returns none.
func (n *Nftables) elements(name string) ([]element, error) {
	parts, err := list(n, "list elements of "+name, unix.NFT_MSG_GETSETELEM, netlink.Dump, readElements,
		nfnetlink.Named(unix.NFTA_SET_ELEM_LIST_TABLE, steer.TableName), nfnetlink.Named(unix.NFTA_SET_ELEM_LIST_SET, name))
	return slices.Concat(parts...), err
}

// readElements parses one message of a dump and appends its elements to out.
func readElements(out *[]element, dec *netlink.AttributeDecoder) {
	if dec.Type() == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
		nfnetlink.EachNested(dec, func(item *netlink.AttributeDecoder) {
			var e element
			nfnetlink.EachNested(item, e.read)
			*out = append(*out, e)
		})
	}
}

func (e *element) read(dec *netlink.AttributeDecoder) {
	value := func(to *[]byte) func(*netlink.AttributeDecoder) {
		return func(data *netlink.AttributeDecoder) {
			if data.Type() == unix.NFTA_DATA_VALUE {
				*to = data.Bytes()
			}
		}
	}
	switch dec.Type() {
	case unix.NFTA_SET_ELEM_KEY:
		nfnetlink.EachNested(dec, value(&e.key))
	case unix.NFTA_SET_ELEM_DATA:
		nfnetlink.EachNested(dec, value(&e.value))
	case unix.NFTA_SET_ELEM_EXPIRATION:
		e.expires = time.Duration(dec.Uint64()) * time.Millisecond //nolint:gosec // minutes
	}
}

// counters returns the table's counters by name.
func (n *Nftables) counters() (map[string]steer.Counter, error) {
	type counter struct {
		name string
		steer.Counter
	}
	counters, err := list(n, "read counters", unix.NFT_MSG_GETOBJ, netlink.Dump, func(c *counter, dec *netlink.AttributeDecoder) {
		switch dec.Type() {
		case unix.NFTA_OBJ_NAME:
			c.name = dec.String()
		case unix.NFTA_OBJ_DATA:
			nfnetlink.EachNested(dec, func(data *netlink.AttributeDecoder) {
				switch data.Type() {
				case unix.NFTA_COUNTER_PACKETS:
					c.Packets = data.Uint64()
				case unix.NFTA_COUNTER_BYTES:
					c.Bytes = data.Uint64()
				}
			})
		}
	}, nfnetlink.Named(unix.NFTA_OBJ_TABLE, steer.TableName),
		netlink.Attribute{Type: unix.NFTA_OBJ_TYPE, Data: binary.BigEndian.AppendUint32(nil, unix.NFT_OBJECT_COUNTER)})
	out := make(map[string]steer.Counter, len(counters))
	for _, c := range counters {
		out[c.name] = c.Counter
	}
	return out, err
}

// IsComplete is a quick check for callers that only add what is missing, such as ADD, which usually finds the host table complete. It
// reports whether the chain prerouting has rules and the sets have the addresses of rs. It does not render the rules, which would be most
// of the work.
func (n *Nftables) IsComplete(rs steer.Host) (bool, error) {
	return retried(n, "check rules", func() (bool, error) {
		replies, err := nfnetlink.Rules(n.conn, inet, steer.TableName, "prerouting")
		if err != nil || len(replies) == 0 {
			return false, err
		}
		for _, f := range families() {
			for _, s := range hostOf(rs, f).sets() {
				if s.contents == dynamic || len(s.elements) == 0 {
					continue
				}
				if have, err := n.elements(s.name); err != nil || len(missing(s.elements, have)) > 0 {
					return false, err
				}
			}
		}
		return true, nil
	})
}

// Missing describes what a host's rules lack and Ensure would add: the table, its chain prerouting, the rules of empty chains, and
// addresses (not exempt ones). A rule in another form, or another chain that does not exist, does not count: another version may
// have written the table.
func (n *Nftables) Missing(rs steer.Host) ([]string, error) {
	want := render(rs)
	var gone []string
	err := n.retry("look for missing rules", func() error {
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
