package config

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/strict"
)

// Each parse function here turns one text into its typed form. Its error has what is wrong and what to write; the caller adds the place.

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address: write one such as 10.96.0.10 or fd00::a", s)
	}
	return a, nil
}

// parseServer reads a server that is used without TLS.
func parseServer(s string) (nameserver.Address, error) {
	a, err := nameserver.ParsePlain(s)
	if err != nil && !errors.Is(err, nameserver.ErrLinkLocal) {
		err = fmt.Errorf("%q is not a server: write an address with or without a port, such as 10.1.2.3, 10.1.2.3:5353 or [fd00::a]:53; "+
			"names are not resolved here", s)
	}
	return a, err
}

// parseSource takes a path, or a server.
func parseSource(s string) (nameserver.Source, error) {
	if strings.HasPrefix(s, "/") {
		p, err := parsePath(s)
		return nameserver.Source{Path: p}, err
	}
	a, err := nameserver.Parse(s)
	switch {
	case err == nil || errors.Is(err, nameserver.ErrLinkLocal):
	case strings.HasPrefix(s, "tls://"):
		err = fmt.Errorf("%q is not a DNS-over-TLS server: write tls://9.9.9.9%%dns.quad9.net or tls://[2620:fe::fe%%dns.quad9.net], "+
			"with :port behind where it is not 853", s)
	default:
		err = fmt.Errorf("%q is neither a server nor a file: write an address with or without a port, tls://address%%name, "+
			"or the whole path of a file in the format of resolv.conf", s)
	}
	return nameserver.Source{Address: a}, err
}

// parseDomain brings a domain into lower case without its final dot.
func parseDomain(s string) (string, error) {
	d := strings.ToLower(strings.TrimSuffix(s, "."))
	if !strict.IsDomain(d) {
		return "", fmt.Errorf("%q is not a domain: write one such as cluster.local", s)
	}
	return d, nil
}

// parseService takes a Service as namespace/name. Both are DNS labels (RFC 1123, section 2.1), as Kubernetes has them.
func parseService(s string) (string, error) {
	if namespace, name, ok := strings.Cut(s, "/"); !ok || !isLabel(namespace) || !isLabel(name) {
		return "", fmt.Errorf("%q is not a Service: write namespace/name, such as registry/image-registry", s)
	}
	return s, nil
}

func parseNamespace(s string) (string, error) {
	if !isLabel(s) {
		return "", fmt.Errorf("%q is not a namespace: write a name such as shop", s)
	}
	return s, nil
}

// isLabel reports whether Kubernetes accepts the name for a namespace or a Service (RFC 1123, section 2.1, in lower case).
func isLabel(s string) bool {
	return len(s) <= 63 && strict.IsDomain(s) && !strings.ContainsAny(s, "._") && strings.ToLower(s) == s
}

// parsePath requires absolute paths: the agent's working directory must not matter.
func parsePath(s string) (string, error) {
	if !path.IsAbs(s) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", fmt.Errorf("%q is not a whole path: start it with /", s)
	}
	if s = path.Clean(s); s == "/" {
		return "", fmt.Errorf("is the root folder: name one of its own")
	}
	return s, nil
}

// parseLinkName takes what the kernel takes.
func parseLinkName(s string) (string, error) {
	bad := func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' || r == ':' || r == '%' }
	if s == "" || len(s) > 15 || s == "." || s == ".." || strings.ContainsFunc(s, bad) {
		return "", fmt.Errorf("%q is not a name for a link: write 1 to 15 letters or digits, such as neardns0", s)
	}
	return s, nil
}

// parseListen takes address:port or off. Brackets are optional for either family, so that
// "${NODE_IP}:9253" is right on every node; the port is what follows the last colon.
func parseListen(s string) (netip.AddrPort, error) {
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

func oneOf(values ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		if slices.Contains(values, s) {
			return s, nil
		}
		return "", errors.New(strict.NotOne(strconv.Quote(s), values...))
	}
}

// showDuration drops the zero units that time.Duration prints: 1h, not 1h0m0s.
func showDuration(t time.Duration) string {
	s := t.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
