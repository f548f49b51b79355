package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// said is all that one cluster publishes of one host, in this rig's own words: it judges the zone without the product's code.
type said struct {
	Cluster   string
	Host      string // absolute
	Balanced  bool   // strategy LoadBalanced
	Geo       string // of LoadBalanced, lower case
	Addresses []netip.Addr
}

// expected is what a zone must hold where exactly these clusters are there: for addresses, the sorted data by "name type"; for TXT, their
// number alone.
func expected(origin string, all []said) map[string][]string {
	out := map[string][]string{}
	once := func(key, value string) {
		if !slices.Contains(out[key], value) {
			out[key] = append(out[key], value)
		}
	}
	shared := func(kind, host string) string {
		return strings.TrimSuffix(host, "."+origin) + "." + kind + "._shared._neardns." + origin + " TXT"
	}
	for _, s := range all {
		if len(s.Addresses) == 0 {
			continue
		}
		once(strings.TrimSuffix(s.Host, "."+origin)+"."+s.Cluster+"._neardns."+origin+" TXT", "claim")
		once(shared("o", s.Host), s.Cluster)
		once(shared("s", s.Host), "strategy")
		names := []string{s.Host}
		if s.Balanced {
			names = append(names, s.Cluster+".klb."+s.Host)
			if s.Geo != "" {
				names = append(names, s.Geo+".klb."+s.Host)
			}
		}
		for _, a := range s.Addresses {
			kind := " A"
			if a.Is6() {
				kind = " AAAA"
			}
			for _, name := range names {
				once(name+kind, a.String())
			}
			label := strings.NewReplacer(".", "-", ":", "-").Replace(a.String())
			once(label+"."+shared("r", s.Host), s.Cluster+" "+s.Geo)
		}
	}
	for key, values := range out {
		if strings.HasSuffix(key, " TXT") {
			out[key] = []string{fmt.Sprint(len(values))}
		}
		slices.Sort(out[key])
	}
	return out
}

// held is what a zone holds, in the same form, without the server's own records and without heartbeats.
func held(origin string, zone []dns.RR) map[string][]string {
	out, texts := map[string][]string{}, map[string]int{}
	for _, rr := range zone {
		name := strings.ToLower(rr.Header().Name)
		switch {
		case serversOwn(origin, rr):
		case rr.Header().Rrtype == dns.TypeTXT:
			if rest, ok := strings.CutSuffix(name, "._neardns."+origin); !ok || strings.Contains(rest, ".") { // else a heartbeat
				texts[name+" TXT"]++
			}
		default:
			key := name + " " + dns.TypeToString[rr.Header().Rrtype]
			value := strings.TrimPrefix(rr.String(), rr.Header().String())
			out[key] = append(out[key], value)
		}
	}
	for key := range out {
		slices.Sort(out[key])
	}
	for key, n := range texts {
		out[key] = []string{fmt.Sprint(n)}
	}
	return out
}

// serversOwn reports whether a record is of the zone as the server begins with it.
func serversOwn(origin string, rr dns.RR) bool {
	name, rrtype := strings.ToLower(rr.Header().Name), rr.Header().Rrtype
	return name == origin && (rrtype == dns.TypeSOA || rrtype == dns.TypeNS) || name == "ns1."+origin
}

// differences lists how the zone differs from what it must hold: lost is missing there, left is there and should not be.
func differences(want, got map[string][]string) (lost, left []string) {
	for key, values := range want {
		for _, v := range values {
			if !slices.Contains(got[key], v) {
				lost = append(lost, key+" "+v)
			}
		}
	}
	for key, values := range got {
		for _, v := range values {
			// A wrong number of texts is named once, among the lost.
			if isText := strings.HasSuffix(key, " TXT"); !slices.Contains(want[key], v) && (!isText || want[key] == nil) {
				left = append(left, key+" "+v)
			}
		}
	}
	slices.Sort(lost)
	slices.Sort(left)
	return lost, left
}
