package main

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// Addresses of every stand.
var (
	clusterDNS   = netip.MustParseAddr("10.96.0.10")
	secondDNS    = netip.MustParseAddr("10.96.0.20") // a cluster DNS address that reloads add and take out
	upstreamDNS  = netip.MustParseAddr("10.96.0.11") // NodeLocal's second Service, since it takes the first one's address
	localAddress = netip.MustParseAddr("169.254.20.10")
)

// subject is a per-node cache under test. Its methods are called by one goroutine.
type subject interface {
	// command starts the server.
	command() *exec.Cmd
	// ready returns nil when pods are served by it.
	ready() error
	// reload gives it its i-th configuration and returns once that is in effect.
	reload(i int)
	// mend restores what the subject itself does not.
	mend()
	// steered is the link and the address on it that pods' queries come to.
	steered() (link string, address netip.Addr)
}

// stand is one node with a cache on it and two pods, under faults.
type stand struct {
	subject // nil without a cache
	t       testutil.TB
	name    string // "ours", or one of the others
	bin     func(string) string
	dir     string
	node    *testutil.Node
	kube    *testutil.DNSServer
	pod     *testutil.Pod     // sends the queries
	noisy   *testutil.Pod     // floods
	server  *testutil.Process // nil: no cache is on the node
	filled  time.Time         // when its cache was last filled
	sample  int               // first of the filled names that kept queried last
	asked   int               // names that were queried once, so far

	filler atomic.Int64 // queries for filled names that kube-dns saw
	misses sync.Map     // those names, since a run's begin
}

// newStand makes the node, its kube-dns and its pods' namespaces; the subject does the rest.
func newStand(t testutil.TB, bin func(string) string, dir, name string, proxy testutil.ProxyMode) *stand {
	s := &stand{t: t, bin: bin, dir: filepath.Join(dir, name), name: name}
	s.must(os.MkdirAll(s.dir, 0o755))
	s.node = testutil.NewNode(t, testutil.Options{Proxy: proxy, NoDNS: true, Name: "faults-" + name})
	s.kube = testutil.ServeDNS(t, s.node.KubeDNS, testutil.DNSConfig{
		Name: "KUBEDNS", Listen: []netip.AddrPort{netip.AddrPortFrom(s.node.KubeDNSAddrs()[0], 53)}, Quiet: true,
	})
	s.upstream(testutil.Behaviour{})
	// What the fallback tracks is to be gone soon after: only then is a leak seen as one.
	for key, value := range map[string]string{"udp_timeout": "10", "udp_timeout_stream": "10", "tcp_timeout_time_wait": "10", "tcp_timeout_close": "10", "tcp_timeout_established": "60"} {
		s.node.Host.Sysctl("net.netfilter.nf_conntrack_"+key, value)
	}
	return s
}

func (s *stand) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", s.name, err)
	}
}

// upstream has kube-dns behave in a way, and count its queries for the names that fill the cache.
func (s *stand) upstream(b testutil.Behaviour) {
	if !b.Drop && b.Rcode == 0 {
		b.Handler = func(q testutil.Question) *dns.Msg {
			if strings.HasPrefix(q.Name, fillLabel) {
				s.filler.Add(1)
				s.misses.Store(strings.ToLower(q.Name), true)
			}
			return s.kube.Answer(q)
		}
	}
	s.kube.Behave(b)
}

func (s *stand) path(name string) string { return filepath.Join(s.dir, name) }

func (s *stand) write(name, text string) { s.t.Helper(); testutil.WriteFile(s.t, s.path(name), text) }

// start starts a server; up also waits until pods are served by it.
func (s *stand) start() { s.server = s.node.Host.StartCmd(s.command()) }

func (s *stand) up() {
	s.t.Helper()
	s.start()
	s.await()
}

func (s *stand) await() {
	s.t.Helper()
	server := s.server
	deadline := time.Now().Add(30 * time.Second)
	testutil.Eventually(s.t, func() error {
		if s.gone() {
			s.t.Fatalf("%s: the server ended by itself: %v\n%s", s.name, server.Wait(), tail(server.Output()))
		}
		err := s.ready()
		if err != nil && time.Now().After(deadline) {
			s.t.Fatalf("%s: not ready: %v\n%s", s.name, err, tail(server.Output()))
		}
		return err
	})
}

// pid is the server's; 0 without one, which no process has.
func (s *stand) pid() int {
	if s.server == nil {
		return 0
	}
	return s.server.PID()
}

func (s *stand) gone() bool {
	select {
	case <-s.server.Exited():
		return true
	default:
		return false
	}
}

// inKernel is how many queries the kernel has answered so far, once the server is up again.
func (s *stand) inKernel() int {
	o, ok := s.subject.(*ours)
	if !ok || o.lease.kernel == kernelOff {
		return 0
	}
	if s.gone() {
		s.start()
	}
	s.await()
	return o.answeredInKernel()
}

// restore brings the stand back to where every run begins: all in place, served, the cache filled; with refill as fill has it.
func (s *stand) restore(refill bool) {
	s.t.Helper()
	s.upstream(testutil.Behaviour{})
	if s.server == nil {
		return
	}
	s.mend()
	if s.gone() {
		s.start()
	}
	s.await()
	s.fill(refill)
}

// Names that fill the cache: those that stay for as long as the cache lets them, and those that the load queries, of 3 s.
const (
	fillLabel, fillZone = "fill", "ttl-3600.faults.svc.cluster.local"
	hotLabel, hotZone   = "hot", "ttl-3.faults.svc.cluster.local"
	filled, hot         = 9_500, 500 // together the cache's 10,000 entries
	sampled             = 1000       // of the filled names, to see whether a cache still has them
)
