// Package zone is what many clusters write in one zone without a hub: the records, how they are read, and the messages that change
// them so that no cluster loses another's. It is pure: it has no clock and no network, and its values may be shared once they are made.
//
// A host's addresses are at the host itself, so that a plain server answers with all of them. Beside them are two subtrees of
// bookkeeping, C._neardns.Z for what cluster C alone writes, _shared._neardns.Z for sets that all write, one RR each.
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

// Strategy tells how a host's clusters share it. It is the same for all of them, and changes when all want another one.
type Strategy string

// The strategies: all addresses at the host, or with a level for each region and cluster beside them.
const (
	Simple       Strategy = "Simple"
	LoadBalanced Strategy = "LoadBalanced"
)

// Protocol is how a target's health is asked.
type Protocol string

// The protocols. HTTPS verifies the name.
const (
	HTTP  Protocol = "HTTP"
	HTTPS Protocol = "HTTPS"
	TCP   Protocol = "TCP"
)

// Health is how edges ask whether an address works.
type Health struct {
	Protocol Protocol
	Port     uint16
	Path     string // begins with /; empty for TCP
	Host     string // the name asked for; empty: the published host
}

// Publication is all that one cluster wants to say of one host. A publication without an address and target says nothing: the cluster
// leaves the host.
type Publication struct {
	Host       string // canonical: lower case, absolute, the zone's apex or below; the first label may be *
	Strategy   Strategy
	TTL        uint32 // seconds; the same for all clusters of the host
	Addresses  []netip.Addr
	Target     string // a hostname in place of addresses, answered by edges alone; LoadBalanced only
	Geo        string // empty, or a code as Kuadrant's: GEO-EU, IE, US-CA; lower case once it was read from a zone
	DefaultGeo bool   // clients without a region of their own get this one
	Weight     uint32 // among the clusters of one region; 0 is standby
	Health     *Health
	Adopt      bool // addresses of Addresses that were at the host before any cluster published it become the clusters', and go with the last one
}

// Bounds of one publication. Addresses: a message that exchanges all of them stays below the 64 KiB of DNS over TCP.
const (
	MaxAddresses = 150
	MaxWeight    = 1 << 16
	MaxTTL       = 7 * 24 * 3600
)

// Empty reports whether p says nothing of its host.
func (p *Publication) Empty() bool { return len(p.Addresses) == 0 && p.Target == "" }

// under returns p as it is published at a host that has the strategy s.
func (p Publication) under(s Strategy) Publication {
	if p.Strategy = s; s == Simple {
		p.Geo, p.DefaultGeo, p.Target = "", false, ""
	}
	return p
}

// Normal returns p as it is written: names and codes in lower case, addresses sorted and once each. p stays as it is.
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

// Validate returns all that keeps a normal publication from being written in the zone origin (canonical), each with its field.
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

// validGeo takes lower-case codes: geo-eu, ie, us-ca. ISO 3166-2 has parts of one to three letters and digits.
func validGeo(g string) bool {
	place, part, two := strings.Cut(g, "-")
	if place == "geo" {
		return len(part) == 2 && letters(part)
	}
	return len(place) == 2 && letters(place) && (!two || len(part) >= 1 && len(part) <= 3 && alphanumeric(part))
}

// Identity is who writes. Instance tells a cluster from its clone: both have one Cluster.
type Identity struct {
	Cluster  string // six to twelve of a-z0-9
	Instance string // the same over restarts, another one in each installation; one to 32 of a-z0-9
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

// ClusterID returns eight characters of base36 from SHA-256 of a UID, as of the namespace kube-system: the same at each start.
func ClusterID(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	text := new(big.Int).SetBytes(sum[:]).Text(36)
	return text[len(text)-8:] // the low digits: their number is fixed, and all are as likely
}

func letters(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz") == ""
}

func alphanumeric(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
