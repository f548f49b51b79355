package steering

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// equalCorefile is a kube-dns with more than Kubernetes' own zone: a zone of its own, hosts, a name rewritten, a template, a
// stub domain. The cluster's zone comes from a file, which answers as the kubernetes plugin does.
const equalCorefile = `.:53 {
    errors
    hosts {
        10.9.9.1 blocked.example.org
        fallthrough
    }
    rewrite name exact old.example.org new.example.org
    template IN A special.example.org {
        answer "{{ .Name }} 60 IN A 10.9.9.2"
        fallthrough
    }
    file %[1]s/cluster.zone cluster.local {
        fallthrough
    }
    file %[1]s/reverse.zone 10.in-addr.arpa
    forward . %[2]s
    cache 30
    loadbalance
}
corp.local:53 {
    file %[1]s/corp.zone corp.local
    errors
}
stub.example:53 {
    forward . %[2]s
    cache 30
}
`

// equalQuestion is one of the corpus.
type equalQuestion struct {
	name string
	kind uint16
	how  string // udp, edns, tcp
}

func (q equalQuestion) String() string { return q.name + " " + dns.TypeToString[q.kind] + " " + q.how }

const equalQuestions = 2000

// equalCorpus draws names of every kind that pods query, the same each time.
func equalCorpus() []equalQuestion {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same queries each time
	kinds := []uint16{dns.TypeA, dns.TypeA, dns.TypeA, dns.TypeAAAA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT, dns.TypeMX, dns.TypeCNAME, dns.TypeNS, dns.TypeSOA, dns.TypePTR, dns.TypeHTTPS}
	hows := []string{"udp", "edns", "edns", "tcp"}
	seen := map[equalQuestion]bool{}
	var out []equalQuestion
	for len(out) < equalQuestions {
		i := random.IntN(60)
		names := []string{
			fmt.Sprintf("svc%d.default.svc.cluster.local.", i), fmt.Sprintf("SVC%d.Default.svc.cluster.LOCAL.", i),
			fmt.Sprintf("gone%d.default.svc.cluster.local.", i), fmt.Sprintf("www.example%d.org.default.svc.cluster.local.", i),
			fmt.Sprintf("www.example%d.org.svc.cluster.local.", i), "headless.default.svc.cluster.local.", "few.default.svc.cluster.local.",
			"alias.default.svc.cluster.local.", "outside.default.svc.cluster.local.", "_http._tcp.headless.default.svc.cluster.local.", "default.svc.cluster.local.", "cluster.local.",
			fmt.Sprintf("%d.0.96.10.in-addr.arpa.", i), fmt.Sprintf("%d.1.2.3.in-addr.arpa.", i), "8.b.d.0.1.0.0.2.ip6.arpa.",
			fmt.Sprintf("host%d.corp.local.", i%7), "corp.local.", fmt.Sprintf("ok%d.stub.example.", i), "blocked.example.org.", "old.example.org.", "special.example.org.",
			fmt.Sprintf("ok%d.example.org.", i), fmt.Sprintf("Ok%d.eXample.org.", i), fmt.Sprintf("none%d.example.org.", i), fmt.Sprintf("empty%d.example.org.", i),
			fmt.Sprintf("chain%d.example.org.", i), fmt.Sprintf("fails%d.example.org.", i), fmt.Sprintf("refused%d.example.org.", i), fmt.Sprintf("many%d.example.org.", i),
			fmt.Sprintf("slow%d.example.org.", i%4), fmt.Sprintf("dangling%d.example.org.", i), fmt.Sprintf("zero%d.example.org.", i), fmt.Sprintf("_srv%d._tcp.example.org.", i),
			strings.Repeat("long-label-of-a-name.", 8) + fmt.Sprintf("ok%d.example.org.", i), fmt.Sprintf("ok%d\\.dot.example.org.", i), "org.", ".",
		}
		q := equalQuestion{names[random.IntN(len(names))], kinds[random.IntN(len(kinds))], hows[random.IntN(len(hows))]}
		if seen[q] {
			continue
		}
		seen[q] = true
		out = append(out, q)
	}
	return out
}

