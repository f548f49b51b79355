package podindex

import (
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/testutil"
)

// confOf reads a configuration.
func confOf(t *testing.T, lines string) *config.Node {
	t.Helper()
	conf, err := config.Load("/node.yaml", config.Env{LookupEnv: func(string) (string, bool) { return "", false },
		ReadFile: func(path string) ([]byte, error) {
			if path != "/node.yaml" {
				return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
			}
			return []byte("apiVersion: neardns.io/v1alpha1\nkind: NodeConfig\nredirects: [10.96.0.10]\n" + lines), nil
		}})
	testutil.Must(t, err)
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
		testutil.Must(t, podfile.Write(dir, f))
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

func TestCounts(t *testing.T) {
	c := clientsOf(filesOf(t, pod("shop", "web", "10.244.1.5"), pod("shop", "api", "10.244.1.6"), pod("data", "db", "10.244.1.7")), confOf(t, ""))
	for _, rcode := range []int{0, 3, 2, 5} {
		answered(c, "10.244.1.5", rcode, queryinfo.Miss)
	}
	answered(c, "10.244.1.5", 0, queryinfo.Hit)
	answered(c, "10.244.1.5", 3, queryinfo.Stale)
	answered(c, "10.244.1.6", 0, queryinfo.Miss)
	answered(c, "192.0.2.1", 0, queryinfo.Hit)       // no pod's
	c.Record(queryinfo.Answer{Level: queryinfo.Hit}) // without a client
	want := map[string]Counts{"shop/web": {Queries: 6, Hits: 2, NXDomain: 2, Failures: 2}, "shop/api": {Queries: 1}, "data/db": {}}
	got := map[string]Counts{}
	for _, p := range c.Pods() {
		got[p.File.PodNamespace+"/"+p.File.PodName] = p.Counts
	}
	testutil.Equal(t, "pods", want, got)
	all := map[string]Counts{"shop": {Queries: 7, Hits: 2, NXDomain: 2, Failures: 2}, "data": {}}
	testutil.Equal(t, "namespaces", all, c.namespaceCounts())
}

// answered reports a query from an address as the listener does.
func answered(c *Clients, from string, rcode int, level queryinfo.Level) {
	c.Record(queryinfo.Answer{Client: addr(from), Identity: c.Identify(addr(from)), Rcode: rcode, Level: level})
}

// A cluster may have thousands of namespaces, whose pods come and go on one node.
func TestNamespacesAreBounded(t *testing.T) {
	c := clientsOf(filesOf(t), confOf(t, ""))
	for i := range 3 * maxNamespaces {
		c.namespace(fmt.Sprintf("ns%d", i)).queries.Add(1)
	}
	counts := c.namespaceCounts()
	testutil.Equal(t, "namespaces", maxNamespaces+1, len(counts))
	total := uint64(0)
	for _, n := range counts {
		total += n.Queries
	}
	testutil.Equal(t, "questions counted", 3*maxNamespaces, total)
}

// TestNamespacesGiveTheirPlaceBack: namespaces whose pods are gone must not keep those with pods from series of their own.
func TestNamespacesGiveTheirPlaceBack(t *testing.T) {
	dir := t.TempDir()
	registry := pods.Open(dir, rules.Kind{}, slog.New(slog.DiscardHandler))
	c := clientsOf(registry, confOf(t, ""))
	for i := range maxNamespaces {
		c.namespace(fmt.Sprintf("gone%d", i)).queries.Add(1)
	}
	f := pod("shop", "web", "10.244.1.5")
	f.ContainerID, f.IfName = "c0", "eth0"
	testutil.Must(t, podfile.Write(dir, f))
	registry.Outdate()
	answer := func() {
		answered(c, "10.244.1.5", 0, queryinfo.Miss)
	}
	counts := func() map[string]uint64 {
		m := map[string]uint64{}
		for name, n := range c.namespaceCounts() {
			m[name] = n.Queries
		}
		return m
	}
	answer()
	if m := counts(); len(m) != maxNamespaces+1 || m[otherNamespaces] != 1 || m["gone0"] != 1 {
		t.Errorf("with all places taken: %v", m)
	}
	answer()
	if m := counts(); len(m) != 2 || m["shop"] != 1 || m[otherNamespaces] != 1 {
		t.Errorf("when those who are gone were told for the last time: %v", m)
	}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestWhoseHitsTheKernelAnswers(t *testing.T) {
	steered := func(f *podfile.File) { f.Decisions = []podfile.Decision{{State: podfile.Steered}} }
	back := func(f *podfile.File) {
		f.Decisions = []podfile.Decision{{State: podfile.Steered}, {State: podfile.Pending, Unanswered: []string{"udp"}}}
	}
	waits := func(f *podfile.File) { f.Decisions = []podfile.Decision{{State: podfile.Pending}} }
	says := func(b bool) func(*podfile.File) { return func(f *podfile.File) { f.KernelHits = &b } }
	optedOut := func(f *podfile.File) { f.OptOut = true }
	shop := func(change ...func(*podfile.File)) podfile.File { return pod("shop", "web", "10.244.1.5", change...) }
	const auto = "kernelHits: {mode: auto}\n"
	const on, listed, others = "kernelHits: {mode: on}\n", "kernelHits: {mode: namespaces, namespaces: [shop]}\n", "kernelHits: {mode: namespaces, namespaces: [data]}\n"
	for name, tc := range map[string]struct {
		conf   string
		file   podfile.File
		wanted bool
		why    string
	}{
		"nothing said":                           {"", shop(steered), false, ""},
		"off, whatever the pod says":             {"kernelHits: {mode: off}\n", shop(steered, says(true)), false, ""},
		"on":                                     {on, shop(steered), true, ""},
		"on, and the pod wants none of it":       {on, shop(steered, says(false)), false, ""},
		"auto":                                   {auto, shop(steered), true, ""},
		"auto, and the pod wants none of it":     {auto, shop(steered, says(false)), false, ""},
		"auto, bypassed":                         {auto, shop(back), true, "bypassed"},
		"its namespace":                          {listed, shop(steered), true, ""},
		"its namespace, and the pod wants none":  {listed, shop(steered, says(false)), false, ""},
		"another namespace":                      {others, shop(steered), false, ""},
		"another namespace, and the pod does":    {others, shop(steered, says(true)), true, ""},
		"bypassed":                               {on, shop(back), true, "bypassed"},
		"left alone":                             {on, shop(), false, ""},
		"waits for the proof":                    {on, shop(waits), true, "not steered yet"},
		"transparent":                            {on + "arrangement: transparent\n", shop(), true, ""},
		"transparent, opted out":                 {on + "arrangement: transparent\n", shop(optedOut), false, ""},
		"not wanted, so nothing is said of more": {others, shop(back), false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			wanted, why := InKernel(tc.file, confOf(t, tc.conf))
			if wanted != tc.wanted || !strings.Contains(why, tc.why) || (why == "") != (tc.why == "") {
				t.Errorf("wanted %t, but %q", wanted, why)
			}
			c := clientsOf(filesOf(t, tc.file), confOf(t, tc.conf))
			p, _ := c.Identify(addr("10.244.1.5")).(*client)
			if p == nil || p.MayOffload() != (tc.wanted && tc.why == "") {
				t.Errorf("the client %+v", p)
			}
		})
	}
}

// TestKernelCounts: what the kernel answered is counted for the pod and its namespace, and for the namespace when the pod is gone.
func TestKernelCounts(t *testing.T) {
	web := pod("shop", "web", "10.244.1.5")
	web.ContainerID, web.IfName = "c0", "eth0"
	gone := web
	gone.ContainerID = "c9"
	c := clientsOf(filesOf(t, web), confOf(t, "kernelHits: {mode: on}\n"))
	c.Record(queryinfo.Answer{Identity: c.Identify(addr("10.244.1.5")), Level: queryinfo.Miss})
	c.AnsweredInKernel(web, 3, 2)
	c.AnsweredInKernel(gone, 2, 1)
	testutil.Equal(t, "the pod has", (Counts{Queries: 4, Hits: 3, Kernel: 3, NXDomain: 2}), c.Pods()[0].Counts)
	testutil.Equal(t, "the kernel's hits", 5, c.KernelHits())
	testutil.Equal(t, "namespaces", map[string]Counts{"shop": {Queries: 6, Hits: 5, Kernel: 5, NXDomain: 3}}, c.namespaceCounts())
}
