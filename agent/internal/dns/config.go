// Package dns is the agent's DNS server: CoreDNS, embedded, started from a Config and reloaded without a lost question.
//
// It owns the listening sockets, CoreDNS's process-wide settings and the way from Config to Corefile. It must never take
// signals, command-line flags or files into account, write rules, or decide whether pods may reach it: the lease does.
//
// Failure policy: Start leaves either all addresses served or none and says who is in the way; a Restart that fails
// leaves the old configuration serving; a question is answered SERVFAIL only when no stale answer may be given.
package dns

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Defaults for what a Config leaves zero.
const (
	defaultPort         = 53
	defaultEntries      = 10000
	defaultNegativeTTL  = 5 * time.Second
	defaultBufferSize   = 1232 // dnsflagday.net/2020: passes every path without fragments
	maxUpstreams        = 15   // CoreDNS's limit per forward
	defaultUpstreamPort = 53
	defaultMisses       = 1024
	defaultConnections  = 1024
)

// Queries says which questions are logged.
type Queries string

// What may be logged. Off still says once a minute and kind that upstreams fail.
const (
	QueriesOff    Queries = "off"
	QueriesErrors Queries = "errors"
	QueriesAll    Queries = "all"
)

// Config is all that the server is made from. Zero values mean the default named beside the field; the server keeps no
// reference to its slices and maps.
type Config struct {
	// Addresses are listened on, UDP and TCP each. At least one; no wildcard, since the node must not be a resolver for
	// its segment.
	Addresses []netip.Addr
	Port      uint16 // 53
	// Transparent sets IP_TRANSPARENT on the sockets, by which the switch tells them from another program's at the same
	// addresses. It needs CAP_NET_ADMIN or CAP_NET_RAW and changes nothing else for a socket that is bound to a local address.
	Transparent bool

	// ClusterDomain and ReverseZones go to Cluster, over TCP.
	ClusterDomain string
	ReverseZones  []string // in-addr.arpa, ip6.arpa
	Cluster       []string // address or address:port, in order of preference
	// LastResort are the cluster DNS addresses: asked when all of Cluster fail; those that are in it need not be left out.
	LastResort []string
	// LastResortMark is put on the packets to them, so that the host table lets them pass. 0: none.
	LastResortMark int
	// StubDomains go each to servers of their own.
	StubDomains map[string][]string
	// External gets the rest: address, address:port, or tls://address[%name][:port]. Empty: the rest goes to Cluster
	// too, as kube-dns knows the way.
	External []string
	// ExternalFound says that nobody has chosen External: then LastResort, or without any Cluster, is asked when they fail.
	ExternalFound bool

	Cache Cache
	// Misses bounds the questions that are being asked of upstreams, in all zones together. 1024
	Misses int
	// Connections bounds the open TCP connections, at all addresses together. 1024
	Connections int
	// BufferSize bounds UDP answers, TC above. 1232
	BufferSize uint16
	Queries    Queries // off

	// Snippets are Corefile directives per zone ("." for the rest). A directive takes the place of the rendered one of the
	// same name; in a zone that is not configured otherwise they change a copy of the "." zone.
	Snippets map[string]string
	// Override is a Corefile that replaces the rendered one whole. Its listeners, buffer size and metrics are still ours
	// and the prober's zone is added.
	Override string
	// OverrideName is where the Override was read, for messages. "corefile"
	OverrideName string
	// NodeCache says that the Override was written for NodeLocal DNSCache: each server block is served at the addresses that
	// it binds (by number, or all by the name of Link); those without a bind, at all of them. Misses by forward are bounded in time.
	NodeCache bool
	// Link is the interface of the addresses, for a bind that names it.
	Link string
	// InstanceID is what the prober is answered; empty: no answer.
	InstanceID string
}

// Cache says what is kept.
type Cache struct {
	Entries     int           // 10000: per server block, positive answers; and as many negative ones
	NegativeTTL time.Duration // 5s: at most; whole seconds
	// ServeStale is how long after its end an answer may still be given when the upstream fails (RFC 8767). 0: never.
	ServeStale time.Duration
	// NoPrefetch: names that are in use are not fetched anew before they end.
	NoPrefetch bool
	// HoldDenials is how long a denial of a name that just had an answer must last before it is believed. 0: no time.
	HoldDenials time.Duration
}

// complete fills in defaults and brings every value into one form, or says all that is wrong with the configuration.
func (c Config) complete() (Config, error) {
	var errs []error
	fault := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %w", field, fmt.Errorf(format, args...)))
	}
	if c.Port == 0 {
		c.Port = defaultPort
	}
	if c.BufferSize == 0 {
		c.BufferSize = defaultBufferSize
	}
	if c.BufferSize < dns.MinMsgSize || c.BufferSize > 4096 {
		fault("bufferSize", "%d is not within 512 and 4096", c.BufferSize)
	}
	switch c.Queries {
	case "":
		c.Queries = QueriesOff
	case QueriesOff, QueriesErrors, QueriesAll:
	default:
		fault("queries", "%q is not off, errors or all", c.Queries)
	}
	switch {
	case c.Misses == 0:
		c.Misses = defaultMisses
	case c.Misses < 0:
		fault("misses", "%d is negative", c.Misses)
	}
	switch {
	case c.Connections == 0:
		c.Connections = defaultConnections
	case c.Connections < 0:
		fault("connections", "%d is negative", c.Connections)
	}
	c.completeCache(fault)
	if err := checkInstance(c.InstanceID); err != nil {
		fault("instanceID", "%w", err)
	}
	c.checkAddresses(fault)
	if c.Override == "" { // else the rest has no meaning
		c.completeZones(fault)
	}
	return c, errors.Join(errs...)
}

