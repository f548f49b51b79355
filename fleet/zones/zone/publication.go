// Package zone defines how clusters publish hosts together in one DNS zone, without a central writer: the DNS records, how to parse them,
// and the UPDATE messages that change them.
//
// It guarantees that no message overwrites another cluster's change: by its prerequisites, the server refuses a message if TXT records on
// which it depends have changed since they were read. The package is pure: it has no clock and no network. A State does not change after
// it is made, so goroutines may share it.
//
// A host's addresses are at the host itself, up to the server's limit for an RRset, so that plain DNS servers answer with them.
// TXT records for coordination (the bookkeeping) are in two subtrees of the zone Z: C._neardns.Z for cluster C, and _shared._neardns.Z,
// where all clusters write.
//
// If a change must not be made, a Step has a Conflict and no message. Bookkeeping that cannot be parsed is counted and ignored.
package zone

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
)

// Strategy is how the clusters that publish a host share it. A host has one strategy, which changes when all its clusters want another.
type Strategy string

// The strategies. With Simple, the addresses are at the host; only those above the server's limit for an RRset are at CLUSTER.klb.HOST.
// LoadBalanced adds a name LABEL.klb.HOST for each region and each cluster, and edges answer each client with the addresses of one cluster.
const (
	Simple       Strategy = "Simple"
	LoadBalanced Strategy = "LoadBalanced"
)

// Protocol is the protocol of a health check.
type Protocol string

// The protocols. HTTPS also verifies that the certificate is valid for the host name.
const (
	HTTP  Protocol = "HTTP"
	HTTPS Protocol = "HTTPS"
	TCP   Protocol = "TCP"
)

// Health is the health check of each address that a cluster publishes for a host.
type Health struct {
	Protocol Protocol
	Port     uint16
	Path     string // begins with /; empty for TCP
	Host     string // the host name in the HTTP request; empty: the published host, without a leading *.
}

// Publication is what one cluster wants to publish for one host. If it has no address and no target, the cluster is to be removed from
// the host.
type Publication struct {
	Host       string // canonical: lower case, absolute; the zone's apex or a name below it; the first label may be *
	Strategy   Strategy
	TTL        uint32 // seconds; takes effect when all clusters that publish the host want the same
	Addresses  []netip.Addr
	Target     string // a hostname in place of addresses, for LoadBalanced only; only edges answer with it
	Geo        string // empty, or a region code as Kuadrant writes it: GEO-EU, IE, US-CA; in lower case if normalized or read from a zone
	DefaultGeo bool   // edges use the region Geo for clients in whose own region no healthy cluster is
	Weight     uint32 // share of the clients, relative to the region's other clusters; 0: standby
	Health     *Health
	// Adopt applies to those Addresses that were at the host before any cluster published them. With Adopt, the last cluster that
	// withdraws such an address deletes it; without Adopt, the address stays at the host.
	Adopt bool
}

// The limits of one publication; MaxTTL is in seconds. MaxAddresses is so low that an update with all addresses stays below 64 KiB, the
// maximum of DNS over TCP.
const (
	MaxAddresses = 150
	MaxWeight    = 1 << 16
	MaxTTL       = 7 * 24 * 3600
)

// Empty reports whether p has neither an address nor a target, so that the cluster is to be removed from the host.
func (p *Publication) Empty() bool { return len(p.Addresses) == 0 && p.Target == "" }

// under returns p as the cluster publishes it while the host has the strategy s: with Simple, without region and target.
func (p Publication) under(s Strategy) Publication {
	if p.Strategy = s; s == Simple {
		p.Geo, p.DefaultGeo, p.Target = "", false, ""
	}
	return p
}

// Normal returns a normalized copy of p: names absolute and in lower case, the region code in lower case, the addresses sorted and without
// IPv4 mapping and duplicates.
func (p Publication) Normal() Publication {
	p.Host, p.Target, p.Geo = lower(p.Host), lower(p.Target), strings.ToLower(p.Geo)
	p.Addresses = slices.Clone(p.Addresses)
	for i, a := range p.Addresses {
		p.Addresses[i] = a.Unmap()
	}
	slices.SortFunc(p.Addresses, netip.Addr.Compare)
	p.Addresses = slices.Compact(p.Addresses)
	if p.Health != nil {
		h := *p.Health
		h.Host = lower(h.Host)
		p.Health = &h
	}
	return p
}

