package callers

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/integration/programs"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

type object = map[string]any

// node is a node with a main network, before anything of ours is on it.
type node struct {
	*testutil.Node
	t       *testing.T
	row     []string // in the table of docs/reference/compatibility.md
	main    string   // the main plugin: ptp, bridge or macvlan
	network string   // its name
	dir     string
	caller  caller
	agent   *testutil.Process // nil until it was started
}

func newNode(t *testing.T, main string, row ...string) *node {
	t.Helper()
	testutil.RequireRoot(t)
	made.Make(t)
	options := testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Name: "callers"}
	if main == "macvlan" {
		options.Attach = testutil.MACVLAN // so that the gateway of such pods, another machine, translates for them
	}
	n := &node{Node: testutil.NewNode(t, options), t: t, row: row, main: main, network: "main-" + main, dir: t.TempDir()}
	for _, dir := range []string{n.cniBin(), n.cniConf(), n.persistDir()} {
		testutil.Must(t, os.MkdirAll(dir, 0o755))
	}
	for _, name := range []string{main, "host-local"} {
		testutil.Must(t, os.Symlink(made.Path(name), filepath.Join(n.cniBin(), name)))
	}
	// Duplicate address detection would hold every IPv6 pod up for a second, also on the host's side of a bridge.
	n.Host.Sysctl("net.ipv6.conf.default.accept_dad", "0")
	n.writeNetwork()
	n.write("node.yaml", fmt.Sprintf("apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\nclusterDomain: cluster.local\nredirects: [%q, %q]\nlocalAddresses: []\nupstreams: {external: []}\nstateDir: %s\npersistDir: %s\nlease: {renew: 200ms, lifetime: 4s}\n",
		n.ClusterDNS()[0], n.ClusterDNS()[1], n.stateDir(), n.persistDir()))
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }
func (n *node) cniBin() string          { return n.path("bin") }
func (n *node) cniConf() string         { return n.path("net.d") }
func (n *node) stateDir() string        { return n.path("run") }
func (n *node) persistDir() string      { return n.path("lib/neardns") }
func (n *node) list() string            { return n.path("net.d/10-main.conflist") }
func (n *node) cache() string           { return n.path("lib/cni") } // libcni's

func (n *node) write(name, text string) {
	n.t.Helper()
	testutil.Must(n.t, os.WriteFile(n.path(name), []byte(text), 0o644))
}

// writeNetwork is what the main network's own installer does.
func (n *node) writeNetwork() {
	n.t.Helper()
	var ranges, routes []any
	for _, a := range n.Gateways() {
		pods := object{"subnet": n.PodRange(a.Is4()).String(), "gateway": a.String()}
		if n.main == "macvlan" { // on the node's own segment
			host := n.HostAddrs()[len(ranges)]
			bits := map[bool]int{true: 24, false: 64}[host.Is4()]
			segment := netip.PrefixFrom(host, bits).Masked()
			first := segment.Addr().Next()
			pods = object{"subnet": segment.String(), "gateway": first.String(), "rangeStart": lastByte(host, 100).String(), "rangeEnd": lastByte(host, 200).String()}
		}
		ranges = append(ranges, []any{pods})
		routes = append(routes, object{"dst": testutil.DefaultRoute(a).String()})
	}
	main := object{"type": n.main, "ipam": object{"type": "host-local", "dataDir": n.path("ipam"), "ranges": ranges, "routes": routes}}
	switch n.main {
	case "bridge":
		main["bridge"], main["isGateway"], main["hairpinMode"] = "cni0", true, true
	case "macvlan":
		main["master"], main["mode"] = "eth0", "bridge"
	}
	text, err := json.MarshalIndent(object{"cniVersion": "1.1.0", "name": n.network, "plugins": []any{main}}, "", "  ")
	testutil.Must(n.t, err)
	n.write("net.d/10-main.conflist", string(text))
}

func lastByte(a netip.Addr, b byte) netip.Addr {
	raw := a.AsSlice()
	raw[len(raw)-1] = b
	out, _ := netip.AddrFromSlice(raw)
	return out
}

// installer runs one of its commands on this node.
func (n *node) installer(command string, more ...string) string {
	n.t.Helper()
	args := []string{made.Path("neardns-install"), command, "--cni-bin", n.cniBin(), "--cni-conf", n.cniConf()}
	if command != "uninstall" {
		args = append(args, "--nodeconfig", n.path("node.yaml"))
	}
	return n.Host.Run(append(args, more...)...)
}

// startAgent starts the agent and waits until it serves and the fallback is proven.
func (n *node) startAgent() {
	n.t.Helper()
	n.agent = n.Host.StartAgent(made.Path("neardns-agent"), "node", "--config", n.path("node.yaml"))
	agent := n.agent
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("agent's log:\n%s", agent.Output())
		}
	})
	testutil.Eventually(n.t, func() error {
		var s struct {
			Ready  bool         `json:"ready"`
			Proven []netip.Addr `json:"fallbackProven"`
		}
		err := programs.ReadAgent(n.stateDir(), "/status", &s)
		if err == nil && (!s.Ready || len(s.Proven) < 2) {
			err = fmt.Errorf("the agent is not ready: %+v", s)
		}
		return err
	})
}

// restartAgent replaces an agent that lost its leases because the test took the CPU: after each such loss it rests longer, a minute at
// last, and pods stay on kube-dns meanwhile.
func (n *node) restartAgent() {
	n.t.Helper()
	n.killAgent()
	n.startAgent()
}

func (n *node) killAgent() {
	n.t.Helper()
	n.agent.Signal(unix.SIGKILL)
	<-n.agent.Exited()
}

