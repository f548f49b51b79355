package environment

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/integration/programs"
	"github.com/neardns/neardns/pkg/testutil"
)

// calm has leases live as long as they may: by default one expires if a busy machine lets the agent wait for 650 ms, and an agent that
// lost several of them rests for up to a minute.
const calm = "lease: {renew: 200ms, lifetime: 4s}\n"

var steering4 = netip.MustParseAddr("169.254.20.11")

// made are the products.
var made = programs.Of("neardns", "neardns-agent", "neardns-install")

func TestMain(m *testing.M) { made.Main(m) }

// node is a node with neardns and one steered pod on it.
type node struct {
	*testutil.Node
	t     *testing.T
	dir   string
	state string // the state folder
	rules string // the back end; "": as the agent finds it
	pod   *testutil.Pod
	agent *testutil.Process
}

// newNode makes the node and its pod; the agent is not started.
func newNode(t *testing.T, families testutil.Families, proxy testutil.ProxyMode) *node {
	t.Helper()
	return newNodeBy(t, families, proxy, "")
}

// newNodeBy is newNode with a back end.
func newNodeBy(t *testing.T, families testutil.Families, proxy testutil.ProxyMode, rules string) *node {
	t.Helper()
	t.Parallel()
	testutil.RequireRoot(t)
	made.Make(t)
	n := &node{t: t, dir: t.TempDir(), rules: rules}
	n.state = filepath.Join(n.dir, "run")
	n.Node = testutil.NewNode(t, testutil.Options{Families: families, Proxy: proxy, Attach: testutil.PTP, Name: "env"})
	n.write("node.yaml", n.config())
	n.write("net.d/10-pods.conflist", n.conflist())
	n.pod = n.AddPod("pod")
	if err := n.add(n.pod); err != nil {
		t.Fatalf("ADD: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() && n.agent != nil {
			t.Logf("agent's log:\n%s", n.agent.Output())
		}
	})
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) write(name, text string) { n.t.Helper(); testutil.WriteFile(n.t, n.path(name), text) }

func (n *node) config() string {
	list, err := json.Marshal(n.ClusterDNS())
	testutil.Must(n.t, err)
	rules := cmp.Or(n.rules, "auto")
	return fmt.Sprintf("apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\nclusterDomain: cluster.local\nredirects: %s\nlocalAddresses: []\n"+
		"upstreams: {external: []}\nstateDir: %s\npersistDir: %s\nkubeDNSConfigMap: %s\nbackend: %s\n%s", list, n.state, n.path("lib"), n.path("none"), rules, calm)
}

func (n *node) entry() map[string]any {
	return map[string]any{"type": "neardns", "redirects": n.ClusterDNS(), "clusterDomain": "cluster.local", "stateDir": n.state,
		"persistDir": n.path("lib"), "steer": "always", "logFile": n.path("plugin.log"), "backend": cmp.Or(n.rules, "auto")}
}

func (n *node) conflist() string {
	text, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "pods", "plugins": []any{map[string]any{"type": "ptp"}, n.entry()}})
	testutil.Must(n.t, err)
	return string(text)
}

// add has the plugin steer a pod, which the topology has attached.
func (n *node) add(pod *testutil.Pod) error {
	return programs.Add(made.Dir(), n.Host, pod, pod.Name(), n.path("cache"), n.entry())
}

func (n *node) launch() {
	n.t.Helper()
	n.agent = n.Host.StartAgent(made.Path("neardns-agent"), "node", "--config", n.path("node.yaml"))
}

// start starts the agent and waits until it serves under all of its leases.
func (n *node) start() {
	n.t.Helper()
	n.launch()
	n.awaitReady()
}

func (n *node) awaitReady() {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		a, err := n.agentStatus()
		if err == nil && (!a.Ready || len(a.Proven) < len(n.ClusterDNS())) {
			err = fmt.Errorf("the agent is not ready: %+v", a)
		}
		return err
	})
}

// agentStatus has the fields of the running agent's status that the tests look at.
type agentStatus struct {
	Ready   bool              `json:"ready"`
	Proven  []netip.Addr      `json:"fallbackProven"`
	Faults  map[string]string `json:"faults"`
	Repairs map[string]int    `json:"repairs"`
	Repair  string            `json:"lastRepair"`
	PID     int               `json:"pid"`
	Cache   struct {
		Bytes, Hits, Misses int64
	} `json:"cache"`
	LastFault *struct {
		Part, What string
		Time       time.Time
	} `json:"lastFault"`
}

func (n *node) agentStatus() (*agentStatus, error) {
	var a agentStatus
	return &a, programs.ReadAgent(n.state, "/status", &a)
}

// status has the fields of `neardns-agent status --json` that the tests look at.
type status struct {
	Agent  *agentStatus `json:"agent"`
	Leases []struct {
		Address  netip.Addr `json:"address"`
		Protocol string     `json:"protocol"`
	} `json:"kernelLeases"`
}

func (n *node) status() status {
	n.t.Helper()
	_, out := n.run("status", "--config", n.path("node.yaml"), "--json")
	var s status
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		n.t.Fatalf("status is no JSON: %v\n%s", err, out)
	}
	return s
}

// repairs waits until a running agent has repaired a part so often, and returns how often it has.
func (n *node) repairs(part string, least int) (count int) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		a, err := n.agentStatus()
		count = a.Repairs[part]
		return errors.Join(err, testutil.ErrorIf(count < least, "%d repairs of %s, want %d", count, part, least))
	})
	return count
}

// run runs the agent's binary in the host's netns to its end.
func (n *node) run(args ...string) (code int, output string) {
	n.t.Helper()
	p := n.Host.Start(append([]string{made.Path("neardns-agent")}, args...)...)
	return p.ExitCode(testutil.Patience()), p.Output()
}

// doctor runs the doctor and returns its exit code and text.
func (n *node) doctor() (code int, text string) {
	n.t.Helper()
	return n.run("doctor", "--config", n.path("node.yaml"), "--cni-conf", n.path("net.d"), "--cni-bin", made.Dir())
}

// wantSeen fails unless the doctor reports, on one line that begins with state and check, all of the words.
func (n *node) wantSeen(when, state, check string, words ...string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error { // leases come and go within a second
		code, text := n.doctor()
		for line := range strings.Lines(text) {
			if says(line, state, check, words) && (state != "FAIL" || code == 3) {
				return nil
			}
		}
		return fmt.Errorf("%s: the doctor (exit code %d) does not say %s of %s with %q:\n%s", when, code, state, check, words, text)
	})
}

func says(line, state, check string, words []string) bool {
	f := strings.SplitN(strings.TrimSpace(line), "  ", 2)
	if len(f) < 2 || f[0] != state || !strings.HasPrefix(strings.TrimSpace(f[1]), check) {
		return false
	}
	for _, w := range words {
		if !strings.Contains(line, w) {
			return false
		}
	}
	return true
}

func (n *node) wantHealthy(when string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error { // on a busy machine leases come and go
		code, text := n.doctor()
		return testutil.ErrorIf(code != 0 || !strings.Contains(text, "\nGOOD"), "%s: the doctor exits with %d:\n%s", when, code, text)
	})
}
