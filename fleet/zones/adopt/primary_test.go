package adopt

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/zone"
	"github.com/neardns/neardns/pkg/testutil"
)

// primary is a zone as a server holds it: RRs with their TTL by their text without it.
type primary struct {
	t    testing.TB
	sets map[string]dns.RR
}

// newPrimary has a zone with an SOA, an NS, and these lines, in which names are relative to it.
func newPrimary(t testing.TB, lines ...string) *primary {
	p := &primary{t, map[string]dns.RR{}}
	for _, rr := range records(t, append([]string{"@ 60 IN SOA ns hostmaster 1 60 60 60 60", "@ 60 IN NS ns"}, lines...)...) {
		p.sets[key(rr)] = rr
	}
	return p
}

func key(rr dns.RR) string {
	c := dns.Copy(rr)
	c.Header().Ttl = 0
	return text(c)
}

func (p *primary) read() *zone.State {
	z, err := zone.Parse(origin, slices.Collect(maps.Values(p.sets)))
	testutil.Must(p.t, err)
	return z
}

// lines are all records, sorted.
func (p *primary) lines() []string {
	return slices.Sorted(slices.Values(texts(slices.Collect(maps.Values(p.sets)))))
}

func (p *primary) set(name string, rrtype uint16) (keys []string) {
	for k, rr := range p.sets {
		if rr.Header().Rrtype == rrtype && dns.CanonicalName(rr.Header().Name) == name {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// update makes an update as RFC 2136 has it, whole or not at all.
func (p *primary) update(u Update) bool {
	want := map[string][]string{}
	for _, rr := range u.Prereqs {
		h := rr.Header()
		k := fmt.Sprint(dns.CanonicalName(h.Name), " ", h.Rrtype)
		if h.Class == dns.ClassNONE {
			want[k] = nil
		} else {
			want[k] = append(want[k], key(rr))
		}
	}
	for k, keys := range want {
		var name string
		var rrtype uint16
		_, _ = fmt.Sscan(k, &name, &rrtype)
		slices.Sort(keys)
		if !slices.Equal(keys, p.set(name, rrtype)) {
			return false
		}
	}
	for _, rr := range u.Changes {
		if rr.Header().Class == dns.ClassNONE {
			delete(p.sets, key(rr))
		} else {
			p.sets[key(rr)] = rr
		}
	}
	return true
}

// take makes all updates of an action.
func (p *primary) take(a Action) {
	p.t.Helper()
	for _, u := range a.Updates {
		if !p.update(u) {
			p.t.Errorf("refused: %+v", u)
		}
	}
}

// edit deletes and adds records as another program does.
func (p *primary) edit(del, add []string) {
	for _, rr := range records(p.t, del...) {
		delete(p.sets, key(rr))
	}
	for _, rr := range records(p.t, add...) {
		p.sets[key(rr)] = rr
	}
}

func exported(t testing.TB, p *primary) *Export {
	e, err := New(Registry{From: ExternalDNS, Owner: "me"}, p.read(), start)
	testutil.Must(t, err)
	return e
}

// two hosts of external-dns, of two types, and others' records.
var two = []string{
	"app 300 A 192.0.2.1", "app 300 A 192.0.2.2", "app 300 AAAA 2001:db8::1", "a-app 0 TXT " + mine, "aaaa-app 0 TXT " + mine,
	"shop 0 A 192.0.2.3", "shop 60 TXT " + mine, `shop 60 TXT "v=spf1 -all"`, "mail 60 A 192.0.2.9", "a-mail 0 TXT " + yours,
}

func without(lines []string, prefixes ...string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(l, p) })
	})
}
