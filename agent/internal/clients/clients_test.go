package clients

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/telemetry"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// confOf reads a configuration.
func confOf(t *testing.T, lines string) *config.Node {
	t.Helper()
	conf, err := config.Load("/node.yaml", config.Env{LookupEnv: func(string) (string, bool) { return "", false }, ReadFile: func(path string) ([]byte, error) {
		if path != "/node.yaml" {
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		}
		return []byte("apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\nredirects: [10.96.0.10]\n" + lines), nil
	}})
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
	return pods.Open(dir, rules.Kind{}, slog.New(slog.DiscardHandler))
}

func clientsOf(registry *pods.Pods, conf *config.Node) *Clients {
	c := New(conf)
	c.Follow(registry)
	return c
}

func pod(namespace, name, address string, change ...func(*podfile.File)) podfile.File {
	f := podfile.File{PodNamespace: namespace, PodName: name, Addresses: []netip.Addr{addr(address)}, Nameservers: []string{"10.96.0.10"},
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
	before := c.Search(addr("10.244.1.5"), false)
	if before == nil || before == c.Search(addr("10.244.1.6"), false) {
		t.Error("two pods are taken for one")
	}
	registry.Outdate()
	if c.Search(addr("10.244.1.5"), false) != before {
		t.Error("it is another one")
	}
}

// TestSearchCompletionReloads: an operator who switches it off must not have to start pods anew.
func TestSearchCompletionReloads(t *testing.T) {
	c := clientsOf(filesOf(t, pod("shop", "web", "10.244.1.5")), confOf(t, "podDNS: {searchCompletion: true}\n"))
	if c.Search(addr("10.244.1.5"), false) == nil || c.Search(addr("10.244.1.6"), false) != nil {
		t.Error("on for the pod, and for it alone")
	}
	c.Configure(confOf(t, ""))
	if c.Search(addr("10.244.1.5"), false) != nil {
		t.Error("still on")
	}
}

func TestCounts(t *testing.T) {
	c := clientsOf(filesOf(t, pod("shop", "web", "10.244.1.5"), pod("shop", "api", "10.244.1.6"), pod("data", "db", "10.244.1.7")), confOf(t, ""))
	from := func(a string) net.Addr { return net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr(a), 40000)) }
	client := context.Background()
	inner := context.WithValue(client, dnsserver.LoopKey{}, 1)
	for _, rcode := range []int{0, 3, 2, 5} {
		c.Answered(client, from("10.244.1.5"), rcode)
	}
	c.Answered(client, &net.TCPAddr{IP: net.ParseIP("10.244.1.6"), Port: 1}, 0)
	c.Answered(client, from("192.0.2.1"), 0) // no pod's
	c.Answered(client, nil, 0)
	c.Answered(inner, from("10.244.1.5"), 0)
	c.Hit(client, from("10.244.1.5"))
	c.Hit(inner, from("10.244.1.5")) // the end of a walk
	want := map[string]Counts{"shop/web": {Queries: 4, Hits: 2, Failures: 2}, "shop/api": {Queries: 1}, "data/db": {}}
	got := map[string]Counts{}
	for _, p := range c.Pods() {
		got[p.File.PodNamespace+"/"+p.File.PodName] = p.Counts
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	byNamespace := map[string]telemetry.Namespace{}
	for _, n := range c.Namespaces() {
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
	counts := c.Namespaces()
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
	registry := pods.Open(dir, rules.Kind{}, slog.New(slog.DiscardHandler))
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
		c.Answered(t.Context(), net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.244.1.5:4000")), 0)
	}
	counts := func() map[string]uint64 {
		m := map[string]uint64{}
		for _, n := range c.Namespaces() {
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

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }
