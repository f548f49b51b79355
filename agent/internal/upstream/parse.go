package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/neardns/neardns/agent/internal/nameserver"
)

// UplinkFile is where systemd-resolved writes the servers that it asks itself, for programs that do not want its stub.
const UplinkFile = "/run/systemd/resolve/resolv.conf"

// systemd-resolved's two listeners (systemd-resolved.service(8)).
var stubs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 53}), netip.AddrFrom4([4]byte{127, 0, 0, 54})}

// entry is one line "nameserver" of a resolv.conf.
type entry struct {
	addr netip.Addr
	line int
}

func (n entry) isStub() bool { return slices.Contains(stubs, n.addr) }

// parseResolvConf reads the nameserver lines as the C libraries do: the keyword starts the line, and what follows the
// address is ignored. Where they would skip a line with an unusable address in silence, we say so. Lines that are
// nothing known only make a note, since every resolver lives with them.
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
			notes = append(notes, fmt.Sprintf("%s:%d: %q is no line of a resolv.conf and has no effect", file, number, shorten(line)))
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
			faults = append(faults, fmt.Errorf("%s:%d: nameserver %q is not an IP address: write one, without port, or take the line out", file, number, shorten(rest)))
			continue
		case addr.IsMulticast(), addr.Is4In6():
			faults = append(faults, fmt.Errorf("%s:%d: nameserver %s is not a server's address: write another or take the line out", file, number, addr))
			continue
		case addr.IsUnspecified():
			addr = loopback(addr) // what the C libraries make of it
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

// shorten keeps a message readable whatever stands in the file.
func shorten(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

// parseStubDomains reads the ConfigMap's stubDomains: {"acme.local": ["1.2.3.4", "1.2.3.5:5353"]}.
func parseStubDomains(file, text string) (map[string][]nameserver.Address, error) {
	var in map[string][]string
	if err := decode(file, text, &in, `{"corp.example": ["10.1.2.3"]}`); err != nil {
		return nil, err
	}
	out := map[string][]nameserver.Address{}
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(in)) {
		domain := strings.ToLower(strings.TrimSuffix(key, "."))
		_, twice := out[domain]
		switch {
		case !isDomain(domain):
			faults = append(faults, fmt.Errorf("%s: %q is not a domain: write one such as corp.example", file, shorten(key)))
			continue
		case twice:
			faults = append(faults, fmt.Errorf("%s: %s stands twice: keep one", file, domain))
			continue
		case len(in[key]) == 0:
			faults = append(faults, fmt.Errorf("%s: %s names no server: name one or take the domain out", file, domain))
			continue
		}
		for i, s := range in[key] {
			a, err := nameserver.ParsePlain(s)
			if err != nil {
				faults = append(faults, fmt.Errorf("%s: %s[%d]: %w", file, domain, i, err))
				continue
			}
			out[domain] = append(out[domain], a)
		}
	}
	return out, errors.Join(faults...)
}

// parseNameservers reads the ConfigMap's upstreamNameservers: ["8.8.8.8", "8.8.4.4:53"].
func parseNameservers(file, text string) ([]nameserver.Address, error) {
	var in []string
	if err := decode(file, text, &in, `["10.1.2.3"]`); err != nil {
		return nil, err
	}
	var out []nameserver.Address
	var faults []error
	for i, s := range in {
		a, err := nameserver.ParsePlain(s)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: [%d]: %w", file, i, err))
			continue
		}
		out = append(out, a)
	}
	return out, errors.Join(faults...)
}

// decode reads one JSON value, as the API server stores what a person wrote into the ConfigMap.
func decode(file, text string, into any, example string) error {
	err := json.Unmarshal([]byte(text), into)
	if err == nil {
		return nil
	}
	line := 1
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		line += strings.Count(text[:min(int(syntax.Offset), len(text))], "\n")
		return fmt.Errorf("%s:%d: not valid JSON (%w): write it as %s", file, line, err, example)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		line += strings.Count(text[:min(int(wrong.Offset), len(text))], "\n")
		return fmt.Errorf("%s:%d: a JSON %s stands where none may: write it as %s", file, line, wrong.Value, example)
	}
	return fmt.Errorf("%s: %w: write it as %s", file, err, example)
}

func isDomain(d string) bool {
	if len(d) > 253 {
		return false
	}
	for label := range strings.SplitSeq(d, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}
