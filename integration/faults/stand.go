package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/faults/load"
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
	// mend puts back what the subject itself does not.
	mend()
	// steered is the link and the address on it that pods' questions come to.
	steered() (link string, address netip.Addr)
}

// stand is one node with a cache on it and two pods, under faults.
type stand struct {
	subject
	t      testutil.TB
	name   string // "ours" or "stock"
	bin    func(string) string
	dir    string
	node   *testutil.Node
	kube   *testutil.DNSServer
	pod    *testutil.Pod // asks
	noisy  *testutil.Pod // floods
	server *testutil.Process
	sample int // first of the filled names that kept asked last
	asked  int // names that were asked once, so far

	filler atomic.Int64 // questions for filled names that kube-dns saw
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

// upstream has kube-dns behave in a way, and count what it is asked of the names that fill the cache.
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

// write renames a file into place, as a mounted ConfigMap's are replaced.
func (s *stand) write(name, text string) {
	s.t.Helper()
	s.must(errors.Join(os.WriteFile(s.path(name)+".new", []byte(text), 0o644), os.Rename(s.path(name)+".new", s.path(name))))
}

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
	testutil.Eventually(s.t, 31*time.Second, func() error {
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

func (s *stand) gone() bool {
	select {
	case <-s.server.Exited():
		return true
	default:
		return false
	}
}

// tail is the end of a log.
func tail(log string) string {
	if n := len(log) - 4000; n > 0 {
		return "…" + log[n:]
	}
	return log
}

// restore brings the stand back to where every run begins: all in place, served, the cache filled.
func (s *stand) restore() {
	s.t.Helper()
	s.upstream(testutil.Behaviour{})
	s.mend()
	if s.gone() {
		s.start()
	}
	s.await()
	s.fill()
}

// Names that fill the cache: those that stay for as long as the cache lets them, and those that the load asks, of 3 s.
const (
	fillLabel, fillZone = "fill", "ttl-3600.faults.svc.cluster.local"
	hotLabel, hotZone   = "hot", "ttl-3.faults.svc.cluster.local"
	filled, hot         = 9_500, 500 // together the cache's 10,000 entries
	sampled             = 1000       // of the filled names, to see whether a cache still has them
)

func (s *stand) stream(st load.Stream) load.Stream {
	st.Server = netip.AddrPortFrom(clusterDNS, 53)
	return st
}

// fill has the cache ask for all names, so that all were asked before.
func (s *stand) fill() {
	s.t.Helper()
	if s.kept() >= 0.99 {
		return
	}
	rate := 10_000
	if s.name == "ours" {
		rate /= 2 // what is beyond the misses that one pod may have in flight is shed
	}
	fill := load.Plan{Duration: time.Second * filled / time.Duration(rate), Streams: []load.Stream{
		s.stream(load.Stream{Name: "fill", Way: load.UDP, Label: fillLabel, Zone: fillZone, Names: filled, Rate: rate, Sockets: 20}),
		s.stream(load.Stream{Name: "hot", Way: load.UDP, Label: hotLabel, Zone: hotZone, Names: hot, Rate: hot, Sockets: 20}),
	}}
	for range 6 {
		books := s.ask(fill)
		if sum := books["fill"].All(); sum.Missed() < filled/100 && books["hot"].All().Missed() == 0 {
			return
		}
	}
	s.t.Logf("%s: the cache could not be filled at %d questions a second", s.name, rate)
}

// kept is the share of a sample of the filled names that the cache answers without asking kube-dns.
func (s *stand) kept() float64 {
	s.t.Helper()
	const rate = 4000
	before := s.filler.Load()
	// Another part each time: what this asks for is in the cache from then on.
	s.sample = (s.sample + sampled) % (filled - sampled)
	b := s.ask(load.Plan{Duration: time.Second * sampled / rate, Streams: []load.Stream{
		s.stream(load.Stream{Name: "kept", Way: load.UDP, Label: fillLabel, Zone: fillZone, First: s.sample, Names: sampled, Rate: rate, Sockets: 20}),
	}})["kept"]
	sum := b.All()
	return max(0, float64(sum.Cache)-float64(s.filler.Load()-before)) / float64(sum.Sent)
}

// ask runs a generator in the pod to its end.
func (s *stand) ask(p load.Plan) map[string]*load.Book {
	s.t.Helper()
	return s.launch(s.pod, p).wait()
}

// generator is a load generator's process in a pod.
type generator struct {
	s       *stand
	begun   time.Time // when its first questions were due, to a fraction of a millisecond
	process *testutil.Process
	result  chan error
	books   map[string]*load.Book
	errors  *strings.Builder
}

// launch starts a generator and returns when its first questions are due.
func (s *stand) launch(pod *testutil.Pod, p load.Plan) *generator {
	s.t.Helper()
	s.must(p.Check())
	in, err := json.Marshal(p)
	s.must(err)
	self, err := os.Executable()
	s.must(err)
	g := &generator{s: s, result: make(chan error, 1), books: map[string]*load.Book{}, errors: new(strings.Builder)}
	r, w := io.Pipe()
	cmd := exec.Command(self, loadVerb)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(in)), w, g.errors
	g.process = pod.StartCmd(cmd)
	go func() { _ = w.CloseWithError(errors.Join(g.process.Wait(), io.EOF)) }() // ends with the process
	begun := make(chan time.Time, 1)
	go func() { g.result <- g.read(r, begun) }() // ends with the pipe
	select {
	case g.begun = <-begun:
	case err := <-g.result:
		s.t.Fatalf("%s: the load did not begin: %v\n%s", s.name, err, g.errors)
	}
	return g
}

func (g *generator) read(r io.Reader, begun chan<- time.Time) error {
	lines := bufio.NewReader(r)
	line, err := lines.ReadString('\n')
	if err != nil {
		return err
	}
	if strings.TrimSpace(line) != load.Begun {
		return fmt.Errorf("unexpected %q", line)
	}
	begun <- time.Now()
	var result load.Result
	if err := json.NewDecoder(lines).Decode(&result); err != nil {
		return err
	}
	for _, b := range result.Books {
		g.books[b.Stream.Name] = b
	}
	return nil
}

// wait waits for the end and returns the books by the streams' names.
func (g *generator) wait() map[string]*load.Book {
	g.s.t.Helper()
	if err := <-g.result; err != nil {
		g.s.t.Fatalf("%s: load: %v\n%s", g.s.name, err, g.errors)
	}
	_ = g.process.Wait() // it has said all that it had to
	return g.books
}
