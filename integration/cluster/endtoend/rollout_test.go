package endtoend

import (
	"archive/tar"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/integration/cluster/node"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// perNode are the pods of each node that query under load in TestRollout.
const perNode = 10

// TestRollout is docs/rollout.md on two nodes, with its own overlay: observe on one, steer there, go back both ways, steer on all, back
// out. At each step no query of 100,000 is lost, and each node's pods are answered by the server that the guide names.
func TestRollout(t *testing.T) {
	bin, err := filepath.Abs("../../../bin")
	if err != nil {
		t.Fatal(err)
	}
	o := node.Options{Bin: bin, Attached: true, Workers: 1}
	o.Proxy, o.Runtime = cmp.Or(*onlyProxy, "nftables"), cmp.Or(*onlyRuntime, "containerd2")
	s := &suite{Node: start(t, o), t: t, load: amount{udp: 800, tcp: 200, least: 100_000}}
	r := newRollout(s)
	one, other := r.pods[s.Others[0].Name()], r.pods[s.Name()]
	label := []string{"label", "node", s.Others[0].Name(), "neardns.io/rollout=on", "--overwrite"}
	takeLabel := []string{"label", "node", s.Others[0].Name(), "neardns.io/rollout-"}
	for _, step := range []struct {
		name           string
		act            func()
		cached, direct []pod // who answers afterwards
	}{
		{"prepare", func() { r.apply("none") }, nil, s.loaded},
		{"step 0: observe on one node", func() { s.kubectl(label...); r.await(1); r.wantDoctor(s.Others[0].Name()) }, nil, s.loaded},
		{"step 1: steer on one node", func() { r.apply("all"); r.awaitState(podfile.Steered, one) }, one, other},
		{"back out: pods", func() { r.apply("none"); r.awaitState(podfile.LeftAlone, one) }, nil, s.loaded},
		{"steer again", func() { r.apply("all"); r.awaitState(podfile.Steered, one) }, one, other},
		{"back out: one node", func() { s.kubectl(takeLabel...); r.await(0) }, nil, s.loaded},
		{"come back", func() { s.kubectl(label...); r.await(1); r.awaitState(podfile.Steered, one) }, one, other},
		{"step 3: all nodes", func() {
			r.overlay, _, _ = strings.Cut(r.overlay, "patches:\n")
			r.apply("all")
			r.await(2)
			s.kubectl("label", "nodes", "--all", "neardns.io/rollout-")
			r.awaitState(podfile.Steered, s.loaded)
		}, s.loaded, nil},
		{"kubectl neardns", r.wantKubectl, s.loaded, nil},
		{"back out: all nodes", func() { s.kubectl("-n", "kube-system", "delete", "daemonset/neardns") }, nil, s.loaded},
	} {
		if !chosen(t, step.name) {
			continue
		}
		if !t.Run(step.name, func(t *testing.T) {
			s.in(t, func() {
				s.wantMissed(s.underLoad(s.loaded, step.act), 0)
				for _, p := range step.cached {
					s.awaitAnsweredBy(cached, p)
				}
				for _, p := range step.direct {
					s.awaitAnsweredBy(direct, p)
				}
			})
		}) {
			return // as the guide has it: stop
		}
	}
}

// rollout is the guide's overlay, and the pods by node.
type rollout struct {
	*suite
	dir             string
	overlay, config string // the guide's texts
	pods            map[string][]pod
}

func newRollout(s *suite) *rollout {
	r := &rollout{suite: s, dir: s.t.TempDir(), pods: map[string][]pod{}}
	for _, n := range s.All() {
		s.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: load-%[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: load-%[1]s}}
  template:
    metadata: {labels: {app: load-%[1]s}}
    spec:
      nodeSelector: {kubernetes.io/hostname: %[1]s}
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: %[3]q, imagePullPolicy: Never}]
`, n.Name(), perNode, node.PodImage))
		r.pods[n.Name()] = s.pods("app=load-"+n.Name(), perNode)
		s.loaded = append(s.loaded, r.pods[n.Name()]...)
	}
	guide := testutil.ReadFile(s.t, filepath.Join(s.Bin, "../docs/rollout.md"))
	var files []string
	for _, block := range strings.Split(guide, "   ```yaml\n")[1:] {
		text, _, _ := strings.Cut(block, "   ```\n")
		files = append(files, strings.ReplaceAll("\n"+text, "\n   ", "\n"))
	}
	if len(files) != 2 || !strings.Contains(files[0], "kind: Kustomization") || strings.Count(files[1], "{mode: none}") != 1 {
		s.t.Fatalf("docs/rollout.md has other blocks than an overlay and its NodeConfig: %q", files)
	}
	r.overlay, r.config = files[0], strings.Replace(files[1], "redirects: [10.96.0.10]", "", 1) // both families, of the kubelet's clusterDNS
	return r
}

