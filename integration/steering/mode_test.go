package steering

import (
	"errors"
	"slices"
	"testing"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestSteerMode: running pods follow steer.mode without a restart, and so do new ones. With none, no pod is steered and kube-dns answers
// all. With namespaces, only pods of the listed ones and those that opted in are steered. A configuration that is refused changes nothing.
func TestSteerMode(t *testing.T) {
	for _, s := range newPods {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, s)
			n.startAgent()
			running, optIn := n.makePod(true, nil), n.makePod(true, map[string]string{"neardns.io/steer": "true"})
			all := []*pod{running, optIn}
			n.awaitSelected(all, all)

			n.steer("{mode: none}")
			n.awaitSelected(all, nil) // a pod made before the reload would be steered first
			late := n.makePod(true, nil)
			all = append(all, late)
			n.awaitSelected(all, nil)
			for _, p := range all {
				n.wantFallback(p.client(), "mode none", targets(n.ClusterDNS()...)...)
				if p == late || s.backend != "" { // for a while, nftables leaves rules for answers on their way (TestAnswersOnTheirWay)
					p.wantNoRules("mode none")
				}
				testutil.Must(t, p.check())
			}
			n.prints(anyCode, "status", "steer.mode: none", "steer.mode is none")

			n.steer("{mode: namespaces, namespaces: [shop]}")
			n.awaitSelected(all, []*pod{optIn})
			n.wantFallback(running.client(), "not selected", targets(n.ClusterDNS()...)...)
			n.wantSteered(optIn.client(), "opted in", targets(n.ClusterDNS()...)...)

			before := len(n.agent.Output())
			n.steer("{mode: sometimes}")
			n.awaitLog(before, "new configuration refused")
			n.prints(cli.Config, "config check", "steer.mode")
			n.awaitSelected(all, []*pod{optIn})

			n.steer("{mode: namespaces, namespaces: [default]}")
			n.awaitSelected(all, all)
			n.wantSteered(late.client(), "its namespace is listed", targets(n.ClusterDNS()...)...)
		})
	}
}

// steer has the running agent reload with these pods selected.
func (n *node) steer(selection string) {
	n.t.Helper()
	n.configure(n.setup.config + "steer: " + selection + "\n")
	n.hup()
}

// awaitSelected waits until of all pods just the selected ones are steered.
func (n *node) awaitSelected(all, selected []*pod) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		var errs []error
		for _, p := range all {
			want := map[bool]podfile.State{true: podfile.Steered, false: podfile.LeftAlone}[slices.Contains(selected, p)]
			errs = append(errs, wrap("steer.mode", p.in(want)))
		}
		return errors.Join(errs...)
	})
}
