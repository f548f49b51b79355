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
	"github.com/neardns/neardns/integration/containerd"
	"github.com/neardns/neardns/pkg/testutil"
)

var (
	onlyProxy   = flag.String("proxy", "", "only this mode of kube-proxy: iptables or nftables")
	onlyRuntime = flag.String("runtime", "", "only this runtime: containerd16 or containerd2")
	onlySteps   = flag.String("steps", "", "only these steps between install and uninstall, a regular expression")
)

// patience is how long anything may take that happens by itself, on a machine with little to spare.
const patience = 2 * time.Minute

// suite is one node with what the steps share.
type suite struct {
	*node.Node
	t      *testing.T // of the step that runs
	before []pod      // made before anything was installed
	loaded []pod      // that ask under load
}

// TestCluster is every step in every kind of cluster.
func TestCluster(t *testing.T) {
	bin, err := filepath.Abs("../../../bin")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, release := range containerd.Releases(bin) {
		for _, proxy := range []string{"iptables", "nftables"} {
			if *onlyProxy != "" && *onlyProxy != proxy || *onlyRuntime != "" && *onlyRuntime != release.Name {
				continue
			}
			ran++
			t.Run(release.Name+"/"+proxy, func(t *testing.T) {
				version, err := release.Version(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%s is %s", release.Name, version)
				run(t, node.Options{Bin: bin, Proxy: proxy, Runtime: release.Name, Attached: true})
			})
		}
	}
	if ran == 0 {
		t.Fatalf("there is no cluster with -proxy %q and -runtime %q", *onlyProxy, *onlyRuntime)
	}
}

func run(t *testing.T, o node.Options) {
	n, err := node.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(node.Logs())
		}
		if err := node.Remove(); err != nil {
			t.Error(err)
		}
		wantNothing(t)
	})
	s := &suite{Node: n, t: t}
	if !s.step(t, "workload", s.testWorkload) {
		return
	}
	var was map[string]string
	if !s.step(t, "snapshot", func() { s.settled(); was = s.snapshot() }) {
		return
	}
	if !s.step(t, "install", s.testInstall) {
		return
	}
	for _, one := range []struct {
		name string
		f    func()
	}{
		{"names", s.testNames},
		{"policies", s.testPolicies},
		{"host network", s.testHostNetwork},
		{"kill", s.testKill},
		{"hang", s.testHang},
		{"oom", s.testOOM},
		{"filter", s.testFilter},
		{"upgrade", s.testUpgrade},
	} {
		if chosen(t, one.name) {
			s.step(t, one.name, one.f)
		}
	}
	s.step(t, "uninstall", func() { s.testUninstall(was) })
	if chosen(t, "proxy switched") {
		s.step(t, "proxy switched", s.testProxySwitched)
	}
}

// step is one part; what fails in it stops it, and the next goes on with the same node.
func (s *suite) step(t *testing.T, name string, f func()) bool {
	return t.Run(name, func(t *testing.T) {
		whole := s.t
		defer func() { s.t = whole }()
		s.t = t
		f()
	})
}

// must ends the step where an error is one.
func (s *suite) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
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
	testutil.Eventually(s.t, patience, f)
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