// apply applies the overlay with a steer.mode.
func (r *rollout) apply(mode string) {
	r.t.Helper()
	base, err := filepath.Rel(r.dir, filepath.Join(r.Bin, "../install/base"))
	r.must(err)
	for name, text := range map[string]string{
		"kustomization.yaml": strings.Replace(r.overlay, "../neardns/install/base", base, 1),
		"nodeconfig.yaml":    strings.Replace(r.config, "{mode: none}", "{mode: "+mode+"}", 1),
	} {
		r.must(os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600))
	}
	r.kubectl("apply", "-k", r.dir)
}

// await waits until so many agents run, are of the last version and ready, and no other runs.
func (r *rollout) await(agents int) {
	r.t.Helper()
	r.must(r.Rollout(r.t.Context(), "kube-system", "daemonset/neardns"))
	r.eventually(func() error {
		names := strings.Fields(r.kubectl("-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=neardns", "-o", "name"))
		if len(names) != agents {
			return fmt.Errorf("agents: %q, want %d", names, agents)
		}
		return nil
	})
}

// awaitState waits until the pods are in a state. A changed ConfigMap takes the kubelet up to a minute.
func (r *rollout) awaitState(want podfile.State, pods []pod) {
	r.t.Helper()
	for _, p := range pods {
		r.eventually(func() error { return r.inState(p, want) })
	}
}

// wantKubectl holds what kubectl's plugin reports of two nodes that serve.
func (r *rollout) wantKubectl() {
	names := []string{r.Name(), r.Others[0].Name()}
	var status struct {
		Nodes []struct{ Node, Verdict string }
	}
	r.must(json.Unmarshal([]byte(r.kubectl("neardns", "status", "-o", "json")), &status))
	var serving []string
	for _, s := range status.Nodes {
		if s.Verdict == "SERVING" {
			serving = append(serving, s.Node)
		}
	}
	if !slices.Equal(serving, names) {
		r.t.Errorf("status: %+v, want %q SERVING", status, names)
	}
	r.wantDoctor(names...)
	top := r.kubectl("neardns", "top", "--limit", "0")
	for _, p := range r.loaded {
		if !strings.Contains(top, p.name) {
			r.t.Errorf("top lists no %s:\n%s", p.name, top)
			break
		}
	}
	for _, pods := range r.pods {
		text := r.kubectl("neardns", "query", "kubernetes.default.svc.cluster.local", "--pod", "default/"+pods[0].name)
		if !strings.Contains(text, "10.96.0.1") {
			r.t.Errorf("query as %s:\n%s", pods[0].name, text)
		}
	}
	file := filepath.Join(r.dir, "bundle.tar")
	r.kubectl("neardns", "bundle", "--file", file)
	entries := r.entries(file)
	for _, name := range names {
		for _, kind := range []string{".tar.gz", ".log"} {
			if want := "neardns-cluster/" + name + kind; !slices.Contains(entries, want) {
				r.t.Errorf("the bundle has no %s: %q", want, entries)
			}
		}
	}
}

// wantDoctor has kubectl's plugin examine nodes: its exit code is 0 if nothing fails.
func (r *rollout) wantDoctor(names ...string) {
	r.t.Helper()
	for _, name := range names {
		r.t.Log(r.kubectl("neardns", "doctor", "--node", name))
	}
}

// entries are the names in a bundle.
func (r *rollout) entries(file string) (out []string) {
	r.t.Helper()
	f, err := os.Open(file)
	r.must(err)
	defer f.Close()
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		r.must(err)
		out = append(out, h.Name)
	}
}
