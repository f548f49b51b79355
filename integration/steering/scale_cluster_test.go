//go:build scale

package steering

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

const (
	manyNodes   = 100 // unless NEARDNS_NODES sets another
	manyNames   = 20
	podQPS      = 5
	phase       = 20 * time.Second
	outage      = 3 * time.Second // of both kube-dns
	allAreReady = 4 * time.Minute // after they were started at once, on two cores
)

// manyCorefile is kube-dns with names of Services.
const manyCorefile = `.:53 {
    errors
    file %s cluster.local
    prometheus 127.0.0.1:9153
}
`

// kubeDNS is one of the two servers that all nodes query.
type kubeDNS struct {
	t        *testing.T
	ns       *testutil.NetNS
	corefile string

	mu      sync.Mutex // guards the fields below
	process *testutil.Process
	before  int // the queries of processes that ended
}

func (k *kubeDNS) start() {
	k.t.Helper()
	process := k.ns.Start(made.Path("coredns"), "-conf", k.corefile)
	k.mu.Lock()
	k.process = process
	k.mu.Unlock()
	testutil.Eventually(k.t, func() error {
		_, err := k.asked()
		return err
	})
}

func (k *kubeDNS) kill() {
	k.t.Helper()
	asked, err := k.asked()
	testutil.Check(k.t, err)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.before = asked
	k.process.Kill()
	k.process = nil
}

// asked is how many queries the server had.
func (k *kubeDNS) asked() (sum int, err error) {
	k.mu.Lock()
	running, sum := k.process != nil, k.before
	k.mu.Unlock()
	if !running {
		return sum, nil
	}
	page, err := k.ns.Get("http://127.0.0.1:9153/metrics")
	if err != nil {
		return 0, err
	}
	if !strings.Contains(page, "\ncoredns_dns_requests_total{") { // before the first query
		return sum, nil
	}
	n, err := testutil.Metric(page, "coredns_dns_requests_total")
	return sum + int(n), err
}

// many is a cluster: nodes with a pod each that sends queries, and two servers behind the cluster DNS address.
type many struct {
	t       *testing.T
	servers [2]*kubeDNS
	nodes   []*node
	pods    []*pod // one a node
}

// newMany makes a cluster without neardns.
func newMany(t *testing.T, count int) *many {
	t.Helper()
	m := &many{t: t}
	dir := t.TempDir()
	segment := testutil.NewNS(t, "segment")
	segment.Bridge("seg0")
	var zone strings.Builder
	zone.WriteString("$ORIGIN cluster.local.\n$TTL 30\n@ SOA ns.dns hostmaster 1 7200 1800 86400 30\n@ NS ns.dns\nns.dns A 10.96.0.10\n")
	for i := range manyNames {
		fmt.Fprintf(&zone, "svc%d.default.svc A 10.96.1.%d\n", i, i+1)
	}
	corefile := filepath.Join(dir, "Corefile")
	for name, text := range map[string]string{"zone": zone.String(), "Corefile": fmt.Sprintf(manyCorefile, filepath.Join(dir, "zone"))} {
		testutil.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	var addresses []netip.Addr
	for i := range m.servers {
		k := &kubeDNS{t: t, ns: testutil.NewNS(t, "kubedns"), corefile: corefile}
		link, at := fmt.Sprintf("dns%d", i), netip.AddrFrom4([4]byte{10, 250, 255, byte(i + 1)})
		testutil.VethPair(t, k.ns, "eth0", segment, link)
		segment.Port("seg0", link)
		k.ns.AddAddr("eth0", netip.PrefixFrom(at, 16))
		m.servers[i], addresses = k, append(addresses, at)
	}
	for i := range count {
		n := newNode(t, setup{families: testutil.IPv4, proven: true, install: true})
		n.within = []string{"nice", "-n", "19"} // elsewhere, kube-dns and pods do not share two cores with the start of 100 agents
		link := fmt.Sprintf("node%d", i)
		testutil.VethPair(t, n.Host, "cluster0", segment, link)
		segment.Port("seg0", link)
		n.Host.AddAddr("cluster0", netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 250, byte(i / 250), byte(i%250 + 1)}), 16))
		// Every node has the same pod range here.
		n.Host.RunInput("table ip segment { chain out { type nat hook postrouting priority 110; oifname cluster0 masquerade; }; }\n", "nft", "-f", "-")
		n.Proxy.Set(testutil.DNSService(n.ClusterDNS()[0], addresses...)...)
		m.nodes, m.pods = append(m.nodes, n), append(m.pods, n.addOldPod())
	}
	for _, k := range m.servers {
		k.start()
	}
	return m
}

// steer has a new pod on each node send queries in place of the one that the plugin did not make.
func (m *many) steer() {
	m.t.Helper()
	for i, n := range m.nodes {
		m.pods[i] = n.addPod(nil)
	}
}

// startAgents starts all agents at once, and waits until all are ready and all pods steered.
func (m *many) startAgents() {
	m.t.Helper()
	for _, n := range m.nodes {
		n.launchAgent()
	}
	for i, n := range m.nodes {
		testutil.Within(m.t, allAreReady, func() error {
			a, err := n.agentStatus()
			if err != nil {
				return fmt.Errorf("node %d: %w\n%s", i, err, n.agent.Output())
			}
			if !a.Ready {
				return fmt.Errorf("node %d is not ready: %+v", i, a)
			}
			return m.pods[i].in(podfile.Steered)
		})
	}
}

// measured is what became of a phase.
type measured struct {
	sent, lost int
	asked      int // queries that kube-dns had
	peak       int // the most of them in a second
	span       time.Duration
}

func (m measured) String() string {
	return fmt.Sprintf("%.0f, at most %d", float64(m.asked)/m.span.Seconds(), m.peak)
}

