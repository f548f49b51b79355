package geo_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/fleet/edge/geo"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/mmdb"
)

func TestParseCode(t *testing.T) {
	for text, want := range map[string]string{"IE": "ie", "ie": "ie", "GEO-EU": "geo-eu", "US-CA": "us-ca", "GB-ENG": "gb-eng", "FR-2A": "fr-2a", "CZ-10": "cz-10"} {
		if got, err := geo.ParseCode(text); got != want || err != nil {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "I", "IRL", "EU-", "GEO", "GEO-E", "GEO-EUR", "US-CALI", "1E", "I E", "US-C A", "-CA", "us_ca", "*", "İE"} {
		if got, err := geo.ParseCode(text); err == nil {
			t.Errorf("%q was taken as %q", text, got)
		} else if !strings.Contains(err.Error(), "GEO-EU") {
			t.Errorf("%q: %v: names no remedy", text, err)
		}
	}
}

// FuzzParseCode: what is taken is lower case and taken again.
func FuzzParseCode(f *testing.F) {
	f.Add("GEO-EU")
	f.Fuzz(func(t *testing.T, text string) {
		code, err := geo.ParseCode(text)
		if err != nil {
			return
		}
		if again, err := geo.ParseCode(code); again != code || err != nil || strings.ToLower(code) != code {
			t.Fatalf("%q gave %q, and that %q, %v", text, code, again, err)
		}
	})
}

// written makes a database of networks, each with continent, country and parts of the country.
func written(t testing.TB, networks map[string][]string) *geo.Database {
	t.Helper()
	w := mmdb.New(t)
	for network, place := range networks {
		record := mmdb.Map{"continent": mmdb.Map{"code": place[0]}, "country": mmdb.Map{"iso_code": place[1]}}
		var parts mmdb.List
		for _, p := range place[2:] {
			parts = append(parts, mmdb.Map{"iso_code": p})
		}
		if parts != nil {
			record["subdivisions"] = parts
		}
		w.Insert(netip.MustParsePrefix(network), record)
	}
	d, err := geo.ReadDatabase(w.Bytes("Test"))
	testutil.Must(t, err)
	return d
}

// TestLocate: ranges go before the database, that before the own region, and a scope never holds an address that is elsewhere.
func TestLocate(t *testing.T) {
	full := &geo.Locator{Own: geo.Place{"jp"}, Database: written(t, map[string][]string{
		"192.0.2.0/24": {"EU", "IE"}, "198.51.100.0/24": {"NA", "US", "CA"}, "2001:db8::/32": {"EU", "GB", "ENG", "LND"}, "203.0.113.0/24": {"", ""}})}
	for network, code := range map[string]string{"10.0.0.0/8": "de", "10.1.0.0/16": "fr", "192.0.2.128/32": "lan", "2001:db8:1::/48": "es"} {
		full.Ranges.Add(netip.MustParsePrefix(network), geo.Place{code})
	}
	empty := &geo.Locator{Own: geo.Place{"jp"}}
	for _, row := range []struct {
		in       *geo.Locator
		address  string
		want     geo.Place
		wantBits int
	}{
		{empty, "192.0.2.1", geo.Place{"jp"}, 0},
		{empty, "2001:db8::1", geo.Place{"jp"}, 0},
		{full, "10.1.2.3", geo.Place{"fr"}, 16},
		{full, "10.2.0.1", geo.Place{"de"}, 15}, // 10.2.0.0/15: a scope of 8 would hold 10.1.0.0/16
		{full, "10.0.0.1", geo.Place{"de"}, 16},
		{full, "10.128.0.1", geo.Place{"de"}, 9},
		{full, "192.0.2.1", geo.Place{"ie", "geo-eu"}, 25}, // a scope of 24 would hold the range's one address
		{full, "192.0.2.129", geo.Place{"ie", "geo-eu"}, 32},
		{full, "192.0.2.128", geo.Place{"lan"}, 32},
		{full, "198.51.100.7", geo.Place{"us-ca", "us", "geo-na"}, 24},
		{full, "203.0.113.7", geo.Place{"jp"}, 24}, // a record that reports nothing
		{full, "2001:db8:2::1", geo.Place{"gb-lnd", "gb-eng", "gb", "geo-eu"}, 47},
		{full, "2001:db8:1::1", geo.Place{"es"}, 48},
	} {
		got, bits := row.in.Locate(netip.MustParseAddr(row.address))
		if diff := cmp.Diff(row.want, got); diff != "" || bits != row.wantBits {
			t.Errorf("%s: %v, %d bits; want %v, %d", row.address, got, bits, row.want, row.wantBits)
		}
	}
}

// TestScope draws networks that lie in each other, in the ranges and in a database, and holds a scope to its promise: each address in it
// is in the same place.
func TestScope(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 10))
	address := func() netip.Addr { // few bits differ, so that networks meet
		if rng.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte{10, byte(rng.IntN(4)), byte(rng.IntN(256)), byte(rng.IntN(256))})
		}
		return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, byte(rng.IntN(4)), byte(rng.IntN(256)), 15: byte(rng.IntN(256))})
	}
	network := func() netip.Prefix {
		a := address()
		p, err := a.Prefix(8 + rng.IntN(a.BitLen()-7))
		testutil.Must(t, err)
		return p
	}
	code := func() string { return string([]byte{'a' + byte(rng.IntN(26)), 'a' + byte(rng.IntN(26))}) }
	for round := range 40 {
		networks := map[string][]string{}
		for range rng.IntN(40) {
			networks[network().String()] = []string{"EU", code()}
		}
		l := &geo.Locator{Own: geo.Place{"own"}}
		if round%4 > 0 {
			l.Database = written(t, networks)
		}
		listed := map[netip.Prefix]geo.Place{}
		for range rng.IntN(40) {
			n, p := network(), geo.Place{code()}
			listed[n] = p
			l.Ranges.Add(n, p)
		}
		for range 100 {
			a := address()
			p, bits := l.Locate(a)
			// The ranges as a list has them.
			var longest netip.Prefix
			for n := range listed {
				if n.Contains(a) && (!longest.IsValid() || n.Bits() > longest.Bits()) {
					longest = n
				}
			}
			if longest.IsValid() && !slices.Equal(p, listed[longest]) {
				t.Fatalf("round %d: %s is in %s, %v, not %v", round, a, longest, listed[longest], p)
			}
			for range 8 { // another address in the scope
				other := a.AsSlice()
				for bit := bits; bit < a.BitLen(); bit++ {
					if rng.IntN(2) == 0 {
						other[bit/8] ^= 1 << (7 - bit%8)
					}
				}
				b, _ := netip.AddrFromSlice(other)
				if q, _ := l.Locate(b); !slices.Equal(p, q) {
					t.Fatalf("round %d: %s is in %v with a scope of %d, which holds %s: %v", round, a, p, bits, b, q)
				}
			}
		}
	}
}

