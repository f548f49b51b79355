package geo

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/oschwald/maxminddb-golang/v2"
)

// Database is a MaxMind DB with countries, and continents and parts of countries where it has them (GeoLite2-Country, GeoLite2-City and
// what has their fields). It is safe for concurrent use.
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

// ReadDatabase reads a database from its bytes, which it keeps. They are read and not mapped: a file that is written anew in place would
// end a process that has it mapped.
func ReadDatabase(data []byte) (*Database, error) {
	r, err := maxminddb.OpenBytes(data)
	if err != nil {
		return nil, fmt.Errorf("read as MaxMind DB: %w", err)
	}
	return &Database{reader: r, known: map[uintptr]Place{}}, nil
}

// find returns where an address is, and how many of its bits decided it. What the database cannot tell is no place.
func (d *Database) find(a netip.Addr) (Place, int) {
	found := d.reader.Lookup(a)
	if found.Err() != nil {
		return nil, a.BitLen() // damaged, or without this family: nothing is said of other addresses
	}
	network := found.Prefix()
	bits := network.Bits()
	if a.Is4() && network.Addr().Is6() { // a part of the tree that holds more than IPv4
		bits = max(0, bits-96)
	}
	if !found.Found() {
		return nil, bits
	}
	// Networks share their records: a country is one.
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
	slices.Reverse(p) // the parts stand from the widest to the narrowest
	add(country)
	add("geo-" + r.Continent.Code)
	return p
}
