package endtoend

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/cluster/node"
)

// many is a headless Service of 100 addresses without pods: over UDP its answer is cut.
func many() string {
	var endpoints strings.Builder
	for i := range 100 {
		fmt.Fprintf(&endpoints, "- {addresses: [192.0.2.%d], hostname: e%[1]d, conditions: {ready: true}}\n", i+1)
	}
	return `
apiVersion: v1
kind: Service
metadata: {name: many}
spec: {clusterIP: None, ports: [{name: web, port: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: many-1, labels: {kubernetes.io/service-name: many}}
addressType: IPv4
ports: [{name: web, port: 8080, protocol: TCP}]
endpoints:
` + endpoints.String()
}

// ownZones are added to kube-dns's Corefile: a zone of its own, and a stub domain.
const ownZones = `corp.test:53 {
    errors
    template IN A corp.test {
        match ^c[0-9]+[.]corp[.]test[.]$
        answer "{{ .Name }} 60 IN A 10.9.9.7"
        answer "{{ .Name }} 60 IN A 10.9.9.8"
        fallthrough
    }
    template IN MX corp.test {
        match ^c[0-9]+[.]corp[.]test[.]$
        answer "{{ .Name }} 60 IN MX 10 mail.corp.test."
        fallthrough
    }
    template IN CNAME corp.test {
        match ^c[0-9]+[.]corp[.]test[.]$
        answer "{{ .Name }} 60 IN CNAME c1.corp.test."
        fallthrough
    }
    template ANY ANY {
        rcode NXDOMAIN
        authority "corp.test. 30 IN SOA a.corp.test. b.corp.test. 1 1800 900 604800 30"
    }
}
stub.test:53 {
    errors
    cache 30
    forward . 192.168.96.1:5353
}
`

// withOwnZones runs f while kube-dns has ownZones, and while the agent knows of it.
func (s *suite) withOwnZones(f func()) {
	s.t.Helper()
	was := s.corefile()
	set := func(corefile string, rcode int, says string) {
		s.setCorefile(corefile)
		s.eventually(func() error {
			r, err := ask(s.before[0].ns, server(true), "udp", question{"c1.corp.test.", dns.TypeA})
			if err != nil || r.Rcode != rcode {
				return fmt.Errorf("kube-dns does not have the Corefile yet: %v %w", r, err)
			}
			if text, err := s.Status(s.t.Context()); err != nil || !strings.Contains(text, says) {
				return fmt.Errorf("the agent does not say %q yet: %w\n%s", says, err, text)
			}
			return nil
		})
	}
	set(was+"\n"+ownZones, dns.RcodeSuccess, "because its Corefile has the zone corp.test")
	defer set(was, dns.RcodeNameError, "the node's resolvers")
	f()
}

// corefile is kube-dns's.
func (s *suite) corefile() string {
	s.t.Helper()
	return s.kubectl("-n", "kube-system", "get", "configmap/coredns", "-o", "jsonpath={.data.Corefile}")
}

// setCorefile gives kube-dns another one. It is used some seconds later.
func (s *suite) setCorefile(corefile string) {
	s.t.Helper()
	text, err := json.Marshal(map[string]any{"data": map[string]string{"Corefile": corefile}})
	s.must(err)
	s.kubectl("-n", "kube-system", "patch", "configmap/coredns", "--type=merge", "-p", string(text))
	// A change of its pod has the kubelet look at a pod's volumes at once, in place of once in a minute.
	s.kubectl("-n", "kube-system", "annotate", "pods", "--all", "--overwrite", fmt.Sprintf("test/corefile=%d", len(corefile)))
}

// most is how many queries are sent at once.
const most = 24

// A pod that is steered gets the answers that one gets that is not, about 2,000 names and types and more: Services of each kind, pods,
// kube-dns's own zones, its stub domain, names outside, slow ones, those that fail, and those that do not exist. It sends queries twice, so
// that the second answer is the cache's, and over TCP. What differs is the TTL, and the order of records.
func (s *suite) testCompared() { s.withOwnZones(s.compareAll) }

func (s *suite) compareAll() {
	s.apply(many())
	defer func() { s.kubectl("delete", "service/many", "endpointslice/many-1", "--wait") }()
	s.eventually(func() error {
		r, err := ask(s.before[0].ns, server(true), "tcp", question{"many.default.svc.cluster.local.", dns.TypeA})
		if err != nil || len(r.Answer) != 100 {
			return fmt.Errorf("the Service of 100 addresses is not there yet: %v %w", r, err)
		}
		return nil
	})
	questions := s.questions()
	if len(questions) < 2000 {
		s.t.Fatalf("%d questions, want 2,000 and more", len(questions))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex // guards what follows
	var differ []string
	codes, cut := map[string]int{}, 0
	slots := make(chan struct{}, most)
	for i, q := range questions {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			said := s.compare(q, i%2 == 0)
			mu.Lock()
			defer mu.Unlock()
			codes[said.code]++
			if said.cut {
				cut++
			}
			differ = append(differ, said.differ...)
		})
	}
	wg.Wait()
	s.t.Logf("%d questions, each over UDP, twice, and TCP: %v; %d cut over UDP; %d answers differ", len(questions), codes, cut, len(differ))
	for i, d := range differ {
		if i == 20 {
			s.t.Errorf("and %d more", len(differ)-i)
			break
		}
		s.t.Error(d)
	}
	for _, code := range []string{"NOERROR", "NXDOMAIN", "SERVFAIL"} {
		if codes[code] == 0 {
			s.t.Errorf("no answer was %s: nothing is tried", code)
		}
	}
	if cut == 0 {
		s.t.Error("no answer was cut: nothing is tried")
	}
}

