package geo

import "net/netip"

// Ranges maps networks to places; the longest network that contains an address applies. The zero value is empty. After it is filled it is
// safe for concurrent use.
//
// It is a binary tree over the bits of addresses. A search ends when no longer network can match. That depth is the scope: all addresses
// with the same leading bits are in the same network of the list.
type Ranges struct {
	v4, v6 tree
}

type tree []branch

// branch is a node of the tree. Child 0 means no child, because the root is no node's child.
type branch struct {
	child [2]int32
	known bool
	place Place
}

// Add sets the place of a network, and replaces an earlier place of the same network.
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

// Find returns where an address is, and how many of its leading bits determined that. Every address with the same bits is in the same
// network, or, like this one, in none.
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
