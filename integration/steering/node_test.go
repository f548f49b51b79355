package steering

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/programs"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

// The addresses that are the same on every node.
var (
	local4, local6       = netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:90de:d95::a")
	steering4, steering6 = netip.MustParseAddr("169.254.20.11"), netip.MustParseAddr("fd00:90de:d95::b")
)

// Times that the products promise, with what a busy machine may add.
const (
	lifetime = 800 * time.Millisecond // of a lease, by default
	patience = 15 * time.Second       // for what has no promised time
	retry    = 250 * time.Millisecond // of the tests' clients
	slack    = 700 * time.Millisecond // `make faults` measures it closely, on a machine that does nothing else
)

// calm is the line of NodeConfig for tests in which no lease may come and go, in each tier.
const calm = "lease: {renew: 200ms, lifetime: 4s}\n"

// setup is what one test's node is made of.
type setup struct {
	families testutil.Families
	proxy    testutil.ProxyMode
	attach   testutil.Attach // PTP, BridgeCNI or BridgeNF: which reference plugin makes the pods
	external bool            // with a DNS server outside of the cluster
	config   string          // further lines of NodeConfig
	proven   bool            // the plugin's steer: proven, the default, instead of always
	backend  string          // of the agent's rules; "" is nftables
	searches []string        // of pods; none: their namespace's domain
	plugin   object          // further keys of the plugin's entry
	adopt    bool            // pods that ran before the agent are steered, too
	// nameservers are what the kubelet writes into a pod's resolv.conf; none: the cluster DNS addresses
	nameservers []netip.Addr
	// transparent: the kernel's hits are all that the node has of the cache
	transparent bool
	// install: the agent has a new installation's NodeConfig, with this node's addresses and folders
	install bool
}

func (s setup) String() string {
	name := testutil.Options{Families: s.families, Proxy: s.proxy, Attach: s.attach}.String()
	if s.backend != "" {
		name = s.backend + "/" + name
	}
	return name
}

// node is a node with neardns on it.
type node struct {
	*testutil.Node
	t     *testing.T
	setup setup
	dir   string
	agent *testutil.Process // nil until it was started
	pods  int
	// within is what runs the agent's program, before its arguments; none: it runs by itself.
	within []string
	// attaches is the entry of the plugin that attaches pods, which is in one of pluginDirs; nil: a reference plugin does.
	attaches   object
	pluginDirs []string
	// redirects are the cluster DNS addresses that the conflist names.
	redirects []netip.Addr
}

func newNode(t *testing.T, s setup) *node {
	t.Helper()
	testutil.RequireRoot(t)
	made.Make(t)
	if s.proxy == "" {
		s.proxy = testutil.NFTables
	}
	if s.attach == "" {
		s.attach = testutil.PTP
	}
	n := &node{t: t, setup: s, dir: t.TempDir()}
	options := testutil.Options{Families: s.families, Proxy: s.proxy, External: s.external, Name: "steer"}
	n.Node = testutil.NewNode(t, options)
	n.redirects = n.ClusterDNS()
	if s.attach == testutil.BridgeNF {
		testutil.RequireSysctl(t, n.Host, "net.bridge.bridge-nf-call-iptables")
	}
	for _, key := range []string{"iptables", "ip6tables"} {
		if key := "net.bridge.bridge-nf-call-" + key; n.Host.HasSysctl(key) {
			n.Host.Sysctl(key, map[bool]string{true: "1", false: "0"}[s.attach == testutil.BridgeNF])
		}
	}
	n.configure(s.config)
	t.Cleanup(func() {
		if t.Failed() && n.agent != nil {
			t.Logf("agent's log:\n%s", n.agent.Output())
		}
	})
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }
func (n *node) stateDir() string        { return n.path("run") }
func (n *node) persistDir() string      { return n.path("lib") }
func (n *node) configFile() string      { return n.path("node.yaml") }

