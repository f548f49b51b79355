package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// States that Tend counts attachments by: the best that one of its redirects has, or that its netns is gone.
const (
	Steered   = string(podfile.Steered)
	Pending   = string(podfile.Pending)
	LeftAlone = string(podfile.LeftAlone)
	Gone      = "gone"
)

// sandbox is one netns with its attachments. It has one pod table, whatever their number.
type sandbox struct {
	files []podfile.File
	ns    *os.File // nil: gone, or not to be seen from here
}

// Tend steers the pods that waited for the proof of their cluster DNS address, where their way leads through this host
// and the switch was told of their redirect. With deep it also mends the tables of steered pods; a table whose fallback
// is not proven now is not put back: such a pod asks kube-dns directly meanwhile, which works. It returns how many
// attachments are in each state.
func (p *Pods) Tend(ctx context.Context, proven func(netip.Addr) bool, deep bool) (map[string]int, error) {
	p.tend.Lock()
	defer p.tend.Unlock()
	if deep {
		p.stale.Store(true) // in case that the watch missed something
	}
	files, readErrs := p.read()
	errs := slices.Clone(readErrs)
	counts := map[string]int{Steered: 0, Pending: 0, LeftAlone: 0, Gone: 0}
	host, hostInode, err := podfile.OpenNetNS(p.hostNS)
	if err != nil {
		return counts, fmt.Errorf("open the host's netns: %w", err)
	}
	defer host.Close()
	busy := false
	for _, group := range bySandbox(files) {
		if ctx.Err() != nil {
			return counts, errors.Join(append(errs, ctx.Err())...)
		}
		if group[0].NetNSInode == hostInode { // its pods share the host's netns, where no pod table may ever be
			counts[LeftAlone] += len(group)
			continue
		}
		box := openSandbox(group)
		if box.ns != nil {
			if !busy { // else each pod in turn would wait for who is in the way, and the loop with it
				more := p.keep(&box, host, proven, deep)
				busy = slices.ContainsFunc(more, iptables.Busy)
				errs = append(errs, more...)
			}
			box.ns.Close()
		}
		for _, f := range box.files {
			counts[box.state(f)]++
		}
	}
	return counts, errors.Join(errs...)
}

// bySandbox groups attachments by netns, in the order of the files.
func bySandbox(files []podfile.File) [][]podfile.File {
	at := map[uint64]int{}
	var out [][]podfile.File
	for _, f := range files {
		i, ok := at[f.NetNSInode]
		if !ok {
			i = len(out)
			at[f.NetNSInode] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], f)
	}
	return out
}

// openSandbox enters the netns by whichever attachment's path still leads there.
func openSandbox(files []podfile.File) sandbox {
	box := sandbox{files: slices.Clone(files)}
	for _, f := range files {
		if ns, err := enter(f); err == nil {
			box.ns = ns
			break
		}
	}
	return box
}

// enter opens an attachment's netns. Where the agent runs in a container, the path may only be seen from the host's root.
func enter(f podfile.File) (*os.File, error) {
	ns, err := f.OpenNetNS()
	if err == nil {
		return ns, nil
	}
	f.NetNS = "/proc/1/root" + f.NetNS
	if ns, rootErr := f.OpenNetNS(); rootErr == nil {
		return ns, nil
	}
	return nil, err
}

func (s sandbox) state(f podfile.File) string {
	switch {
	case s.ns == nil:
		return Gone
	case len(f.In(podfile.Steered)) > 0:
		return Steered
	case len(f.In(podfile.Pending)) > 0:
		return Pending
	}
	return LeftAlone
}

// keep does what one sandbox needs.
func (p *Pods) keep(box *sandbox, host *os.File, proven func(netip.Addr) bool, deep bool) []error {
	var errs []error
	for i := range box.files {
		if len(box.files[i].In(podfile.Pending)) == 0 {
			continue
		}
		if err := p.steerPending(box, i, host, proven); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", Name(box.files[i]), err))
		}
	}
	if deep && len(errs) == 0 {
		if err := p.mend(box, proven); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", Name(box.files[0]), err))
		}
	}
	return errs
}

