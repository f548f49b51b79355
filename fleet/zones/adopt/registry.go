package adopt

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/zone"
)

// The controllers whose records can be adopted.
const (
	ExternalDNS = "external-dns"
	Kuadrant    = "kuadrant"
)

// Registry describes how another controller marks its records in a zone: by TXT records with heritage=external-dns, whose names it
// derives from the marked record's name and type. The formats are those of external-dns 0.10 to 0.22 and of Kuadrant's dns-operator.
type Registry struct {
	From     string `json:"from"`               // ExternalDNS or Kuadrant
	Owner    string `json:"owner,omitempty"`    // external-dns: its --txt-owner-id. Kuadrant: empty; the records of all owners are adopted
	Prefix   string `json:"prefix,omitempty"`   // external-dns: its --txt-prefix, which may contain %{record_type}
	Suffix   string `json:"suffix,omitempty"`   // external-dns: its --txt-suffix, likewise
	Wildcard string `json:"wildcard,omitempty"` // external-dns: its --txt-wildcard-replacement
}

// Validate returns an error that names the flag of `zones adopt` with an invalid value.
func (r Registry) Validate() error {
	switch {
	case r.From == Kuadrant && r != Registry{From: Kuadrant}:
		return errors.New("--owner and --txt-... are for external-dns: leave them out, Kuadrant's owners of a host are adopted together")
	case r.From == Kuadrant:
		return nil
	case r.From != ExternalDNS:
		return fmt.Errorf("--from %q: write %s or %s", r.From, ExternalDNS, Kuadrant)
	case r.Owner == "":
		return errors.New("--owner is empty: name external-dns' --txt-owner-id, which is \"default\" unless set")
	case r.Prefix != "" && r.Suffix != "":
		return errors.New("--txt-prefix and --txt-suffix: external-dns has only one of them")
	}
	return nil
}

const recordType = "%{record_type}"

// typed matches the record type at the beginning of a registry record's name, as external-dns writes it. The older format has no type.
var typed = regexp.MustCompile(`^(a|aaaa|cname|dname|ns|mx|ptr|srv|naptr|txt)-`)

// names returns the two names that the registry record of a record can have: now, which external-dns writes, and before, which versions
// before 0.18 wrote too. before is empty if the name begins like a record type, because external-dns would then take the registry record
// for that of another record.
func (r Registry) names(name, rrtype string) (now, before string) {
	first, rest, _ := strings.Cut(name, ".")
	if first == "*" && r.Wildcard != "" {
		first = strings.ToLower(r.Wildcard)
	}
	affixes := strings.ToLower(r.Prefix + r.Suffix)
	around := func(first, rrtype string) string {
		fill := func(affix string) string { return strings.ReplaceAll(strings.ToLower(affix), recordType, rrtype) }
		return fill(r.Prefix) + first + fill(r.Suffix) + "." + rest
	}
	if strings.Contains(affixes, recordType) {
		now = around(first, rrtype)
	} else {
		now = around(rrtype+"-"+first, "")
	}
	if !typed.MatchString(first) {
		before = around(first, "")
	}
	return now, before
}

// content returns the text of a registry record without the quotation marks around it, which external-dns writes and Azure DNS keeps.
func content(x *dns.TXT) string { return strings.Trim(strings.Join(x.Txt, ""), `\"`) }

// labels parses the text of a registry record, and returns its values by key; false if the TXT record is no registry record.
func labels(x *dns.TXT) (map[string]string, bool) {
	found, all := false, map[string]string{}
	for token := range strings.SplitSeq(content(x), ",") {
		key, value, _ := strings.Cut(token, "=")
		if key == "heritage" && value != ExternalDNS {
			return nil, false
		}
		found = found || key == "heritage"
		all[strings.TrimPrefix(key, "external-dns/")] = value
	}
	return all, found
}

