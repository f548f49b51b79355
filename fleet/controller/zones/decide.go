// Package zones decides what a cluster publishes in shared zones: it makes DNSRecords of DNSPolicies, a publication for each host of the
// DNSRecords, and the objects' conditions. It is pure: fleet/controller/internal/records reads the objects, publishes and reports.
//
// It guarantees that a record is published only if its DNSZone allows the namespace, the host, and the addresses or the hostname.
//
// A record that cannot be published gets a verdict with the reason, and does not affect other records.
package zones

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/neardns/neardns/fleet/api/v1alpha1"
	"github.com/neardns/neardns/fleet/zones/zone"
)

// Reasons of a DNSRecord's condition Accepted.
const (
	Accepted      = "Accepted"
	NoZone        = "NoZone"        // the host is in no DNSZone
	NotAllowed    = "NotAllowed"    // the DNSZone does not let this namespace publish this host, address or hostname
	NoAddresses   = "NoAddresses"   // the object named in addressesFrom does not exist, or gives neither an address nor a hostname
	Contradiction = "Contradiction" // an older DNSRecord for the same host has different values
	Invalid       = "Invalid"       // a field has a value that cannot be published; also of a DNSZone for which no publisher starts
	Deleting      = "Deleting"      // the record is being deleted
)

// Reasons of a DNSZone's condition Accepted, in addition to Accepted, Invalid and Deleting.
const (
	Duplicate = "Duplicate" // an older DNSZone has the same zone
	NoKey     = "NoKey"     // the Secret of the TSIG key does not exist or has no valid key
)

// Key is the namespace and name of a DNSRecord, DNSPolicy or Gateway.
type Key = types.NamespacedName

// Source has the addresses or the hostname from the status of an object that a DNSRecord names in addressesFrom.
type Source struct {
	Addresses []netip.Addr
	Hostname  string
	// Problem is the reason why the object has neither addresses nor a hostname; otherwise it is empty.
	Problem string
	Unread  bool // the object could not be read, so what it has is unknown; Problem has the error
}

// Input is the input of Decide. Sources must have an entry for each addressesFrom in Records, except in records that are being deleted.
type Input struct {
	Zones   []v1alpha1.DNSZone
	Records []v1alpha1.DNSRecord
	Sources map[Reference]Source
	Unread  map[string]bool // names of DNSZones that could not be read yet: none takes a host from the DNSZone that has published it
}

// Reference identifies an object that a DNSRecord names in addressesFrom.
type Reference struct{ Namespace, Kind, Name string }

// Verdict is a reason and its details.
type Verdict struct{ Reason, Message string }

func verdict(reason, format string, args ...any) Verdict {
	return Verdict{reason, fmt.Sprintf(format, args...)}
}

// Good reports whether the verdict is Accepted.
func (v Verdict) Good() bool { return v.Reason == Accepted }

// Plan is what to publish.
type Plan struct {
	// Zones has every DNSZone by its name.
	Zones map[string]*Zone
	// Records has every DNSRecord by its namespace and name, also those that are not published.
	Records map[Key]*Record
}

// Zone is what is decided about one DNSZone.
type Zone struct {
	Verdict
	// Hosts has the publications by canonical name.
	Hosts map[string]zone.Publication
	// Records is the number of DNSRecords that are published in the zone.
	Records int
}

// Record is what is decided about one DNSRecord.
type Record struct {
	Verdict
	Zone string // name of the DNSZone that contains the host; empty if there is none
	Host string // canonical
}

// DefaultWeight is the weight of a LoadBalanced record without one.
const DefaultWeight = 100

// Canonical returns a host or zone as an absolute DNS name in lower case, with the final dot.
func Canonical[T ~string](name T) string {
	return strings.ToLower(strings.TrimSuffix(string(name), ".")) + "."
}

