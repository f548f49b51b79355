package searchpath

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/neardns/neardns/internal/dns/queryinfo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a server that answers for each name according to its kind. It records its queries.
type world struct {
	kinds map[string]string // by name, lower case with the final dot; others do not exist

	mu    sync.Mutex // guards the field below
	asked []string   // "name TYPE"
}

// silence is how long the agent waits for a silent server (silentEnd in package forward).
const silence = 1900 * time.Millisecond

// The kinds of names: what the answers to A and AAAA queries have. Addresses are made from the name, so each name has its own.
var kinds = map[string][2]string{
	"both": {"has", "has"}, "v4": {"has", "empty"}, "v6": {"empty", "has"}, "empty": {"empty", "empty"}, "absent": {"absent", "absent"},
	"alias": {"aliased", "aliased"}, "alias-v4": {"aliased", "alias"}, "alias-nowhere": {"alias", "alias"}, "dangling": {"dangling", "dangling"},
	"fails": {"fails", "fails"}, "fails-v6": {"has", "fails"}, "fails-v4": {"fails", "has"}, "refused": {"refused", "refused"},
	"contradiction": {"has", "absent"}, "contradiction-v6": {"absent", "has"}, "half": {"empty", "absent"}, "half-v4": {"absent", "empty"},
	"cut": {"cut", "has"}, "silent": {"silent", "silent"},
}

func kindNames() []string {
	return []string{"both", "v4", "v6", "empty", "absent", "alias", "alias-v4", "alias-nowhere", "dangling", "fails", "fails-v6", "fails-v4",
		"refused", "contradiction", "contradiction-v6", "half", "half-v4", "cut"}
}

func soa(zone string, ttl uint32) *dns.SOA {
	return &dns.SOA{Hdr: dns.RR_Header{Name: zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttl}, Ns: "ns." + zone, Mbox: "h." + zone, Minttl: 5}
}

func (w *world) Name() string { return "world" }

func (w *world) ServeDNS(_ context.Context, to dns.ResponseWriter, r *dns.Msg) (int, error) {
	q := r.Question[0]
	w.mu.Lock()
	w.asked = append(w.asked, strings.ToLower(q.Name)+" "+dns.TypeToString[q.Qtype])
	w.mu.Unlock()
	kind, ok := kinds[w.kinds[strings.ToLower(q.Name)]]
	if !ok {
		kind = kinds["absent"]
	}
	how := kind[0]
	if q.Qtype == dns.TypeAAAA {
		how = kind[1]
	} else if q.Qtype != dns.TypeA && how != "absent" {
		how = "empty"
	}
	m := new(dns.Msg)
	m.SetReply(r)
	m.RecursionAvailable = true
	own := func(name string) dns.RR {
		sum := byte(len(name))
		for i := range len(name) {
			sum = sum*31 + name[i]
		}
		if q.Qtype == dns.TypeA {
			return &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: q.Qtype, Class: 1, Ttl: 30}, A: net.IPv4(192, 0, 2, sum)}
		}
		return &dns.AAAA{Hdr: dns.RR_Header{Name: name, Rrtype: q.Qtype, Class: 1, Ttl: 30}, AAAA: net.ParseIP(fmt.Sprintf("2001:db8::%x", sum))}
	}
	target := "target." + strings.ToLower(q.Name)
	cname := &dns.CNAME{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeCNAME, Class: 1, Ttl: 20}, Target: target}
	switch how {
	case "has":
		m.Answer = []dns.RR{own(strings.ToLower(q.Name))}
		m.Answer[0].Header().Name = q.Name
	case "aliased":
		m.Answer = []dns.RR{cname, own(target)}
	case "alias":
		m.Answer, m.Ns = []dns.RR{cname}, []dns.RR{soa("world.", 10)}
	case "dangling":
		m.Rcode, m.Answer = dns.RcodeNameError, []dns.RR{cname}
	case "empty":
		m.Ns = []dns.RR{soa("world.", 10)}
	case "absent":
		m.Rcode, m.Ns = dns.RcodeNameError, []dns.RR{soa("world.", 10)}
	case "silent":
		<-time.After(silence)
		return dns.RcodeServerFailure, nil
	case "fails":
		return dns.RcodeServerFailure, nil
	case "refused":
		return dns.RcodeRefused, nil
	case "cut":
		m.Truncated = true
	}
	return dns.RcodeSuccess, to.WriteMsg(m)
}

