package configfile

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/strict"
)

// Each Parse function converts one text into a typed value. Its error has the fault and the remedy; the caller adds the field and the
// position.

// ParseAddr parses an IP address.
func ParseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil && strings.Contains(s, " - ") { // YAML reads a list item that is indented deeper than the one above as part of it
		return netip.Addr{}, fmt.Errorf("%q is not an IP address: indent each list item as the one before", s)
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address: write one such as 10.96.0.10 or fd00::a", s)
	}
	return a, nil
}

// ParseServer parses the address of a DNS server without TLS, with or without a port.
func ParseServer(s string) (nameserver.Address, error) {
	a, err := nameserver.ParsePlain(s)
	if err != nil && !errors.Is(err, nameserver.ErrLinkLocal) {
		err = fmt.Errorf("%q is not a server: write an address with or without a port, such as 10.1.2.3, 10.1.2.3:5353 or [fd00::a]:53; "+
			"names are not resolved here", s)
	}
	return a, err
}

// ParseDomain returns a domain in lower case and without the final dot.
func ParseDomain(s string) (string, error) {
	d := strings.ToLower(strings.TrimSuffix(s, "."))
	if !strict.IsDomain(d) {
		return "", fmt.Errorf("%q is not a domain: write one such as cluster.local", s)
	}
	return d, nil
}

// ParsePath returns an absolute path, cleaned. It refuses a relative one, whose meaning would depend on the program's working directory,
// the root folder, and control characters.
func ParsePath(s string) (string, error) {
	if !path.IsAbs(s) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", fmt.Errorf("%q is not a whole path: start it with /", s)
	}
	if s = path.Clean(s); s == "/" {
		return "", fmt.Errorf("is the root folder: name one of its own")
	}
	return s, nil
}

// ParseListen parses address:port; "off" gives the zero AddrPort. The port follows the last colon, and brackets are optional for both IP
// families, so that "${NODE_IP}:9253" is right on IPv4 and IPv6 nodes.
func ParseListen(s string) (netip.AddrPort, error) {
	if s == "off" {
		return netip.AddrPort{}, nil
	}
	bad := fmt.Errorf("%q is not an address to listen on: write address:port, such as 127.0.0.1:9254, 0.0.0.0:9253 for all, or off", s)
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return netip.AddrPort{}, bad
	}
	host := s[:i]
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, bad
	}
	port, err := strconv.ParseUint(s[i+1:], 10, 16)
	if err != nil || port == 0 {
		return netip.AddrPort{}, bad
	}
	return netip.AddrPortFrom(a, uint16(port)), nil
}

// OneOf returns a parser that accepts only the given words.
func OneOf(values ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		if slices.Contains(values, s) {
			return s, nil
		}
		return "", errors.New(strict.NotOne(strconv.Quote(s), values...))
	}
}
