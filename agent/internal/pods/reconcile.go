package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// The states that Reconcile counts attachments by: its netns is gone, one of its paths is bypassed, or the best state of its paths.
const (
	Steered   = string(podfile.Steered)
	Pending   = string(podfile.Pending)
	LeftAlone = string(podfile.LeftAlone)
	Bypassed  = "given-back" // the name in metrics and outputs
	Gone      = "gone"
)

// maxSteering bounds how many pods are steered at the same time: this waits for the kernel more than it works, and a node that adopts its
// pods has a hundred to steer.
const maxSteering = 8

// sandbox is one netns with its attachments. It has one pod table, whatever their number.
type sandbox struct {
	files []podfile.File
	ns    *os.File // nil: gone, or not to be seen from here
}

// Fallback is what the agent knows of the path to kube-dns by one cluster DNS address.
type Fallback struct {
	Verified bool
	// Lost is the reason if the path is lost for good, so that pods must not stay steered; "" else. A moment without verification is no loss.
	Lost string
}

// Reconcile reports the fallbacks to the table, and steers and bypasses pods as it decides: those whose way leads through this host, to
// redirects that the switch knows. With deep it also repairs the tables of steered pods. A table whose fallback is not verified now is not
// put back, because such a pod reaches kube-dns directly meanwhile. It returns how many attachments are in each state.
func (p *Pods) Reconcile(ctx context.Context, fallback func(netip.Addr) Fallback, deep bool) (map[string]int, error) {
	p.reconciling.Lock()
	defer p.reconciling.Unlock()
	if deep {
		p.stale.Store(true) // in case that the watch missed something
	}
	files, readErrs := p.read()
	errs := slices.Clone(readErrs)
	counts := map[string]int{Steered: 0, Pending: 0, LeftAlone: 0, Bypassed: 0, Gone: 0}
	host, hostInode, err := podfile.OpenNetNS(p.hostNS)
	if err != nil {
		return counts, fmt.Errorf("open the host's netns: %w", err)
	}
	defer host.Close()
	if deep {
		p.sweep(files)
	}
	atOnce := maxSteering
	if deep || p.backend.Caps().Programs {
		atOnce = 1 // what was found right is noted in one place; programs wait for each other's lock
	}
	var mu sync.Mutex // guards counts, errs and busy
	busy := false
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for box := range sandboxes(files) {
		if ctx.Err() != nil {
			box.close()
			wg.Wait()
			return counts, errors.Join(append(errs, ctx.Err())...)
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			defer box.close()
			// A pod that shares the host's netns is left alone: no pod table may ever be there.
			ofHost := box.files[0].NetNSInode == hostInode
			mu.Lock()
			skip := busy || ofHost || box.ns == nil // else each pod in turn would wait for the lock that is held, and the loop with it
			mu.Unlock()
			var more []error
			if !skip {
				more = p.reconcile(&box, host, fallback, deep)
			}
			mu.Lock()
			defer mu.Unlock()
			busy = busy || slices.ContainsFunc(more, iptables.Busy)
			errs = append(errs, more...)
			for _, f := range box.files {
				if ofHost {
					counts[LeftAlone]++
				} else {
					counts[box.state(f)]++
				}
			}
		})
	}
	wg.Wait()
	return counts, errors.Join(errs...)
}

// sandboxes groups attachments by the netns that their own paths lead to, in the order of the files, and opens each. A file whose
// path leads nowhere, or to another netns than it says, has none: its number may be another pod's by now. The caller closes each.
func sandboxes(files []podfile.File) iter.Seq[sandbox] {
	type place struct {
		path  string
		inode uint64
	}
	at, paths := map[place]int{}, map[uint64][]int{}
	var out []sandbox
	for _, f := range files {
		here := place{f.NetNS, f.NetNSInode}
		i, ok := at[here]
		if !ok {
			i = len(out)
			at[here] = i
			paths[f.NetNSInode] = append(paths[f.NetNSInode], i)
			out = append(out, sandbox{})
		}
		out[i].files = append(out[i].files, f)
	}
	for _, same := range paths { // seldom more than one: then who leads there makes one sandbox
		first := -1
		for _, i := range same {
			switch {
			case len(same) == 1 || !leads(out[i].files[0]):
			case first < 0:
				first = i
			default:
				out[first].files = append(out[first].files, out[i].files...)
				out[i].files = nil
			}
		}
	}
	// Opened one by one, so that a node full of pods does not cost a descriptor each.
	return func(yield func(sandbox) bool) {
		for _, box := range out {
			if len(box.files) == 0 {
				continue
			}
			box.ns, _ = enter(box.files[0]) // an error is a netns that is gone
			if !yield(box) {
				return
			}
		}
	}
}