// rig is the plugin in a server, with pods by address.
type rig struct {
	t       testing.TB
	server  *dnsserver.Server
	world   *world
	metrics *Metrics
	memory  *Memory

	mu   sync.Mutex // guards the fields below
	pods map[netip.Addr]*Search
	late map[netip.Addr]*Search // outdated lists, which Search returns and SearchNow does not
}

var pod1, pod2, nodeAddr = netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("10.244.1.6"), netip.MustParseAddr("192.0.2.10")

func newRig(t testing.TB, kinds map[string]string) *rig {
	t.Helper()
	r := &rig{t: t, world: &world{kinds: kinds}, metrics: new(Metrics), memory: NewMemory(), pods: map[netip.Addr]*Search{}}
	config := &dnsserver.Config{Zone: ".", Transport: "dns", ListenHosts: []string{""}, Port: "53"}
	config.AddPlugin(func(next plugin.Handler) plugin.Handler {
		return &SearchPath{next: next, memory: r.memory, metrics: r.metrics}
	})
	config.AddPlugin(func(plugin.Handler) plugin.Handler { return r.world })
	var err error
	if r.server, err = dnsserver.NewServer("dns://:53", []*dnsserver.Config{config}); err != nil {
		t.Fatal(err)
	}
	return r
}

// whoAt is the rig's pod at an address.
type whoAt struct {
	*rig
	addr netip.Addr
}

func (w whoAt) Search() *Search {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, ok := w.late[w.addr]; ok {
		return s
	}
	return w.pods[w.addr]
}

func (w whoAt) SearchNow(addr netip.Addr) *Search {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[addr]
}

func (r *rig) set(pod netip.Addr, s *Search) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods[pod] = s
}

// writer is a client's ResponseWriter. It keeps the answer.
type writer struct {
	dns.ResponseWriter
	from net.Addr
	got  *dns.Msg
}

func (w *writer) WriteMsg(m *dns.Msg) error { w.got = m; return nil }
func (w *writer) RemoteAddr() net.Addr      { return w.from }
func (w *writer) LocalAddr() net.Addr       { return &net.UDPAddr{IP: net.IPv4(169, 254, 20, 11), Port: 53} }

// send sends queries as a client at an address does, over UDP, and reads the answer as it would come over the wire.
func (r *rig) send(from netip.Addr, m *dns.Msg) *dns.Msg {
	w := &writer{from: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 40000))}
	ctx := queryinfo.With(context.WithValue(context.Background(), dnsserver.Key{}, r.server), &queryinfo.Query{Client: from, Identity: whoAt{r, from}})
	r.server.ServeDNS(context.WithValue(ctx, dnsserver.LoopKey{}, 0), w, m)
	if w.got == nil {
		r.t.Errorf("no answer to %s", m.Question[0].String())
		return new(dns.Msg)
	}
	b, err := w.got.Pack()
	if err != nil {
		r.t.Errorf("%v\n%v", err, w.got)
	}
	got := new(dns.Msg)
	if err := got.Unpack(b); err != nil {
		r.t.Error(err)
	}
	return got
}

func (r *rig) ask(from netip.Addr, name string, qtype uint16) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	return r.send(from, m)
}

// as returns a client that sends queries as the pod at an address, and counts them.
func (r *rig) as(from netip.Addr, questions *int) client {
	return func(name string, qtype uint16) *dns.Msg {
		*questions++
		m := r.ask(from, name, qtype)
		// A resolver takes only records that lead from its query to the address.
		owner := name
		for _, rr := range m.Answer {
			if !strings.EqualFold(rr.Header().Name, owner) {
				r.t.Errorf("%s: the chain breaks at %s:\n%v", name, rr, m)
			}
			if c, ok := rr.(*dns.CNAME); ok {
				owner = c.Target
			}
		}
		return m
	}
}

