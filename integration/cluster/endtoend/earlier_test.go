package endtoend

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/integration/cluster/node"
	"github.com/neardns/neardns/pkg/podfile"
)

var fromFolder = flag.String("from", "", "folder of the repository at an earlier commit, built: the products are upgraded from it and rolled back to it")

// TestEarlier upgrades an earlier commit's products to these under load, and rolls back. Both have their own images and manifests, and
// pods that either steered. The earlier ones then uninstall, and know nothing of what the later ones are: the node is as before.
func TestEarlier(t *testing.T) {
	if *fromFolder == "" {
		t.Skip("no -from: `make test-cluster FROM=<commit>` builds what to upgrade from")
	}
	root, err := filepath.Abs(*fromFolder)
	if err != nil {
		t.Fatal(err)
	}
	everyKind(t, func(t *testing.T, _ []string, o node.Options) {
		fromEarlier(t, o, node.Build{Root: root, Tag: "earlier"})
	})
}

func fromEarlier(t *testing.T, o node.Options, earlier node.Build) {
	t.Helper()
	s := &suite{Node: start(t, o), load: usual, t: t}
	was := s.testBare(t)
	if t.Failed() {
		return
	}
	overlay := s.Proxy // with kube-proxy's mode in it, which the agent finds out without it
	if _, err := os.Stat(filepath.Join(earlier.Root, "install/overlays/kernel-hits")); *kernelHits && err == nil {
		overlay = "kernel-hits" // has the capabilities that each build's base has since
	}
	install := func(b node.Build, overlay string) func() {
		return func() { s.must(s.InstallBuild(s.t.Context(), b, overlay, "adoptPods: true", s.hitsOfAll())) }
	}
	later, back := install(s.Own(), s.Proxy), install(earlier, overlay)
	steered := 0.0
	for _, one := range []struct {
		name string
		f    func()
	}{
		{"the earlier one installed", func() {
			s.bring(earlier)
			back()
			s.renewHalf()
			s.eventually(s.serving)
			s.eventually(func() error { return s.wantSteered(float64(len(s.loaded) + len(s.before))) })
			steered = s.metric(`neardns_pods{state="steered"}`)
			s.t.Logf("the earlier one, with %v pods steered, %d of them adopted: %s", steered, len(s.before)+len(s.adopted()), s.version())
			s.wantAnsweredBy(cached, s.loaded...)
			s.wantHitsInKernel()
		}},
		{"upgraded under load", func() { s.changed(later, true, "by-later", &steered) }},
		{"rolled back under load", func() { s.changed(back, false, "by-earlier", &steered) }},
		{"upgraded again under load", func() { s.changed(later, true, "by-later-again", &steered) }},
		{"rolled back again under load", func() { s.changed(back, false, "by-earlier-again", &steered) }},
		{"uninstalled by the earlier one under load, the node as before", func() {
			for _, name := range []string{"by-later", "by-earlier", "by-later-again", "by-earlier-again"} {
				s.deletePod(name)
			}
			s.uninstalled(earlier, overlay, was)
		}},
	} {
		if !t.Run(one.name, func(t *testing.T) { s.in(t, one.f) }) {
			return // what comes after stands on it
		}
	}
}

// hitsOfAll is the line of the NodeConfig with which the kernel answers hits of all steered pods, with -kernel, or none.
func (s *suite) hitsOfAll() string {
	return fmt.Sprintf("kernelHits: {mode: %q}", map[bool]string{true: "on", false: "off"}[*kernelHits])
}

// renewHalf replaces half of the pods that the load comes from. The plugin steers the new ones, the agent adopts the others.
func (s *suite) renewHalf() {
	s.t.Helper()
	for _, p := range s.loaded[:loadPods/2] {
		s.deletePod(p.name)
	}
	s.loaded = s.pods("app=load", loadPods)
	for _, p := range append(slices.Clone(s.before), s.loaded...) {
		s.eventually(func() error { return s.inState(p, podfile.Steered) })
	}
	if got := len(s.adopted()); got != loadPods/2 {
		s.t.Errorf("%d of %d pods that ran before were adopted", got, loadPods/2)
	}
}

// wantHitsInKernel fails, with -kernel, unless the kernel answers queries of a load.
func (s *suite) wantHitsInKernel() {
	s.t.Helper()
	before := s.answeredInKernel()
	y := s.underLoad(s.loaded, func() {})
	s.wantMissed(y, 0)
	if *kernelHits && s.answeredInKernel() == before {
		s.t.Errorf("the kernel answered none of %d queries", y.Sent)
	}
}

// changed replaces a build under load, by install: each query is answered, after an upgrade by the cache, and the agent has taken over from
// the one before it. It knows all pods that were steered, and the plugin steers a new one, whose file both can read.
func (s *suite) changed(install func(), upgrade bool, newPod string, steered *float64) {
	s.t.Helper()
	y := s.underLoad(s.loaded, install)
	s.wantMissed(y, 0)
	if y.Direct > 0 && upgrade { // a build from before TestLeasesDoNotWaitForPods repairs the pods' tables before it renews a lease
		s.t.Errorf("%d of %d questions went to kube-dns\n%s", y.Direct, y.Sent, s.kubectl("-n", "kube-system", "logs", "daemonset/neardns", "-c", "agent"))
	}
	if got := s.metric(`neardns_handovers_total{result="taken"}`); got != 1 {
		s.t.Errorf("the agent that serves now counts %v hand-overs, want 1", got)
	}
	s.t.Logf("it serves: %s", s.version())
	s.wantAnsweredBy(cached, s.loaded[:2]...)
	p := s.onePod(newPod, "", "")
	s.eventually(func() error { return s.inState(p, podfile.Steered) })
	s.wantAnsweredBy(cached, p)
	*steered++
	s.eventually(func() error { return s.wantSteered(*steered) })
	s.wantHitsInKernel()
}

// wantSteered reports whether the agent that serves knows so many steered pods.
func (s *suite) wantSteered(want float64) error {
	if got := s.metric(`neardns_pods{state="steered"}`); got != want {
		return fmt.Errorf("the agent knows %v steered pods, want %v", got, want)
	}
	return nil
}

// version is what the agent's program calls itself.
func (s *suite) version() string {
	s.t.Helper()
	return strings.TrimSpace(s.kubectl("-n", "kube-system", "exec", "daemonset/neardns", "-c", "agent", "--", "/bin/neardns-agent", "version"))
}
