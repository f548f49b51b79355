package geo

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/oschwald/maxminddb-golang/v2"
)

// Database is a MaxMind DB with countries, and with continents and subdivisions if it has them (GeoLite2-Country, GeoLite2-City and
// databases with the same fields). It is safe for concurrent use.
type Database struct {
	reader *maxminddb.Reader

	mu    sync.RWMutex // guards known
	known map[uintptr]Place
}

// record is the part of GeoIP2's schema that a place needs.
type record struct {
	Continent struct {
		Code string `maxminddb:"code"`
	} `maxminddb:"continent"`
	Country struct {
		ISO string `maxminddb:"iso_code"`
	} `maxminddb:"country"`
	Subdivisions []struct {
		ISO string `maxminddb:"iso_code"`
	} `maxminddb:"subdivisions"`
}

// ReadDatabase reads a database from its bytes, which it keeps. They are not memory-mapped, because a file that is overwritten in place
// would crash a process that has it mapped.
func ReadDatabase(data []byte) (*Database, error) {
	r, err := maxminddb.OpenBytes(data)
	if err != nil {
		return nil, fmt.Errorf("read as MaxMind DB: %w", err)
	}
	return &Database{reader: r, known: map[uintptr]Place{}}, nil
}

// find returns where an address is, and how many of its bits determined that. If the database does not know, the place is empty.
func (d *Database) find(a netip.Addr) (Place, int) {
	found := d.reader.Lookup(a)
	if found.Err() != nil {
		return nil, a.BitLen() // damaged, or without this family; other addresses may still be found
	}
	network := found.Prefix()
	bits := network.Bits()
	if a.Is4() && network.Addr().Is6() { // a part of the tree that holds more than IPv4
		bits = max(0, bits-96)
	}
	if !found.Found() {
		return nil, bits
	}
	// Networks share records: all networks of one country have the same one.
	d.mu.RLock()
	p, ok := d.known[found.Offset()]
	d.mu.RUnlock()
	if !ok {
		var r record
		if found.Decode(&r) == nil {
			p = r.place()
		}
		d.mu.Lock()
		d.known[found.Offset()] = p
		d.mu.Unlock()
	}
	return p, bits
}

func (r *record) place() (p Place) {
	add := func(text string) {
		if code, err := ParseCode(text); err == nil {
			p = append(p, code)
		}
	}
	country := strings.ToLower(r.Country.ISO)
	for _, s := range r.Subdivisions {
		add(country + "-" + s.ISO)
	}
	slices.Reverse(p) // GeoIP2 lists subdivisions from the largest to the smallest
	add(country)
	add("geo-" + r.Continent.Code)
	return p
}