// leads tells whether an attachment's path leads to its netns.
func leads(f podfile.File) bool {
	ns, err := enter(f)
	if err != nil {
		return false
	}
	_ = ns.Close()
	return true
}

func (s sandbox) close() {
	if s.ns != nil {
		_ = s.ns.Close() // only to enter
	}
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
	case slices.ContainsFunc(f.Decisions, func(d podfile.Decision) bool { return StateOf(d) == podstate.Bypassed }):
		return Bypassed
	case len(f.In(podfile.Steered)) > 0:
		return Steered
	case len(f.In(podfile.Pending)) > 0:
		return Pending
	}
	return LeftAlone
}

// reconcile does what one sandbox needs.
func (p *Pods) reconcile(box *sandbox, host *os.File, fallback func(netip.Addr) Fallback, deep bool) []error {
	var errs []error
	verified := func(a netip.Addr) bool { return fallback(a).Verified }
	_, err := p.decide(box, func(_ podfile.File, d podfile.Decision) (signal, bool) {
		lost := fallback(d.Redirect.ClusterDNS).Lost
		return signal{event: podstate.FallbackLost, reason: lost}, lost != "" && d.State == podfile.Steered
	})
	if err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", Name(box.files[0]), err))
	}
	for i := range box.files {
		if len(box.files[i].In(podfile.Pending)) == 0 {
			continue
		}
		if err := p.steerWaiting(box, i, host, verified); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", Name(box.files[i]), err))
		}
	}
	if deep && len(errs) == 0 {
		if err := p.repair(box, verified); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", Name(box.files[0]), err))
		}
	}
	return errs
}

