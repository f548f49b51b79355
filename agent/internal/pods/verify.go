package pods

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
)

// Verified is the result of Verify for one network interface of a pod. If interfaces share a netns, only the first has Drift, Mesh and Err.
type Verified struct {
	File  podfile.File
	State string   // one of the states that Reconcile counts
	Drift []string // how the pod table differs from the pod's files; empty if the pod is not steered
	Mesh  bool     // the pod's netns has nftables chains of a service mesh (Istio)
	Err   error    // why the pod's netns could not be checked
}

// Verify checks every pod's table, and changes nothing. The returned errors are about unreadable pod files.
func (p *Pods) Verify() ([]Verified, []error) {
	p.stale.Store(true)
	files, errs := p.read()
	var out []Verified
	for box := range sandboxes(files) {
		at := len(out)
		for _, f := range box.files {
			out = append(out, Verified{File: f, State: box.state(f)})
		}
		if box.ns == nil {
			continue
		}
		out[at].Drift, out[at].Mesh, out[at].Err = p.verifyTable(box.ns, podfile.Table(box.files...))
		box.close()
	}
	return out, slices.Clone(errs)
}

func (p *Pods) verifyTable(ns *os.File, want steer.Pod) (drift []string, mesh bool, err error) {
	others, err := nft.Others(int(ns.Fd()))
	if err != nil {
		return nil, false, err
	}
	for _, c := range others {
		mesh = mesh || strings.HasPrefix(c.Name, "ISTIO_")
	}
	if len(want.Redirects) == 0 {
		return nil, mesh, nil
	}
	table, err := p.backend.Open(int(ns.Fd()))
	if err != nil {
		return nil, mesh, err
	}
	defer table.Close()
	var differs *steer.DriftError
	if err = table.Verify(want); errors.As(err, &differs) {
		return differs.Items, mesh, nil
	}
	return nil, mesh, err
}