func clusterList(namespace string, more ...string) []string {
	return append([]string{namespace + ".svc.cluster.local.", "svc.cluster.local.", "cluster.local."}, more...)
}

// TestSameAsTheWalk: in random worlds, with each libc, for one family or both, a lookup has the same result with completion as without.
// Names are made of the search list's own labels, so that the walks of two names may have a query in common.
func TestSameAsTheWalk(t *testing.T) {
	const worlds = 250
	saved := 0
	for n := range worlds {
		saved += compare(t, uint64(n))
		if t.Failed() {
			return
		}
	}
	t.Logf("%d questions saved", saved)
	if saved < worlds {
		t.Errorf("only %d questions saved", saved)
	}
}

func FuzzSameAsTheWalk(f *testing.F) {
	f.Add(uint64(119))
	f.Add(uint64(2962)) // a later query after a walk that was completed for the other family
	f.Fuzz(func(t *testing.T, seed uint64) { compare(t, seed) })
}

// compare makes a world and looks names up in it, with and without completion. It returns how many queries were saved.
func compare(t *testing.T, seed uint64) (saved int) {
	random := rand.New(rand.NewPCG(seed, 2))
	labels := []string{"shop", "svc", "cluster", "local", "web", "corp"}
	lists := [][]string{clusterList("shop"), clusterList("shop", "corp."), clusterList("shop", "corp.", "web.corp."), {"corp.", "shop.corp."},
		clusterList("svc", "."), {"local.", "cluster.local."}}
	list, ndots := lists[random.IntN(len(lists))], []int{1, 2, 5}[random.IntN(3)]
	s := NewSearch(list, ndots, false, "cluster.local")
	var names []string
	kinds := map[string]string{}
	for range 1 + random.IntN(3) {
		var parts []string
		for range 1 + random.IntN(5) {
			parts = append(parts, labels[random.IntN(len(labels))])
		}
		name := strings.Join(parts, ".")
		names = append(names, name)
		for _, question := range append(s.steps(name), name+".") {
			kinds[question] = "absent"
			if random.IntN(3) == 0 {
				kinds[question] = kindNames()[random.IntN(len(kindNames()))]
			}
		}
	}
	// Names are consistent below the cluster's domain, as its servers are: what has something below it exists.
	for name, kind := range maps.Clone(kinds) {
		if kind == "absent" || !strings.HasSuffix(name, ".cluster.local.") {
			continue
		}
		for _, parent := range parents(name) {
			if k := kinds[parent]; k == "" || k == "absent" || k == "dangling" {
				kinds[parent] = "empty"
			}
		}
	}
	r := newRig(t, kinds)
	r.set(pod1, s)
	for which, libc := range libcs() {
		for _, qtypes := range [][]uint16{{dns.TypeA, dns.TypeAAAA}, {dns.TypeA}, {dns.TypeAAAA}} {
			for _, name := range names {
				var before, after int
				want := libc(name, list, ndots, qtypes, r.as(pod2, &before))
				got := libc(name, list, ndots, qtypes, r.as(pod1, &after))
				if !slices.Equal(want.addrs, got.addrs) || want.err != got.err || after > before {
					t.Fatalf("seed %d, %s, %v, ndots %d, list %v, name %s, %d questions instead of %d; without: %v, with: %v\n%v",
						seed, which, qtypes, ndots, list, name, after, before, want, got, kinds)
				}
				saved += before - after
			}
		}
	}
	return saved
}

// parents lists the names below cluster.local that a name of the cluster is below.
func parents(name string) (out []string) {
	for {
		_, rest, _ := strings.Cut(name, ".")
		if name = rest; !strings.HasSuffix(name, ".cluster.local.") {
			return out
		}
		out = append(out, name)
	}
}