// step is one part of a caller's test, about one column of the table; "" where the table has no such column. What fails in it stops
// it, and the next goes on with the same node.
func (n *node) step(t *testing.T, column string, f func(t *testing.T)) {
	t.Helper()
	n.limit(t, column, "", f)
}

// limit is a step that shows what does not work, and why.
func (n *node) limit(t *testing.T, column, why string, f func(t *testing.T)) {
	t.Helper()
	t.Run(column, func(t *testing.T) {
		compat.Record(t, compat.Cell{Table: "runtimes", Row: n.row, Column: column, Limit: why})
		n.during(t, f)
	})
}

// during has the node belong to a subtest.
func (n *node) during(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	whole := n.t
	n.t = t
	defer func() { n.t = whole }()
	f(t)
}

// pod is what stands for one: a namespace, which a caller attaches.
type pod struct {
	*testutil.NetNS
	node *node
	name string
	id   string // the container's
}

func (n *node) newPod(name string) *pod {
	n.t.Helper()
	p := &pod{NetNS: testutil.NewNS(n.t, "callers-"+name), node: n, name: name}
	p.id = n.caller.id(name, p.Path())
	p.Sysctl("net.ipv6.conf.default.accept_dad", "0")
	return p
}

func (p *pod) file() (podfile.File, error) {
	return podfile.Read(podfile.Path(p.node.stateDir(), p.id, "eth0"))
}

// wantState fails unless all of the pod's decisions are in one state. A pod is steered by the agent, soon after ADD.
func (p *pod) wantState(want podfile.State, reason string) {
	p.node.t.Helper()
	if want == podfile.Steered {
		programs.AwaitSteered(p.node.t, p.node.stateDir(), p.id, "eth0")
	}
	f, err := p.file()
	testutil.Must(p.node.t, err)
	for _, d := range f.Decisions {
		if d.State != want || !strings.Contains(d.Reason, reason) {
			p.node.t.Errorf("pod %s: %s is %s (%s), want %s (%s)", p.name, d.Redirect.ClusterDNS, d.State, d.Reason, want, reason)
		}
	}
}

func (n *node) wantFiles(names ...string) {
	n.t.Helper()
	entries, err := os.ReadDir(filepath.Join(n.stateDir(), "pods"))
	if err != nil && !os.IsNotExist(err) {
		n.t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), nodestate.TempPrefix) { // an agent that is killed while it writes leaves one; the next one sweeps them
			got = append(got, e.Name())
		}
	}
	for i := range names {
		names[i] = filepath.Base(podfile.Path(n.stateDir(), names[i], "eth0"))
	}
	slices.Sort(names)
	testutil.Equal(n.t, "pod files", names, got)
}

var errWrong = errors.New("wrong answer")

// ask sends a query once.
func (p *pod) ask(server netip.Addr, network, name string) (*testutil.Answer, error) {
	a, err := testutil.Ask(p.NetNS, netip.AddrPortFrom(server, 53), name, dns.TypeA, network, testutil.AskOptions{})
	switch {
	case err != nil:
	case a.Msg.Rcode == dns.RcodeServerFailure: // kube-dns's stand-in, in this process, was silent
		err = errSilent
	case a.Msg.Rcode != dns.RcodeSuccess || a.Who != "KUBEDNS":
		err = fmt.Errorf("%w: %s", errWrong, a)
	}
	return a, err
}

var errSilent = errors.New("SERVFAIL")

// wantCached queries one name several times, in each family and over both protocols, until a cache answers: with one serial. An agent
// on a busy machine may have lost its lease for a while, and kube-dns answers then, as is right. No answer is a wrong one.
func (p *pod) wantCached(name string) {
	p.node.t.Helper()
	testutil.Eventually(p.node.t, func() error {
		serials, err := p.serials(name)
		if errors.Is(err, errWrong) {
			p.node.t.Fatal(err)
		}
		return testutil.ErrorIf(err != nil || len(serials) != 1, "pod %s asked for %s: answers %v, want one: %w", p.name, name, serials, err)
	})
}

// wantKubeDNS is the other case, where nothing may come from a cache: kube-dns counts on.
func (p *pod) wantKubeDNS(name string) {
	p.node.t.Helper()
	serials, err := p.serials(name)
	testutil.Must(p.node.t, err)
	testutil.Equal(p.node.t, fmt.Sprintf("pod %s queried %s: different answers among %v", p.name, name, serials), 8, len(serials))
}

// serials are the different ones among the answers to eight queries.
func (p *pod) serials(name string) ([]int, error) {
	var serials []int
	for _, server := range p.node.ClusterDNS() {
		for _, network := range []string{"udp", "tcp", "udp", "tcp"} {
			a, err := p.ask(server, network, name)
			if err != nil {
				return nil, fmt.Errorf("pod %s asked %s over %s: %w", p.name, server, network, err)
			}
			serials = append(serials, a.Serial)
		}
	}
	slices.Sort(serials)
	return slices.Compact(serials), nil
}

// load is a pod that queries names one after the other.
type load struct {
	asked atomic.Int64    // queries that have ended; the next one is under way
	lost  map[int64]error // by the number of queries before it: those without a right answer
	stop  chan struct{}
	done  chan struct{}
}

func (p *pod) load() *load {
	l := &load{lost: map[int64]error{}, stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := int64(0); ; i = l.asked.Add(1) {
			select {
			case <-l.stop:
				return
			case <-tick.C:
			}
			server := p.node.ClusterDNS()[i%2]
			network := []string{"udp", "udp", "tcp", "udp"}[i/2%4]
			if _, err := p.ask(server, network, fmt.Sprintf("load-%d.cluster.local.", i%50)); err != nil {
				l.lost[i] = err
			}
		}
	}()
	return l
}

func (l *load) end() {
	close(l.stop)
	<-l.done
}