// Decide makes the plan. It sorts in.Zones and in.Records by age, the oldest first.
func Decide(in Input) *Plan {
	p := &Plan{Zones: map[string]*Zone{}, Records: map[Key]*Record{}}
	slices.SortFunc(in.Zones, func(a, b v1alpha1.DNSZone) int {
		return older(a.CreationTimestamp.Time, b.CreationTimestamp.Time, a.Name, b.Name)
	})
	origins := map[string]*v1alpha1.DNSZone{}
	for i := range in.Zones {
		z := &in.Zones[i]
		out := &Zone{Verdict: Verdict{Accepted, "the zone is this cluster's to publish in"}, Hosts: map[string]zone.Publication{}}
		if first := origins[Canonical(z.Spec.Zone)]; first != nil {
			out.Verdict = verdict(Duplicate, "DNSZone %s, which is older, has the zone %s; delete one of the two", first.Name, z.Spec.Zone)
		} else {
			origins[Canonical(z.Spec.Zone)] = z
		}
		p.Zones[z.Name] = out
	}
	slices.SortFunc(in.Records, func(a, b v1alpha1.DNSRecord) int {
		return older(a.CreationTimestamp.Time, b.CreationTimestamp.Time, a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	first := map[string]*v1alpha1.DNSRecord{} // by host: the oldest accepted record
	for i := range in.Records {
		r := &in.Records[i]
		out := &Record{Host: Canonical(r.Spec.Host)}
		p.Records[Key{Namespace: r.Namespace, Name: r.Name}] = out
		z := zoneOf(origins, out.Host, r.Status.Zone, in.Unread)
		if z == nil {
			out.Verdict = verdict(NoZone, "no DNSZone has the host %s; there are %s", r.Spec.Host, list(origins))
			continue
		}
		out.Zone = z.Name
		if r.DeletionTimestamp != nil {
			out.Verdict = Verdict{Deleting, "the record is being deleted"}
			continue
		}
		var publication zone.Publication
		if publication, out.Verdict = compose(r, z, in.Sources); !out.Good() {
			continue
		}
		hosts := p.Zones[z.Name].Hosts
		publication = publication.Normal()
		if old := first[out.Host]; old != nil {
			merged, field := merge(hosts[out.Host], publication)
			if field != "" {
				out.Verdict = verdict(Contradiction,
					"spec.%s: DNSRecord %s/%s, which is older, has another for the host %s; make them equal, or delete one",
					field, old.Namespace, old.Name, r.Spec.Host)
				continue
			}
			publication = merged.Normal()
		}
		if err := publication.Validate(Canonical(z.Spec.Zone)); err != nil {
			fields := "spec." + strings.ReplaceAll(err.Error(), "\n", "; spec.")
			out.Verdict = Verdict{Invalid, strings.ReplaceAll(fields, "spec.target:", "spec.hostname:")} // the API's name of the field
			continue
		}
		if first[out.Host] == nil {
			first[out.Host] = r
		}
		hosts[out.Host] = publication
		p.Zones[z.Name].Records++
	}
	return p
}

func older(a, b time.Time, an, bn string) int {
	return cmp.Or(a.Compare(b), strings.Compare(an, bn))
}

// zoneOf returns the DNSZone whose zone contains a host; nil if none does. If several do, it is the one with the longest zone or, while
// that is unread, the one that had the host before, by the name was. origins has the DNSZones by canonical zone.
func zoneOf(origins map[string]*v1alpha1.DNSZone, host, was string, unread map[string]bool) (longest *v1alpha1.DNSZone) {
	for name := host; name != ""; {
		if z := origins[name]; z != nil {
			longest = cmp.Or(longest, z)
			if z.Name == was && unread[longest.Name] {
				return z
			}
		}
		_, name, _ = strings.Cut(name, ".")
	}
	return longest
}

// list returns the names of at most ten zones, sorted, as text.
func list(origins map[string]*v1alpha1.DNSZone) string {
	names := make([]string, 0, len(origins))
	for _, z := range origins {
		names = append(names, string(z.Spec.Zone))
	}
	slices.Sort(names)
	if len(names) == 0 {
		return "none"
	}
	if n := len(names) - 10; n > 0 {
		names = append(names[:10], fmt.Sprintf("and %d more", n))
	}
	return strings.Join(names, ", ")
}

// compose converts a DNSRecord to a publication. If it must not be published, the verdict has the reason.
func compose(r *v1alpha1.DNSRecord, z *v1alpha1.DNSZone, sources map[Reference]Source) (zone.Publication, Verdict) {
	s := &r.Spec
	p := zone.Publication{Host: Canonical(s.Host), Strategy: zone.Strategy(s.Strategy), TTL: uint32(s.TTL),
		Geo: s.Geo, DefaultGeo: s.DefaultGeo, Adopt: s.Adopt}
	if s.Strategy == v1alpha1.StrategyLoadBalanced {
		p.Weight = uint32(*cmp.Or(s.Weight, new(int32(DefaultWeight))))
	}
	if h := s.HealthCheck; h != nil {
		p.Health = &zone.Health{Protocol: zone.Protocol(h.Protocol), Port: uint16(h.Port), Path: h.Path, Host: string(h.Host)}
		if h.Protocol != "TCP" {
			p.Health.Path = cmp.Or(h.Path, "/")
		}
	}
	if strings.HasSuffix(string(s.Host), ".") { // possible only in a file: the API server refuses such a host
		return p, verdict(Invalid, "spec.host: %s ends with a dot; write %s", s.Host, strings.TrimSuffix(string(s.Host), "."))
	}
	if h := s.HealthCheck; h != nil && h.Port != int32(uint16(h.Port)) { // likewise
		return p, verdict(Invalid, "spec.healthCheck.port: %d is not from 1 to 65535", h.Port)
	}
	refuses := func(b v1alpha1.Publisher) bool { return !allows(b, r.Namespace, s.Host) }
	publishers := slices.DeleteFunc(slices.Clone(z.Spec.Publishers), refuses)
	if len(publishers) == 0 {
		return p, verdict(NotAllowed, "spec.host: DNSZone %s lets namespace %s not publish %s; an entry in its publishers can",
			z.Name, r.Namespace, s.Host)
	}
	source, bad := sourceOf(r, sources)
	if bad != (Verdict{}) {
		return p, bad
	}
	field, named := "addresses", "hostname"
	if s.AddressesFrom != nil {
		field, named = "addressesFrom", "addressesFrom"
	}
	for _, a := range source.Addresses {
		if !slices.ContainsFunc(publishers, func(b v1alpha1.Publisher) bool { return within(b.Targets, a) }) {
			return p, verdict(NotAllowed,
				"spec.%s: DNSZone %s lets namespace %s not publish the address %s for %s; the targets of its publishers can",
				field, z.Name, r.Namespace, a, s.Host)
		}
	}
	if source.Hostname != "" {
		if s.Strategy != v1alpha1.StrategyLoadBalanced { // for spec.hostname possible only in a file: the API server refuses it
			return p, verdict(Invalid, "spec.%s: the hostname %s needs strategy LoadBalanced: only edges answer with it",
				named, source.Hostname)
		}
		if !slices.ContainsFunc(publishers, func(b v1alpha1.Publisher) bool { return covers(b.Hostnames, v1alpha1.HostName(source.Hostname)) }) {
			return p, verdict(NotAllowed,
				"spec.%s: DNSZone %s lets namespace %s not publish the hostname %s for %s; the hostnames of its publishers can",
				named, z.Name, r.Namespace, source.Hostname, s.Host)
		}
		p.Target = Canonical(source.Hostname)
		return p, Verdict{Accepted, "published by a hostname, which only edges answer"}
	}
	if len(source.Addresses) == 0 { // possible only in a file
		return p, verdict(Invalid, "spec.addresses: there is none; write addresses, hostname or addressesFrom")
	}
	p.Addresses = source.Addresses
	return p, verdict(Accepted, "published in zone %s", z.Spec.Zone)
}

// sourceOf returns a DNSRecord's addresses and hostname: its own, or those of the object in its addressesFrom. bad is the reason if there
// are none; else it is zero.
func sourceOf(r *v1alpha1.DNSRecord, sources map[Reference]Source) (source Source, bad Verdict) {
	if from := r.Spec.AddressesFrom; from != nil {
		source = sources[Reference{r.Namespace, from.Kind, string(from.Name)}]
		switch {
		case source.Unread:
			bad = verdict(NotReadable, "spec.addressesFrom: %s", source.Problem)
		case source.Problem != "":
			bad = verdict(NoAddresses, "spec.addressesFrom: %s", source.Problem)
		}
		return source, bad
	}
	source.Hostname = string(r.Spec.Hostname)
	for _, a := range r.Spec.Addresses {
		address, err := netip.ParseAddr(string(a))
		if err != nil {
			return source, verdict(Invalid, "spec.addresses: %q is no IP address", a) // possible only in a file, or with an older CRD
		}
		source.Addresses = append(source.Addresses, address)
	}
	return source, Verdict{}
}

// allows reports whether an entry of publishers allows the namespace to publish the host.
func allows(b v1alpha1.Publisher, namespace string, host v1alpha1.HostName) bool {
	return (slices.Contains(b.Namespaces, v1alpha1.NamespaceName(namespace)) || slices.Contains(b.Namespaces, "*")) && covers(b.Hosts, host)
}

// covers reports whether a name is in a list of names and patterns; "*.NAME" covers every name below NAME.
func covers(patterns []v1alpha1.HostName, name v1alpha1.HostName) bool {
	return slices.ContainsFunc(patterns, func(p v1alpha1.HostName) bool {
		above, below := strings.CutPrefix(string(p), "*")
		return p == name || below && strings.HasSuffix(string(name), above)
	})
}

// within reports whether an address is in one of the ranges and is a global unicast address. No schema has validated an address that comes
// from an object's status.
func within(ranges []v1alpha1.AddressRange, a netip.Addr) bool {
	return a.IsGlobalUnicast() && a.Zone() == "" && slices.ContainsFunc(ranges, func(r v1alpha1.AddressRange) bool {
		prefix, err := netip.ParsePrefix(string(r))
		return err == nil && prefix.Contains(a)
	})
}

// merge adds a younger DNSRecord's addresses to the publication of an older one for the same host. If the two contradict each other, merge
// returns the older publication and the name of the first field in which they differ.
func merge(old, young zone.Publication) (merged zone.Publication, field string) {
	switch {
	case old.Strategy != young.Strategy:
		return old, "strategy"
	case old.TTL != young.TTL:
		return old, "ttl"
	case old.Target != young.Target: // also differs if only one of them has a hostname
		return old, "hostname"
	case old.Geo != young.Geo:
		return old, "geo"
	case old.DefaultGeo != young.DefaultGeo:
		return old, "defaultGeo"
	case old.Weight != young.Weight:
		return old, "weight"
	case !reflect.DeepEqual(old.Health, young.Health):
		return old, "healthCheck"
	}
	old.Addresses, old.Adopt = slices.Concat(old.Addresses, young.Addresses), old.Adopt || young.Adopt
	return old, ""
}

// WithoutSick removes unhealthy addresses from a publication, unless all are unhealthy: then it keeps them, so that clients still get
// an answer.
func WithoutSick(p zone.Publication, sick func(netip.Addr) bool) zone.Publication {
	if well := slices.DeleteFunc(slices.Clone(p.Addresses), sick); len(well) > 0 {
		p.Addresses = well
	}
	return p
}
