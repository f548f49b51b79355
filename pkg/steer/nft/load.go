package nft

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nfnetlink"
)

// load reads the neardns table from the kernel. If there is none, the result is empty.
func (n *Nftables) load() (have loaded, err error) {
	have = loaded{chains: map[string]loadedChain{}, sets: map[string]loadedSet{}}
	tables, err := n.tables()
	if err != nil || len(tables) == 0 {
		return have, err
	}
	have.dormant = tables[0]&unix.NFT_TABLE_F_DORMANT != 0
	if err = n.loadSets(have.sets); err != nil {
		return have, err
	}
	if have.counters, err = n.counters(); err != nil {
		return have, err
	}
	return have, n.loadChains(have.chains)
}

func (n *Nftables) loadSets(into map[string]loadedSet) error {
	type row struct {
		name                    string
		key, value, flags, size uint32
		timeout                 uint64 // in milliseconds
	}
	sets, err := list(n, "list sets", unix.NFT_MSG_GETSET, netlink.Dump, func(s *row, dec *netlink.AttributeDecoder) {
		switch dec.Type() {
		case unix.NFTA_SET_NAME:
			s.name = dec.String()
		case unix.NFTA_SET_FLAGS:
			s.flags = dec.Uint32()
		case unix.NFTA_SET_KEY_TYPE:
			s.key = dec.Uint32()
		case unix.NFTA_SET_DATA_TYPE:
			s.value = dec.Uint32()
		case unix.NFTA_SET_TIMEOUT:
			s.timeout = dec.Uint64()
		case unix.NFTA_SET_DESC:
			nfnetlink.EachNested(dec, func(desc *netlink.AttributeDecoder) {
				if desc.Type() == unix.NFTA_SET_DESC_SIZE {
					s.size = desc.Uint32()
				}
			})
		}
	}, nfnetlink.Named(unix.NFTA_SET_TABLE, steer.TableName))
	for _, s := range sets {
		if s.flags&unix.NFT_SET_ANONYMOUS != 0 {
			continue
		}
		timeout := time.Duration(s.timeout) * time.Millisecond //nolint:gosec // minutes
		ls := loadedSet{shape: shapeText(s.key, s.value, s.flags, timeout, s.size)}
		if s.flags&unix.NFT_SET_EVAL == 0 { // packets do not change it
			if ls.elements, err = n.elements(s.name); err != nil {
				return err
			}
		}
		into[s.name] = ls
	}
	return err
}

func shapeText(key, value, flags uint32, timeout time.Duration, size uint32) string {
	// Other flags, which a program that restores the table or a later kernel may set, change nothing.
	flags &= unix.NFT_SET_CONSTANT | unix.NFT_SET_INTERVAL | unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL
	if flags&unix.NFT_SET_EVAL == 0 {
		size = 0 // in this table, only sets that packets change have a maximum size
	}
	return fmt.Sprintf("key %d value %d flags %#x timeout %s size %d", key, value, flags, timeout, size)
}

func (n *Nftables) loadChains(into map[string]loadedChain) error {
	type row struct {
		table, name, kind string
		hook              *hook
		policy            uint32
	}
	chains, err := list(n, "list chains", unix.NFT_MSG_GETCHAIN, netlink.Dump, func(c *row, dec *netlink.AttributeDecoder) {
		switch dec.Type() {
		case unix.NFTA_CHAIN_TABLE:
			c.table = dec.String()
		case unix.NFTA_CHAIN_NAME:
			c.name = dec.String()
		case unix.NFTA_CHAIN_TYPE:
			c.kind = dec.String()
		case unix.NFTA_CHAIN_POLICY:
			c.policy = dec.Uint32()
		case unix.NFTA_CHAIN_HOOK:
			c.hook = new(hook)
			nfnetlink.EachNested(dec, func(h *netlink.AttributeDecoder) {
				switch h.Type() {
				case unix.NFTA_HOOK_HOOKNUM:
					c.hook.num = h.Uint32()
				case unix.NFTA_HOOK_PRIORITY:
					c.hook.priority = h.Int32()
				}
			})
		}
	})
	if err != nil {
		return err
	}
	rules, err := n.rules()
	for _, c := range chains {
		if c.table != steer.TableName {
			continue
		}
		lc := loadedChain{rules: rules[c.name]}
		if c.hook != nil {
			c.hook.kind = c.kind
			lc.hook = c.hook.text(c.policy)
		}
		into[c.name] = lc
	}
	return err
}

// rules returns, by chain, the user data of the neardns table's rules.
func (n *Nftables) rules() (map[string][]string, error) {
	rules, err := list(n, "list rules", unix.NFT_MSG_GETRULE, netlink.Dump, (*loadedRule).read,
		nfnetlink.Named(unix.NFTA_RULE_TABLE, steer.TableName))
	out := map[string][]string{}
	for _, r := range rules {
		out[r.chain] = append(out[r.chain], r.userData)
	}
	return out, err
}

type loadedRule struct{ chain, userData string }

func (r *loadedRule) read(dec *netlink.AttributeDecoder) {
	switch dec.Type() {
	case unix.NFTA_RULE_CHAIN:
		r.chain = dec.String()
	case unix.NFTA_RULE_USERDATA:
		r.userData = string(dec.Bytes())
	}
}

// missing lists the elements of want that are not in have, or have another value there.
func missing(want, have []element) []element {
	var out []element
	for _, w := range want {
		if !slices.ContainsFunc(have, func(h element) bool {
			return bytes.Equal(h.key, w.key) && (w.value == nil || bytes.Equal(h.value, w.value))
		}) {
			out = append(out, w)
		}
	}
	return out
}

// text returns the hook as messages show it, with the chain's policy.
func (h *hook) text(policy uint32) string {
	word := "drop"
	if policy == nfAccept {
		word = "accept"
	}
	return fmt.Sprintf("type %s hook %d priority %d policy %s", h.kind, h.num, h.priority, word)
}
