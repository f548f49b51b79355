// Package zone defines how many clusters publish hosts in one DNS zone without a central writer: the records, how to parse them, and the
// UPDATE messages that change them.
//
// It guarantees that no message overwrites another cluster's change, because each message has what it was planned on as prerequisites. It
// is pure: it has no clock and no network. Its values may be shared once they are made.
//
// A host's addresses are at the host itself, so that a plain server answers with all of them. The bookkeeping is in two subtrees:
// C._neardns.Z for what only cluster C writes, and _shared._neardns.Z for sets to which every cluster adds its own RR.
//
// On failure it writes nothing: a Step then has a Conflict. Bookkeeping that is foreign or broken is counted and ignored.
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

// Strategy is how the clusters of a host share it. All clusters of a host have the same one; it changes when all of them want another.
type Strategy string

// The strategies: all addresses at the host, or in addition a level for each region and cluster.
const (
	Simple       Strategy = "Simple"
	LoadBalanced Strategy = "LoadBalanced"
)

// Protocol is how an address's health is checked.
type Protocol string

// The protocols. HTTPS verifies that the certificate is for the name.
const (
	HTTP  Protocol = "HTTP"
	HTTPS Protocol = "HTTPS"
	TCP   Protocol = "TCP"
)

// Health is the health check that edges make for an address.
type Health struct {
	Protocol Protocol
	Port     uint16
	Path     string // begins with /; empty for TCP
	Host     string // the hostname in the request; empty: the published host
}

// Publication is what one cluster wants to publish for one host. If it has neither an address nor a target, the cluster leaves the host.
type Publication struct {
	Host       string // canonical: lower case, absolute, the zone's apex or below; the first label may be *
	Strategy   Strategy
	TTL        uint32 // seconds; the same for all clusters of the host
	Addresses  []netip.Addr
	Target     string // a hostname in place of addresses, which only edges answer; LoadBalanced only
	Geo        string // empty, or a code in Kuadrant's form: GEO-EU, IE, US-CA; in lower case after it was read from a zone
	DefaultGeo bool   // clients whose region no cluster has get this region
	Weight     uint32 // relative to the clusters of the same region; 0 is standby
	Health     *Health
	// Adopt: addresses of Addresses that were at the host before any cluster published it belong to the clusters from now on. The last
	// cluster that leaves deletes them.
	Adopt bool
}

// The maxima of one publication. MaxAddresses: a message that exchanges all of them stays below the 64 KiB of DNS over TCP.
const (
	MaxAddresses = 150
	MaxWeight    = 1 << 16
	MaxTTL       = 7 * 24 * 3600
)

// Empty reports whether p publishes nothing for its host.
func (p *Publication) Empty() bool { return len(p.Addresses) == 0 && p.Target == "" }

// under returns p as it is published at a host with the strategy s.
func (p Publication) under(s Strategy) Publication {
	if p.Strategy = s; s == Simple {
		p.Geo, p.DefaultGeo, p.Target = "", false, ""
	}
	return p
}

// Normal returns p as it is written: names and codes in lower case, addresses sorted and without duplicates. p does not change.
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

// Validate returns every reason why a normal publication cannot be written in the zone origin (canonical), each with its field.
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
		fault("geo", "is for %s alone", LoadBalanced)
	}
	if p.DefaultGeo && p.Geo == "" {
		fault("defaultGeo", "needs a geo")
	}
	if p.Target == "" {
		return
	}
	if len(p.Addresses) > 0 {
		fault("target", "stands in place of addresses; name one of both")
	}
	if p.Strategy == Simple {
		fault("target", "is for %s alone: a plain server cannot answer it beside addresses", LoadBalanced)
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

// validGeo accepts lower-case codes: geo-eu, ie, us-ca. In ISO 3166-2 a subdivision has one to three letters and digits.
func validGeo(g string) bool {
	place, part, two := strings.Cut(g, "-")
	if place == "geo" {
		return len(part) == 2 && letters(part)
	}
	return len(place) == 2 && letters(place) && (!two || len(part) >= 1 && len(part) <= 3 && alphanumeric(part))
}

// Identity is the writer. Instance distinguishes a cluster from its clone, because both have the same Cluster.
type Identity struct {
	Cluster  string // 6 to 12 characters of a-z and 0-9
	Instance string // stable over restarts, different in each installation; 1 to 32 characters of a-z and 0-9
}

// Validate returns why no cluster may write under this identity.
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

// ClusterID returns eight base36 characters of the SHA-256 of a UID, for example that of the namespace kube-system. The result is always
// the same for one UID.
func ClusterID(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	text := new(big.Int).SetBytes(sum[:]).Text(36)
	return text[len(text)-8:] // the low digits: there are always eight of them, and all values are equally likely
}

func letters(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz") == ""
}

func alphanumeric(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
