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

// Convert replaces the rules of another back end in every steered pod by those of this back end. Each error names a pod that keeps the
// old ones. Pods with nftables rules accept fallback answers through either back end, so they may be converted late; pods with iptables
// rules must be converted before the host changes to nftables.
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

// convert replaces a sandbox's rules if its files record another back end, and records the new one.
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
	if !old.Alike(p.backend) { // the iptables variants: Repair leaves the other's chains alone, and they have the same rules
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
	p.log.Info("pod rules converted to another back end", "pod", f.PodNamespace+"/"+f.PodName, "backend", p.backend.String(),
		"redirects", len(want.Redirects))
	return nil
}

// removeOf removes one back end's rules from a netns.
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
