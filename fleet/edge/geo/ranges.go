package geo

import "net/netip"

// Ranges maps networks to places. If several networks contain an address, the longest one applies. The zero value is empty. Once
// filled, it is safe for concurrent use.
//
// It is a binary tree over the bits of addresses. A search follows an address's bits until the tree has no node for the next bit. All
// addresses that lead the search to the same end have the same result.
type Ranges struct {
	v4, v6 tree
}

type tree []branch

// branch is a node of the tree. A child is an index in the tree; 0 means no child, because the root is at index 0.
type branch struct {
	child [2]int32 // by the next bit of the address
	known bool     // a network ends at this node; place is its place
	place Place
}

// Add sets the place of a network. If the network has a place already, p replaces it.
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

// Find returns the place of an address, and the number of its leading bits on which that depends. If no network contains the address,
// ok is false; then no network contains any address with the same first bits either.
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

// of returns the tree for an address's family, and the address as a key.
func (r *Ranges) of(a netip.Addr) (*tree, key) {
	if a.Is4() {
		b := a.As4()
		var k key
		copy(k[:], b[:])
		return &r.v4, k
	}
	return &r.v6, a.As16()
}

// key has the bits of an address, the highest one first; an IPv4 address uses the first 32.
type key [16]byte

func (k *key) at(i int) byte { return k[i/8] >> (7 - i%8) & 1 }