type faultFunc func(field, format string, args ...any)

func (c *Config) completeCache(fault faultFunc) {
	switch {
	case c.Cache.Entries == 0:
		c.Cache.Entries = defaultEntries
	case c.Cache.Entries < 0:
		fault("cache.entries", "%d is negative", c.Cache.Entries)
	}
	switch {
	case c.Cache.NegativeTTL == 0:
		c.Cache.NegativeTTL = defaultNegativeTTL
	case c.Cache.NegativeTTL < time.Second, c.Cache.NegativeTTL%time.Second != 0:
		fault("cache.negativeTTL", "%s is not a whole number of seconds of at least 1s", c.Cache.NegativeTTL)
	}
	if c.Cache.ServeStale < 0 {
		fault("cache.serveStale", "%s is negative", c.Cache.ServeStale)
	}
	if c.Cache.HoldDenials < 0 || c.Cache.HoldDenials > 5*time.Minute {
		fault("cache.holdDenials", "%s is not within 0s and 5m", c.Cache.HoldDenials)
	}
}

func (c *Config) checkAddresses(fault faultFunc) {
	if len(c.Addresses) == 0 {
		fault("addresses", "there is nothing to listen on")
	}
	c.Addresses = slices.Clone(c.Addresses)
	for i, a := range c.Addresses {
		field := fmt.Sprintf("addresses[%d]", i)
		switch {
		case !a.IsValid():
			fault(field, "not an IP address")
		case a.Zone() != "", a.Is4In6():
			fault(field, "%s: write it without zone or IPv4 mapping", a)
		case a.IsUnspecified(), a.IsMulticast():
			fault(field, "%s: name one unicast address; the server listens on nothing else", a)
		case slices.Contains(c.Addresses[:i], a):
			fault(field, "%s stands twice", a)
		}
	}
}

func (c *Config) completeZones(fault faultFunc) {
	zone := func(field, name string) string {
		z, err := parseZone(name)
		if err != nil {
			fault(field, "%w", err)
		}
		return z
	}
	c.ClusterDomain = zone("clusterDomain", c.ClusterDomain)
	if c.ReverseZones == nil {
		c.ReverseZones = []string{"in-addr.arpa", "ip6.arpa"}
	}
	c.ReverseZones = slices.Clone(c.ReverseZones)
	for i, z := range c.ReverseZones {
		c.ReverseZones[i] = zone(fmt.Sprintf("reverseZones[%d]", i), z)
	}
	cluster := append([]string{c.ClusterDomain}, c.ReverseZones...)
	c.Cluster = c.upstreams(fault, "upstreams.cluster", c.Cluster, false)
	if len(c.Cluster) == 0 {
		fault("upstreams.cluster", "nobody to ask for %s: name the address of kube-dns", c.ClusterDomain)
	}
	c.LastResort = c.upstreams(fault, "redirects", c.LastResort, false)
	c.External = c.upstreams(fault, "upstreams.external", c.External, true)

	stubs := make(map[string][]string, len(c.StubDomains))
	for _, name := range slices.Sorted(maps.Keys(c.StubDomains)) {
		field := fmt.Sprintf("stubDomains[%q]", name)
		z := zone(field, name)
		switch {
		case z == ".":
			fault(field, "this is every name: write the servers under upstreams.external")
		case slices.Contains(cluster, z):
			fault(field, "this zone belongs to the cluster: its servers stand under upstreams.cluster")
		case stubs[z] != nil:
			fault(field, "%s stands twice", z)
		}
		stubs[z] = c.upstreams(fault, field, c.StubDomains[name], true)
		if len(stubs[z]) == 0 {
			fault(field, "no server is named")
		}
	}
	c.StubDomains = stubs

	snippets := make(map[string]string, len(c.Snippets))
	for _, name := range slices.Sorted(maps.Keys(c.Snippets)) {
		field := fmt.Sprintf("snippets[%q]", name)
		z := zone(field, name)
		if _, twice := snippets[z]; twice {
			fault(field, "%s stands twice", z)
		}
		snippets[z] = c.Snippets[name]
	}
	c.Snippets = snippets
}