// steerWaiting steers the paths of one attachment that waited for their fallback: first the file, then the table. Rules without a file would
// never be found; a file whose rules are not there is repaired by the next check.
func (p *Pods) steerWaiting(box *sandbox, i int, host *os.File, verified func(netip.Addr) bool) error {
	before := box.files[i]
	after, err := p.route(before, box.ns, host, verified)
	if len(before.In(podfile.Steered)) == 0 {
		after.Backend = p.backend.Recorded()
	}
	if reflect.DeepEqual(after.Decisions, before.Decisions) {
		return err
	}
	if updateErr := p.note(after); errors.Is(updateErr, fs.ErrNotExist) {
		return err // deleted meanwhile
	} else if updateErr != nil {
		return errors.Join(err, updateErr)
	}
	box.files[i] = after
	if len(after.In(podfile.Steered)) == len(before.In(podfile.Steered)) {
		return err // only reasons to leave it alone
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
	p.log.Info("pod steered", "pod", after.PodNamespace+"/"+after.PodName, "container_id", after.ContainerID, "iface", after.IfName)
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

// deleted reports whether DEL removed the file meanwhile: then it may have looked for rules before ours came.
func (p *Pods) deleted(f podfile.File) (bool, error) {
	_, err := os.Lstat(podfile.Path(p.stateDir, f.ContainerID, f.IfName))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// route returns f with those waiting paths steered whose fallback is verified, that the switch knows, and whose way leads through this host.
// A path with another way is left alone.
func (p *Pods) route(f podfile.File, ns, host *os.File, verified func(netip.Addr) bool) (podfile.File, error) {
	p.mu.Lock()
	switched := p.switched
	p.mu.Unlock()
	var errs []error
	f.Decisions = slices.Clone(f.Decisions)
	for i := range f.Decisions {
		d := &f.Decisions[i]
		if StateOf(*d) == 0 || !switched[d.Redirect] || !verified(d.Redirect.ClusterDNS) {
			continue
		}
		if _, do := p.report(f, *d, podstate.FallbackVerified, time.Now()); do&podstate.Steer == 0 {
			continue
		}
		// The plugin looked when the pod was made; its routes may be others by now.
		iface, err := hostnet.Way(int(ns.Fd()), int(host.Fd()), d.Redirect.ClusterDNS)
		if err == nil {
			err = p.notUplink(host, iface)
		}
		var noWay *hostnet.WayError
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
	return &hostnet.WayError{Reason: iface + " also leads away from the node, where the cache must not answer"}
}

// repair repairs a steered sandbox's table, and reports pods whose tables keep no evidence.
func (p *Pods) repair(box *sandbox, verified func(netip.Addr) bool) error {
	want := podfile.Table(box.files...)
	if len(want.Redirects) == 0 {
		return nil
	}
	for _, r := range want.Redirects {
		if !verified(r.ClusterDNS) {
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
	seen := fingerprint{inode: box.files[0].NetNSInode, want: fmt.Sprint(want)}
	if w, ok := table.(steer.Witness); !ok {
		for _, f := range box.files {
			p.reportSteered(f, podstate.TableKnowsNothing)
		}
	} else if seen.generation, err = w.Generation(); err != nil || p.verified[keyOf(box.files[0])] == seen {
		return err
	}
	var drift *steer.DriftError
	if err := table.Verify(want); err == nil {
		p.verified[keyOf(box.files[0])] = seen
		return nil
	} else if !errors.As(err, &drift) {
		return err
	}
	if gone, err := p.deleted(box.files[0]); gone || err != nil {
		return err
	}
	if err := p.steer(table, box, want); err != nil {
		return err
	}
	p.log.Warn("pod table repaired", "pod", box.files[0].PodNamespace+"/"+box.files[0].PodName, "container_id", box.files[0].ContainerID, "drift", drift.Items)
	return nil
}

// open lists the TCP connections of a sandbox's pod to cluster DNS addresses.
func (p *Pods) open(box *sandbox) []steer.Connection {
	streams, err := hostnet.Streams(int(box.ns.Fd()), 53)
	if err != nil {
		p.log.Warn("a pod's connections to kube-dns are not known; steering it may reset them", "pod", Name(box.files[0]), "err", err)
	}
	var out []steer.Connection
	for _, s := range streams {
		out = append(out, steer.Connection{ClusterDNS: s.Remote.Addr(), Port: s.Local.Port()})
	}
	return out
}

// apply makes a sandbox's rules as its files have them.
func (p *Pods) apply(box *sandbox) error {
	table, err := p.backend.Open(int(box.ns.Fd()))
	if err != nil {
		return err
	}
	defer table.Close()
	return p.steer(table, box, podfile.Table(box.files...))
}

// steer makes a sandbox's table. The pod's connections to kube-dns end where they began: those that are listed after every packet of a
// connection is noted, and those that are noted until the rules come.
func (p *Pods) steer(table rules.Rules, box *sandbox, want steer.Pod) error {
	if n, ok := table.(steer.Noter); ok && len(want.Redirects) > 0 {
		noting, err := n.Note(want)
		if err != nil {
			return err
		}
		if noting { // else the table that stands knows its connections
			want.Open = p.open(box)
		}
	}
	_, err := table.Repair(want)
	return err
}

// remove removes our rules of every back end.
func (p *Pods) remove(ns *os.File) error {
	errs := []error{removeOf(p.backend, ns)}
	for _, other := range p.backend.Others() {
		errs = append(errs, removeOf(other, ns))
	}
	return errors.Join(errs...)
}

// RemoveTables removes every pod's table, for cleanup, and notes in the files that the pods are not steered any more. Each error names a
// pod that could not be entered and may still be steered: the switch must stay then.
func (p *Pods) RemoveTables(ctx context.Context) []error {
	p.reconciling.Lock()
	defer p.reconciling.Unlock()
	files, hostInode, errs := p.all()
	for box := range sandboxes(files) {
		if ctx.Err() != nil {
			box.close()
			return append(errs, fmt.Errorf("not all pod tables removed: %w", ctx.Err()))
		}
		if box.files[0].NetNSInode == hostInode { // the table there is the switch
			box.close()
			continue
		}
		if err := p.release(box); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", Name(box.files[0]), err))
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
			f.Decisions[i] = podfile.Decision{Redirect: f.Decisions[i].Redirect, Local: f.Decisions[i].Local,
				State: podfile.LeftAlone, Reason: "neardns was taken off this node"}
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
