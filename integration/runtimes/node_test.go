package runtimes

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// root is the repository, in whose bin folder `make build tools` puts what is tested.
func root() string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		panic(err) // there is no working directory
	}
	return dir
}

func product(name string) string { return filepath.Join(root(), "bin", name) }

// node is a node with the reference plugin ptp as its network, neardns chained to it by the real installer, and a runtime.
type node struct {
	*testutil.Node
	*running
	t       *testing.T
	row     []string // in docs/reference/compatibility.md's table
	version string   // of the network's list
	dir     string
	agent   *testutil.Process
}

func newNode(t *testing.T, c release) *node {
	t.Helper()
	testutil.RequireRoot(t)
	n := &node{Node: testutil.NewNode(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Name: c.Name}), t: t, version: c.cni, dir: t.TempDir()}
	n.prepare()
	n.writeNetwork()
	n.write("node.yaml", fmt.Sprintf("apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\nclusterDomain: cluster.local\nredirects: [%q, %q]\nlocalAddresses: []\nupstreams: {external: []}\nstateDir: %s\npersistDir: %s\n",
		n.ClusterDNS()[0], n.ClusterDNS()[1], n.stateDir(), n.persistDir()))
	n.running = c.start(t, n.Host, n.dir, n.cniBin(), n.cniConf())
	return n
}

// prepare makes the folders, with the reference plugins and ours.
func (n *node) prepare() {
	t := n.t
	t.Helper()
	for _, name := range []string{"neardns", "neardns-agent", "neardns-install", "tools/ptp", "tools/bridge"} {
		if _, err := os.Stat(product(name)); err != nil {
			t.Fatalf("%v: run it by `make test-runtimes`, in the repository's folder", err)
		}
	}
	for _, d := range []string{n.cniBin(), n.cniConf(), n.stateDir(), n.persistDir()} {
		testutil.Must(t, os.MkdirAll(d, 0o755))
	}
	for _, name := range []string{"ptp", "bridge", "host-local", "loopback"} {
		testutil.Must(t, os.Symlink(product("tools/"+name), filepath.Join(n.cniBin(), name)))
	}
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }
func (n *node) cniBin() string          { return n.path("bin") }
func (n *node) cniConf() string         { return n.path("net.d") }
func (n *node) stateDir() string        { return n.path("run") }
func (n *node) persistDir() string      { return n.path("lib") }

func (n *node) write(name, text string) {
	n.t.Helper()
	testutil.Must(n.t, os.WriteFile(n.path(name), []byte(text), 0o644))
}

// writeNetwork is what the main network's own installer does, at its first start and after every reboot.
func (n *node) writeNetwork() {
	n.t.Helper()
	n.write("net.d/10-main.conflist", fmt.Sprintf(`{
  "cniVersion": %q,
  "name": "main",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {
        "type": "host-local",
        "dataDir": %q,
        "ranges": [[{"subnet": %q}], [{"subnet": %q}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
      }
    }
  ]
}
`, n.version, n.path("ipam"), n.PodRange(true), n.PodRange(false)))
}

// install runs the installer, as the init container does, and waits until the runtime has seen the new list.
func (n *node) install() {
	n.t.Helper()
	n.Host.Run(product("neardns-install"), "install", "--nodeconfig", n.path("node.yaml"), "--cni-bin", n.cniBin(), "--cni-conf", n.cniConf())
	n.awaitNetwork()
}

// startAgent starts the agent and waits until it serves and the fallback is proven.
func (n *node) startAgent() {
	n.t.Helper()
	n.agent = n.Host.StartAgent(product("neardns-agent"), "node", "--config", n.path("node.yaml"))
	testutil.Eventually(n.t, func() error {
		out, _ := n.Host.TryRun("", product("neardns-agent"), "status", "--config", n.path("node.yaml"), "--json") // 3 where degraded
		var s struct {
			Agent *struct {
				Ready  bool         `json:"ready"`
				Proven []netip.Addr `json:"fallbackProven"`
			} `json:"agent"`
		}
		if err := json.Unmarshal([]byte(out), &s); err != nil {
			return err
		}
		return testutil.ErrorIf(s.Agent == nil || !s.Agent.Ready || len(s.Agent.Proven) < 2, "the agent is not ready: %s", out)
	})
}

// podSpec is a pod whose nameserver is the cluster DNS address, as dnsPolicy ClusterFirst gives it.
func (n *node) spec(name string) podSpec {
	return podSpec{name: name, nameservers: []string{n.ClusterDNS()[0].String()}}
}

// file is what the plugin noted of a pod.
func (n *node) file(p *pod) podfile.File {
	n.t.Helper()
	f, err := podfile.Read(podfile.Path(n.stateDir(), p.sandbox, "eth0"))
	testutil.Must(n.t, err)
	return f
}

// inState returns an error unless all of the pod's decisions are in one state.
func (n *node) inState(p *pod, want podfile.State) error {
	for _, d := range n.file(p).Decisions {
		if d.State != want {
			return fmt.Errorf("pod %s: %s is %s (%s), want %s", p.name, d.Redirect.ClusterDNS, d.State, d.Reason, want)
		}
	}
	return nil
}

// wantState waits until all of the pod's decisions are in one state: the agent steers a pod soon after ADD.
func (n *node) wantState(p *pod, want podfile.State) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error { return n.inState(p, want) })
	if f := n.file(p); f.PodName != p.name || f.PodNamespace != "shop" {
		n.t.Errorf("pod file names %s/%s, want shop/%s", f.PodNamespace, f.PodName, p.name)
	}
}

// wantCached queries one name several times, over both protocols, until a cache answers: with one serial. An agent on a busy machine
// may have lost its lease for a while, and kube-dns answers then, as is right.
func (n *node) wantCached(p *pod, name string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		serials, err := n.serials(p, name)
		if err == nil && len(serials) != 1 {
			err = fmt.Errorf("pod %s asked for %s: answers %q, want one", p.name, name, serials)
		}
		return err
	})
}

// wantKubeDNS is the other case, where nothing may come from a cache: kube-dns gives each answer a new serial.
func (n *node) wantKubeDNS(p *pod, name string) {
	n.t.Helper()
	serials, err := n.serials(p, name)
	testutil.Must(n.t, err)
	testutil.Equal(n.t, fmt.Sprintf("pod %s queried %s: different answers among %q", p.name, name, serials), 4, len(serials))
}

// serials are the different ones among the answers to four queries.
func (n *node) serials(p *pod, name string) ([]string, error) {
	var serials []string
	for _, network := range []string{"udp", "tcp"} {
		answers, err := n.ask(p, network, name, name)
		if err != nil {
			return nil, err
		}
		for _, a := range answers {
			serials = append(serials, a.serial())
		}
	}
	slices.Sort(serials)
	return slices.Compact(serials), nil
}
