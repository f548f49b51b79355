// Package torgeo reads Debian's ranges of addresses by country (package tor-geoipdb), of which tests make MaxMind DBs.
package torgeo

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// Ranges calls each for every nth of the address ranges that have a country, in order, IPv4 first. It skips the test if the package is
// not installed.
func Ranges(t testing.TB, nth int, each func(from, to netip.Addr, country string)) {
	t.Helper()
	n := 0
	for _, name := range []string{"geoip", "geoip6"} {
		f, err := os.Open(filepath.Join("/usr/share/tor", name))
		if err != nil {
			testutil.Skip(t, "needs Debian's package tor-geoipdb")
		}
		defer f.Close() //nolint:errcheck // only read
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if l := lines.Bytes(); bytes.HasPrefix(l, []byte("#")) || bytes.HasSuffix(l, []byte("??")) {
				continue
			}
			if n++; n%nth > 0 {
				continue
			}
			fields := strings.Split(lines.Text(), ",")
			each(address(t, fields[0]), address(t, fields[1]), fields[2])
		}
		testutil.Must(t, lines.Err())
	}
}

// address parses an address as the files have it. They have IPv4 addresses as numbers.
func address(t testing.TB, text string) netip.Addr {
	t.Helper()
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(n))))
	}
	a, err := netip.ParseAddr(text)
	testutil.Must(t, err)
	return a
}
