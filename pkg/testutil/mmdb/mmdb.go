// Package mmdb makes MaxMind DB files (version 2.0) for tests. A record replaces those that were inserted before for the same addresses.
// IPv4 networks get no IPv6 aliases. A value that cannot be encoded fails the test.
package mmdb

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"testing"
)

type (
	// Map is a record. Its values are a Map, a List, a string, uint16, uint32 or uint64.
	Map map[string]any
	// List is an array of such values.
	List []any
)

// Tree is a database, which Bytes encodes.
type Tree struct {
	t    testing.TB
	root *node
}

// node has two children, or a record, or nothing.
type node struct {
	child  [2]*node
	record Map
}

// New makes an empty database.
func New(t testing.TB) *Tree { return &Tree{t, &node{}} }

// Insert sets the record of a network.
func (w *Tree) Insert(network netip.Prefix, record Map) {
	raw, bits := network.Addr().As16(), network.Bits()
	if network.Addr().Is4() { // the format has IPv4 in ::/96
		clear(raw[:12])
		bits += 96
	}
	n := w.root
	for i := range bits {
		if n.child[0] == nil {
			n.child = [2]*node{{record: n.record}, {record: n.record}}
			n.record = nil
		}
		n = n.child[raw[i/8]>>(7-i%8)&1]
	}
	*n = node{record: record}
}

// InsertRange sets the record of all addresses between two, both of them included.
func (w *Tree) InsertRange(from, to netip.Addr, record Map) {
	for from.IsValid() && from.Compare(to) <= 0 {
		network := netip.PrefixFrom(from, from.BitLen())
		for bits := from.BitLen() - 1; bits >= 0; bits-- {
			wider := netip.PrefixFrom(from, bits)
			if wider.Masked().Addr() != from || last(wider).Compare(to) > 0 {
				break
			}
			network = wider
		}
		w.Insert(network, record)
		from = last(network).Next()
	}
}

func last(network netip.Prefix) netip.Addr {
	raw := network.Addr().AsSlice()
	for i := network.Bits(); i < len(raw)*8; i++ {
		raw[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(raw)
	return a
}

// Bytes returns the file: the search tree with records of 32 bits, 16 zeroes, the data, a marker, and the metadata.
func (w *Tree) Bytes(databaseType string) []byte {
	nodes, number := []*node{}, map[*node]uint32{}
	var walk func(n *node)
	walk = func(n *node) {
		if n.child[0] != nil {
			number[n] = uint32(len(nodes))
			nodes = append(nodes, n)
			walk(n.child[0])
			walk(n.child[1])
		}
	}
	walk(w.root)
	if len(nodes) == 0 {
		nodes = []*node{{child: [2]*node{{}, {}}}}
	}
	count := uint32(len(nodes))
	var tree, data []byte
	offsets := map[string]uint32{}
	for _, n := range nodes {
		for _, c := range n.child {
			to, inner := number[c]
			if !inner && c.record == nil {
				to = count // no record
			} else if !inner {
				text := string(w.encode(nil, c.record))
				if _, ok := offsets[text]; !ok {
					offsets[text] = uint32(len(data))
					data = append(data, text...)
				}
				to = count + 16 + offsets[text]
			}
			tree = binary.BigEndian.AppendUint32(tree, to)
		}
	}
	metadata := Map{
		"binary_format_major_version": uint16(2), "binary_format_minor_version": uint16(0), "build_epoch": uint64(1), "database_type": databaseType,
		"description": Map{}, "ip_version": uint16(6), "languages": List{}, "node_count": count, "record_size": uint16(32),
	}
	return w.encode(slices.Concat(tree, make([]byte, 16), data, []byte("\xab\xcd\xefMaxMind.com")), metadata)
}

// encode appends a value: a control byte with type and size, the rest of the type for types above 7, and the contents.
func (w *Tree) encode(b []byte, value any) []byte {
	head := func(kind, size int) {
		if size > 28 {
			w.t.Fatalf("a value of size %d: this writer makes none over 28", size)
		}
		if kind > 7 {
			b = append(b, byte(size), byte(kind-7))
		} else {
			b = append(b, byte(kind<<5|size))
		}
	}
	switch v := value.(type) {
	case string:
		head(2, len(v))
		b = append(b, v...)
	case uint16:
		head(5, 2)
		b = binary.BigEndian.AppendUint16(b, v)
	case uint32:
		head(6, 4)
		b = binary.BigEndian.AppendUint32(b, v)
	case uint64:
		head(9, 8)
		b = binary.BigEndian.AppendUint64(b, v)
	case Map:
		head(7, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			b = w.encode(w.encode(b, key), v[key])
		}
	case List:
		head(11, len(v))
		for _, item := range v {
			b = w.encode(b, item)
		}
	default:
		w.t.Fatalf("a value of type %T", value)
	}
	return b
}
