package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// Convert replaces, in every steered pod, the rules of another back end by those of the current back end. After an error a pod may still
// have its old rules. Pods with nftables rules accept the fallback's answers from either back end, so they may be converted after the
// host; pods with iptables rules must be converted before the host changes to nftables.
func (p *Pods) Convert(ctx context.Context) []error {
	p.reconciling.Lock()
	defer p.reconciling.Unlock()
	files, hostInode, errs := p.all()
	for box := range sandboxes(files) {
		if ctx.Err() != nil {
			box.close()
			return append(errs, ctx.Err())
		}
		if box.ns == nil {
			continue
		}
		if want := podfile.Table(box.files...); box.files[0].NetNSInode != hostInode && len(want.Redirects) > 0 {
			if err := p.convert(&box, want); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", Name(box.files[0]), err))
			}
		}
		box.close()
	}
	return errs
}

// convert replaces the rules in a sandbox's netns if a pod file with steered paths records another back end, and records the current back
// end in the files.
func (p *Pods) convert(box *sandbox, want steer.Pod) error {
	at := slices.IndexFunc(box.files, func(f podfile.File) bool {
		return len(f.In(podfile.Steered)) > 0 && f.Backend != p.backend.Recorded()
	})
	if at < 0 {
		return nil
	}
	old, err := rules.Named(box.files[at].Backend)
	if err != nil {
		return err
	}
	if err := p.apply(box); err != nil {
		return err
	}
	if !old.Alike(p.backend) { // removing one iptables variant's chains removes the other's, too; both have the same rules and may stay
		if err := removeOf(old, box.ns); err != nil {
			return err
		}
	}
	for i := range box.files {
		f := box.files[i]
		f.Backend = p.backend.Recorded()
		if err := podfile.Update(p.stateDir, f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		box.files[i] = f
	}
	f := box.files[0]
	p.log.Info("pod's packet rules rewritten for another back end", "pod", f.PodNamespace+"/"+f.PodName, "backend", p.backend.String(),
		"redirects", len(want.Redirects))
	return nil
}

// removeOf removes the rules of back end k from a netns. It does nothing if there are none.
func removeOf(k rules.Kind, ns *os.File) error {
	table, err := k.Open(int(ns.Fd()))
	if err != nil {
		return err
	}
	defer table.Close()
	if present, err := table.Present(); err != nil || !present {
		return err
	}
	return table.Remove()
}