// compared is what came of one query.
type compared struct {
	code   string
	cut    bool
	differ []string
}

func (s *suite) compare(q question, is4 bool) compared {
	var out compared
	for _, network := range []string{"udp", "tcp"} {
		want, err := ask(s.before[0].ns, server(is4), network, q)
		if err != nil {
			out.differ = append(out.differ, fmt.Sprintf("kube-dns itself: %v", err))
			continue
		}
		out.code, out.cut = dns.RcodeToString[want.Rcode], out.cut || want.Truncated
		for range 2 {
			got, err := ask(s.loaded[0].ns, server(is4), network, q)
			switch {
			case err != nil:
				out.differ = append(out.differ, fmt.Sprintf("%s: %v", network, err))
			case got.Truncated != want.Truncated:
				out.differ = append(out.differ, fmt.Sprintf("%s over %s: cut %t, by kube-dns %t", q, network, got.Truncated, want.Truncated))
			case want.Truncated: // how much of it fits is the server's own affair
			case content(got) != content(want):
				out.differ = append(out.differ, fmt.Sprintf("%s over %s: answered\n%s\nand by kube-dns\n%s", q, network, content(got), content(want)))
			}
		}
	}
	return out
}

// questions are all queries.
func (s *suite) questions() []question {
	var out []question
	add := func(name string, types ...uint16) {
		for _, t := range types {
			out = append(out, question{name, t})
		}
	}
	addresses := []uint16{dns.TypeA, dns.TypeAAAA}
	all := []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeSRV, dns.TypeMX, dns.TypeNS, dns.TypeSOA, dns.TypeCNAME, dns.TypePTR, dns.TypeCAA, dns.TypeHTTPS}
	for _, name := range []string{"cluster.local.", "svc.cluster.local.", "default.svc.cluster.local.", "kubernetes.default.svc.cluster.local.", "kube-dns.kube-system.svc.cluster.local.",
		"shop.default.svc.cluster.local.", "headless.default.svc.cluster.local.", "many.default.svc.cluster.local.", "away.default.svc.cluster.local.", "none.default.svc.cluster.local.",
		"a.outside.test.", "corp.test.", "c1.corp.test.", "stub.test.", "s1.stub.test.", "none.test.", "test.", "in-addr.arpa.", "0.96.10.in-addr.arpa.", "localhost.", "dns-version.cluster.local."} {
		add(name, all...)
	}
	add("_dns._udp.kube-dns.kube-system.svc.cluster.local.", dns.TypeSRV)
	for _, name := range []string{"_web._tcp.headless", "_web._tcp.shop", "_web._tcp.many", "_udp._udp.headless", "_none._tcp.shop", "_https._tcp.kubernetes"} {
		add(name+".default.svc.cluster.local.", dns.TypeSRV, dns.TypeA, dns.TypeTXT)
	}
	for i := range 100 {
		add(fmt.Sprintf("e%d.many.default.svc.cluster.local.", i+1), addresses...)
	}
	for _, p := range append(s.before, s.loaded...) {
		for _, a := range []netip.Addr{p.addr(true), p.addr(false)} {
			dashed := strings.NewReplacer(".", "-", ":", "-").Replace(a.String())
			add(dashed+".default.pod.cluster.local.", addresses...)
			add(dashed+".headless.default.svc.cluster.local.", addresses...)
			add(reverse(s, a), dns.TypePTR, dns.TypeTXT)
		}
	}
	for i := range 250 {
		reversed, err := dns.ReverseAddr(netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}).String())
		s.must(err)
		add(reversed, dns.TypePTR)
	}
	for i := range 60 {
		add(fmt.Sprintf("c%d.corp.test.", i), dns.TypeA, dns.TypeAAAA, dns.TypeMX, dns.TypeCNAME)
		add(fmt.Sprintf("s%d.stub.test.", i), dns.TypeA, dns.TypeAAAA, dns.TypeTXT)
		add(fmt.Sprintf("n%d.outside.test.", i), dns.TypeA, dns.TypeAAAA, dns.TypeTXT)
		add(fmt.Sprintf("n%d.nowhere.example.", i), addresses...)
		for _, suffix := range []string{"default.svc.cluster.local.", "svc.cluster.local.", "cluster.local."} { // as a search list has them
			add(fmt.Sprintf("n%d.outside.test.%s", i, suffix), addresses...)
		}
	}
	for i := range 12 {
		add(fmt.Sprintf("n%d.slow.test.", i), addresses...)
		add(fmt.Sprintf("n%d.failing.test.", i), addresses...)
		add(fmt.Sprintf("n%d.refused.test.", i), addresses...)
	}
	for _, a := range append(node.KubeDNS(), node.Outside()...) {
		add(reverse(s, a), dns.TypePTR, dns.TypeA)
	}
	return out
}
