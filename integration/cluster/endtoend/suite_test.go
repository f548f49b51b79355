package endtoend

import (
	"context"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/integration/cluster/node"
	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/integration/containerd"
	"github.com/neardns/neardns/pkg/testutil"
)

var (
	onlyProxy   = flag.String("proxy", "", "only this mode of kube-proxy: iptables or nftables")
	onlyRuntime = flag.String("runtime", "", "only this runtime: containerd16 or containerd2")
	kernelHits  = flag.Bool("kernel", false, "with hits in the kernel, from the installation to the uninstall")
	onlySteps   = flag.String("steps", "", "only these steps between install and uninstall, a regular expression")
)

// patience is how long anything may take that happens by itself, on a machine with little to spare.
const patience = 2 * time.Minute

// turn is how long another run on the same machine, or a `make cluster`, is waited for.
const turn = 30 * time.Minute

// suite is one cluster, by its first node, with what the steps share.
type suite struct {
	*node.Node
	t      *testing.T // of the step that runs
	row    []string   // of docs/reference/compatibility.md's table
	before []pod      // made before anything was installed
	loaded []pod      // that query under load
	load   amount
}

// TestCluster is every step in every kind of cluster.
func TestCluster(t *testing.T) { everyKind(t, run) }

// everyKind runs f for every kind of cluster that is wanted; row is of docs/reference/compatibility.md's table.
func everyKind(t *testing.T, f func(t *testing.T, row []string, o node.Options)) {
	t.Helper()
	bin, err := filepath.Abs("../../../bin")
	testutil.Must(t, err)
	ran := 0
	for _, release := range containerd.Releases(bin) {
		for _, proxy := range []string{"iptables", "nftables"} {
			if *onlyProxy != "" && *onlyProxy != proxy || *onlyRuntime != "" && *onlyRuntime != release.Name {
				continue
			}
			ran++
			t.Run(release.Name+"/"+proxy, func(t *testing.T) {
				version, err := release.Version(t.Context())
				testutil.Must(t, err)
				t.Logf("%s is %s", release.Name, version)
				title := map[string]string{"containerd16": "Debian's containerd", "containerd2": "containerd"}[release.Name]
				f(t, []string{proxy, title, strings.TrimSuffix(version, "+unknown")}, node.Options{Bin: bin, Proxy: proxy, Runtime: release.Name, Attached: true,
					Slim: release.Name == "containerd2"})
			})
		}
	}
	if ran == 0 {
		t.Fatalf("there is no cluster with -proxy %q and -runtime %q", *onlyProxy, *onlyRuntime)
	}
}

// start makes a node, which ends with the test and leaves nothing.
func start(t *testing.T, o node.Options) *node.Node {
	t.Helper()
	var n *node.Node
	testutil.Within(t, turn, func() (err error) {
		if n, err = node.Start(t.Context(), o); err != nil && !errors.Is(err, node.ErrRunning) {
			t.Fatal(err)
		}
		return err
	})
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(node.Logs())
		}
		if err := node.Remove(); err != nil {
			t.Error(err)
		}
		wantNothing(t)
	})
	return n
}

func run(t *testing.T, row []string, o node.Options) {
	s := &suite{Node: start(t, o), t: t, row: row, load: usual}
	was := s.testBare(t)
	if t.Failed() {
		return
	}
	if !s.step(t, "installed under load", s.testInstall) {
		return
	}
	for _, one := range []struct {
		name string
		f    func()
	}{
		{"every kind of name, as kube-dns answers it", s.testCompared},
		{"every dnsPolicy, opt-out", s.testPolicies},
		{"hostNetwork pods", s.testHostNetwork},
		{"agent killed", s.testKill},
		{"agent hung", s.testHang},
		{"agent out of memory", s.testOOM},
		{"a policy that drops what is for the agent", s.testFilter},
		{"upgraded and rolled back under load", s.testUpgrade},
	} {
		if chosen(t, one.name) {
			s.step(t, one.name, one.f)
		}
	}
	if name := "out of the placement and back under load"; chosen(t, name) {
		s.step(t, name, func() { s.testLeft(was) })
	}
	if name := "images of a registry in the cluster"; chosen(t, name) { // its lines stay in the node's hosts file until the uninstall
		s.step(t, name, s.testHosts)
	}
	s.step(t, "uninstalled under load, the node as before", func() { s.testUninstall(was) })
	if name := "running pods adopted under load, and given back"; chosen(t, name) {
		s.step(t, name, s.testAdopt)
	}
	if name := "NodeLocal DNSCache's manifest with our image"; chosen(t, name) {
		s.step(t, name, s.testNodeCache)
	}
	for _, one := range []struct {
		name string
		f    func()
	}{
		{"kube-proxy switched to its other mode under load", s.testProxySwitched},
		{"older pods and host processes (interceptNode)", s.testIntercept},
	} {
		if chosen(t, one.name) {
			s.step(t, one.name, one.f)
		}
	}
	for name, f := range map[string]func(){
		"the cluster DNS address on the link, as the enhancement has it": s.testOnLink,
		"pods whose resolv.conf names the node's own address":            s.testNameserverLocal,
	} {
		if chosen(t, name) {
			s.step(t, name, f)
		}
	}
}

// testBare makes the workload on the node without neardns, and reports what the node is then.
func (s *suite) testBare(t *testing.T) (was map[string]string) {
	t.Run("without neardns", func(t *testing.T) {
		s.in(t, func() {
			s.testWorkload()
			s.settled()
			was = s.snapshot()
		})
	})
	return was
}

// step is one part, and one cell of the compatibility table; what fails in it stops it, and the next goes on with the same node.
func (s *suite) step(t *testing.T, name string, f func()) bool {
	return t.Run(name, func(t *testing.T) {
		compat.Record(t, compat.Cell{Table: "clusters", Row: s.row, Column: name})
		s.in(t, f)
	})
}

// in has f's failures be t's.
func (s *suite) in(t *testing.T, f func()) {
	whole := s.t
	defer func() { s.t = whole }()
	s.t = t
	f()
}

// must ends the step where an error is one.
func (s *suite) must(err error) {
	s.t.Helper()
	testutil.Must(s.t, err)
}

// kubectl runs it and returns what it prints.
func (s *suite) kubectl(args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	out, err := s.Kubectl(ctx, args...)
	s.must(err)
	return out
}

func (s *suite) apply(manifest string) {
	s.t.Helper()
	s.must(s.Apply(s.t.Context(), manifest))
}

// eventually awaits what happens by itself.
func (s *suite) eventually(f func() error) {
	s.t.Helper()
	testutil.Within(s.t, patience, f)
}

// wantNothing holds that nothing of a node is left on the machine: no files, control groups or mounts. Processes and links end
// with the namespaces that they are in.
func wantNothing(t *testing.T) {
	t.Helper()
	left, err := filepath.Glob("/sys/fs/cgroup/*/neardns-cluster")
	if err != nil {
		t.Error(err)
	}
	for _, path := range append(left, "/sys/fs/cgroup/neardns-cluster", node.Dir) {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("left behind: %s (%v)", path, err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), node.Dir) {
		t.Errorf("left mounted (%v):\n%s", err, mounts)
	}
}
