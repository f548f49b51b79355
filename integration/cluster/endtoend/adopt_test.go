package endtoend

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
)

const (
	adoptedPods = 50
	endingPods  = 10
)

// ending are pods that end while others are adopted.
const ending = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: ending}
spec:
  replicas: 10
  selector: {matchLabels: {app: ending}}
  template:
    metadata: {labels: {app: ending}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "neardns.test/pod:1", imagePullPolicy: Never}]
`

// Pods that run when neardns comes are steered as they stand, and given back when it goes: no query of theirs is lost, and nothing
// in them changes. An agent that is killed half-way goes on where it was, and pods that end meanwhile leave nothing.
func (s *suite) testAdopt() {
	s.kubectl("scale", "deployment/load", fmt.Sprintf("--replicas=%d", adoptedPods))
	s.loaded = s.pods("app=load", adoptedPods)
	defer func() {
		s.kubectl("scale", "deployment/load", fmt.Sprintf("--replicas=%d", loadPods))
		s.loaded = s.pods("app=load", loadPods)
	}()
	all := s.resolvers()

	y := s.underLoad(s.loaded, func() {
		s.must(s.ApplyProduct(s.t.Context(), s.Proxy, s.kernelHits()))
		s.awaitSteered(adoptedPods)
		s.must(s.AwaitProduct(s.t.Context()))
	})
	s.wantMissed(y, 0)
	was := map[string]string{}
	for id := range s.adopted() {
		was[id] = all[id]
	}
	if len(was) != adoptedPods || was[""] != "" {
		s.t.Fatalf("%d sandboxes are known, want those of %d pods", len(was), adoptedPods)
	}
	if y.Cache == 0 || y.Direct == 0 {
		s.t.Errorf("%d answers of the cache and %d of kube-dns: want both", y.Cache, y.Direct)
	}
	y = s.underLoad(s.loaded, func() {})
	s.wantMissed(y, 0)
	if y.Cache != y.Sent {
		s.t.Errorf("%d of %d questions of adopted pods were not answered by the cache", y.Sent-y.Cache, y.Sent)
	}
	s.wantAnsweredBy(cached, s.loaded[:2]...)
	s.giveBack(was)

	s.apply(ending)
	gone := s.pods("app=ending", endingPods)
	y = s.underLoad(s.loaded, func() {
		s.must(s.ApplyProduct(s.t.Context(), s.Proxy, s.kernelHits()))
		s.awaitSteered(1)
		old := s.agent()
		s.kill(old, "KILL")
		s.t.Logf("%d of %d pods are steered after the kill", s.steered(), adoptedPods)
		s.kubectl("delete", "deployment/ending", "--wait=false")
		s.awaitAgent(old)
		s.awaitSteered(adoptedPods)
		s.must(s.AwaitProduct(s.t.Context()))
	})
	s.wantMissed(y, killMisses)
	s.kubectl("wait", "--for=delete", "pod", "-l", "app=ending", "--timeout=2m")
	for _, p := range gone {
		s.eventually(func() error {
			if f := s.file(p.name); f != nil {
				return fmt.Errorf("pod %s ended and has a file: %+v", p.name, f)
			}
			return nil
		})
	}
	s.wantAnsweredBy(cached, s.loaded[:2]...)
	s.giveBack(was)
}

// giveBack takes the product off under load, and holds that nothing is left in the pods.
func (s *suite) giveBack(was map[string]string) {
	s.t.Helper()
	y := s.underLoad(s.loaded, func() { s.must(s.UninstallProduct(s.t.Context(), s.Proxy, true)) })
	s.wantMissed(y, 0)
	for _, p := range s.loaded {
		if out, err := s.Run(s.t.Context(), "nsenter", "--net=/run/netns/"+filepath.Base(p.ns), "nft", "list", "ruleset"); err != nil || strings.TrimSpace(out) != "" {
			s.t.Errorf("pod %s: rules are left: %v\n%s", p.name, err, out)
		}
	}
	s.wantAnsweredBy(direct, s.loaded[:2]...)
	now := s.resolvers()
	maps.DeleteFunc(now, func(id, _ string) bool { return was[id] == "" }) // others' come and go
	if diff := cmp.Diff(was, now); diff != "" {
		s.t.Errorf("the pods' resolv.conf are not what they were (-before +now):\n%s", diff)
	}
}

// resolvers are the resolv.conf of all sandboxes by ID: contents, and when it was changed.
func (s *suite) resolvers() map[string]string {
	s.t.Helper()
	files, err := filepath.Glob(s.Path("/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/*/resolv.conf"))
	s.must(err)
	out := map[string]string{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		s.must(err)
		info, err := os.Stat(path)
		s.must(err)
		out[filepath.Base(filepath.Dir(path))] = fmt.Sprintf("%s\nchanged %s, mode %s", text, info.ModTime(), info.Mode())
	}
	return out
}

// awaitSteered waits until so many of the loaded pods are steered, and logs how long after the agent's start that is. TestPace
// (agent/internal/pods/adoption) has the pace, five pods a second.
func (s *suite) awaitSteered(count int) {
	s.t.Helper()
	s.eventually(func() error {
		if steered := s.steered(); steered < count {
			return fmt.Errorf("%d of the pods are steered, want %d", steered, count)
		}
		return nil
	})
	var started time.Time
	s.eventually(func() (err error) { // the API server learns of the agent's start later than the pods do
		started, err = s.Started(s.t.Context())
		return err
	})
	s.t.Logf("%d pods are steered %v after the agent's start", count, time.Since(started).Round(time.Millisecond))
}

// steered is how many of the loaded pods are.
func (s *suite) steered() int { s.t.Helper(); return len(s.adopted()) }

// adopted are the sandboxes of loaded pods that were adopted and are steered.
func (s *suite) adopted() map[string]bool {
	s.t.Helper()
	loaded := map[string]bool{}
	for _, p := range s.loaded {
		loaded[p.name] = true
	}
	files, err := filepath.Glob(filepath.Join(s.Path(nodestate.DefaultStateDir), "pods/*.json"))
	s.must(err)
	out := map[string]bool{}
	for _, path := range files {
		f, err := podfile.Read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		s.must(err)
		if loaded[f.PodName] && f.Adopted != "" && len(f.In(podfile.Steered)) == len(f.Decisions) {
			out[f.ContainerID] = true
		}
	}
	return out
}
