package adopt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/zone"
)

// typesOf returns, by canonical name and sorted, the types of the zone's records for which to look for a registry record: all except RRSIG,
// NSEC and SOA, and except TXT, the type of registry records.
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

// publisher returns the IDs of the clusters that publish a host, separated by commas; "" if there is none.
func publisher(z *zone.State, host string) string {
	if h := z.Hosts[host]; h != nil {
		return strings.Join(h.Owners, ", ")
	}
	return ""
}

// text returns a record as the export writes it: canonical name, TTL, type and data. Equal records have the same text.
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

// parse returns the records that texts contain. It leaves out texts that are no record; an export has none after Decode.
func parse(texts []string) (rrs []dns.RR) {
	for _, t := range texts {
		if rr, err := dns.NewRR(t); err == nil && rr != nil {
			rrs = append(rrs, rr)
		}
	}
	return rrs
}
