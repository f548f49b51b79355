// Package geo locates a client by its address: first by the configured ranges, then by a MaxMind DB; if neither has the address, the
// client counts as being in the server's own region.
//
// It guarantees that each result comes with the network for which it is valid, as EDNS client subnet requires (RFC 7871, section
// 7.2.1). It reads no file and no clock, and knows nothing of DNS; its caller reads the database.
//
// If the database is damaged, clients are located without it.
package geo

import "net/netip"

// Locator locates clients. A Locator in use is never modified. The zero value knows no location.
type Locator struct {
	Ranges   Ranges
	Database *Database // nil: none
	Own      Place     // used if neither Ranges nor Database has the address; may be empty
}

// Locate returns the location of an address, and the number of its leading bits on which that depends: every address with the same
// leading bits has the same location. The address must have no zone, and must not be an IPv4-mapped one. Locate allocates only when it
// sees a database record for the first time.
func (l *Locator) Locate(a netip.Addr) (p Place, bits int) {
	p, bits, ok := l.Ranges.Find(a)
	if ok {
		return p, bits
	}
	if l.Database != nil {
		found, network := l.Database.find(a)
		// The result is valid only for the part of the database's network that is in none of the ranges.
		bits = max(bits, network)
		if len(found) > 0 {
			return found, bits
		}
	}
	return l.Own, bits
}
