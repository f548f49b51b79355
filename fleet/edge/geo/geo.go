// Package geo tells where a client is: by ranges that an operator wrote, else by a MaxMind DB, else by the server's own region. With
// the place it tells for which network that holds, as EDNS client subnet wants it (RFC 7871, section 7.2.1).
//
// It owns no file and no clock: whoever calls it reads the database. It knows no DNS. Failure policy: what a source cannot tell, the
// next one is asked; the last knows always.
package geo

import "net/netip"

// Locator tells where clients are. Nobody changes one that is in use. The zero value knows no place.
type Locator struct {
	Ranges   Ranges
	Database *Database // nil: none
	Own      Place     // where nothing else is known; may be empty
}

// Locate returns where an address is, and how many of its leading bits decided it: whoever shares them is in the same place. The
// address is without zone and mapping. It costs no allocation, but for a record of the database that it meets for the first time.
func (l *Locator) Locate(a netip.Addr) (p Place, bits int) {
	p, bits, ok := l.Ranges.Find(a)
	if ok {
		return p, bits
	}
	if l.Database != nil {
		found, network := l.Database.find(a)
		// Not wider than what the ranges leave of the network: another address of it may be in one of them.
		bits = max(bits, network)
		if len(found) > 0 {
			return found, bits
		}
	}
	return l.Own, bits
}