// encrypted reports whether a TXT record looks like one that external-dns has encrypted with AES-GCM: base64 of a nonce of 12 bytes, a
// text, and a tag of 16.
func encrypted(x *dns.TXT) bool {
	data, err := base64.StdEncoding.DecodeString(content(x))
	return err == nil && len(data) > 12+16
}

// A registry record of Kuadrant has a name that begins with kuadrant- and, in version 1 of its format, a hash of its owner. The name that
// external-dns writes without a prefix follows, with "wildcard" in place of *.
var (
	kuadrantOwned = regexp.MustCompile(`^kuadrant-[0-9a-z]+-`)
	kuadrantPlain = regexp.MustCompile(`^kuadrant-`)
)

// index returns the registry records by name. For external-dns these are r.Owner's records, and others has the zone's other owners, sorted.
// For Kuadrant these are the records of all owners, by the name without Kuadrant's prefix and, in version 1, the hash; others is empty.
func (r Registry) index(z *zone.State) (ix map[string][]*dns.TXT, others []string) {
	ix = map[string][]*dns.TXT{}
	for _, rr := range z.Records() {
		x, ok := rr.(*dns.TXT)
		if !ok {
			continue
		}
		l, ok := labels(x)
		if !ok {
			continue
		}
		name := dns.CanonicalName(x.Hdr.Name)
		key := name
		switch {
		case r.From == Kuadrant:
			own := kuadrantPlain
			if l["version"] == "1" {
				own = kuadrantOwned
			}
			if key = strings.TrimPrefix(name, own.FindString(name)); key == name {
				continue // a registry record of external-dns
			}
		case l["owner"] != r.Owner:
			others = append(others, l["owner"])
			continue
		}
		ix[key] = append(ix[key], x)
	}
	slices.Sort(others)
	return ix, slices.Compact(others)
}

// Host is one host that the other controller owns: its addresses, and the registry records that mark them as the other's.
type Host struct {
	Name     string   `json:"host"`
	Records  []string `json:"records"`  // A and AAAA, sorted
	Registry []string `json:"registry"` // TXT, sorted
}

// Left is a record of the other controller that stays with it.
type Left struct {
	Record string `json:"record"`
	Reason string `json:"reason"`
}

// Read returns the hosts that the registry marks as the owner's, sorted by name, the records that cannot be adopted, and the other owners
// in the zone. It returns an error if registry records look encrypted and no host is found: then this owner's registry is probably
// encrypted.
func (r Registry) Read(z *zone.State) (hosts []Host, left []Left, others []string, err error) {
	ix, others := r.index(z)
	naming := r
	if r.From == Kuadrant {
		naming = Registry{Wildcard: "wildcard"}
	}
	var hidden []Left
	claimed := map[*dns.TXT]bool{}
	claims := func(name string, rrtype uint16) (all []*dns.TXT) {
		now, before := naming.names(name, strings.ToLower(dns.TypeToString[rrtype]))
		all = ix[now]
		if rrtype != dns.TypeAAAA || r.From == Kuadrant { // as external-dns: the old format has no AAAA
			all = slices.Concat(all, ix[before])
		}
		for _, x := range all {
			claimed[x] = true
		}
		if there := z.RRset(now, dns.TypeTXT); r.From == ExternalDNS && len(all) == 0 && len(there) > 0 && encrypted(there[0].(*dns.TXT)) {
			hidden = append(hidden, Left{text(there[0]), "it looks like an encrypted registry record"})
			err = fmt.Errorf("%s: the registry is encrypted (--txt-encrypt-enabled): run external-dns without encryption until it has written "+
				"plain text, and export again", now)
		}
		return all
	}
	types := typesOf(z)
	for _, name := range slices.Sorted(maps.Keys(types)) {
		h := Host{Name: name}
		for _, rrtype := range types[name] {
			registry := claims(name, rrtype)
			if len(registry) == 0 {
				continue
			}
			if rrtype != dns.TypeA && rrtype != dns.TypeAAAA {
				left = append(left, Left{text(z.RRset(name, rrtype)[0]), "a DNSRecord publishes addresses only"})
				continue
			}
			h.Records = append(h.Records, texts(z.RRset(name, rrtype))...)
			for _, x := range registry {
				h.Registry = append(h.Registry, text(x))
			}
		}
		if len(h.Records) == 0 {
			continue
		}
		slices.Sort(h.Records)
		slices.Sort(h.Registry)
		h.Registry = slices.Compact(h.Registry)
		if fault := h.check(z.Origin); fault != nil {
			left = append(left, Left{h.Records[0], "no DNSRecord can be made of it: " + fault.Error()})
			continue
		}
		hosts = append(hosts, h)
	}
	for _, all := range ix {
		for _, x := range all {
			if !claimed[x] {
				left = append(left, Left{text(x), "a registry record, but the zone has no record for it"})
			}
		}
	}
	if len(hosts) > 0 { // this owner's registry is readable, so encrypted registry records are another owner's
		left, err = append(left, hidden...), nil
	}
	slices.SortFunc(left, func(a, b Left) int { return strings.Compare(a.Record, b.Record) })
	return hosts, left, others, err
}

