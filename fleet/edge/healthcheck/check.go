package healthcheck

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/neardns/neardns/fleet/zones/zone"
)

// Protocol is how a target is probed.
type Protocol string

// The protocols. TCP only opens a connection.
const (
	HTTP  Protocol = "HTTP"
	HTTPS Protocol = "HTTPS"
	TCP   Protocol = "TCP"
)

// Check is the health check of one address.
type Check struct {
	Address  netip.Addr
	Protocol Protocol
	Port     uint16
	Path     string // for HTTP and HTTPS; "" means /
	Host     string // for HTTP and HTTPS: the hostname of the request, for which the certificate must be valid
}

// Of returns the health check of an address of a host in a zone; ok is false if h is nil. Edges and controllers probe by it.
func Of(host string, a netip.Addr, h *zone.Health) (c Check, ok bool) {
	if h == nil {
		return c, false
	}
	c = Check{Address: a, Protocol: Protocol(h.Protocol), Port: h.Port}
	if c.Protocol != TCP {
		c.Path, c.Host = h.Path, strings.TrimSuffix(cmp.Or(h.Host, strings.TrimPrefix(host, "*.")), ".")
	}
	return c, true
}

func (c Check) compare(d Check) int {
	return cmp.Or(c.Address.Compare(d.Address), cmp.Compare(c.Port, d.Port), cmp.Compare(c.Protocol, d.Protocol), cmp.Compare(c.Host, d.Host),
		cmp.Compare(c.Path, d.Path))
}

// Maximum lengths of a Check's Path and Host, in bytes.
const (
	pathMost = 1024
	hostMost = 253
)

// permit returns why the check must not be made; nil if it may be. Each writer of a zone can name addresses to probe. So the checker
// connects only to the given ranges, and never to 255.255.255.255 or to loopback, link-local, multicast or unspecified addresses.
func (c Check) permit(ranges []netip.Prefix) error {
	a := c.Address
	switch {
	case !a.IsValid() || a.Zone() != "" || a.Is4In6():
		return errors.New("not an address, or one with a zone or an IPv4 mapping")
	case a.IsLoopback(), a.IsUnspecified(), a.IsMulticast(), a.IsLinkLocalUnicast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return errors.New("loopback, link-local, multicast, broadcast and unspecified addresses are not probed")
	case !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) }):
		return errors.New("in none of the zone's target ranges")
	case c.Port == 0:
		return errors.New("port 0")
	}
	switch c.Protocol {
	case TCP:
		return nil
	case HTTP, HTTPS:
		_, err := c.url()
		return err
	}
	return fmt.Errorf("protocol %q is not known: HTTP, HTTPS and TCP are", c.Protocol)
}

// url returns the URL that an HTTP check requests.
func (c Check) url() (*url.URL, error) {
	if len(c.Path) > pathMost || c.Path != "" && !strings.HasPrefix(c.Path, "/") {
		return nil, fmt.Errorf("a path begins with / and has %d bytes at most", pathMost)
	}
	if c.Host == "" || len(c.Host) > hostMost || strings.ContainsFunc(c.Host, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_'
	}) {
		return nil, fmt.Errorf("%q is not a name for the host of a request", c.Host)
	}
	path := c.Path
	if path == "" {
		path = "/"
	}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return nil, errors.New("the path is no part of a URL")
	}
	if u.Host != "" || u.Scheme != "" { // //host/path
		return nil, errors.New("the path names another host")
	}
	u.Scheme, u.Host = strings.ToLower(string(c.Protocol)), c.Host
	if c.Port != map[Protocol]uint16{HTTP: 80, HTTPS: 443}[c.Protocol] { // clients leave a default port out of the Host header
		u.Host = fmt.Sprintf("%s:%d", c.Host, c.Port)
	}
	return u, nil
}