func (n *node) write(name, text string) { n.t.Helper(); testutil.WriteFile(n.t, n.path(name), text) }

func (n *node) searches() []string {
	if len(n.setup.searches) > 0 {
		return n.setup.searches
	}
	return []string{"default.svc.cluster.local"}
}

// configure writes the agent's configuration: the node's addresses, and lines that a test adds.
func (n *node) configure(more string) {
	n.t.Helper()
	var b strings.Builder
	b.WriteString("clusterDomain: cluster.local\n")
	if !strings.Contains(more, "redirects:") {
		b.WriteString("redirects:\n")
		for _, a := range n.ClusterDNS() {
			fmt.Fprintf(&b, "- %q\n", a)
		}
	}
	if n.setup.backend != "" {
		fmt.Fprintf(&b, "backend: %s\n", n.setup.backend)
	}
	if n.setup.transparent {
		b.WriteString("arrangement: transparent\n")
	} else {
		b.WriteString("localAddresses:\n")
		for _, a := range n.locals() {
			fmt.Fprintf(&b, "- %q\n", a)
		}
	}
	if n.setup.adopt {
		b.WriteString("adoptPods: true\nresolvConf: {nri: \"off\"}\n") // not the machine's pods
	}
	if !strings.Contains(more, "lease:") {
		b.WriteString(defaultLease())
	}
	if !strings.Contains(more, "upstreams:") && !n.setup.install {
		b.WriteString("upstreams: {external: []}\n")
	}
	fmt.Fprintf(&b, "stateDir: %s\npersistDir: %s\nkubeDNSConfigMap: %s\n%s", n.stateDir(), n.persistDir(), n.path("kube-dns"), more)
	text := "apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\n" + b.String()
	if n.setup.install {
		text = programs.NodeConfig(n.t, b.String())
	}
	n.write("node.yaml", text)
}

func (n *node) locals() []netip.Addr {
	var out []netip.Addr
	for _, a := range n.ClusterDNS() {
		out = append(out, map[bool]netip.Addr{true: local4, false: local6}[a.Is4()])
	}
	return out
}

// newServed is a node with a pod and an agent that serves it.
func newServed(t *testing.T, s setup) (*node, *pod) {
	t.Helper()
	n := newNode(t, s)
	p := n.addPod(nil)
	n.startAgent()
	return n, p
}

// startAgent starts the agent and waits until it serves under all of its leases.
func (n *node) startAgent() {
	n.t.Helper()
	n.launchAgent()
	n.awaitReady()
}

func (n *node) launchAgent() {
	n.t.Helper()
	n.agent = n.Host.StartAgent(n.nodeCommand()...)
}

// startIn is startAgent with the agent in control groups.
func (n *node) startIn(groups ...*testutil.Cgroup) {
	n.t.Helper()
	n.agent = n.Host.StartIn(groups, n.nodeCommand()...)
	n.awaitReady()
}

func (n *node) nodeCommand(more ...string) []string {
	return n.agentCommand(append([]string{"node", "--config", n.configFile(), "--cni-cache", n.path("cni-cache")}, more...)...)
}

// agentCommand is a command line of the agent's program.
func (n *node) agentCommand(args ...string) []string {
	return slices.Concat(n.within, []string{made.Path("neardns-agent")}, args)
}

// startWatch runs the installer's watch on the node, as the DaemonSet does.
func (n *node) startWatch() {
	n.t.Helper()
	for _, dir := range []string{"cni-bin", "cni-conf"} {
		testutil.Must(n.t, os.MkdirAll(n.path(dir), 0o755))
	}
	n.Host.Start(made.Path("neardns-install"), "watch", "--nodeconfig", n.configFile(), "--cni-bin", n.path("cni-bin"), "--cni-conf", n.path("cni-conf"),
		"--state-dir", n.stateDir(), "--plugin", made.Path("neardns"), "--agent", made.Path("neardns-agent"))
	testutil.Eventually(n.t, func() error {
		w, ok, err := nodestate.WatchFile(n.stateDir()).Read()
		return testutil.ErrorIf(err != nil || !ok || w.Looked.IsZero(), "the watch has not looked yet: %+v, %w", w, err)
	})
}

