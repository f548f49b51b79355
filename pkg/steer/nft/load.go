package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
)

// load reads the neardns table from the kernel. If there is none, the result is empty.
func (n *Nftables) load() (loaded, error) {
	have := loaded{chains: map[string]loadedChain{}, sets: map[string]loadedSet{}, counters: map[string]bool{}}
	if present, err := n.present(); err != nil || !present {
		return have, err
	}
	read, err := n.read()
	if err != nil {
		return have, err
	}
	sets, err := read.GetSets(tableRef())
	if hasErrno(err, unix.ENOENT) {
		return have, nil
	} else if err != nil {
		return have, fmt.Errorf("list sets: %w", err)
	}
	for _, s := range sets {
		if s.Anonymous {
			continue
		}
		ls := loadedSet{shape: shapeOf(s)}
		if !s.Dynamic {
			if ls.elements, err = n.elements(s.Name); err != nil {
				return have, err
			}
		}
		have.sets[s.Name] = ls
	}
	own, err := read.ListTableOfFamily(steer.TableName, nftables.TableFamilyINet)
	if err != nil {
		return have, fmt.Errorf("look for table: %w", err)
	}
	// google/nftables v0.3.0 reads the flags in the machine's byte order, but they are big endian. A test fails when the
	// library changes this.
	flags := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, own.Flags))
	have.dormant = flags&unix.NFT_TABLE_F_DORMANT != 0
	counters, err := n.counters()
	if err != nil {
		return have, err
	}
	for name := range counters {
		have.counters[name] = true
	}
	chains, err := read.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil && !hasErrno(err, unix.ENOENT) {
		return have, fmt.Errorf("list chains: %w", err)
	}
	for _, c := range chains {
		if c.Table.Name != steer.TableName {
			continue
		}
		have.chains[c.Name] = loadedChain{hook: hookOf(c)}
	}
	rules, err := n.rules()
	if err != nil {
		return have, err
	}
	for name, list := range rules {
		c := have.chains[name]
		c.rules = list
		have.chains[name] = c
	}
	return have, nil
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

func hookOf(c *nftables.Chain) string {
	if c.Hooknum == nil || c.Priority == nil {
		return ""
	}
	policy := uint32(nfAccept)
	if c.Policy != nil {
		policy = uint32(*c.Policy)
	}
	return hookText(string(c.Type), uint32(*c.Hooknum), int32(*c.Priority), policy)
}

func shapeOf(s *nftables.Set) string {
	value := uint32(0)
	if s.IsMap {
		value = s.DataType.GetNFTMagic()
	}
	var flags uint32
	for flag, on := range map[uint32]bool{unix.NFT_SET_CONSTANT: s.Constant, unix.NFT_SET_INTERVAL: s.Interval, unix.NFT_SET_MAP: s.IsMap,
		unix.NFT_SET_TIMEOUT: s.HasTimeout, unix.NFT_SET_EVAL: s.Dynamic} {
		if on {
			flags |= flag
		}
	}
	return shapeText(s.KeyType.GetNFTMagic(), value, flags, s.Timeout, s.Size)
}

func hookText(kind string, num uint32, priority int32, policy uint32) string {
	word := "drop"
	if policy == nfAccept {
		word = "accept"
	}
	return fmt.Sprintf("type %s hook %d priority %d policy %s", kind, num, priority, word)
}

func shapeText(key, value, flags uint32, timeout time.Duration, size uint32) string {
	if flags&unix.NFT_SET_EVAL == 0 {
		size = 0 // in this table, only sets that packets change have a maximum size
	}
	return fmt.Sprintf("key %d value %d flags %#x timeout %s size %d", key, value, flags, timeout, size)
}
