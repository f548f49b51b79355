package geo

import "net/netip"

// Ranges says of networks where they are; the longest that holds an address counts. The zero value holds none. Once it is filled, it is
// safe for concurrent use.
//
// It is a binary tree over the addresses' bits. A walk ends where no longer network can be met, and that depth is what a scope needs:
// all addresses that share so many bits with the client are in the same network of the list.
type Ranges struct {
	v4, v6 tree
}

type tree []branch

// branch is a node of the tree. 0 is no child, since nobody's child is the root.
type branch struct {
	child [2]int32
	known bool
	place Place
}

// Add says where a network is. A second word on the same network replaces the first.
func (r *Ranges) Add(network netip.Prefix, p Place) {
	t, bits := r.of(network.Addr())
	if len(*t) == 0 {
		*t = append(*t, branch{})
	}
	at := int32(0)
	for i := range network.Bits() {
		next := (*t)[at].child[bits.at(i)]
		if next == 0 {
			next = int32(len(*t))
			*t = append(*t, branch{})
			(*t)[at].child[bits.at(i)] = next
		}
		at = next
	}
	(*t)[at].known, (*t)[at].place = true, p
}

// Find returns where an address is, and how many of its leading bits decided it: every address that shares them is found in the same
// network, or like this one in none.
func (r *Ranges) Find(a netip.Addr) (p Place, bits int, ok bool) {
	t, key := r.of(a)
	if len(*t) == 0 {
		return nil, 0, false
	}
	for at, depth := int32(0), 0; ; depth++ {
		b := &(*t)[at]
		if b.known {
			p, ok = b.place, true
		}
		if b.child == [2]int32{} {
			return p, depth, ok
		}
		if at = b.child[key.at(depth)]; at == 0 {
			return p, depth + 1, ok
		}
	}
}

// of returns the tree of an address's family, and its bits.
func (r *Ranges) of(a netip.Addr) (*tree, key) {
	if a.Is4() {
		b := a.As4()
		var k key
		copy(k[:], b[:])
		return &r.v4, k
	}
	return &r.v6, a.As16()
}

// key is an address's bits from the first; IPv4 has 32 of them.
type key [16]byte

func (k *key) at(i int) byte { return k[i/8] >> (7 - i%8) & 1 }
