package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/telemetry"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/steer/backend"
	"github.com/neardns/neardns/pkg/testutil"
)

// confOf reads a configuration.
func confOf(t *testing.T, lines string) *config.Node {
	t.Helper()
	e, _, _ := fake(map[string]string{"/node.yaml": head + "redirects: [10.96.0.10]\n" + lines})
	conf, err := loadConfig(e, "/node.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return conf
}

// filesOf is a registry of pods.
func filesOf(t *testing.T, files ...podfile.File) *pods.Pods {
	t.Helper()
	dir := t.TempDir()
	for i, f := range files {
		if f.ContainerID == "" {
			f.ContainerID = fmt.Sprintf("c%d", i)
		}
		f.IfName = "eth0"
		if err := podfile.Write(dir, f); err != nil {
			t.Fatal(err)
		}
	}
	return pods.Open(dir, backend.Kind{}, discardLog())
}

func clientsOf(registry *pods.Pods, conf *config.Node) *clients {
	c := newClients(conf)
	c.follow(registry)
	return c
}

func pod(namespace, name, address string, change ...func(*podfile.File)) podfile.File {
	f := podfile.File{PodNamespace: namespace, PodName: name, Addresses: addrs(address), Nameservers: []string{"10.96.0.10"},
		Searches: []string{namespace + ".svc.cluster.local", "svc.cluster.local", "cluster.local"}, Options: []string{"ndots:5"}}
	for _, c := range change {
		c(&f)
	}
	return f
}

func TestWhoseQuestionsAreCompleted(t *testing.T) {
	wants := func(b bool) func(*podfile.File) {
		return func(f *podfile.File) { f.SearchCompletion = &b }
	}
	bare := func(f *podfile.File) { f.Nameservers, f.Searches, f.Options = nil, nil, nil }
	const node, namespace = "podDNS: {searchCompletion: true}\n", "podDNS: {namespaces: {shop: {searchCompletion: true}}}\n"
	for name, tc := range map[string]struct {
		conf string
		file podfile.File
		want bool
	}{
		"nothing said":                   {"", pod("shop", "web", "10.244.1.5"), false},
		"the node":                       {node, pod("shop", "web", "10.244.1.5"), true},
		"the namespace":                  {namespace, pod("shop", "web", "10.244.1.5"), true},
		"another namespace":              {namespace, pod("data", "db", "10.244.1.5"), false},
		"the namespace against the node": {"podDNS: {searchCompletion: true, namespaces: {shop: {searchCompletion: false}}}\n", pod("shop", "web", "10.244.1.5"), false},
		"the pod":                        {"", pod("shop", "web", "10.244.1.5", wants(true)), true},
		"the pod against its namespace":  {namespace, pod("shop", "web", "10.244.1.5", wants(false)), false},
		"a runtime that tells no list":   {node, pod("shop", "web", "10.244.1.5", bare), false},
		"no list, and the pod wants it":  {"", pod("shop", "web", "10.244.1.5", bare, wants(true)), false},
		"no list, and no namespace":      {node, pod("", "", "10.244.1.5", bare), false},
		"a pod with no search list":      {node, pod("shop", "web", "10.244.1.5", func(f *podfile.File) { f.Searches = nil }), false},
		"an overlay that took the list": {node, pod("shop", "web", "10.244.1.5", func(f *podfile.File) {
			f.DNS = &podfile.DNS{State: podfile.Overlaid, Settings: resolvconf.Settings{Nameservers: []string{"10.96.0.10"}}}
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := searchOf(tc.file, confOf(t, tc.conf)) != nil; got != tc.want {
				t.Errorf("completed: %v", got)
			}
		})
	}
}

// TestSearchOutlivesOthers: pods come and go all the time, and what was decided for one that stays must not go with them.
func TestSearchOutlivesOthers(t *testing.T) {
	registry := filesOf(t, pod("shop", "web", "10.244.1.5"), pod("shop", "api", "10.244.1.6"))
	c := clientsOf(registry, confOf(t, "podDNS: {searchCompletion: true}\n"))
	before := c.search(addr("10.244.1.5"), false)
	if before == nil || before == c.search(addr("10.244.1.6"), false) {
		t.Error("two pods are taken for one")
	}
	registry.Outdate()
	if c.search(addr("10.244.1.5"), false) != before {
		t.Error("it is another one")
	}
}

// TestSearchCompletionReloads: an operator who switches it off must not have to start pods anew.
func TestSearchCompletionReloads(t *testing.T) {
	c := clientsOf(filesOf(t, pod("shop", "web", "10.244.1.5")), confOf(t, "podDNS: {searchCompletion: true}\n"))
	if c.search(addr("10.244.1.5"), false) == nil || c.search(addr("10.244.1.6"), false) != nil {
		t.Error("on for the pod, and for it alone")
	}
	c.configure(confOf(t, ""))
	if c.search(addr("10.244.1.5"), false) != nil {
		t.Error("still on")
	}
}

func TestCounts(t *testing.T) {
	c := clientsOf(filesOf(t, pod("shop", "web", "10.244.1.5"), pod("shop", "api", "10.244.1.6"), pod("data", "db", "10.244.1.7")), confOf(t, ""))
	from := func(a string) net.Addr { return net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr(a), 40000)) }
	client := context.Background()
	inner := context.WithValue(client, dnsserver.LoopKey{}, 1)
	for _, rcode := range []int{0, 3, 2, 5} {
		c.answered(client, from("10.244.1.5"), rcode)
	}
	c.answered(client, &net.TCPAddr{IP: net.ParseIP("10.244.1.6"), Port: 1}, 0)
	c.answered(client, from("192.0.2.1"), 0) // no pod's
	c.answered(client, nil, 0)
	c.answered(inner, from("10.244.1.5"), 0)
	c.hit(client, from("10.244.1.5"))
	c.hit(inner, from("10.244.1.5")) // the end of a walk
	want := map[string]podCounts{"shop/web": {Queries: 4, Hits: 2, Failures: 2}, "shop/api": {Queries: 1}, "data/db": {}}
	got := map[string]podCounts{}
	for _, v := range c.view() {
		got[v.Pod] = *v.Counts
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	byNamespace := map[string]telemetry.Namespace{}
	for _, n := range c.counts() {
		byNamespace[n.Name] = n
	}
	if diff := cmp.Diff(map[string]telemetry.Namespace{"shop": {Name: "shop", Queries: 5, Hits: 2, Failures: 2}, "data": {Name: "data"}}, byNamespace); diff != "" {
		t.Errorf("namespaces (-want +got):\n%s", diff)
	}
}

// A cluster may have thousands of namespaces, whose pods come and go on one node.
func TestNamespacesAreBounded(t *testing.T) {
	c := clientsOf(filesOf(t), confOf(t, ""))
	for i := range 3 * namespacesMost {
		c.namespace(fmt.Sprintf("ns%d", i)).queries.Add(1)
	}
	counts := c.counts()
	if len(counts) != namespacesMost+1 {
		t.Errorf("%d namespaces", len(counts))
	}
	total := uint64(0)
	for _, n := range counts {
		total += n.Queries
	}
	if total != 3*namespacesMost {
		t.Errorf("%d questions are counted", total)
	}
}

// TestNamespacesGiveTheirPlaceBack: who came first and went must not keep those who live now without series of their own.
func TestNamespacesGiveTheirPlaceBack(t *testing.T) {
	dir := t.TempDir()
	registry := pods.Open(dir, backend.Kind{}, discardLog())
	c := clientsOf(registry, confOf(t, ""))
	for i := range namespacesMost {
		c.namespace(fmt.Sprintf("gone%d", i)).queries.Add(1)
	}
	f := pod("shop", "web", "10.244.1.5")
	f.ContainerID, f.IfName = "c0", "eth0"
	if err := podfile.Write(dir, f); err != nil {
		t.Fatal(err)
	}
	registry.Outdate()
	answer := func() {
		c.answered(t.Context(), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.244.1.5:4000")), 0)
	}
	counts := func() map[string]uint64 {
		m := map[string]uint64{}
		for _, n := range c.counts() {
			m[n.Name] = n.Queries
		}
		return m
	}
	answer()
	if m := counts(); len(m) != namespacesMost+1 || m[otherNamespaces] != 1 || m["gone0"] != 1 {
		t.Errorf("with all places taken: %v", m)
	}
	answer()
	if m := counts(); len(m) != 2 || m["shop"] != 1 || m[otherNamespaces] != 1 {
		t.Errorf("when those who are gone were told for the last time: %v", m)
	}
}

func TestPodsText(t *testing.T) {
	yes := true
	odd := pod("shop", "we\nb", "10.244.1.5", func(f *podfile.File) {
		f.SearchCompletion = &yes
		f.DNS = &podfile.DNS{State: podfile.Overlaid, Lever: podfile.LeverFile, Settings: resolvconf.Settings{Nameservers: []string{"10.96.0.10"}, Searches: []string{"a.b"}, Options: []string{"ndots:1"}}}
		f.Ignored = []podfile.Ignored{{What: "annotation neardns.io/steer", Why: "perhaps\tis neither true nor false"}}
		f.Decisions = []podfile.Decision{{State: podfile.Steered}}
	})
	views := []podView{viewOf(odd, confOf(t, "")), viewOf(podfile.File{ContainerID: "0123456789abcdef", IfName: "eth0"}, confOf(t, ""))}
	views[0].Counts = &podCounts{Queries: 7, Hits: 5, Failures: 1}
	want := `POD               ADDRESSES   CLUSTER DNS  NAMESERVERS  SEARCH  OPTIONS  OVERLAY          COMPLETION  QUERIES  HITS  FAILURES
shop/we?b         10.244.1.5  steered      10.96.0.10   a.b     ndots:1  overlaid (file)  on          7        5     1
0123456789abc     -           -            -            -       -        -                off         -        -     -
shop/we?b: ignored: annotation neardns.io/steer: perhaps?is neither true nor false
`
	if diff := cmp.Diff(squeeze(want), squeeze(podsText(views))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if text := podsText(nil); !strings.HasPrefix(text, "no pods") {
		t.Error(text)
	}
}

// squeeze makes the widths of columns not matter.
func squeeze(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = strings.Join(strings.Fields(l), " ")
	}
	return strings.Join(lines, "\n")
}

// TestPodsCommand asks a running agent's socket, and goes by the files where there is none.
func TestPodsCommand(t *testing.T) {
	dir := t.TempDir()
	if err := podfile.Write(dir, func() podfile.File {
		f := pod("shop", "web", "10.244.1.5")
		f.ContainerID, f.IfName = "c0", "eth0"
		return f
	}()); err != nil {
		t.Fatal(err)
	}
	lines := "stateDir: " + dir + "\npersistDir: " + dir + "/lib\n"
	e, out, errs := fake(map[string]string{"/node.yaml": head + "redirects: [10.96.0.10]\n" + lines}, "pods", "--config", "/node.yaml")
	if code := run(t.Context(), e); code != exitDegraded || !strings.Contains(out.String(), "shop/web") || !strings.Contains(errs.String(), "no agent runs on this node") {
		t.Errorf("without an agent: %d\n%s%s", code, out, errs)
	}
	c := clientsOf(pods.Open(dir, backend.Kind{}, discardLog()), confOf(t, lines))
	c.answered(t.Context(), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.244.1.5:4000")), 0)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		telemetry.ServeSocket(ctx, discardLog(), dir+"/"+socketName, telemetry.Health{Pods: func() any { return c.view() }}.SocketHandler())
	}()
	defer func() { stop(); <-done }()
	testutil.Eventually(t, 30*time.Second, func() error {
		out.Reset()
		e.args = []string{"pods", "--config", "/node.yaml", "--json"}
		if code := run(t.Context(), e); code != exitGood {
			return fmt.Errorf("exit code %d", code)
		}
		return nil
	})
	if !strings.Contains(out.String(), `"queries": 1`) {
		t.Errorf("with one:\n%s", out)
	}
}
