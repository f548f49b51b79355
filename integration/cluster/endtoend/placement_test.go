package endtoend

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/integration/cluster/node"
)

// The node leaves the placement, as the controller does it: by a label. Pods have DNS throughout, and nothing of neardns stays but the
// plugin's binary, which running pods may need to end. It comes back, and pods are steered again.
func (s *suite) testLeft(was map[string]string) {
	s.kubectl("apply", "-k", s.leftManifests())
	y := s.underLoad(s.loaded, s.leave)
	s.wantMissed(y, 0)
	s.wantAnsweredBy(direct, append(slices.Clone(s.before), s.loaded[:2]...)...)
	now := s.snapshot()
	delete(now, "/opt/cni/bin/neardns")
	maps.DeleteFunc(now, func(name, what string) bool {
		_, there := was[name]
		return !there && ofKubelet[name] == what
	})
	if diff := cmp.Diff(was, now); diff != "" {
		s.t.Errorf("the node is not what it was before (-before +now):\n%s", diff)
	}

	y = s.underLoad(s.loaded, s.comeBack)
	s.wantMissed(y, 0)
	s.kubectl("delete", "-k", s.leftManifests(), "--wait", "--timeout=2m")
	s.renewPods()
	s.wantAnsweredBy(cached, s.loaded[:2]...)
}

func (s *suite) leftManifests() string {
	return filepath.Join(s.Bin, "../fleet/install/placement/left")
}

// leave takes the node out of the placement, and waits until it is clean.
func (s *suite) leave() {
	s.t.Helper()
	s.kubectl("label", "node", node.Name, "neardns.io/cache=excluded")
	s.eventually(func() error {
		if ready := s.kubectl("-n", "kube-system", "get", "daemonset", "neardns-uninstall-left", "-o", "jsonpath={.status.numberReady}"); ready != "1" {
			return fmt.Errorf("%q nodes are clean", ready)
		}
		return nil
	})
}

func (s *suite) comeBack() {
	s.t.Helper()
	s.kubectl("label", "node", node.Name, "neardns.io/cache-")
	s.eventually(func() error { return s.Settled(s.t.Context()) })
}