// kill ends the agent by SIGKILL, and waits until its sockets are closed: a program that it was starting has copies of them until it is
// executed, and takes a query that arrives meanwhile.
func (n *node) kill() {
	n.t.Helper()
	n.agent.Kill()
	testutil.Eventually(n.t, func() error {
		out := n.Host.Run("ss", "-Hlntu", "sport", "=", ":53")
		return testutil.ErrorIf(out != "", "sockets of a killed agent: %s", out)
	})
}

func (n *node) awaitReady() {
	n.t.Helper()
	// Under emulation a start by iptables alone takes three quarters of a minute where other work is next to it.
	testutil.Eventually(n.t, func() error {
		select {
		case <-n.agent.Exited():
			n.t.Fatalf("the agent ended: %v\n%s", n.agent.Wait(), n.agent.Output())
		default:
		}
		a, err := n.agentStatus()
		if err != nil {
			return err
		}
		if !a.Ready || len(a.Proven) < len(n.ClusterDNS()) {
			return fmt.Errorf("the agent is not ready: %+v", a)
		}
		return nil
	})
}

// agentStatus is the agent's own word.
type agentStatus struct {
	Ready     bool   `json:"ready"`
	CannotAsk string `json:"cannotAsk"`
	Leases    []struct {
		Address  netip.Addr `json:"address"`
		Protocol string     `json:"protocol"`
		Held     bool       `json:"held"`
		Reason   string     `json:"reason"`
	} `json:"leases"`
	Proven []netip.Addr      `json:"fallbackProven"`
	Faults map[string]string `json:"faults"`

	Bypassed []struct {
		Pod       string     `json:"pod"`
		Source    netip.Addr `json:"source"`
		Since     time.Time  `json:"since"`
		NextTrial time.Time  `json:"nextTrial"`
	} `json:"bypassed"`

	KernelHits *kernelHits `json:"kernelHits"`

	Handover *struct {
		From string `json:"from"`
		Took string `json:"took"`
	} `json:"handover"`
}

// kernelHits is what the status has of hits that the kernel answers.
type kernelHits struct {
	Pods    int              `json:"pods"`
	Lent    int              `json:"lent"`
	Answers int64            `json:"answers"`
	Served  []netip.AddrPort `json:"served"`
	Fault   string           `json:"fault"`
	Refused []struct {
		Pod string `json:"pod"`
		Why string `json:"why"`
	} `json:"refused"`
}

// agentStatus reads the running agent's status at its socket.
func (n *node) agentStatus() (*agentStatus, error) {
	var s agentStatus
	return &s, n.readAgent("/status", &s)
}

// readAgent reads what the running agent serves at a path of its socket.
func (n *node) readAgent(path string, out any) error {
	return programs.ReadAgent(n.stateDir(), path, out)
}

// podView is what the running agent serves of a pod at /pods.
type podView struct {
	Pod       string             `json:"pod"`
	Decisions []podfile.Decision `json:"decisions"`
	Counts    struct {
		Queries int64 `json:"queries"`
		Kernel  int64 `json:"kernel"`
	} `json:"counts"`
}

func (v podView) bypassed() bool {
	return slices.ContainsFunc(v.Decisions, func(d podfile.Decision) bool { return len(d.Unanswered) > 0 })
}

func (n *node) podViews() (views []podView, err error) {
	err = n.readAgent("/pods", &views)
	return views, err
}

// status is what `neardns-agent status --json` shows, as far as the tests look at it.
type status struct {
	Agent    *agentStatus             `json:"agent"`
	NoAgent  string                   `json:"noAgent"`
	Backend  string                   `json:"backend"`
	Leases   []map[string]string      `json:"kernelLeases"`
	Switch   bool                     `json:"switch"`
	Counters map[string]steer.Counter `json:"counters"`
	Pods     []struct {
		Name      string             `json:"name"`
		Decisions []podfile.Decision `json:"decisions"`
	} `json:"pods"`
}

