package geo

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/oschwald/maxminddb-golang/v2"
)

// Database is a MaxMind DB with countries and, if it has them, continents and parts of countries: GeoLite2-Country, GeoLite2-City, and
// others with the same fields. It is safe for concurrent use.
type Database struct {
	reader *maxminddb.Reader

	mu    sync.RWMutex      // guards known
	known map[uintptr]Place // by offset of the record in the database
}

// record has those fields of GeoIP2's schema from which a Place is made.
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

// ReadDatabase makes a Database from the bytes of a file, which it keeps. The file is not memory-mapped, because a program that truncates
// a mapped file makes the process crash.
func ReadDatabase(data []byte) (*Database, error) {
	r, err := maxminddb.OpenBytes(data)
	if err != nil {
		return nil, fmt.Errorf("read as MaxMind DB: %w", err)
	}
	return &Database{reader: r, known: map[uintptr]Place{}}, nil
}

// find returns the location of an address, and the number of its leading bits on which that depends. If the database does not have the
// address, the Place is empty.
func (d *Database) find(a netip.Addr) (Place, int) {
	found := d.reader.Lookup(a)
	if found.Err() != nil {
		return nil, a.BitLen() // the database is damaged, or has no addresses of this family; other addresses may still be found
	}
	network := found.Prefix()
	bits := network.Bits()
	if a.Is4() && network.Addr().Is6() { // an IPv6 database has IPv4 addresses in ::/96
		bits = max(0, bits-96)
	}
	if !found.Found() {
		return nil, bits
	}
	// Many networks have the same record (all networks of a country, for example), so the Place of each record is made once.
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
	slices.Reverse(p) // GeoIP2 lists the parts of a country from the largest to the smallest
	add(country)
	add("geo-" + r.Continent.Code)
	return p
}
