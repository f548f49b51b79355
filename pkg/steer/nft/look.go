package nft

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nfnetlink"
)

// request sends one request to nf_tables for the family inet, and returns the kernel's replies. If the requested object does not
// exist, there are none.
func (n *Nftables) request(
	what string, kind uint16, flags netlink.HeaderFlags, attributes ...netlink.Attribute,
) ([]netlink.Message, error) {
	return nfnetlink.Request(n.conn, inet, what, kind, flags, attributes...)
}

func (n *Nftables) present() (bool, error) {
	replies, err := n.request("look for table", unix.NFT_MSG_GETTABLE, 0, nfnetlink.Named(unix.NFTA_TABLE_NAME, steer.TableName))
	return len(replies) > 0, err
}

// elements returns the elements of a set or map. If there is no such set, it returns none.
func (n *Nftables) elements(name string) ([]element, error) {
	what := "list elements of " + name
	replies, err := n.request(what, unix.NFT_MSG_GETSETELEM, netlink.Dump,
		nfnetlink.Named(unix.NFTA_SET_ELEM_LIST_TABLE, steer.TableName), nfnetlink.Named(unix.NFTA_SET_ELEM_LIST_SET, name))
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

// readElements parses one message of a dump and appends its elements to out.
func readElements(data []byte, out []element) ([]element, error) {
	err := hostnet.Each(data, nfnetlink.HeaderSize, func(dec *netlink.AttributeDecoder) {
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

// counters returns the table's counters by name. It parses the messages itself, because it runs often and google/nftables would
// allocate an object for each counter.
func (n *Nftables) counters() (map[string]steer.Counter, error) {
	replies, err := n.request("read counters", unix.NFT_MSG_GETOBJ, netlink.Dump, nfnetlink.Named(unix.NFTA_OBJ_TABLE, steer.TableName),
		netlink.Attribute{Type: unix.NFTA_OBJ_TYPE, Data: binary.BigEndian.AppendUint32(nil, unix.NFT_OBJECT_COUNTER)})
	out := make(map[string]steer.Counter, len(replies))
	for _, m := range replies {
		var name string
		var c steer.Counter
		if err := hostnet.Each(m.Data, nfnetlink.HeaderSize, func(dec *netlink.AttributeDecoder) {
			switch dec.Type() {
			case unix.NFTA_OBJ_NAME:
				name = dec.String()
			case unix.NFTA_OBJ_DATA:
				dec.Nested(func(data *netlink.AttributeDecoder) error {
					for data.Next() {
						switch b := data.Bytes(); {
						case len(b) != 8:
						case data.Type() == unix.NFTA_COUNTER_PACKETS:
							c.Packets = binary.BigEndian.Uint64(b)
						case data.Type() == unix.NFTA_COUNTER_BYTES:
							c.Bytes = binary.BigEndian.Uint64(b)
						}
					}
					return nil
				})
			}
		}); err != nil {
			return nil, fmt.Errorf("read counters: %w", err)
		}
		out[name] = c
	}
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
