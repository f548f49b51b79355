package workload

import (
	"hash/fnv"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

// The upstream's times to live, in seconds.
const (
	ttlService  = 30 // the kubernetes plugin's in kubeadm's Corefile
	ttlNegative = 30
	ttlShort    = 2
	ttlStable   = 3600
)

// addresses is how many a headless Service has.
const addresses = 50

const (
	noError  = 0
	nxDomain = 3
)

// answer is what is true of a name.
type answer struct {
	ours  bool // the name is one of the bench's
	rcode uint8
	data  [][]byte
	ttl   uint32
}

// parents are the names that others are below.
var parents = []string{"svc.cluster.local", zone, outside, "internal.example.net"}

// answerTo knows every name of the bench, in any case. Names below its zones that it does not know do not exist.
func answerTo(name string, qtype uint16) answer {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	first, rest, _ := strings.Cut(name, ".")
	kind, number, _ := strings.Cut(first, "-")
	n, err := strconv.Atoi(number)
	known := err == nil && n >= 0
	a := answer{ours: true, ttl: ttlService}
	switch {
	case known && rest == zone && slices.Contains(Names, strings.ToUpper(kind)) && n < services:
		a.data = one(qtype, 97, n)
	case known && rest == zone && kind == "many" && n < services:
		for i := range addresses {
			if qtype == TypeA {
				a.data = append(a.data, []byte{10, 98, byte(n), byte(i)})
			}
		}
	case known && rest == zone && kind == "short":
		a.data, a.ttl = one(qtype, 99, n), ttlShort
	case known && kind == "new" && (rest == zone || rest == outside):
		a.data, a.ttl = one(qtype, 100, 0), ttlStable
	case known && rest == zone && kind == "host":
		a.data, a.ttl = one(qtype, 101, n), ttlStable
	case known && rest == outside && kind == "host":
		h := fnv.New32a()
		_, _ = h.Write([]byte(first))
		a.data, a.ttl = one(qtype, 102, n), 5+h.Sum32()%296
	case slices.Contains(parents, name): // they exist, whatever is there
		a.ours = false
	case strings.HasSuffix(name, ".cluster.local") || strings.HasSuffix(name, ".example.net"):
		a.rcode, a.ttl = nxDomain, ttlNegative
	default:
		a.ours = false
	}
	return a
}

// one is one address of a type: 10.<kind>.<n>, fd00:<kind>::<n>.
func one(qtype uint16, kind byte, n int) [][]byte {
	switch qtype {
	case TypeA:
		return [][]byte{{10, kind, byte(n >> 8), byte(n)}}
	case TypeAAAA:
		return [][]byte{{0xfd, 0, 0, kind, 13: 0, 14: byte(n >> 8), 15: byte(n)}}
	}
	return nil
}

// Answer makes the upstream's answer to a query, of whatever size; nil for names that are not the bench's.
func Answer(m *dns.Msg) *dns.Msg {
	if len(m.Question) != 1 {
		return nil
	}
	q := m.Question[0]
	a := answerTo(q.Name, q.Qtype)
	if !a.ours {
		return nil
	}
	out := new(dns.Msg).SetRcode(m, int(a.rcode))
	out.Authoritative, out.RecursionAvailable = true, true
	for _, d := range a.data {
		h := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: a.ttl}
		if q.Qtype == TypeA {
			out.Answer = append(out.Answer, &dns.A{Hdr: h, A: net.IP(d)})
		} else {
			out.Answer = append(out.Answer, &dns.AAAA{Hdr: h, AAAA: net.IP(d)})
		}
	}
	if len(a.data) == 0 {
		zone := "cluster.local."
		if strings.HasSuffix(strings.ToLower(q.Name), "example.net.") {
			zone = "example.net."
		}
		out.Ns = []dns.RR{&dns.SOA{
			Hdr: dns.RR_Header{Name: zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttlNegative},
			Ns:  "ns." + zone, Mbox: "hostmaster." + zone, Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttlNegative,
		}}
	}
	if m.IsEdns0() != nil {
		out.SetEdns0(payload, false)
	}
	out.Compress = true
	return out
}