// upstreams brings servers into the form that CoreDNS's forward reads, each with its port.
func (c *Config) upstreams(fault faultFunc, field string, servers []string, tls bool) []string {
	if len(servers) > maxUpstreams {
		fault(field, "%d servers; at most %d are asked", len(servers), maxUpstreams)
	}
	out := make([]string, 0, len(servers))
	for i, s := range servers {
		u, addr, err := parseUpstream(s, tls)
		switch {
		case err != nil:
			fault(fmt.Sprintf("%s[%d]", field, i), "%w", err)
		case addr.Port() == c.Port && slices.Contains(c.Addresses, addr.Addr()):
			fault(fmt.Sprintf("%s[%d]", field, i), "%s is an address of ours: the server would ask itself", s)
		default:
			out = append(out, u)
		}
	}
	return out
}

// parseZone returns a domain name in lower case without its closing dot; the root is ".".
func parseZone(name string) (string, error) {
	z := strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "." {
		return ".", nil
	}
	if _, ok := dns.IsDomainName(z); !ok || z == "" || strings.HasSuffix(z, ".") {
		return name, fmt.Errorf("%q is not a domain name", name)
	}
	// Wider than host names, narrower than DNS: nothing that would mean something in a Corefile.
	for _, r := range z {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.' {
			return name, fmt.Errorf("%q is not a domain name: %q may not stand in one", name, r)
		}
	}
	return z, nil
}

// parseUpstream reads an address, address:port or tls://address[%name][:port].
func parseUpstream(s string, tlsAllowed bool) (string, netip.AddrPort, error) {
	rest, tls := strings.CutPrefix(s, "tls://")
	if scheme, _, other := strings.Cut(s, "://"); other && !tls {
		return "", netip.AddrPort{}, fmt.Errorf("%q: %s:// is not supported: write an address, address:port or tls://address", s, scheme)
	}
	if !tls {
		ap, err := parseAddrPort(rest, defaultUpstreamPort)
		if err != nil {
			return "", netip.AddrPort{}, fmt.Errorf("%q: %w", s, err)
		}
		return ap.String(), ap, nil
	}
	if !tlsAllowed {
		return "", netip.AddrPort{}, fmt.Errorf("%q: the cluster upstream is asked over plain TCP: write address or address:port", s)
	}
	host, name, port := splitServerName(rest)
	if name != "" {
		z, err := parseZone(name)
		if err == nil && z == "." {
			err = errors.New("of the root is no certificate's")
		}
		if err != nil {
			return "", netip.AddrPort{}, fmt.Errorf("%q: server name %w", s, err)
		}
		name = z
	}
	ap, err := parseAddrPort(host+port, 853)
	if err != nil {
		return "", netip.AddrPort{}, fmt.Errorf("%q: %w", s, err)
	}
	if name == "" {
		return "tls://" + ap.String(), ap, nil
	}
	if ap.Addr().Is6() {
		return fmt.Sprintf("tls://[%s%%%s]:%d", ap.Addr(), name, ap.Port()), ap, nil
	}
	return fmt.Sprintf("tls://%s%%%s:%d", ap.Addr(), name, ap.Port()), ap, nil
}

// splitServerName takes apart how CoreDNS writes the name in a server's certificate: 9.9.9.9%dns.quad9.net:853 and
// [2620:fe::9%dns.quad9.net]:853. host and port together are an address with or without port.
func splitServerName(s string) (host, name, port string) {
	if inside, after, ok := strings.Cut(strings.TrimPrefix(s, "["), "]"); ok {
		host, name, _ = strings.Cut(inside, "%")
		return "[" + host + "]", name, after
	}
	host, name, _ = strings.Cut(s, "%")
	if n, p, ok := strings.Cut(name, ":"); ok {
		return host, n, ":" + p
	}
	return host, name, ""
}

func parseAddrPort(s string, port uint16) (netip.AddrPort, error) {
	addr, err := netip.ParseAddr(strings.Trim(s, "[]"))
	if err != nil {
		ap, err := netip.ParseAddrPort(s)
		if err != nil {
			return netip.AddrPort{}, errors.New("not an IP address or address:port; names are not resolved here")
		}
		addr, port = ap.Addr(), ap.Port()
	}
	switch {
	case port == 0:
		return netip.AddrPort{}, errors.New("port 0")
	case addr.Zone() != "":
		// CoreDNS's forward takes what follows the percent sign for a certificate's name and drops it.
		return netip.AddrPort{}, fmt.Errorf("%s: a link-local server cannot be asked: name one of its other addresses", addr)
	case addr.Is4In6(), addr.IsUnspecified(), addr.IsMulticast():
		return netip.AddrPort{}, fmt.Errorf("%s is not a server's address", addr)
	}
	return netip.AddrPortFrom(addr, port), nil
}

// checkInstance keeps the name to what needs no quoting in a Corefile and fits a TXT string.
func checkInstance(id string) error {
	if len(id) > 255 {
		return fmt.Errorf("%d bytes are more than 255", len(id))
	}
	for _, r := range id {
		if r <= ' ' || r > '~' || strings.ContainsRune(`"\{}#$%`, r) {
			return fmt.Errorf("%s may not stand in it", strconv.QuoteRune(r))
		}
	}
	return nil
}