func (m measured) losses() string { return fmt.Sprintf("%d of %d", m.lost, m.sent) }

// asked is how many queries both servers had, or an error while one is on its way.
func (m *many) asked() (sum int, err error) {
	for _, k := range m.servers {
		asked, err := k.asked()
		if err != nil {
			return 0, err
		}
		sum += asked
	}
	return sum, nil
}

// count counts every second kube-dns's queries beyond first, until stop is closed.
func (m *many) count(first int, stop <-chan struct{}) (out measured) {
	begun := time.Now()
	last, at := first, begun
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for more := true; more; {
		select {
		case <-stop:
			more = false
		case <-tick.C:
		}
		now, err := m.asked()
		then := time.Now()
		if err != nil {
			continue // the second counts with the next one
		}
		if more { // a whole second
			out.peak = max(out.peak, int(float64(now-last)/then.Sub(at).Seconds()))
		}
		last, at = now, then
	}
	out.asked, out.span = last-first, at.Sub(begun)
	return out
}

// during has every pod query as long as a phase takes and f runs. A query counts as lost that has no answer within a second, or one
// that is an error.
func (m *many) during(f func()) (out measured) {
	m.t.Helper()
	stop := make(chan struct{})
	results := make([]outcome, len(m.pods))
	var names []string
	for i := range manyNames {
		names = append(names, fmt.Sprintf("svc%d.default.svc.cluster.local", i))
	}
	first, err := m.asked() // before f can be in its way
	testutil.Must(m.t, err)
	var wg sync.WaitGroup
	wg.Go(func() { out = m.count(first, stop) })
	for i, p := range m.pods {
		own := slices.Concat(names[i%manyNames:], names[:i%manyNames])
		turn := time.Duration(i) * time.Second / podQPS / time.Duration(len(m.pods)) // so that they do not send queries all at one moment
		wg.Go(func() {
			<-time.After(turn)
			results[i] = load{from: p.NetNS, server: m.nodes[i].Service(true), qps: podQPS, sockets: 1, names: own}.run(m.t, stop)
		})
	}
	ends := time.After(phase)
	f()
	<-ends
	close(stop)
	wg.Wait()
	for _, got := range results {
		out.sent += got.sent
		out.lost += got.lost() + got.wrong
	}
	m.t.Logf("kube-dns has %s questions a second, lost are %s", out, out.losses())
	return out
}

// phases are those that a cluster goes through with and without neardns.
func (m *many) phases() (out []measured) {
	m.t.Helper()
	out = append(out, m.during(func() {}), m.during(func() {
		for _, k := range m.servers {
			k.kill()
		}
		<-time.After(outage)
		for _, k := range m.servers {
			k.start()
		}
	}))
	dead := m.servers[1]
	out = append(out, m.during(func() { dead.ns.Down("eth0") })) // as a machine that lost its power: no event reports it
	dead.ns.Up("eth0")
	return out
}

// allowInotify lets the agents, of which each has two inotify instances, have them all as one user: usual limits are of one node. The limit
// is the machine's, and is set back at the end.
func allowInotify(t *testing.T, agents int) {
	t.Helper()
	const file = "/proc/sys/fs/inotify/max_user_instances"
	before, err := os.ReadFile(file)
	testutil.Must(t, err)
	limit, err := strconv.Atoi(strings.TrimSpace(string(before)))
	testutil.Must(t, err)
	testutil.Must(t, os.WriteFile(file, []byte(strconv.Itoa(limit+2*agents)), 0o644))
	t.Cleanup(func() {
		testutil.Check(t, os.WriteFile(file, before, 0o644))
	})
}

// TestScaleCluster is many nodes next to one kube-dns: what it is sent, and what its faults cost, without neardns and with it.
func TestScaleCluster(t *testing.T) {
	count := manyNodes
	if text := os.Getenv("NEARDNS_NODES"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	testutil.RequireRoot(t)
	allowInotify(t, count)
	m := newMany(t, count)
	without := m.phases()
	m.steer()
	var ready time.Duration
	start := m.during(func() { ready = timed(m.startAgents).Round(100 * time.Millisecond) })
	var most, sum int64
	for _, n := range m.nodes {
		is := memory(t, n.agent.PID(), "VmRSS")
		most, sum = max(most, is), sum+is
	}
	with := m.phases()

	f := &figures{t: t, name: "cluster", drawing: drawing{Head: []string{
		fmt.Sprintf("%d nodes, a pod of each sends %d queries a second for %d Services", count, podQPS, manyNames),
		"queries to kube-dns a second, without", "with", "lost, without", "lost, with",
	}}}
	f.row("all agents started at once", "", start, "", start.losses())
	for i, what := range []string{"nothing happens", fmt.Sprintf("both kube-dns killed, and started %v later", outage), "one kube-dns off the network, its endpoint still there"} {
		f.row(what, without[i], with[i], without[i].losses(), with[i].losses())
	}
	for _, quiet := range []measured{without[0], start, with[0]} {
		if quiet.lost*100 > quiet.sent {
			t.Errorf("%s questions are lost where nothing is broken", quiet.losses())
		}
	}
	if cut := with[2]; cut.lost*200 > cut.sent {
		t.Errorf("one kube-dns off the network: %s queries are lost, want at most 0.5 %%", cut.losses())
	}
	f.keep()
	f = &figures{t: t, name: "start", drawing: drawing{Head: []string{fmt.Sprintf("%d agents on this machine", count), ""}}}
	f.row("all are ready, and their pods steered, after they were started at once", ready)
	f.row("resident memory of one: the mean, the most", mebi(sum/int64(count))+", "+mebi(most))
	f.keep()
}
