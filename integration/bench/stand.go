package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/neardns/neardns/integration/nodelocal"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

var (
	clusterDNS   = netip.MustParseAddr("10.96.0.10")
	upstreamDNS  = netip.MustParseAddr("10.96.0.11") // NodeLocal's second Service, since it takes the first one's address
	localAddress = netip.MustParseAddr("169.254.20.10")
)

// stand is one node with one pod and a per-node cache on it, which may be started and stopped.
type stand struct {
	t      testutil.TB
	dir    string
	node   *testutil.Node
	pod    *testutil.Pod
	start  func() *testutil.Process
	ready  func() error
	server *testutil.Process
	asked  int // questions with names of their own so far

	answered, lost int
}

func newNode(t testutil.TB, name string) (*testutil.Node, *testutil.Pod) {
	node := testutil.NewNode(t, testutil.Options{Attach: testutil.PTP, Proxy: testutil.IPTables, NoDNS: true, Name: name})
	testutil.ServeDNS(t, node.KubeDNS, testutil.DNSConfig{
		Name: "KUBEDNS", Listen: []netip.AddrPort{netip.AddrPortFrom(node.KubeDNSAddrs()[0], 53)}, TTL: 3600, Quiet: true,
	})
	return node, node.AddPod("pod")
}

// ourStand is a node with the agent, and a pod that ADD has steered.
func ourStand(b *bench) *stand {
	s := &stand{t: b.t, dir: b.folder("neardns")}
	s.node, s.pod = newNode(b.t, "ours")
	config := s.write("nodeconfig.yaml", fmt.Sprintf(`apiVersion: neardns.io/v1alpha1
kind: NodeConfig
clusterDomain: cluster.local
redirects: [%q]
localAddresses: [%q]
upstreams: {external: []}
kubeDNSConfigMap: %[3]s/none
stateDir: %[3]s/state
persistDir: %[3]s/persist
listen: {metrics: "127.0.0.1:9253", health: "127.0.0.1:8080"}
`, clusterDNS, localAddress, s.dir))
	rules, err := nft.Open(s.node.Host.FD())
	b.must(err)
	b.t.Cleanup(func() { _ = rules.Close() })
	s.start = func() *testutil.Process {
		return s.node.Host.StartCmd(exec.CommandContext(context.Background(), b.bin("neardns-agent"), "node", "--config", config))
	}
	// Ready is a lease for what pods ask, over both protocols, and a fallback that is proven.
	s.ready = func() error {
		leases, err := rules.Leases()
		if err != nil {
			return err
		}
		held := 0
		for _, l := range leases {
			if l.Address != localAddress {
				held++
			}
		}
		proof, err := nodestate.ReadProof(filepath.Join(s.dir, "persist"))
		if err == nil && (held < 2 || !proof.Covers(clusterDNS)) {
			err = fmt.Errorf("%d leases, proof %v", held, proof.ClusterDNS)
		}
		return err
	}
	s.up()
	add := cniCall{bin: b.bin("neardns"), host: s.node.Host, conf: pluginConf(s.dir, s.pod, nil), id: "bench", netns: s.pod.Path()}
	b.must(add.run("ADD"))
	f, err := podfile.Read(podfile.Path(filepath.Join(s.dir, "state"), "bench", "eth0"))
	b.must(err)
	if len(f.In(podfile.Steered)) != 1 {
		b.t.Fatalf("the pod is not steered: %+v", f.Decisions)
	}
	return s
}

// stockStand is a node as NodeLocal DNSCache sets it up: a link with the local and the cluster DNS address, rules that keep
// these out of conntrack, and a stock CoreDNS with its Corefile.
func stockStand(b *bench) *stand {
	s := &stand{t: b.t, dir: b.folder("stock")}
	s.node, s.pod = newNode(b.t, "stock")
	host := s.node.Host
	s.node.Proxy.Add(testutil.DNSService(upstreamDNS, s.node.KubeDNSAddrs()[0])...)
	nodelocal.Install(host, localAddress, clusterDNS)
	corefile := s.write("Corefile", nodelocal.Corefile(localAddress, clusterDNS, upstreamDNS))
	s.start = func() *testutil.Process {
		return host.StartCmd(exec.CommandContext(context.Background(), b.bin("tools/coredns"), "-conf", corefile))
	}
	s.ready = func() error {
		_, err := testutil.Ask(s.pod.NetNS, netip.AddrPortFrom(clusterDNS, 53), "ready.cluster.local.", 1, "udp", testutil.AskOptions{Timeout: 200 * time.Millisecond})
		return err
	}
	s.up()
	return s
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
	testutil.Eventually(s.t, 31*time.Second, func() error {
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

func (s *stand) cpu() time.Duration {
	d, err := cpuTime(s.server.PID())
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	return d
}

// ask puts load on the server from the pod, by the load generator in a process of its own.
func (s *stand) ask(l load) result {
	l.Server, l.Zone = netip.AddrPortFrom(clusterDNS, 53), "bench.svc.cluster.local"
	if l.Unique > 0 {
		l.Unique = 1_000_000 + s.asked
		s.asked += 200_000 // more than a run may ask
	}
	in, err := json.Marshal(l)
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	self, err := os.Executable()
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	var r result
	if out, err := s.pod.TryRun(string(in), self, loadVerb); err != nil {
		s.t.Fatalf("load: %v", err)
	} else if err := json.Unmarshal([]byte(out), &r); err != nil {
		s.t.Fatalf("load: %v in %q", err, out)
	}
	if r.Answered == 0 || r.Wrong > 0 {
		s.t.Fatalf("load: %d answered, %d lost, %d wrong\n%s", r.Answered, r.Lost, r.Wrong, s.server.Output())
	}
	s.answered, s.lost = s.answered+r.Answered, s.lost+r.Lost
	return r
}

// trust ends the run where a server lost more than one question in a hundred: its figures would be of something else.
func (s *stand) trust() {
	if s.lost*100 > s.answered {
		s.t.Fatalf("%s: %d questions answered, %d lost\n%s", s.dir, s.answered, s.lost, s.server.Output())
	}
}

var errMissing = errors.New("run it by `make bench`, in the repository's folder")
