package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/faults/load"
	"github.com/neardns/neardns/integration/programs"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

// The addresses of a stand.
var (
	steeringAddress = netip.MustParseAddr("169.254.20.11")
	localAddress    = netip.MustParseAddr("169.254.20.10")
)

// replicas are kube-dns's pods: with one alone the rules have nothing to choose, and there would be no race.
const replicas = 3

// stand is a node with kube-proxy's rules in iptables mode, a kube-dns of several replicas, and one pod; with or without neardns.
type stand struct {
	t    testutil.TB
	name string
	dir  string
	bin  func(string) string
	node *testutil.Node
	pod  *testutil.Pod
}

func newStand(t testutil.TB, o *options, dir string, with bool) *stand {
	t.Helper()
	s := &stand{t: t, name: "without", bin: o.bin}
	if with {
		s.name = "with"
	}
	s.dir = filepath.Join(dir, s.name)
	s.must(os.MkdirAll(s.dir, 0o755))
	s.node = testutil.NewNode(t, testutil.Options{Proxy: testutil.IPTables, NoDNS: true, Name: "benefit-" + s.name})
	s.kubeDNS(o.away)
	if with {
		s.agent()
	}
	s.addPod(with)
	return s
}

func (s *stand) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", s.name, err)
	}
}

func (s *stand) path(name string) string { return filepath.Join(s.dir, name) }

func (s *stand) clusterDNS() netip.AddrPort { return s.node.Service(true) }

// kubeDNS starts the replicas, as one server with several addresses, and has kube-proxy choose among them.
func (s *stand) kubeDNS(away time.Duration) {
	s.t.Helper()
	at := s.node.KubeDNSAddrs()
	for len(at) < replicas {
		next := at[len(at)-1].Next()
		s.node.KubeDNS.AddAddr("eth0", testutil.Host(next))
		s.node.Host.AddRoute(testutil.Host(next), netip.Addr{}, "kubedns0")
		at = append(at, next)
	}
	var listen []netip.AddrPort
	for _, a := range at {
		listen = append(listen, netip.AddrPortFrom(a, 53))
	}
	server := testutil.ServeDNS(s.t, s.node.KubeDNS, testutil.DNSConfig{Name: "KUBEDNS", Listen: listen, Quiet: true})
	server.Behave(testutil.Behaviour{Delay: away})
	s.node.Proxy.Set(testutil.DNSService(s.clusterDNS().Addr(), at...)...)
}

// agent starts neardns with the NodeConfig of a new installation, and waits for its leases and the fallback's proof.
func (s *stand) agent() {
	s.t.Helper()
	s.must(os.WriteFile(s.path("node.yaml"), []byte(programs.NodeConfig(s.t, fmt.Sprintf(`clusterDomain: cluster.local
redirects: [%q]
localAddresses: [%q]
upstreams: {external: []}
kubeDNSConfigMap: %[3]s/none
stateDir: %[3]s/state
persistDir: %[3]s/persist
`, s.clusterDNS().Addr(), localAddress, s.dir))), 0o644))
	server := s.node.Host.Start(s.bin("neardns-agent"), "node", "--config", s.path("node.yaml"))
	rules, err := nft.Open(s.node.Host.FD())
	s.must(err)
	defer rules.Close() //nolint:errcheck // only read
	testutil.Eventually(s.t, func() error {
		select {
		case <-server.Exited():
			s.t.Fatalf("the agent ended: %v\n%s", server.Wait(), server.Output())
		default:
		}
		leases, err := rules.Leases()
		if err != nil {
			return err
		}
		held := 0
		for _, l := range leases {
			if l.Address == steeringAddress {
				held++
			}
		}
		if held < 2 {
			return fmt.Errorf("%d leases\n%s", held, server.Output())
		}
		_, err = os.Stat(s.path("persist/fallback-proven"))
		return err
	})
}

// addPod has libcni make the pod by a conflist: the reference ptp plugin, and neardns behind it where it is there.
func (s *stand) addPod(with bool) {
	s.t.Helper()
	s.pod = s.node.AddPod("pod")
	type object = map[string]any
	plugins := []any{object{"type": "ptp", "ipam": object{
		"type": "host-local", "dataDir": s.path("ipam"), "routes": []any{object{"dst": "0.0.0.0/0"}},
		"ranges": []any{[]any{object{"subnet": s.node.PodRange(true).String(), "gateway": s.node.Gateways()[0]}}},
	}}}
	if with {
		plugins = append(plugins, object{
			"type": "neardns", "redirects": []any{s.clusterDNS().Addr()}, "clusterDomain": "cluster.local", "localAddresses": []any{localAddress},
			"stateDir": s.path("state"), "persistDir": s.path("persist"), "logFile": s.path("plugin.log"),
		})
	}
	text, err := json.Marshal(object{"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})
	s.must(err)
	list, err := libcni.ConfListFromBytes(text)
	s.must(err)
	cni := libcni.NewCNIConfigWithCacheDir([]string{s.bin(""), s.bin("tools")}, s.path("cni-cache"), &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: io.Discard}})
	conf := &libcni.RuntimeConf{ContainerID: "pod", NetNS: s.pod.Path(), IfName: "eth0", Args: [][2]string{{"IgnoreUnknown", "1"}}}
	s.node.Host.Do(func() { _, err = cni.AddNetworkList(context.Background(), list, conf) })
	s.must(err)
	if with {
		programs.AwaitSteered(s.t, s.path("state"), "pod", "eth0")
	}
	// The first packet of a new link may wait for a neighbour.
	testutil.Eventually(s.t, func() error {
		_, err := testutil.Ask(s.pod.NetNS, s.clusterDNS(), "first.svc.cluster.local.", dns.TypeA, "udp", testutil.AskOptions{Timeout: 300 * time.Millisecond})
		return err
	})
}

// lose drops a share of the UDP packets on their way to kube-dns; 0 ends that. TCP is spared: it would send again.
func (s *stand) lose(percent int) {
	s.t.Helper()
	_, _ = s.node.Host.TryRun("", "nft", "delete", "table", "ip", "loss") // there is none at first
	if percent > 0 {
		s.node.Host.RunInput(fmt.Sprintf(`table ip loss {
	chain forward {
		type filter hook postrouting priority 200;
		oifname "kubedns0" meta l4proto udp numgen random mod 100 < %d drop
	}
}`, percent), "nft", "-f", "-")
	}
}

// ask runs the load generator in the pod to its end.
func (s *stand) ask(p load.Plan) *load.Book {
	s.t.Helper()
	in, err := json.Marshal(p)
	s.must(err)
	self, err := os.Executable()
	s.must(err)
	var out, errs strings.Builder
	cmd := exec.Command(self, loadVerb)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(in)), &out, &errs
	if err := s.pod.StartCmd(cmd).Wait(); err != nil {
		s.t.Fatalf("%s: load: %v\n%s", s.name, err, errs.String())
	}
	_, rest, _ := strings.Cut(out.String(), "\n") // the line that reports that it begins
	var r load.Result
	s.must(json.Unmarshal([]byte(rest), &r))
	if len(r.Books) != 1 {
		s.must(errors.New("the load has no book"))
	}
	return r.Books[0]
}
