package upstream

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/strict"
)

// UplinkFile is the file in which systemd-resolved lists its upstreams, for programs that do not use its stub listener.
const UplinkFile = "/run/systemd/resolve/resolv.conf"

// systemd-resolved's two listeners (systemd-resolved.service(8)).
var stubs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 53}), netip.AddrFrom4([4]byte{127, 0, 0, 54})}

// entry is one nameserver line of a resolv.conf.
type entry struct {
	addr netip.Addr
	line int
}

func (n entry) isStub() bool { return slices.Contains(stubs, n.addr) }

// parseResolvConf reads the nameserver lines of a resolv.conf as the C libraries do: the keyword starts the line, and text after the
// address is ignored. An unusable address, which they skip silently or query in vain, is an error here. An unknown keyword gives only a
// note, because every resolver ignores it.
func parseResolvConf(file, text string) (out []entry, notes []string, err error) {
	var faults []error
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") || strings.TrimSpace(line) == "" {
			continue
		}
		keyword, rest, _ := strings.Cut(strings.ReplaceAll(line, "\t", " "), " ")
		switch keyword {
		case "nameserver":
		case "search", "domain", "options", "sortlist", "lookup", "family", "port":
			continue
		default:
			notes = append(notes, fmt.Sprintf("%s:%d: %s is no line of a resolv.conf and has no effect", file, number, strict.Quote(line)))
			continue
		}
		rest = strings.TrimSpace(rest)
		if i := strings.IndexAny(rest, " #;"); i >= 0 {
			rest = rest[:i]
		}
		addr, err := netip.ParseAddr(rest)
		switch {
		case rest == "":
			faults = append(faults, fmt.Errorf("%s:%d: nameserver without an address: write one behind it or take the line out", file, number))
			continue
		case err != nil:
			faults = append(faults, fmt.Errorf("%s:%d: nameserver %s is not an IP address: write one, without port, or take the line out",
				file, number, strict.Quote(rest)))
			continue
		case addr.IsMulticast(), addr.Is4In6():
			faults = append(faults, fmt.Errorf("%s:%d: nameserver %s is not a server's address: write another or take the line out",
				file, number, addr))
			continue
		case addr.IsUnspecified():
			addr = loopback(addr) // as the C libraries read it
		}
		if !slices.ContainsFunc(out, func(n entry) bool { return n.addr == addr }) {
			out = append(out, entry{addr, number})
		}
	}
	return out, notes, errors.Join(faults...)
}

func loopback(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// parseStubDomains reads the key stubDomains of kube-dns's ConfigMap, for example {"acme.local": ["1.2.3.4", "1.2.3.5:5353"]}.
func parseStubDomains(file, text string) (map[string][]nameserver.Address, error) {
	const example = `{"corp.example": ["10.1.2.3"]}`
	v, err := decode(file, text, example)
	if err != nil {
		return nil, err
	}
	var r strict.Reader
	if v.Kind != strict.Object && !v.IsNull() {
		r.Mismatch(v, "it as "+example)
	}
	out := map[string][]nameserver.Address{}
	all := v.Map() // if a key is there twice, the last one counts, as in kube-dns
	for _, key := range slices.Sorted(maps.Keys(all)) {
		domain, value := strings.ToLower(strings.TrimSuffix(key, ".")), all[key]
		at := strict.Value{Place: value.Place}
		_, twice := out[domain]
		switch {
		case !strict.IsDomain(domain):
			r.Fault(at, "%s is not a domain: write one such as corp.example", strict.Quote(key))
			continue
		case twice:
			r.Fault(at, "%s stands twice: keep one", domain)
			continue
		}
		value.Field = domain
		faults := len(r.Faults())
		out[domain] = readServers(&r, value, example)
		if len(out[domain]) == 0 && len(r.Faults()) == faults {
			r.Fault(at, "%s names no server: name one or take the domain out", domain)
		}
	}
	return out, r.Err(0)
}

// parseNameservers reads the key upstreamNameservers of kube-dns's ConfigMap, for example ["8.8.8.8", "8.8.4.4:53"].
func parseNameservers(file, text string) ([]nameserver.Address, error) {
	const example = `["10.1.2.3"]`
	v, err := decode(file, text, example)
	if err != nil {
		return nil, err
	}
	var r strict.Reader
	return readServers(&r, v, example), r.Err(0)
}

// readServers reads a JSON list of servers; null is an empty list.
func readServers(r *strict.Reader, v strict.Value, example string) (out []nameserver.Address) {
	if v.IsNull() {
		return nil
	}
	for _, item := range r.ItemsOf(v, "it as "+example) {
		text, ok := r.TextOf(item, "it as "+example)
		if !ok {
			continue
		}
		a, err := nameserver.ParsePlain(text)
		if err != nil {
			r.Fault(item, "%v", err)
			continue
		}
		out = append(out, a)
	}
	return out
}

// decode parses the JSON value of one key of the ConfigMap. example is for the error.
func decode(file, text, example string) (strict.Value, error) {
	v, err := strict.JSON(file, "", []byte(text))
	if err != nil {
		return v, fmt.Errorf("%s:%d: not valid JSON (%w): write it as %s", file, strict.ErrorLine([]byte(text), err), err, example)
	}
	return v, nil
}