// Validate returns an error, with the name and the fault of each wrong field, if the normalized publication p cannot be written in the zone
// with the canonical name origin.
func (p *Publication) Validate(origin string) error {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf(field+": "+format, args...))
	}
	if err := checkHost(p.Host, origin); err != nil {
		fault("host", "%w", err)
	}
	if p.Strategy != Simple && p.Strategy != LoadBalanced {
		fault("strategy", "%q is not %s or %s", p.Strategy, Simple, LoadBalanced)
	}
	if p.TTL == 0 || p.TTL > MaxTTL {
		fault("ttl", "%d is not from 1 to %d seconds", p.TTL, MaxTTL)
	}
	if len(p.Addresses) > MaxAddresses {
		fault("addresses", "%d are more than %d", len(p.Addresses), MaxAddresses)
	}
	for _, a := range p.Addresses {
		if !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
			fault("addresses", "%s is no address that a client can reach; name a unicast address without a zone", a)
		}
	}
	if p.Geo != "" && !validGeo(p.Geo) {
		fault("geo", "%q is no code; write GEO- and a continent, a country, or a country and its part: GEO-EU, IE, US-CA", p.Geo)
	}
	if p.Weight > MaxWeight {
		fault("weight", "%d is more than %d", p.Weight, MaxWeight)
	}
	p.validateTarget(fault)
	p.validateHealth(fault)
	return errors.Join(faults...)
}

func (p *Publication) validateTarget(fault func(string, string, ...any)) {
	if p.Strategy == Simple && (p.Geo != "" || p.DefaultGeo) {
		fault("geo", "is only for %s", LoadBalanced)
	}
	if p.DefaultGeo && p.Geo == "" {
		fault("defaultGeo", "needs a geo")
	}
	if p.Target == "" {
		return
	}
	if len(p.Addresses) > 0 {
		fault("target", "replaces addresses; set only one of them")
	}
	if p.Strategy == Simple {
		fault("target", "is only for %s: a plain server cannot answer with it next to addresses", LoadBalanced)
	}
	if err := checkName(p.Target); err != nil {
		fault("target", "%w", err)
	} else if p.Target == p.Host {
		fault("target", "is the host itself")
	}
}

func (p *Publication) validateHealth(fault func(string, string, ...any)) {
	h := p.Health
	if h == nil {
		return
	}
	if h.Protocol != HTTP && h.Protocol != HTTPS && h.Protocol != TCP {
		fault("healthCheck.protocol", "%q is not %s, %s or %s", h.Protocol, HTTP, HTTPS, TCP)
	}
	if h.Port == 0 {
		fault("healthCheck.port", "0 is no port")
	}
	switch {
	case h.Protocol == TCP && (h.Path != "" || h.Host != ""):
		fault("healthCheck.path", "is for %s and %s alone, as is host", HTTP, HTTPS)
	case h.Protocol != TCP && !strings.HasPrefix(h.Path, "/"):
		fault("healthCheck.path", "%q does not begin with /", h.Path)
	case len(h.Path) > maxPath:
		fault("healthCheck.path", "%d bytes are more than %d", len(h.Path), maxPath)
	}
	if h.Host != "" {
		if err := checkName(h.Host); err != nil {
			fault("healthCheck.host", "%w", err)
		}
	}
}

// validGeo reports whether a region code in lower case is valid: geo-eu, ie, us-ca. ISO 3166-2 has one to three letters and digits for a
// part of a country.
func validGeo(g string) bool {
	place, part, two := strings.Cut(g, "-")
	if place == "geo" {
		return len(part) == 2 && letters(part)
	}
	return len(place) == 2 && letters(place) && (!two || len(part) >= 1 && len(part) <= 3 && alphanumeric(part))
}

// Identity identifies a writer of the zone. Instance distinguishes two writers with the same Cluster, for example those of a cluster and
// of its clone.
type Identity struct {
	Cluster  string // the cluster's ID: 6 to 12 characters of a-z and 0-9
	Instance string // 1 to 32 characters of a-z and 0-9; the same after a restart
}

// Validate returns an error if the identity has an invalid field.
func (i Identity) Validate() error {
	if !validCluster(i.Cluster) {
		return fmt.Errorf("cluster id %q is not six to twelve characters of a-z and 0-9", i.Cluster)
	}
	if !validInstance(i.Instance) {
		return fmt.Errorf("instance %q is not one to 32 characters of a-z and 0-9", i.Instance)
	}
	return nil
}

func validCluster(s string) bool  { return len(s) >= 6 && len(s) <= 12 && alphanumeric(s) }
func validInstance(s string) bool { return len(s) >= 1 && len(s) <= 32 && alphanumeric(s) }

// ClusterID makes a cluster ID from a UID, for example that of the namespace kube-system: the last eight characters of its SHA-256 in base
// 36 (a-z, 0-9). The same UID always gives the same ID.
func ClusterID(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	text := new(big.Int).SetBytes(sum[:]).Text(36)
	return text[len(text)-8:] // the last digits: unlike the first ones, all their values are equally likely
}

func letters(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz") == ""
}

func alphanumeric(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
