package adopt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/zone"
)

// typesOf returns the record types of each canonical name that a registry record can be for, sorted. TXT is not one, because registry
// records are TXT, nor are those of a signed zone.
func typesOf(z *zone.State) map[string][]uint16 {
	types := map[string][]uint16{}
	for _, rr := range z.Records() {
		h := rr.Header()
		name := dns.CanonicalName(h.Name)
		if t := h.Rrtype; t != dns.TypeTXT && t != dns.TypeRRSIG && t != dns.TypeNSEC && !slices.Contains(types[name], t) {
			types[name] = append(types[name], t)
		}
	}
	for _, all := range types {
		slices.Sort(all)
	}
	return types
}

// publisher returns the clusters that publish a host, or "".
func publisher(z *zone.State, host string) string {
	if h := z.Hosts[host]; h != nil {
		return strings.Join(h.Owners, ", ")
	}
	return ""
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

// parse returns the records of texts, which Decode or text has checked.
func parse(texts []string) (rrs []dns.RR) {
	for _, t := range texts {
		if rr, err := dns.NewRR(t); err == nil && rr != nil {
			rrs = append(rrs, rr)
		}
	}
	return rrs
}