// outside answers as a resolver, always the same for a name and type.
func outside(q testutil.Question) *dns.Msg {
	m := new(dns.Msg).SetReply(q.Msg)
	m.RecursionAvailable = true
	if opt := q.Msg.IsEdns0(); opt != nil {
		m.SetEdns0(1232, opt.Do())
	}
	add := func(section *[]dns.RR, owner, format string, args ...any) {
		rr, err := dns.NewRR(owner + " " + fmt.Sprintf(format, args...))
		if err != nil {
			panic(err)
		}
		*section = append(*section, rr)
	}
	deny := func() { add(&m.Ns, "example.org.", "60 IN SOA ns.example.org. root.example.org. 1 7200 1800 86400 60") }
	first, _, _ := strings.Cut(strings.ToLower(q.Name), ".")
	number := len(q.Name)
	ttl, address := 60, net.IPv4(198, 51, 100, byte(number))
	switch {
	case strings.HasPrefix(first, "none"):
		m.Rcode = dns.RcodeNameError
		deny()
		return m
	case strings.HasPrefix(first, "fails"):
		m.Rcode = dns.RcodeServerFailure
		return m
	case strings.HasPrefix(first, "refused"):
		m.Rcode = dns.RcodeRefused
		return m
	case strings.HasPrefix(first, "empty"):
		deny()
		return m
	case strings.HasPrefix(first, "dangling"):
		add(&m.Answer, q.Name, "60 IN CNAME nowhere.example.net.")
		return m
	case strings.HasPrefix(first, "slow"):
		q.Late(2400 * time.Millisecond)
	case strings.HasPrefix(first, "zero"):
		ttl = 0
	case strings.HasPrefix(first, "chain"):
		add(&m.Answer, q.Name, "60 IN CNAME one.example.net.")
		add(&m.Answer, "one.example.net.", "60 IN CNAME two.example.net.")
		if q.Type == dns.TypeA {
			add(&m.Answer, "two.example.net.", "60 IN A %s", address)
		}
		return m
	}
	switch q.Type {
	case dns.TypeA:
		n := 1
		if strings.HasPrefix(first, "many") {
			n = 120
		}
		for i := range n {
			add(&m.Answer, q.Name, "%d IN A 203.0.%d.%d", ttl, number, i)
		}
	case dns.TypeAAAA:
		add(&m.Answer, q.Name, "%d IN AAAA 2001:db8::%x", ttl, number)
	case dns.TypeTXT:
		add(&m.Answer, q.Name, "%d IN TXT %q", ttl, strings.Repeat("t", 200))
	case dns.TypeSRV:
		add(&m.Answer, q.Name, "%d IN SRV 1 2 80 target.example.net.", ttl)
	case dns.TypeMX:
		add(&m.Answer, q.Name, "%d IN MX 10 mail.example.net.", ttl)
	default:
		deny()
	}
	return m
}

