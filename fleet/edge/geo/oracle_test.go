package geo_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/neardns/neardns/fleet/edge/geo"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/mmdb"
	"github.com/neardns/neardns/pkg/testutil/torgeo"
)

// TestOracle compares places in a database of real ranges with the output of mmdblookup, MaxMind's own program. Usually it takes every
// 500th range and 120 addresses; NEARDNS_GEO_ADDRESSES=100000 takes all ranges and so many addresses, which takes ten minutes.
func TestOracle(t *testing.T) {
	if _, err := exec.LookPath("mmdblookup"); err != nil {
		testutil.Skip(t, "needs Debian's package mmdb-bin")
	}
	addresses, err := strconv.Atoi(os.Getenv("NEARDNS_GEO_ADDRESSES"))
	every := 1
	if err != nil {
		addresses, every = 120, 500
	}
	w := mmdb.New(t)
	var edges []netip.Addr // of ranges: where a lookup is wrong by one
	ranges := 0
	torgeo.Ranges(t, every, func(from, to netip.Addr, country string) {
		w.InsertRange(from, to, mmdb.Map{"country": mmdb.Map{"iso_code": country}})
		ranges++
		edges = append(edges, from, to, to.Next(), from.Prev())
	})
	text := w.Bytes("GeoLite2-Country")
	file := filepath.Join(t.TempDir(), "tor.mmdb")
	testutil.Must(t, os.WriteFile(file, text, 0o600))
	d, err := geo.ReadDatabase(text)
	testutil.Must(t, err)
	l := &geo.Locator{Database: d}
	rng := rand.New(rand.NewPCG(15, 13))
	ask := make(chan netip.Addr)
	var wg sync.WaitGroup
	var found sync.Map
	for range 4 {
		wg.Go(func() {
			for a := range ask {
				want, err := mmdblookup(t, file, a)
				if err != nil {
					t.Errorf("%s: %v", a, err)
					continue
				}
				got := ""
				if p, bits := l.Locate(a); len(p) > 0 {
					got = strings.ToUpper(p[0])
					if bits > a.BitLen() || bits == 0 {
						t.Errorf("%s: %d bits", a, bits)
					}
				}
				if got != want {
					t.Errorf("%s: %q, mmdblookup says %q", a, got, want)
				}
				found.Store(want, true)
			}
		})
	}
	for i := range addresses {
		a := edges[rng.IntN(len(edges))]
		if i%2 == 0 && a.IsValid() { // anywhere in its neighbourhood
			raw := a.AsSlice()
			raw[len(raw)-1-rng.IntN(2)] ^= byte(rng.IntN(256))
			a, _ = netip.AddrFromSlice(raw)
		}
		if a.IsValid() {
			ask <- a
		}
	}
	close(ask)
	wg.Wait()
	countries := 0
	found.Range(func(any, any) bool { countries++; return true })
	t.Logf("%d ranges, %d addresses, %d countries", ranges, addresses, countries)
	if countries < 20 {
		t.Errorf("only %d countries were met", countries)
	}
}

var isoCode = regexp.MustCompile(`"([A-Z]{2})" <utf8_string>`)

// mmdblookup looks up an address's country; "" for none.
func mmdblookup(t *testing.T, file string, a netip.Addr) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "mmdblookup", "--file", file, "--ip", a.String(), "country", "iso_code").CombinedOutput()
	if m := isoCode.FindSubmatch(out); m != nil {
		return string(m[1]), nil
	}
	if strings.Contains(string(out), "Could not find an entry") {
		return "", nil
	}
	return "", fmt.Errorf("%w: %s", err, out)
}