// steerPending decides the waiting redirects of one attachment and makes it so: first the file, then the table. Rules that
// no file tells of would be found by nobody; a file that tells of rules which are not there is mended by the next check.
func (p *Pods) steerPending(box *sandbox, i int, host *os.File, proven func(netip.Addr) bool) error {
	before := box.files[i]
	after, err := p.decide(before, box.ns, host, proven)
	if len(before.In(podfile.Steered)) == 0 {
		after.Backend = p.recorded()
	}
	if slices.Equal(after.Decisions, before.Decisions) {
		return err
	}
	if updateErr := p.note(after); errors.Is(updateErr, fs.ErrNotExist) {
		return err // deleted meanwhile
	} else if updateErr != nil {
		return errors.Join(err, updateErr)
	}
	box.files[i] = after
	if len(after.In(podfile.Steered)) == len(before.In(podfile.Steered)) {
		return err // only reasons to leave it alone were found
	}
	if applyErr := p.apply(box); applyErr != nil {
		box.files[i] = before
		if updateErr := p.note(before); !errors.Is(updateErr, fs.ErrNotExist) {
			applyErr = errors.Join(applyErr, updateErr)
		}
		return errors.Join(err, applyErr)
	}
	if gone, goneErr := p.deleted(after); gone || goneErr != nil {
		return errors.Join(err, goneErr, p.remove(box.ns))
	}
	p.log.Info("pod steered, its fallback is proven now", "pod", after.PodNamespace+"/"+after.PodName, "container_id", after.ContainerID, "iface", after.IfName)
	return err
}

// note writes an attachment's decisions into its file, and nothing else: the rest may have changed since it was read.
func (p *Pods) note(f podfile.File) error {
	return podfile.Amend(p.stateDir, f.ContainerID, f.IfName, func(now *podfile.File) bool {
		if now.NetNSInode != f.NetNSInode {
			return false // another pod's by now
		}
		now.Decisions, now.HostInterface = f.Decisions, f.HostInterface
		return true
	})
}

