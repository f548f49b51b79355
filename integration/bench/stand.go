package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/bench/peers"
	"github.com/neardns/neardns/integration/bench/workload"
	"github.com/neardns/neardns/integration/nodelocal"
	"github.com/neardns/neardns/pkg/testutil"
)

var (
	clusterDNS   = netip.MustParseAddr("10.96.0.10")
	upstreamDNS  = netip.MustParseAddr("10.96.0.11") // NodeLocal's second Service, since it takes the first one's address
	localAddress = netip.MustParseAddr("169.254.20.10")
)

// stand is one node with one pod and a per-node cache on it, which may be started and stopped.
type stand struct {
	t       testutil.TB
	name    string // of the server
	version string
	dir     string
	node    *testutil.Node
	pod     *testutil.Pod
	start   func() *testutil.Process
	places  func(n int) // has the next start's cache places for so many answers; nil: not needed
	ready   func() error
	server  *testutil.Process
	watch   func(*stand) []int // what the generator looks at; the server first
	fresh   int                // names that were never queried, so far
	steered int                // pods that ADD steered
	misses  atomic.Int64       // queries of the bench's that came to the upstream

	answered, lost, wrong int
	again                 int // runs made again
	firstWrong            string
}

// newStand is a node whose kube-dns answers the bench's queries, and counts them.
func (b *bench) newStand(name, version string) *stand {
	s := &stand{t: b.t, name: name, version: version, dir: b.folder(strings.NewReplacer(" ", "-", ",", "").Replace(name)), watch: b.watched}
	s.node = testutil.NewNode(b.t, testutil.Options{Attach: testutil.PTP, Proxy: testutil.IPTables, NoDNS: true, Name: strings.NewReplacer(" ", "", ",", "").Replace(name)})
	server := testutil.ServeDNS(b.t, s.node.KubeDNS, testutil.DNSConfig{
		Name: "KUBEDNS", Listen: []netip.AddrPort{netip.AddrPortFrom(s.node.KubeDNSAddrs()[0], 53)}, TTL: 3600, Quiet: true,
	})
	server.Behave(testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg {
		if a := workload.Answer(q.Msg); a != nil {
			s.misses.Add(1)
			return a
		}
		return server.Answer(q)
	}})
	s.pod = s.node.AddPod("pod")
	return s
}

// stockStand is a node as NodeLocal DNSCache sets it up, with a stock CoreDNS and its Corefile.
func stockStand(b *bench) *stand {
	s := b.newStand(stock, b.tool("tools/coredns", "-version"))
	s.nodeLocal()
	text := nodelocal.Corefile(localAddress, clusterDNS, upstreamDNS)
	corefile := s.write("Corefile", text)
	s.places = func(n int) {
		s.write("Corefile", strings.ReplaceAll(text, "success 9984", fmt.Sprintf("success %d", n)))
	}
	s.start = func() *testutil.Process { return s.startOn(serverCPU, b.bin("tools/coredns"), "-conf", corefile) }
	s.up()
	return s
}

// peerStand is the same node with one of the peers in CoreDNS's place.
func peerStand(b *bench, p peers.Peer) *stand {
	s := b.newStand(p.Name, b.tool("dpkg-query", "-W", "-f", "${Version}", p.Package))
	s.nodeLocal()
	at := peers.Place{Local: localAddress, ClusterDNS: clusterDNS, Upstream: upstreamDNS, Dir: s.dir}
	args, err := p.Write(at, "")
	b.must(err)
	s.start = func() *testutil.Process { return s.startOn(serverCPU, args...) }
	s.up()
	return s
}

// nodeLocal makes the link with the local and the cluster DNS address, and the rules that keep these out of conntrack.
func (s *stand) nodeLocal() {
	s.node.Proxy.Add(testutil.DNSService(upstreamDNS, s.node.KubeDNSAddrs()[0])...)
	nodelocal.Install(s.node.Host, localAddress, clusterDNS)
	s.ready = s.podAnswered
}

// bareStand is a node without a cache: kube-proxy's rules lead the pod's queries to kube-dns. The program in the server's place does
// nothing.
func bareStand(b *bench) *stand {
	s := b.newStand(bare, "")
	s.ready = s.podAnswered
	s.start = func() *testutil.Process { return s.startOn(serverCPU, "sleep", "infinity") }
	s.up()
	return s
}

// podAnswered returns nil once the pod's queries are answered.
func (s *stand) podAnswered() error {
	at, patience := netip.AddrPortFrom(clusterDNS, 53), testutil.AskOptions{Timeout: 200 * time.Millisecond}
	_, err := testutil.Ask(s.pod.NetNS, at, "w1-0.bench.svc.cluster.local.", 1, "udp", patience)
	return err
}

// startOn starts a program on one CPU: every server has one, and the same.
func (s *stand) startOn(cpu int, args ...string) *testutil.Process {
	args = append([]string{"taskset", "-c", strconv.Itoa(cpu)}, args...)
	return s.node.Host.StartCmd(exec.CommandContext(context.Background(), args[0], args[1:]...))
}

func (s *stand) write(name, text string) string {
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatalf("%v", err)
	}
	return path
}

// up starts the server and waits until pods are served by it.
func (s *stand) up() {
	s.server = s.start()
	s.await()
}

func (s *stand) await() {
	deadline := time.Now().Add(30 * time.Second)
	testutil.Eventually(s.t, func() error {
		select {
		case <-s.server.Exited():
			s.t.Fatalf("the server ended at once:\n%s", s.server.Output())
		default:
		}
		err := s.ready()
		if err != nil && time.Now().After(deadline) {
			s.t.Fatalf("not ready: %v\n%s", err, s.server.Output())
		}
		return err
	})
}

func (s *stand) down() { _ = s.server.Terminate(10 * time.Second) }

var errMissing = errors.New("run it by `make bench`, in the repository's folder")
