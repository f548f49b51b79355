// Package corefile is the embedded CoreDNS: it renders a Corefile from a Config, and builds the plugin chain of that Corefile. The chain
// answers the queries that the listener passes to it; it has no socket.
//
// Only this package touches CoreDNS's process-wide settings. It reads no signals, no command-line flags, and only those files that an
// operator's Corefile or snippets name.
//
// If Build fails, it returns an error, and the new chain answers no query. If the upstreams of a query fail, it is answered SERVFAIL only
// if no stale answer may be served.
package corefile

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/strict"
)

// bufferSize is the maximum size of a UDP answer in bytes; a longer answer is truncated. Such an answer is not fragmented where the MTU is
// 1280, IPv6's minimum, or more (dnsflagday.net/2020).
const bufferSize = 1232

// Queries is which queries are logged.
type Queries string

// The values of Queries. With QueriesOff, each rendered server block still logs the first query of a minute that fails, and then
// how many failed.
const (
	QueriesOff    Queries = "off"
	QueriesErrors Queries = "errors"
	QueriesAll    Queries = "all"
)

// Config has everything from which a chain is made. Its values were checked where they were read: packages config, nodecache, steer and
// edgeconfig have the limits and the defaults. A chain keeps no reference to the slices and maps.
type Config struct {
	// Addresses are the addresses at which queries arrive, at least one. None is a wildcard, because the node must not become a
	// resolver for its network.
	Addresses []netip.Addr
	Port      uint16

	// ClusterDomain, and the reverse zones in-addr.arpa and ip6.arpa, are the zones whose queries go to Cluster, over TCP. All zones in
	// Config are in lower case, without the final dot.
	ClusterDomain string
	Cluster       []nameserver.Address // in order of preference; without TLS
	// LastResort are the cluster DNS addresses, which are tried when the servers before them fail or are slow; not for StubDomains. A server
	// block leaves out those that it lists as its servers anyway.
	LastResort []nameserver.Address
	// LastResortMark is the mark of packets to LastResort, by which the host table lets them pass. 0: none.
	LastResortMark int
	// StubDomains has the servers for each domain that has its own.
	StubDomains map[string][]nameserver.Address
	// External are the servers for all other names. If there is none, their queries go to Cluster, because kube-dns forwards them.
	External []nameserver.Address

	Cache Cache
	// Misses is the maximum of queries that wait for upstreams, in all zones together.
	Misses int
	// FastPath lets hits of the cache and of the edge's zones be answered without CoreDNS; see Chain.FastPath.
	FastPath bool
	Queries  Queries

	// Snippets are Corefile directives by zone ("." for all other names). A directive replaces the rendered one of the same name. For a
	// zone without a server block, the directives change a copy of the block of ".".
	Snippets map[string]string
	// Override is an operator's Corefile that replaces the rendered one. The agent still sets the addresses, adds metrics and the prober's
	// zone, and adds the buffer size and the limit where they are missing.
	Override string
	// OverrideName is the source of Override, for messages. Default: "corefile"
	OverrideName string
	// Binds is the name of the agent's link, if Override was written for NodeLocal DNSCache. Each server block is then served only at the
	// addresses that its bind directive lists; this name, and a missing bind, stand for all of the agent's addresses. Misses that
	// CoreDNS's forward handles get a time limit. If Binds is "", bind directives are removed.
	Binds string
	// Shared serves only the edge's zones. The fields about upstreams, the cache and the log of queries then have no effect.
	Shared bool
	// InstanceID is the word that answers the prober's queries, of letters and digits. If it is empty, the Corefile has no server block for
	// them, and they are handled like queries for other names.
	InstanceID string
}

// Cache configures what the caches keep, and for how long.
type Cache struct {
	Entries     int           // maximum per server block of success entries, and of denials
	NegativeTTL time.Duration // the longest time for which a denial is cached; whole seconds
	// ServeStale is how long after its TTL an entry may be served if the upstream fails (RFC 8767); for the cluster's names at most
	// clusterStale. 0: never.
	ServeStale time.Duration
	// NoPrefetch turns off that popular entries are refreshed before they expire.
	NoPrefetch bool
	// HoldDenials is how long the upstream must deny a name that has had an answer before the denial counts. 0: it counts at once.
	HoldDenials time.Duration
}

// parseZone returns a domain name in lower case without its closing dot; the root is ".".
func parseZone(name string) (string, error) {
	z := strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "." {
		return ".", nil
	}
	if !strict.IsDomain(z) {
		return name, fmt.Errorf("%q is not a domain name", name)
	}
	return z, nil
}