// zones writes the files of the Corefile.
func (n *node) zones(dir string) {
	n.t.Helper()
	const head = "$ORIGIN %s\n$TTL 5\n@ IN SOA ns.%[1]s root.%[1]s 1 7200 1800 86400 5\n@ IN NS ns.%[1]s\nns IN A 10.96.0.10\n"
	cluster := fmt.Sprintf(head, "cluster.local.")
	var reverse strings.Builder
	fmt.Fprintf(&reverse, head, "10.in-addr.arpa.")
	for i := range 60 {
		cluster += fmt.Sprintf("svc%d.default.svc IN A 10.96.0.%d\nsvc%[1]d.default.svc IN AAAA fd00:96::%[1]x\n_http._tcp.svc%[1]d.default.svc IN SRV 0 100 80 svc%[1]d.default.svc\n", i, i)
		if i%2 == 0 {
			fmt.Fprintf(&reverse, "%d.0.96 IN PTR svc%d.default.svc.cluster.local.\n", i, i)
		}
	}
	for i := range 100 {
		cluster += fmt.Sprintf("headless.default.svc IN A 10.244.3.%d\n_http._tcp.headless.default.svc IN SRV 0 1 80 ep%[1]d.headless.default.svc\n", i)
	}
	for i := range 4 {
		cluster += fmt.Sprintf("few.default.svc IN A 10.244.4.%d\n", i)
	}
	cluster += "alias.default.svc IN CNAME svc1.default.svc\noutside.default.svc IN CNAME ok1.example.org.\n"
	corp := fmt.Sprintf(head, "corp.local.")
	for i := range 5 {
		corp += fmt.Sprintf("host%d IN A 10.9.9.%d\n", i, i+10)
	}
	for name, text := range map[string]string{"cluster.zone": cluster, "reverse.zone": reverse.String(), "corp.zone": corp} {
		testutil.Must(n.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
}

// heardOf is an answer without what may differ: number, times, order.
func heardOf(ns *testutil.NetNS, at target, q equalQuestion) string {
	network, options := "udp", testutil.AskOptions{}
	switch q.how {
	case "tcp":
		network = "tcp"
	case "edns":
		options.EDNS = 1232
	}
	a, err := testutil.Ask(ns, at.server(), q.name, q.kind, network, options)
	if err != nil {
		return "no answer"
	}
	m := a.Msg
	out := []string{fmt.Sprintf("%s tc=%v ra=%v ad=%v", dns.RcodeToString[m.Rcode], m.Truncated, m.RecursionAvailable, m.AuthenticatedData)}
	if m.Truncated {
		return out[0] // how many records are left in is each server's own choice
	}
	for section, records := range map[string][]dns.RR{"answer": m.Answer, "authority": m.Ns} {
		for _, rr := range records {
			rr = dns.Copy(rr)
			rr.Header().Ttl = 0
			out = append(out, section+" "+strings.ToLower(rr.String()))
		}
	}
	slices.Sort(out[1:])
	return strings.Join(out, "\n")
}

// TestEqualToKubeDNS: 2,000 names and types, queried by a pod that is steered and by one that is not, at a kube-dns with zones of its
// own, stub domains, headless Services, slow and failing resolvers. What they hear is the same, but for TTL and order.
func TestEqualToKubeDNS(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{families: testutil.IPv4, external: true})
	direct, steered := n.addOldPod().NetNS, n.addPod(nil).NetNS
	dir := n.path("kubedns")
	testutil.Must(t, os.MkdirAll(dir, 0o755))
	n.zones(dir)
	n.External.Behave(testutil.Behaviour{Handler: outside})
	n.DNS.Stop()
	corefile := fmt.Sprintf(equalCorefile, dir, n.ExternalAddrs()[0])
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "Corefile"), []byte(corefile), 0o644))
	kubeDNS := n.KubeDNS.Start(made.Path("coredns"), "-conf", filepath.Join(dir, "Corefile"))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kube-dns said:\n%s", kubeDNS.Output())
		}
	})
	// As install/base has it: kube-dns's Corefile decides whether the node's resolver is queried.
	n.write("resolv.conf", "nameserver "+n.ExternalAddrs()[0].String()+"\n")
	n.configure(fmt.Sprintf("upstreams: {external: auto, kubeDNSCorefile: %s, nodeResolvConf: %s}\n", filepath.Join(dir, "Corefile"), n.path("resolv.conf")))
	at := target{n.ClusterDNS()[0], "udp"}
	testutil.Eventually(t, func() error {
		if got := heardOf(direct, at, equalQuestion{"svc1.default.svc.cluster.local.", dns.TypeA, "udp"}); !strings.Contains(got, "10.96.0.1") {
			return fmt.Errorf("kube-dns: %s", got)
		}
		return nil
	})
	n.startAgent()

	questions := equalCorpus()
	type difference struct {
		q         equalQuestion
		want, got string
	}
	var mu sync.Mutex // guards the differences
	var differences []difference
	work := make(chan equalQuestion)
	var wg sync.WaitGroup
	for range 24 {
		wg.Go(func() {
			for q := range work {
				want := heardOf(direct, at, q)
				for range 2 { // a miss, then what the cache makes of it
					if got := heardOf(steered, at, q); got != want {
						mu.Lock()
						differences = append(differences, difference{q, want, got})
						mu.Unlock()
					}
				}
			}
		})
	}
	for _, q := range questions {
		work <- q
	}
	close(work)
	wg.Wait()
	for i, d := range differences {
		if i == 15 {
			break
		}
		t.Errorf("%s:\n not steered %s\n steered     %s", d.q, d.want, d.got)
	}
	if len(differences) > 0 {
		t.Errorf("%d of %d answers differ", len(differences), 2*len(questions))
	}
}
