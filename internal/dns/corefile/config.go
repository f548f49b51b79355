// Package corefile is the embedded CoreDNS: it renders a Corefile from a Config, and builds the plugin chain of that text. The chain
// answers the queries that the listener passes to it; it has no socket.
//
// It guarantees that only it touches CoreDNS's process-wide settings. It reads no signals, no command-line flags, and only those files
// that an operator's Corefile names.
//
// On failure, Build returns an error and no plugin runs. A query is answered SERVFAIL only if no stale answer may be served.
package corefile

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

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
)

// Defaults for what a Config leaves zero.
const (
	defaultPort       = 53
	defaultBufferSize = 1232 // dnsflagday.net/2020: passes every path without fragments
)

// Queries is which queries are logged.
type Queries string

// The values of Queries. Off still logs failing upstreams, once a minute and kind.
const (
	QueriesOff    Queries = "off"
	QueriesErrors Queries = "errors"
	QueriesAll    Queries = "all"
)

// Config is all that a chain is made from: a complete value, checked where it was read (package config has the bounds and the
// defaults). A zero value means the default in the field's comment, if it has one. A chain keeps no reference to its slices
// and maps.
type Config struct {
	// Addresses are those that queries come to. At least one; no wildcard, because the node must not be a resolver for its network.
	Addresses []netip.Addr
	Port      uint16 // 53

	// ClusterDomain and ReverseZones go to Cluster, over TCP. All zones here are in lower case, without their closing dot.
	ClusterDomain string
	ReverseZones  []string             // in-addr.arpa, ip6.arpa
	Cluster       []nameserver.Address // in order of preference; without TLS
	// LastResort are the cluster DNS addresses, which are tried when all of Cluster fail. It may repeat addresses of Cluster.
	LastResort []nameserver.Address
	// LastResortMark is put on the packets to them, so that the host table lets them pass. 0: none.
	LastResortMark int
	// StubDomains go each to servers of their own.
	StubDomains map[string][]nameserver.Address
	// External gets the rest. Empty: the rest goes to Cluster too, because kube-dns forwards it.
	External []nameserver.Address

	Cache Cache
	// Misses bounds the queries that wait for upstreams, in all zones together.
	Misses int
	// BufferSize bounds UDP answers, TC above. 1232
	BufferSize uint16
	// FastPath answers hits of the cache and of the edge's zones without CoreDNS; see Chain.FastPath.
	FastPath bool
	Queries  Queries

	// Snippets are Corefile directives per zone ("." for the rest). A directive takes the place of the rendered one of the
	// same name; in a zone that is not configured otherwise they change a copy of the "." zone.
	Snippets map[string]string
	// Override is a Corefile that replaces the rendered one whole. Its listeners, buffer size and metrics are still ours
	// and the prober's zone is added.
	Override string
	// OverrideName is where the Override was read, for messages. "corefile"
	OverrideName string
	// Binds is the name of our link where the Override was written for NodeLocal DNSCache: each server block is served at the
	// addresses that it binds (by number, or all by this name); those without a bind, at all of them. Misses by forward are bounded
	// in time. "": blocks name no addresses.
	Binds string
	// Shared serves the edge's zones and nothing else; of the other fields only addresses, port, buffer size and fast path count then.
	Shared bool
	// InstanceID is what the prober is answered; empty: no answer.
	InstanceID string
}

// Cache is what the cache keeps, and for how long.
type Cache struct {
	Entries     int           // per server block, positive answers; and as many negative ones
	NegativeTTL time.Duration // at most; whole seconds
	// ServeStale is how long after it expired an answer may be served if the upstream fails (RFC 8767). 0: never.
	ServeStale time.Duration
	// NoPrefetch: names in use are not refreshed before they expire.
	NoPrefetch bool
	// HoldDenials is how long a denial of a name that just had an answer must last before it counts. 0: at once.
	HoldDenials time.Duration
}

// Complete fills in defaults and checks what the server itself depends on: where it listens, and that nothing in a zone or name means
// something in a Corefile. Numbers, servers and the zones' owners were checked where they were read.
func (c Config) Complete() (Config, error) {
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
	if err := checkInstance(c.InstanceID); err != nil {
		fault("instanceID", "%w", err)
	}
	c.checkAddresses(fault)
	if c.Override == "" && !c.Shared { // else the rest has no meaning
		c.checkZones(fault)
	}
	return c, errors.Join(errs...)
}

type faultFunc func(field, format string, args ...any)

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

func (c *Config) checkZones(fault faultFunc) {
	zone := func(field, name string) {
		if _, err := parseZone(name); err != nil {
			fault(field, "%w", err)
		}
	}
	zone("clusterDomain", c.ClusterDomain)
	if len(c.Cluster) == 0 {
		fault("upstreams.cluster", "no upstream for %s: name the address of kube-dns", c.ClusterDomain)
	}
	for i, z := range c.ReverseZones {
		zone(fmt.Sprintf("reverseZones[%d]", i), z)
	}
	for _, z := range slices.Sorted(maps.Keys(c.StubDomains)) {
		zone(fmt.Sprintf("stubDomains[%q]", z), z)
	}
	for _, z := range slices.Sorted(maps.Keys(c.Snippets)) {
		zone(fmt.Sprintf("snippets[%q]", z), z)
	}
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