func TestReadDatabaseOfNoDatabase(t *testing.T) {
	for _, data := range []string{"", "no database", strings.Repeat("\xab\xcd\xefMaxMind.com", 3)} {
		if _, err := geo.ReadDatabase([]byte(data)); err == nil {
			t.Errorf("%q was taken", data)
		}
	}
}

// FuzzReadDatabase: a damaged database is refused, or finds what it finds; it does not end the process.
func FuzzReadDatabase(f *testing.F) {
	w := mmdb.New(f)
	w.Insert(netip.MustParsePrefix("1.0.0.0/24"), mmdb.Map{"country": mmdb.Map{"iso_code": "AU"}})
	f.Add(w.Bytes("Test"), []byte{1, 0, 0, 7})
	f.Fuzz(func(t *testing.T, data, address []byte) {
		a, ok := netip.AddrFromSlice(address)
		d, err := geo.ReadDatabase(data)
		if !ok || err != nil {
			return
		}
		l := &geo.Locator{Database: d, Own: geo.Place{"own"}}
		if p, bits := l.Locate(a.Unmap()); len(p) == 0 || bits < 0 || bits > a.Unmap().BitLen() {
			t.Fatalf("%v, %d bits", p, bits)
		}
	})
}

func TestAllocations(t *testing.T) {
	l := &geo.Locator{Database: written(t, map[string][]string{"192.0.2.0/24": {"EU", "IE"}})}
	l.Ranges.Add(netip.MustParsePrefix("10.0.0.0/8"), geo.Place{"de"})
	for _, address := range []string{"192.0.2.1", "10.0.0.1", "192.0.3.1"} {
		a := netip.MustParseAddr(address)
		l.Locate(a)
		if n := testing.AllocsPerRun(100, func() { l.Locate(a) }); n != 0 {
			t.Errorf("%s: %.0f allocations, want none", a, n)
		}
	}
}
