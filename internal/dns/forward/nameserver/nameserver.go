// Package nameserver parses and prints the address of an upstream DNS server, for NodeConfig, the kube-dns ConfigMap and a Corefile.
//
// The same text means the same server everywhere. The package is pure: it resolves no name, reads no file and opens no socket.
//
// On failure: Parse returns an error that names the text and what is wrong with it.
package nameserver

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/neardns/neardns/pkg/strict"
)

// MaxServers is the maximum number of servers in one list. CoreDNS's forward accepts as many.
const MaxServers = 15

// Ports that a text may leave out.
const (
	plainPort = 53
	tlsPort   = 853 // RFC 7858, section 3.1
)

const scheme = "tls://"

// Address is the address of an upstream server. Two are equal if they mean the same server over the same transport.
type Address struct {
	Addr       netip.AddrPort
	TLS        bool
	ServerName string // the name in its certificate, lower case; "" if the certificate names the address
}

// At returns the server with address a, on port 53 and without TLS.
func At(a netip.Addr) Address { return Address{Addr: netip.AddrPortFrom(a, plainPort)} }

// Parse reads "address", "address:port" or "tls://address[%name][:port]". name is the server's name in its certificate, written where an
// IPv6 zone would be, as in CoreDNS's forward. An IPv6 address with a port needs brackets, with the name inside them.
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

// ErrLinkLocal means that an address has a zone, for example fe80::1%eth0. It cannot be used, because the agent's connections are not
// bound to an interface.
var ErrLinkLocal = errors.New("a link-local server cannot be queried: name one of its other addresses")

// parse reads an address with or without a port; port is the default. text is the whole input, for the error.
func parse(text, s string, port uint16, remedy string) (Address, error) {
	var at netip.AddrPort
	ip, err := netip.ParseAddr(s)
	switch {
	case err == nil:
		at = netip.AddrPortFrom(ip, port)
	case strings.HasSuffix(s, "]"): // ParseAddrPort rejects brackets around an IPv4 address
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
	case at.Port() == 0, ip.IsUnspecified(), ip.IsMulticast(), ip.Is4In6(): // loopback is allowed, for a resolver on the node
		return Address{}, fmt.Errorf("%q is not a server's address: write another", text)
	}
	return Address{Addr: at}, nil
}

// cutName cuts the certificate's name out of, for example, 9.9.9.9%dns.quad9.net:853 or [2620:fe::fe%dns.quad9.net]:853.
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
	if !strict.IsDomain(name) {
		return "", "", fmt.Errorf("%q is not a name that a certificate can have", name)
	}
	// Without brackets, the port would be read as part of the IPv6 address.
	bare := strings.Contains(before, ":") && strings.HasPrefix(tail, ":")
	if bare || strings.Contains(before, "]") || strings.HasPrefix(before, "[") != strings.HasPrefix(tail, "]") {
		return "", "", errors.New("not a server: put an IPv6 address and its name into brackets, and the port behind them")
	}
	return before + tail, name, nil
}

// String returns the address as Parse reads it, always with the port. It is the server's name in a Corefile, in metrics and in logs.
func (a Address) String() string { return a.text(true) }

// Join returns the servers as a Corefile lists them, separated by spaces.
func Join(servers []Address) string {
	var out []string
	for _, s := range servers {
		out = append(out, s.String())
	}
	return strings.Join(out, " ")
}

// Short returns the address as Parse reads it, without the port if that is the default.
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

// Refuse returns an error if the server is the agent itself: its address is one of own and its port is 53.
func (a Address) Refuse(own []netip.Addr) error {
	if a.Addr.Port() != plainPort || !slices.Contains(own, a.Addr.Addr().WithZone("")) {
		return nil
	}
	return fmt.Errorf("%s is an address of the agent itself, which would query itself forever: name the server behind it", a.Addr.Addr())
}

// Source is a server, or the path of a file in the format of resolv.conf that lists servers.
type Source struct {
	Path    string // "" for a server
	Address Address
}

// String returns the path, or the short form of the address.
func (s Source) String() string {
	if s.Path != "" {
		return s.Path
	}
	return s.Address.Short()
}
