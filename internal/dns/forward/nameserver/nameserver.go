// Package nameserver parses and prints the address of an upstream DNS server, for NodeConfig, the kube-dns ConfigMap and a Corefile.
//
// The same text means the same server everywhere. The package is pure: it resolves no name, reads no file and opens no socket.
//
// On failure: Parse returns an error that names the text and the remedy.
package nameserver

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// MaxServers is how many servers one list may name: what CoreDNS's forward accepts in one line.
const MaxServers = 15

// Ports that a text may leave out.
const (
	plainPort = 53
	tlsPort   = 853 // RFC 7858, section 3.1
)

const scheme = "tls://"

// Address is one upstream server. Addresses are equal if they mean the same server over the same transport.
type Address struct {
	Addr       netip.AddrPort
	TLS        bool
	ServerName string // the name in its certificate, lower case; "" if the certificate names the address
}

// At returns the server at port 53 of an address, without TLS.
func At(a netip.Addr) Address { return Address{Addr: netip.AddrPortFrom(a, plainPort)} }

// Parse reads address, address:port or tls://address[%name][:port]. An IPv6 address with a port needs brackets, with the name
// inside them. The name is in the place of a zone, as in CoreDNS's forward.
func Parse(text string) (Address, error) {
	rest, secure := strings.CutPrefix(text, scheme)
	if !secure {
		return parse(text, rest, plainPort, "write an address with or without a port, or tls://address%name")
	}
	rest, name, err := cutName(rest)
	if err != nil {
		return Address{}, fmt.Errorf("%q: %w", text, err)
	}
	a, err := parse(text, rest, tlsPort, "write tls://address, with %name and :port behind it where they are needed")
	if err != nil {
		return Address{}, err
	}
	a.TLS, a.ServerName = true, name
	return a, nil
}

// ParsePlain is Parse for servers without TLS.
func ParsePlain(text string) (Address, error) {
	return parse(text, text, plainPort, "write an address with or without a port")
}

// ErrLinkLocal means that an address has a zone. The agent's connections are not bound to an interface.
var ErrLinkLocal = errors.New("a link-local server cannot be queried: name one of its other addresses")

// parse reads an address that may have a port. text is what was written as a whole.
func parse(text, s string, port uint16, remedy string) (Address, error) {
	var at netip.AddrPort
	ip, err := netip.ParseAddr(s)
	switch {
	case err == nil:
		at = netip.AddrPortFrom(ip, port)
	case strings.HasSuffix(s, "]"): // where netip, too, takes IPv6 alone in brackets
		at, err = netip.ParseAddrPort(s + ":" + strconv.Itoa(int(port)))
	default:
		at, err = netip.ParseAddrPort(s)
	}
	if err != nil {
		return Address{}, fmt.Errorf("%q is not a server: %s; names are not resolved here", text, remedy)
	}
	switch ip := at.Addr(); {
	case ip.Zone() != "":
		return Address{}, fmt.Errorf("%q is not a server's address: %w", text, ErrLinkLocal)
	case at.Port() == 0, ip.IsUnspecified(), ip.IsMulticast(), ip.Is4In6(): // loopback can be one: a resolver on the node itself
		return Address{}, fmt.Errorf("%q is not a server's address: write another", text)
	}
	return Address{Addr: at}, nil
}

// cutName takes the certificate's name out of 9.9.9.9%dns.quad9.net:853 or [2620:fe::fe%dns.quad9.net]:853.
func cutName(s string) (rest, name string, err error) {
	before, name, found := strings.Cut(s, "%")
	if !found {
		return s, "", nil
	}
	tail := ""
	if i := strings.IndexAny(name, "]:"); i >= 0 {
		name, tail = name[:i], name[i:]
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if !IsName(name) {
		return "", "", fmt.Errorf("%q is not a name that a certificate can have", name)
	}
	// Without brackets around both, the port would become part of the address.
	bare := strings.Contains(before, ":") && strings.HasPrefix(tail, ":")
	if bare || strings.Contains(before, "]") || strings.HasPrefix(before, "[") != strings.HasPrefix(tail, "]") {
		return "", "", errors.New("not a server: put an IPv6 address and its name into brackets, and the port behind them")
	}
	return before + tail, name, nil
}

// IsName reports whether s is a host's name in lower case, without the final dot.
func IsName(s string) bool {
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// String returns the form that Parse reads and that names the server in a Corefile, in metrics and in logs: always with the port.
func (a Address) String() string { return a.text(true) }

// Join writes servers into a line of a Corefile.
func Join(servers []Address) string {
	var out []string
	for _, s := range servers {
		out = append(out, s.String())
	}
	return strings.Join(out, " ")
}

// Short returns the form in which people write it: without the port where that is the usual one.
func (a Address) Short() string {
	usual := uint16(plainPort)
	if a.TLS {
		usual = tlsPort
	}
	return a.text(a.Addr.Port() != usual)
}

func (a Address) text(withPort bool) string {
	host, prefix := a.Addr.Addr().String(), ""
	if a.TLS {
		prefix = scheme
	}
	if a.ServerName != "" {
		host += "%" + a.ServerName
	}
	if a.Addr.Addr().Is6() && (withPort || a.TLS) {
		host = "[" + host + "]"
	}
	if withPort {
		host += ":" + strconv.Itoa(int(a.Addr.Port()))
	}
	return prefix + host
}

// Refuse returns an error if the server is one of own, the addresses at which the agent answers. On another port it is another server.
func (a Address) Refuse(own []netip.Addr) error {
	if a.Addr.Port() != plainPort || !slices.Contains(own, a.Addr.Addr().WithZone("")) {
		return nil
	}
	return fmt.Errorf("%s is an address of the agent itself, which would ask itself for ever: name the server behind it", a.Addr.Addr())
}

// Source is one server, or a file in the format of resolv.conf that names some.
type Source struct {
	Path    string // "" for a server
	Address Address
}

// String returns the form in which people write it.
func (s Source) String() string {
	if s.Path != "" {
		return s.Path
	}
	return s.Address.Short()
}
