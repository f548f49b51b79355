package main

import (
	"fmt"
	"math"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/neardns/neardns/integration/bench/peers"
	"github.com/neardns/neardns/integration/nodelocal"
	"github.com/neardns/neardns/pkg/testutil"
)

// The others: a stock CoreDNS and unbound in the place of NodeLocal DNSCache's node-cache, and a node without a cache.
const (
	stock   = "stock"
	unbound = "unbound"
	bare    = "bare"
)

// others in the order of the table.
func others() []string { return []string{stock, unbound, bare} }

// fewRounds are enough for what is only held against: a run of all faults is to end within 35 minutes.
const fewRounds = 3

// roundsOf is how many rounds a stand takes part in at most.
func roundsOf(name string) int {
	if name == unbound || name == bare {
		return fewRounds
	}
	return math.MaxInt
}

// inPlace is a node as NodeLocal DNSCache sets it up, with another server in node-cache's place.
type inPlace struct {
	*stand
	// configure writes its configuration, with a stub domain's part at the end, and returns its command.
	configure func(stub string) (args []string, err error)
	stub      string         // that part, with the domain's number
	again     syscall.Signal // has it read the configuration again at once
	done      string         // what it writes once that is in effect
}

func newStock(t testutil.TB, bin func(string) string, dir string) *stand {
	s := newStand(t, bin, dir, stock, testutil.NFTables)
	return s.install(&inPlace{
		stand: s, again: syscall.SIGUSR1, done: "Reloading complete", // its reload plugin would look within half a minute
		stub: fmt.Sprintf("corp%%d.example:53 {\n    errors\n    cache 30\n    bind %s %s\n    forward . %s\n}\n",
			localAddress, clusterDNS, upstreamDNS),
		configure: func(stub string) ([]string, error) {
			s.write("Corefile", nodelocal.Corefile(localAddress, clusterDNS, upstreamDNS)+stub)
			return []string{bin("tools/coredns"), "-conf", s.path("Corefile")}, nil
		},
	})
}

func newUnbound(t testutil.TB, bin func(string) string, dir string) *stand {
	s := newStand(t, bin, dir, unbound, testutil.NFTables)
	return s.install(&inPlace{
		stand: s, again: syscall.SIGHUP, done: "start of service",
		stub: fmt.Sprintf("\nforward-zone:\n    name: corp%%d.example\n    forward-addr: %s\n", upstreamDNS),
		configure: func(stub string) ([]string, error) {
			// Pods' connections, here up to 260 at once: by default it has ten. The bench's queries go over UDP.
			more := "\nserver:\n    incoming-num-tcp: 300\n" + stub
			return peers.Unbound().Write(peers.Place{Local: localAddress, ClusterDNS: clusterDNS, Upstream: upstreamDNS, Dir: s.dir}, more)
		},
	})
}

// install sets the node up and starts the server.
func (s *stand) install(k *inPlace) *stand {
	s.subject = k
	s.node.Proxy.Add(upstreamService(s)...)
	k.mend()
	s.start()
	s.pod, s.noisy = addPod(s, "pod"), addPod(s, "noisy")
	s.await()
	return s
}

func upstreamService(s *stand) []testutil.Service {
	services := testutil.DNSService(upstreamDNS, s.node.KubeDNSAddrs()[0])
	for i := range services {
		services[i].Name = "kube-dns-upstream"
	}
	return services
}

func (k *inPlace) command() *exec.Cmd {
	args, err := k.configure("")
	k.must(err)
	return exec.Command(args[0], args[1:]...)
}

func (k *inPlace) ready() error {
	at, patience := netip.AddrPortFrom(clusterDNS, 53), testutil.AskOptions{Timeout: 200 * time.Millisecond}
	_, err := testutil.Ask(k.pod.NetNS, at, "ready.svc.cluster.local.", dns4, "udp", patience)
	return err
}

func (k *inPlace) reload(i int) {
	k.t.Helper()
	from := len(k.server.Output())
	_, err := k.configure(fmt.Sprintf(k.stub, i))
	k.must(err)
	k.server.Signal(k.again)
	testutil.Eventually(k.t, func() error {
		if said := k.server.Output()[from:]; !strings.Contains(said, k.done) {
			return fmt.Errorf("%s did not say %q:\n%s", k.name, k.done, tail(said))
		}
		return nil
	})
}

// mend does what node-cache does once a minute.
func (k *inPlace) mend() { nodelocal.Install(k.node.Host, localAddress, clusterDNS) }

func (k *inPlace) steered() (string, netip.Addr) { return nodelocal.Link, clusterDNS }

// newBare is a node without a cache: kube-proxy's rules lead pods' queries to kube-dns. It has no subject and no server.
func newBare(t testutil.TB, bin func(string) string, dir string) *stand {
	s := newStand(t, bin, dir, bare, testutil.NFTables)
	s.pod, s.noisy = addPod(s, "pod"), addPod(s, "noisy")
	return s
}