// maxAddresses is the maximum number of addresses in a DNSRecord.
const maxAddresses = 64

// check returns why no DNSRecord can publish the host, or nil.
func (h *Host) check(origin string) error {
	addrs := h.addresses()
	if len(addrs) > maxAddresses {
		return fmt.Errorf("%d addresses are more than %d", len(addrs), maxAddresses)
	}
	for _, a := range addrs {
		if !a.IsGlobalUnicast() {
			return fmt.Errorf("%s is no address that clients elsewhere can reach", a)
		}
	}
	p := zone.Publication{Host: h.Name, Strategy: zone.Simple, TTL: h.ttl(), Addresses: addrs}
	p = p.Normal()
	return p.Validate(origin)
}

func (h *Host) addresses() (addrs []netip.Addr) {
	for _, rr := range parse(h.Records) {
		switch rr := rr.(type) {
		case *dns.A:
			a, _ := netip.AddrFromSlice(rr.A.To4())
			addrs = append(addrs, a)
		case *dns.AAAA:
			a, _ := netip.AddrFromSlice(rr.AAAA)
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// The default and the maximum TTL, in seconds, of a DNSRecord. The default also replaces the TTL 0, which external-dns writes by RFC 2136
// unless a source names a TTL.
const (
	defaultTTL = 60
	maxTTL     = 86400
)

func (h *Host) ttl() uint32 {
	ttl := uint32(maxTTL)
	for _, rr := range parse(h.Records) {
		ttl = min(ttl, rr.Header().Ttl)
	}
	if ttl == 0 {
		return defaultTTL
	}
	return ttl
}

// Manifest returns the YAML of a DNSRecord for the host. It has adopt: false, so if the DNSRecord is deleted, the addresses stay in the
// zone, with the TTL that they had. A comment names the object that external-dns took them from.
func (h *Host) Manifest() string {
	name := strings.TrimSuffix(h.Name, ".")
	object := name
	if rest, ok := strings.CutPrefix(name, "*."); ok {
		object = rest + ".wildcard"
	}
	list := strings.ReplaceAll(fmt.Sprintf("%q", h.addresses()), " ", ", ")
	comment := ""
	for _, rr := range parse(h.Registry) {
		if x, ok := rr.(*dns.TXT); ok {
			if l, _ := labels(x); l["resource"] != "" {
				comment = fmt.Sprintf(" # external-dns took them from %q; a DNSRecord does not follow it", l["resource"])
			}
		}
	}
	return fmt.Sprintf("---\napiVersion: neardns.io/v1alpha1\nkind: DNSRecord\nmetadata:\n  name: %q\n"+
		"spec:\n  host: %q\n  ttl: %d\n  addresses: %s%s\n  adopt: false\n",
		object, name, h.ttl(), list, comment)
}
