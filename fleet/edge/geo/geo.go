// Package geo locates a client by its address: first by ranges from the configuration, then by a MaxMind DB; if both do not know it, it
// returns the server's own region.
//
// It guarantees that each result comes with the network for which it holds, as EDNS client subnet requires (RFC 7871, section 7.2.1). It
// reads no file and no clock, and knows nothing of DNS: its caller reads the database.
//
// If a source does not know an address, or the database is damaged, the next source is used; the server's own region always applies.
package geo

import "net/netip"

// Locator locates clients. A Locator in use is never modified. The zero value knows no location.
type Locator struct {
	Ranges   Ranges
	Database *Database // nil: none
	Own      Place     // if no other source knows; may be empty
}

// Locate returns where an address is, and how many of its leading bits determined that: every address with the same bits is in the same
// place. The address has no zone and is not an IPv4-mapped one. Locate allocates only when it finds a database record for the first time.
func (l *Locator) Locate(a netip.Addr) (p Place, bits int) {
	p, bits, ok := l.Ranges.Find(a)
	if ok {
		return p, bits
	}
	if l.Database != nil {
		found, network := l.Database.find(a)
		// Not wider than the part of the network that is in no range: another address of the network may be in a range.
		bits = max(bits, network)
		if len(found) > 0 {
			return found, bits
		}
	}
	return l.Own, bits
}
