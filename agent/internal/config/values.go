package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/internal/configfile"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/strict"
)

// Each parse function in this file checks a text and returns its value. Its error has what is wrong and what to write; the caller adds the
// position.

// parseSource parses the path of a file that lists servers, or a server's address.
func parseSource(s string) (nameserver.Source, error) {
	if strings.HasPrefix(s, "/") {
		p, err := configfile.ParsePath(s)
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

// parseService parses a Service in the form namespace/name. Both must be DNS labels (RFC 1123, section 2.1), as in Kubernetes.
func parseService(s string) (string, error) {
	if namespace, name, ok := strings.Cut(s, "/"); !ok || !strict.IsLabel(namespace) || !strict.IsLabel(name) {
		return "", fmt.Errorf("%q is not a Service: write namespace/name, such as registry/image-registry", s)
	}
	return s, nil
}

func parseNamespace(s string) (string, error) {
	if !strict.IsLabel(s) {
		return "", fmt.Errorf("%q is not a namespace: write a name such as shop", s)
	}
	return s, nil
}

// parseLinkName accepts a name that the kernel accepts for a link, if it is printable ASCII without %.
func parseLinkName(s string) (string, error) {
	bad := func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' || r == ':' || r == '%' }
	if s == "" || len(s) > 15 || s == "." || s == ".." || strings.ContainsFunc(s, bad) {
		return "", fmt.Errorf("%q is not a name for a link: write 1 to 15 letters or digits, such as neardns0", s)
	}
	return s, nil
}

// showDuration returns a duration without zero units at its end: 1h, not 1h0m0s.
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
