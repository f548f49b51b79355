package hostsfile

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/hostsfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// world is kube-dns with a cache in each replica, one of which gets the query, and one node. Its time is simulated.
type world struct {
	random   *rand.Rand
	now      time.Time
	ttl      time.Duration // 0: nothing is kept, and answers say 30 s
	replicas []cached
	truth    netip.Addr
	queries  int
}

type cached struct {
	addr  netip.Addr
	until time.Time
}

func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.random.Int64N(int64(d))) }

func (w *world) query() reply {
	w.queries++
	if w.ttl == 0 {
		return reply{addrs: []netip.Addr{w.truth}, ttl: 30 * time.Second}
	}
	c := &w.replicas[w.random.IntN(len(w.replicas))]
	if !w.now.Before(c.until) {
		*c = cached{w.truth, w.now.Add(w.ttl)}
	}
	return reply{addrs: []netip.Addr{c.addr}, ttl: (c.until.Sub(w.now) + time.Second - 1).Truncate(time.Second)} // as CoreDNS rounds
}

// follow simulates the node until end, and returns how long after change the node knew the new address.
func (w *world) follow(change, end time.Time) (took time.Duration) {
	p, m, k := defaultPace(), memory{}, key{"shop/registry", dns.TypeA}
	next := w.now.Add(w.upTo(p.every))
	var between time.Time
	after := netip.MustParseAddr("10.96.0.77")
	for w.now.Before(end) {
		w.now = next
		round := between.IsZero() || next.Before(between)
		if !round {
			w.now = between
		}
		if !w.now.Before(change) {
			w.truth = after
		}
		keys := []key{k}
		if round {
			next = w.now.Add(p.begin(w.now))
		} else {
			keys = p.take(w.now, m)
		}
		for range keys {
			m.learn(k, w.query(), false, w.now, defaultPatience)
		}
		between = time.Time{}
		if wait, ok := p.between(w.now, m); ok {
			between = w.now.Add(wait)
		}
		if took == 0 && m[k].addrs[0] == after {
			took = w.now.Sub(change)
		}
	}
	return took
}

// However old the answers in kube-dns's cache are, a change is on the node within 35 s, with few queries.
func TestPace(t *testing.T) {
	slowest := time.Duration(0)
	for name, c := range map[string]struct {
		ttl      time.Duration
		replicas int
		most     time.Duration
		queries  float64 // a round, at most
	}{
		"kube-dns keeps nothing, as kubeadm's": {0, 1, 33 * time.Second, 1.1},
		"it keeps answers for 30 s":            {30 * time.Second, 1, 35 * time.Second, 2.1},
		"two replicas, each with its cache":    {30 * time.Second, 2, 35 * time.Second, 3.01},
		"it keeps them for 5 s":                {5 * time.Second, 1, 35 * time.Second, 3.01},
		"for 10 s":                             {10 * time.Second, 2, 35 * time.Second, 3.01},
	} {
		t.Run(name, func(t *testing.T) {
			var longest, total time.Duration
			asked, rounds := 0, 0.0
			for seed := range uint64(1000) {
				w := &world{random: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1e9, 0), ttl: c.ttl, replicas: make([]cached, c.replicas), truth: netip.MustParseAddr("10.96.0.5")}
				for i := range w.replicas { // at any time by queries of others
					w.replicas[i] = cached{w.truth, w.now.Add(w.upTo(c.ttl + 1))}
				}
				begin := w.now
				change := begin.Add(100*time.Second + w.upTo(60*time.Second))
				took := w.follow(change, begin.Add(300*time.Second))
				longest, total, asked, rounds = max(longest, took), total+took, asked+w.queries, rounds+float64(w.now.Sub(begin))/float64(30*time.Second)
			}
			t.Logf("on average after %s, at the latest after %s; %.2f queries in 30 s", (total / 1000).Round(time.Second), longest.Round(time.Millisecond), float64(asked)/rounds)
			slowest = max(slowest, longest)
			if longest > c.most || float64(asked)/rounds > c.queries {
				t.Errorf("at most %s and %.2f queries are promised", c.most, c.queries)
			}
		})
	}
	compat.Say(t, "hosts", "a Service has another address", fmt.Sprintf("within %d s, also where kube-dns keeps its answers", int(slowest.Seconds()+1)))
}

func TestMinTTL(t *testing.T) {
	for want, records := range map[time.Duration][]string{
		7 * time.Second: {"a. 30 IN CNAME b.", "b. 7 IN A 10.0.0.1"},
		5 * time.Second: {"cluster.local. 30 IN SOA ns. h. 1 7200 1800 86400 5"},
		4 * time.Second: {"cluster.local. 4 IN SOA ns. h. 1 7200 1800 86400 30"},
		0:               {"cluster.local. 4 IN NS ns."},
	} {
		m := new(dns.Msg)
		for _, r := range records {
			rr, err := dns.NewRR(r)
			testutil.Must(t, err)
			if k := rr.Header().Rrtype; k == dns.TypeSOA || k == dns.TypeNS {
				m.Ns = append(m.Ns, rr)
			} else {
				m.Answer = append(m.Answer, rr)
			}
		}
		testutil.Equal(t, fmt.Sprintf("%v", records), want, minTTL(m))
	}
}

// A kube-dns with a cache: the role queries again when its answers expire, long before its next round, and not without end.
func TestBetweenRounds(t *testing.T) {
	testutil.RequireRoot(t)
	k := newKubeDNS(t)
	k.set(func() { k.ttl = 1 })
	root, path := newRoot(t, base)
	r := &running{path: path, changed: make(chan struct{}, 1), reload: make(chan Config)}
	r.Hosts = newHosts(root, Config{Services: []string{"shop/registry"}, Domain: "cluster.local", Servers: []netip.AddrPort{k.at}})
	r.pace = pace{every: time.Hour, gap: 50 * time.Millisecond, spread: 20 * time.Millisecond, extra: map[key]int{}}
	r.run(t)
	r.becomes(t, with(base, lines("10.96.0.5", "fd00:10:96::5")))
	k.set(func() { k.records["registry.shop.svc.cluster.local. A"] = "10.96.0.7" })
	r.becomes(t, with(base, []hostsfile.Entry{lines("10.96.0.7")[0], lines("fd00:10:96::5")[0]}))
	// However long it goes on: one round and two queries more for each name and family.
	r.stop()
	if n := k.count(); n > 2*(1+maxExtra) {
		t.Errorf("%d queries", n)
	}
}