func (n *node) status() status {
	n.t.Helper()
	out, _ := n.Host.TryRun("", n.agentCommand("status", "--config", n.configFile(), "--json")...) // 3 where degraded
	var s status
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		n.t.Fatalf("status is no JSON: %v\n%s", err, out)
	}
	return s
}

// awaitStatus waits until the running agent's status is as it should be.
func (n *node) awaitStatus(wrong func(a *agentStatus) error) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		a, err := n.agentStatus()
		if err != nil {
			return err
		}
		return wrong(a)
	})
}

// wantNoFaults judges the errors in the agent's log, but for an upstream that is silent: kube-dns's stand-in runs in this process.
func (n *node) wantNoFaults() {
	n.t.Helper()
	for line := range strings.Lines(n.agent.Output()) {
		if strings.Contains(line, "level=ERROR") && !strings.Contains(line, "no upstream answers the agent's queries") {
			n.t.Errorf("the agent has a fault: %s", line)
		}
	}
}

// run runs the agent's binary in the host's netns to its end.
func (n *node) run(args ...string) (code int, stdout, stderr string) {
	n.t.Helper()
	var out, errs strings.Builder
	args = n.agentCommand(args...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	return n.Host.StartCmd(cmd).ExitCode(testutil.Patience()), out.String(), errs.String()
}

// anyCode is an exit code that does not matter.
const anyCode = -1

// printed runs a command of the agent's program to its end. It returns all that was printed, and an error unless the exit code is right and
// each text is in it.
func (n *node) printed(code int, command string, texts ...string) (out string, err error) {
	n.t.Helper()
	got, out, errs := n.run(append(strings.Fields(command), "--config", n.configFile())...)
	wrong := code != anyCode && got != code
	for _, text := range texts {
		wrong = wrong || !strings.Contains(out+errs, text)
	}
	return out + errs, testutil.ErrorIf(wrong, "%s: exit code %d, want %d and %q in:\n%s%s", command, got, code, texts, out, errs)
}

// prints waits until a command of the agent's program prints texts and has an exit code; cleanup, which changes something, has one try. It
// returns all that was printed.
func (n *node) prints(code int, command string, texts ...string) (out string) {
	n.t.Helper()
	run := func() (err error) { out, err = n.printed(code, command, texts...); return err }
	if strings.HasPrefix(command, "cleanup") {
		testutil.Check(n.t, run())
	} else {
		testutil.Eventually(n.t, run)
	}
	return out
}

// hasLink reports whether the host has a link.
func (n *node) hasLink(name string) bool {
	n.t.Helper()
	_, err := n.Host.Netlink().LinkByName(name)
	return err == nil
}

// leases are those that stand in the kernel.
func (n *node) leases() []steer.LeaseState {
	n.t.Helper()
	if n.setup.backend != "" {
		rules, err := iptables.Open(n.Host.FD(), iptables.Variant(n.setup.backend), nil)
		testutil.Must(n.t, err)
		defer rules.Close()
		leases, err := rules.Leases(iptablesLifetime, iptablesLifetime)
		testutil.Must(n.t, err)
		return leases
	}
	rules, err := nft.Open(n.Host.FD())
	testutil.Must(n.t, err)
	defer rules.Close()
	leases, err := rules.Leases()
	testutil.Must(n.t, err)
	return leases
}

// hup makes the agent reload.
func (n *node) hup() { n.agent.Signal(unix.SIGHUP) }

// awaitLog waits until the agent has logged text, after from bytes of its log.
func (n *node) awaitLog(from int, text string) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		output := n.agent.Output()[from:]
		return testutil.ErrorIf(!strings.Contains(output, text), "the agent did not print %q:\n%s", text, output)
	})
}