// deleted reports whether DEL took the file away while we were at work: then it may have looked for rules before ours came.
func (p *Pods) deleted(f podfile.File) (bool, error) {
	_, err := os.Lstat(podfile.Path(p.stateDir, f.ContainerID, f.IfName))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// decide returns f with its waiting redirects decided, as far as they can be now.
func (p *Pods) decide(f podfile.File, ns, host *os.File, proven func(netip.Addr) bool) (podfile.File, error) {
	p.mu.Lock()
	switched := p.switched
	p.mu.Unlock()
	var errs []error
	f.Decisions = slices.Clone(f.Decisions)
	for i := range f.Decisions {
		d := &f.Decisions[i]
		if d.State != podfile.Pending || !switched[d.Redirect] || !proven(d.Redirect.ClusterDNS) {
			continue
		}
		// The plugin looked when the pod was made; its routes may be others by now.
		iface, err := steer.Way(int(ns.Fd()), int(host.Fd()), d.Redirect)
		if err == nil {
			err = p.notUplink(host, iface)
		}
		var noWay *steer.WayError
		switch {
		case errors.As(err, &noWay):
			d.State, d.Reason = podfile.LeftAlone, noWay.Reason
		case err != nil:
			errs = append(errs, fmt.Errorf("look for the way to %s: %w", d.Redirect.ClusterDNS, err))
		default:
			d.State, d.Reason = podfile.Steered, ""
			if f.HostInterface == "" {
				f.HostInterface = iface
			}
		}
	}
	return f, errors.Join(errs...)
}

// notUplink refuses a way whose packets the switch would drop.
func (p *Pods) notUplink(host *os.File, iface string) error {
	table, err := p.backend.Open(int(host.Fd()))
	if err != nil {
		return err
	}
	defer table.Close()
	if is, err := table.IsUplink(iface); err != nil || !is {
		return err
	}
	return &steer.WayError{Reason: iface + " also leads away from the node, where the cache must not answer"}
}

// mend puts a steered sandbox's table right.
func (p *Pods) mend(box *sandbox, proven func(netip.Addr) bool) error {
	want := podfile.Table(box.files...)
	if len(want.Redirects) == 0 {
		return nil
	}
	for _, r := range want.Redirects {
		if !proven(r.ClusterDNS) {
			return nil
		}
	}
	if err := p.convert(box, want); err != nil {
		return err
	}
	table, err := p.backend.Open(int(box.ns.Fd()))
	if err != nil {
		return err
	}
	defer table.Close()
	var drift *steer.DriftError
	if err := table.Verify(want); err == nil || !errors.As(err, &drift) {
		return err
	}
	if gone, err := p.deleted(box.files[0]); gone || err != nil {
		return err
	}
	if err := table.Apply(want); err != nil {
		return err
	}
	p.log.Warn("pod table mended", "pod", box.files[0].PodNamespace+"/"+box.files[0].PodName, "container_id", box.files[0].ContainerID, "drift", drift.Items)
	return nil
}

func (p *Pods) apply(box *sandbox) error {
	table, err := p.backend.Open(int(box.ns.Fd()))
	if err != nil {
		return err
	}
	defer table.Close()
	return table.Apply(podfile.Table(box.files...))
}

// remove takes out what is ours, whichever back end made it.
func (p *Pods) remove(ns *os.File) error {
	errs := []error{removeOf(p.backend, ns)}
	for _, other := range p.backend.Others() {
		errs = append(errs, removeOf(other, ns))
	}
	return errors.Join(errs...)
}

// RemoveTables takes every pod's table out, for cleanup, and notes in the files that the pods are steered no longer. Each
// error names a pod that could not be entered and may still be steered: the switch must stay then.
func (p *Pods) RemoveTables(ctx context.Context) []error {
	p.tend.Lock()
	defer p.tend.Unlock()
	files, hostInode, errs := p.all()
	for _, group := range bySandbox(files) {
		if ctx.Err() != nil {
			return append(errs, fmt.Errorf("not all pod tables removed: %w", ctx.Err()))
		}
		if group[0].NetNSInode == hostInode { // the table there is the switch
			continue
		}
		if err := p.release(openSandbox(group)); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", Name(group[0]), err))
		}
	}
	return errs
}

func (p *Pods) release(box sandbox) error {
	if box.ns == nil {
		if len(podfile.Table(box.files...).Redirects) == 0 {
			return nil // never steered
		}
		return p.surelyGone(box.files)
	}
	defer box.ns.Close()
	// Also where the files say that nothing is steered: an ADD may have been cut short.
	if err := p.remove(box.ns); err != nil {
		return err
	}
	for _, f := range box.files {
		f.Decisions = slices.Clone(f.Decisions)
		for i := range f.Decisions {
			f.Decisions[i].State, f.Decisions[i].Reason = podfile.LeftAlone, "neardns was taken off this node"
		}
		if err := p.note(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// surelyGone returns nil if a netns that cannot be entered does not exist any more: its path leads to another one, or is
// missing from a folder that can be seen. From inside a container that lacks the host's mounts, living ones look alike.
func (p *Pods) surelyGone(files []podfile.File) error {
	for _, f := range files {
		ns, inode, err := podfile.OpenNetNS(f.NetNS)
		if err == nil {
			ns.Close()
			if inode != f.NetNSInode {
				return nil
			}
		}
		if errors.Is(err, fs.ErrNotExist) && folderSeen(f.NetNS) {
			return nil
		}
	}
	f := files[0]
	_, err := enter(f)
	return fmt.Errorf("its netns cannot be entered, so its table may still be there: %w (make the path visible to the agent, or delete %s if the pod is gone)",
		err, podfile.Path(p.stateDir, f.ContainerID, f.IfName))
}
