package steering

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// changing is an upstream's view of some names, which a test turns over.
type changing struct{ changed atomic.Bool }

func (c *changing) answer(q testutil.Question) *dns.Msg {
	m := new(dns.Msg).SetReply(q.Msg)
	m.RecursionAvailable = true
	add := func(format string, args ...any) {
		rr, err := dns.NewRR(q.Name + " " + fmt.Sprintf(format, args...))
		if err != nil {
			panic(err)
		}
		m.Answer = append(m.Answer, rr)
	}
	if q.Type != dns.TypeA {
		return m
	}
	switch first, _, _ := strings.Cut(strings.ToLower(q.Name), "."); first {
	case "headless":
		for i := range 4 {
			add("30 IN A 10.1.1.%d", i)
		}
	case "pod-0":
		if !c.changed.Load() {
			add("1 IN A 10.1.1.1")
			break
		}
		q.Late(1500 * time.Millisecond)
		add("1 IN A 10.1.1.2")
	case "moved":
		if c.changed.Load() {
			add("1 IN CNAME elsewhere.example.net.")
			break
		}
		add("1 IN A 192.0.2.1")
	case "long":
		add("3600 IN A 10.1.1.9")
	default: // as a resolver that looks at what stands next to a query
		address := "203.0.113.7"
		if o := q.Msg.IsEdns0(); o != nil {
			for _, option := range o.Option {
				switch option.Option() {
				case dns.EDNS0SUBNET:
					address = "198.51.100.66"
				case 65001:
					m.Rcode = dns.RcodeServerFailure
					return m
				}
			}
		}
		add("30 IN A %s", address)
	}
	return m
}

// TestAnswersAsKubeDNSGivesThem: a steered pod hears what it would without us, where a cache could make a difference.
func TestAnswersAsKubeDNSGivesThem(t *testing.T) {
	n := newNode(t, setup{families: testutil.IPv4, external: true})
	n.configure(fmt.Sprintf("upstreams: {external: [%q]}\n", n.ExternalAddrs()[0]))
	world := new(changing)
	n.DNS.Behave(testutil.Behaviour{Handler: world.answer})
	n.External.Behave(testutil.Behaviour{Handler: world.answer})
	one, other := n.addPod(nil), n.addPod(nil)
	// Whatever stands in the place of the cache's snapshot must not hold up the agent.
	testutil.Must(t, errors.Join(os.MkdirAll(n.persistDir(), 0o755), unix.Mkfifo(filepath.Join(n.persistDir(), "cache.snapshot"), 0o600)))
	n.startAgent()
	ask := func(t *testing.T, p *pod, name string, options ...dns.EDNS0) *dns.Msg {
		t.Helper()
		var o testutil.AskOptions
		if options != nil {
			o.EDNS, o.Options = 1232, options
		}
		a, err := testutil.Ask(p.NetNS, n.Service(true), name, dns.TypeA, "udp", o)
		testutil.Must(t, err)
		return a.Msg
	}
	first := func(m *dns.Msg) (address string, ttl uint32) {
		for _, rr := range m.Answer {
			if a, ok := rr.(*dns.A); ok {
				return a.A.String(), a.Hdr.Ttl
			}
		}
		return "", 0
	}
	// until sends queries until an answer is the new one. How long the old one may be served is the unit tests' (stale-on-silence.txt).
	until := func(t *testing.T, name string, arrived func(*dns.Msg) bool) {
		t.Helper()
		testutil.Eventually(t, func() error {
			m := ask(t, one, name)
			return testutil.ErrorIf(!arrived(m), "%s: %v", name, m)
		})
	}

	t.Run("addresses take turns", func(t *testing.T) {
		by := map[string]int{}
		for i := range 12 {
			m := ask(t, []*pod{one, other}[i%2], "headless.default.svc.cluster.local.")
			address, _ := first(m)
			by[address]++
			if len(m.Answer) != 4 {
				t.Fatal(m)
			}
		}
		if len(by) != 4 || by["10.1.1.0"] != 3 || by["10.1.1.1"] != 3 {
			t.Errorf("in front: %v", by)
		}
	})
	t.Run("kept as long as kube-dns keeps it", func(t *testing.T) {
		if _, ttl := first(ask(t, one, "long.default.svc.cluster.local.")); ttl != 30 {
			t.Errorf("the cluster's: TTL %d", ttl)
		}
		if _, ttl := first(ask(t, one, "long.example.org.")); ttl != 3600 {
			t.Errorf("others': TTL %d", ttl)
		}
	})
	t.Run("what a neighbour puts beside its question", func(t *testing.T) {
		subnet := &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(198, 51, 100, 0)}
		odd := &dns.EDNS0_LOCAL{Code: 65001, Data: []byte{1}}
		for name, option := range map[string]dns.EDNS0{"ecs.example.org.": subnet, "odd.example.org.": odd, "ecs.default.svc.cluster.local.": subnet, "odd.default.svc.cluster.local.": odd} {
			ask(t, one, name, option)
			if address, _ := first(ask(t, other, name)); address != "203.0.113.7" {
				t.Errorf("%s: the other pod hears %q", name, address)
			}
		}
	})
	if address, _ := first(ask(t, one, "pod-0.db.default.svc.cluster.local.")); address != "10.1.1.1" {
		t.Fatal(address)
	}
	if address, _ := first(ask(t, one, "moved.example.org.")); address != "192.0.2.1" {
		t.Fatal(address)
	}
	world.changed.Store(true)
	t.Run("kube-dns is late", func(t *testing.T) {
		until(t, "pod-0.db.default.svc.cluster.local.", func(m *dns.Msg) bool {
			address, _ := first(m)
			return address == "10.1.1.2"
		})
	})
	t.Run("an alias to nothing", func(t *testing.T) {
		until(t, "moved.example.org.", func(m *dns.Msg) bool {
			return len(m.Answer) == 1 && m.Answer[0].Header().Rrtype == dns.TypeCNAME
		})
	})
}
