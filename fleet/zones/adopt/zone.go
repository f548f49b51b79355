package adopt

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/zone"
)

// Zone is a zone as it was read.
type Zone struct {
	origin string
	sets   map[string][]dns.RR // by canonical name
	state  *zone.State
}

// Parse makes a Zone of the records of a transfer.
func Parse(origin string, rrs []dns.RR) (*Zone, error) {
	state, err := zone.Parse(origin, rrs)
	if err != nil {
		return nil, err
	}
	z := &Zone{state.Origin, map[string][]dns.RR{}, state}
	for _, rr := range state.Records() {
		name := dns.CanonicalName(rr.Header().Name)
		z.sets[name] = append(z.sets[name], rr)
	}
	return z, nil
}

func (z *Zone) names() []string { return slices.Sorted(maps.Keys(z.sets)) }

// types returns the record types of a name that a registry record can be for; TXT is not one, because registry records are TXT, nor
// are those of a signed zone.
func (z *Zone) types(name string) (types []uint16) {
	for _, rr := range z.sets[name] {
		if t := rr.Header().Rrtype; t != dns.TypeTXT && t != dns.TypeRRSIG && t != dns.TypeNSEC && !slices.Contains(types, t) {
			types = append(types, t)
		}
	}
	slices.Sort(types)
	return types
}

func (z *Zone) of(name string, rrtype uint16) []dns.RR {
	return slices.DeleteFunc(slices.Clone(z.sets[name]), func(rr dns.RR) bool { return rr.Header().Rrtype != rrtype })
}

// publisher returns the clusters that publish a host, or "".
func (z *Zone) publisher(host string) string {
	if h := z.state.Hosts[host]; h != nil {
		return strings.Join(h.Owners, ", ")
	}
	return ""
}

// asRead returns the prerequisite that an RRset is exactly as it was read, or does not exist if it did not. Prerequisites do not compare
// TTLs (RFC 2136 section 2.4).
func (z *Zone) asRead(name string, rrtype uint16) []dns.RR {
	set := z.of(name, rrtype)
	if len(set) == 0 {
		return []dns.RR{&dns.ANY{Hdr: dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassNONE}}}
	}
	for i, rr := range set {
		set[i] = with(rr, dns.ClassINET, 0)
	}
	return set
}

func with(rr dns.RR, class uint16, ttl uint32) dns.RR {
	c := dns.Copy(rr)
	c.Header().Class, c.Header().Ttl = class, ttl
	return c
}

// text returns a record as the export has it, the same for equal records.
func text(rr dns.RR) string {
	h := rr.Header()
	data := strings.TrimPrefix(rr.String(), h.String())
	return fmt.Sprintf("%s %d %s %s", dns.CanonicalName(h.Name), h.Ttl, dns.TypeToString[h.Rrtype], data)
}

func texts(rrs []dns.RR) (all []string) {
	for _, rr := range rrs {
		all = append(all, text(rr))
	}
	return all
}

// parse returns the records of texts, which Load or text has checked.
func parse(texts []string) (rrs []dns.RR) {
	for _, t := range texts {
		if rr, err := dns.NewRR(t); err == nil && rr != nil {
			rrs = append(rrs, rr)
		}
	}
	return rrs
}
