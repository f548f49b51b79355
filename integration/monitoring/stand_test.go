package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/neardns/neardns/integration/programs"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// stand is a node with neardns, one steered pod and a Prometheus on it.
type stand struct {
	*testutil.Node
	t     *testing.T
	dir   string
	pod   *testutil.Pod
	agent *testutil.Process
}

// newStand makes the node, starts the agent and waits until pods are served.
func newStand(t *testing.T) *stand {
	t.Helper()
	testutil.RequireRoot(t)
	s := &stand{t: t, dir: t.TempDir()}
	for name, pkg := range map[string]string{"neardns": "./plugins/neardns", "neardns-agent": "./agent"} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", s.path(name), pkg)
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	s.Node = testutil.NewNode(t, testutil.Options{Families: testutil.IPv4, Proxy: testutil.NFTables, Attach: testutil.PTP, External: true, Name: "monitoring"})
	s.write("resolv.conf", fmt.Sprintf("nameserver %s\n", s.ExternalAddrs()[0]))
	s.write("node.yaml", s.nodeConfig(""))
	s.pod = s.AddPod("pod")
	s.steer()
	// What the watch next to an agent leaves for it.
	now := time.Now()
	testutil.Must(t, nodestate.WatchFile(s.path("run")).Write(nodestate.Watch{Since: now, Looked: now, Network: "pods", OK: true}))
	// A BPF file system of the agent's own, so that it has hits in the kernel to tell of.
	s.agent = s.Host.StartAgent("env", "GOMEMLIMIT=200MiB", "unshare", "--mount", "--propagation", "slave", "sh", "-c", `mount -t bpf bpf /sys/fs/bpf && exec "$0" "$@"`,
		s.path("neardns-agent"), "node", "--config", s.path("node.yaml"))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("agent's log:\n%s", s.agent.Output())
		}
	})
	testutil.Eventually(t, func() error {
		_, err := s.Host.TryRun("", s.path("neardns-agent"), "doctor", "--config", s.path("node.yaml"), "--cni-conf", s.path("none"), "--cni-bin", s.path("none"))
		if err == nil {
			_, err = s.Host.TryRun("", s.path("neardns-agent"), "ready", "--config", s.path("node.yaml"))
		}
		return err
	})
	return s
}

// nodeConfig is the agent's configuration; cluster are upstreams for the cluster domain in place of the cluster DNS address.
func (s *stand) nodeConfig(cluster string) string {
	s.t.Helper()
	list, err := json.Marshal(s.ClusterDNS())
	testutil.Must(s.t, err)
	if cluster != "" {
		cluster = ", cluster: [" + cluster + "]"
	}
	return fmt.Sprintf("apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\nclusterDomain: cluster.local\nredirects: %s\n"+
		"upstreams: {external: [%s]%s}\nstateDir: %s\npersistDir: %s\nkubeDNSConfigMap: %s\nlisten: {metrics: \"[::]:9253\", namespaces: true}\n"+
		// As long as it can be: on a machine that is busy with other tests a lease must not come and go.
		"lease: {renew: 200ms, lifetime: 4s}\nkernelHits: {mode: \"on\"}\n",
		list, s.path("resolv.conf"), cluster, s.path("run"), s.path("lib"), s.path("none"))
}

func (s *stand) path(name string) string { return filepath.Join(s.dir, name) }

func (s *stand) write(name, text string) { s.t.Helper(); testutil.WriteFile(s.t, s.path(name), text) }

// steer has the real plugin steer the pod, which the topology has attached.
func (s *stand) steer() {
	s.t.Helper()
	if err := programs.Add(s.dir, s.Host, s.pod, "pod", s.path("cache"), map[string]any{"redirects": s.ClusterDNS(), "clusterDomain": "cluster.local",
		"stateDir": s.path("run"), "persistDir": s.path("lib"), "steer": "always", "logFile": s.path("plugin.log")}); err != nil {
		s.t.Fatalf("ADD: %v", err)
	}
}
