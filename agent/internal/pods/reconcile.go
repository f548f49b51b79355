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

// maxSteering bounds how many pods are steered at the same time. Steering mostly waits for the kernel, and a node that adopts its pods
// steers a hundred.
const maxSteering = 8

// sandbox is one netns with its attachments. It has one pod table, whatever their number.
type sandbox struct {
	files []podfile.File
	ns    *os.File // nil: gone, or not visible to the agent
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
	counts := map[string]int{Steered: 0, Pending: 0, LeftAlone: 0, Bypassed: 0, Gone: 0}
	host, hostInode, err := podfile.OpenNetNS(p.hostNS)
	if err != nil {
		return counts, fmt.Errorf("open the host's netns: %w", err)
	}
	defer host.Close()
	files, errs := p.reconcileAll(ctx, host, hostInode, fallback, deep, counts)
	if !deep || slices.ContainsFunc(errs, iptables.Busy) {
		return counts, errors.Join(errs...)
	}
	for box := range sandboxes(files) {
		box.close()
		if box.ns == nil || box.files[0].NetNSInode == hostInode {
			continue
		}
		if ctx.Err() != nil {
			return counts, errors.Join(append(errs, ctx.Err())...)
		}
		// Each in turn, so that no new pod waits for the tables of all others.
		err := p.inSandbox(box.files[0], func(box *sandbox) error {
			return p.repair(box, func(a netip.Addr) bool { return fallback(a).Verified })
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", Name(box.files[0]), err))
		}
		if iptables.Busy(err) { // else each pod in turn would wait for the iptables lock
			break
		}
	}
	return counts, errors.Join(errs...)
}

// reconcileAll reconciles every sandbox but for repairs, and counts the attachments. It returns their files as they were before.
func (p *Pods) reconcileAll(ctx context.Context, host *os.File, hostInode uint64, fallback func(netip.Addr) Fallback, deep bool,
	counts map[string]int) ([]podfile.File, []error) {
	p.reconciling.Lock()
	defer p.reconciling.Unlock()
	if deep {
		p.stale.Store(true) // in case the watch missed a change
	}
	files, readErrs := p.read()
	errs := slices.Clone(readErrs)
	if deep {
		p.sweep(files)
	}
	atOnce := maxSteering
	if p.backend.Caps().Programs {
		atOnce = 1 // iptables programs wait for each other's lock anyway
	}
	var mu sync.Mutex // guards counts, errs and busy
	busy := false
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for box := range sandboxes(files) {
		if ctx.Err() != nil {
			box.close()
			wg.Wait()
			return files, append(errs, ctx.Err())
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			defer box.close()
			// A pod that shares the host's netns is never steered: no pod table may ever be there.
			ofHost := box.files[0].NetNSInode == hostInode
			mu.Lock()
			skip := busy || ofHost || box.ns == nil // busy: else each pod in turn would wait for the iptables lock
			mu.Unlock()
			var more []error
			if !skip {
				more = p.reconcile(&box, host, fallback)
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
	return files, errs
}

// inSandbox calls do with the sandbox of an attachment as its files are now. Nothing else changes it meanwhile.
func (p *Pods) inSandbox(f podfile.File, do func(*sandbox) error) error {
	p.reconciling.Lock()
	defer p.reconciling.Unlock()
	for box := range sandboxes(p.attachmentsOf(f)) {
		defer box.close()
		if box.ns != nil && slices.ContainsFunc(box.files, func(g podfile.File) bool { return keyOf(g) == keyOf(f) }) {
			return do(&box)
		}
	}
	return nil // it is gone
}

// sandboxes groups attachments by the netns that their paths lead to, in the order of the files, and opens each. If a file's path leads
// nowhere or to another netns than the file records, its sandbox has ns == nil, because another pod may have that inode now. The caller
// closes each sandbox.
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
	for _, same := range paths { // rarely more than one path: those that lead to the netns form one sandbox
		first := -1
		for _, i := range same {
			switch {
			case len(same) == 1 || !leadsToNetNS(out[i].files[0]):
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

// leadsToNetNS reports whether an attachment's path leads to the netns that its file records.
func leadsToNetNS(f podfile.File) bool {
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

// enter opens an attachment's netns. In a container, the path may be visible only below the host's root.
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

// reconcile steers and bypasses one sandbox's paths as the table decides.
func (p *Pods) reconcile(box *sandbox, host *os.File, fallback func(netip.Addr) Fallback) []error {
	var errs []error
	verified := func(a netip.Addr) bool { return fallback(a).Verified }
	_, err := p.decide(box, func(f podfile.File, d podfile.Decision) (signal, bool) {
		if s, differs := p.selection(f, d); differs {
			return s, true
		}
		lost := fallback(d.Redirect.ClusterDNS).Lost
		return signal{event: podstate.FallbackLost, reason: lost}, lost != "" && d.State == podfile.Steered
	})
	if err != nil {
		return []error{fmt.Errorf("%s: %w", Name(box.files[0]), err)} // nothing is steered that should not be
	}
	for i := range box.files {
		if len(box.files[i].In(podfile.Pending)) == 0 {
			continue
		}
		if err := p.steerPending(box, i, host, verified); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", Name(box.files[i]), err))
		}
	}
	return errs
}

// steerPending steers the pending paths of one attachment whose fallback is verified: first the table, then the file, so that a CHECK never
// finds a steered pod without its rules. If the agent ends between the two, the next one finds the path pending and steers it again.
func (p *Pods) steerPending(box *sandbox, i int, host *os.File, verified func(netip.Addr) bool) error {
	before := box.files[i]
	after, err := p.route(before, box.ns, host, verified)
	if len(before.In(podfile.Steered)) == 0 {
		after.Backend = p.backend.Recorded()
	}
	if reflect.DeepEqual(after.Decisions, before.Decisions) {
		return err
	}
	box.files[i] = after
	steers := len(after.In(podfile.Steered)) > len(before.In(podfile.Steered)) // else only reasons to leave a path alone were added
	if steers {
		if applyErr := p.apply(box); applyErr != nil {
			box.files[i] = before
			return errors.Join(err, applyErr)
		}
	}
	updateErr := p.writeDecisions(after)
	p.Outdate()
	if gone := errors.Is(updateErr, fs.ErrNotExist); gone && steers {
		return errors.Join(err, p.remove(box.ns)) // DEL may have removed the rules before the agent added its own
	} else if gone {
		return err
	}
	if updateErr == nil && steers {
		p.log.Info("pod steered", "pod", after.PodNamespace+"/"+after.PodName, "container_id", after.ContainerID, "iface", after.IfName)
	}
	return errors.Join(err, updateErr)
}

// writeDecisions writes an attachment's decisions, and by what they are in force, into its file. It leaves the rest, which may have changed
// since it was read.
func (p *Pods) writeDecisions(f podfile.File) error {
	return podfile.Amend(p.stateDir, f.ContainerID, f.IfName, func(now *podfile.File) bool {
		if now.NetNSInode != f.NetNSInode {
			return false // the file is now for another netns
		}
		now.Decisions, now.HostInterface, now.Backend = f.Decisions, f.HostInterface, f.Backend
		return true
	})
}

// deleted reports whether DEL removed the file meanwhile. If so, DEL may have removed the rules before the agent added its own.
func (p *Pods) deleted(f podfile.File) (bool, error) {
	_, err := os.Lstat(podfile.Path(p.stateDir, f.ContainerID, f.IfName))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// route returns f with its pending paths steered if their fallback is verified, the switch knows them, and their route leads through this
// host. A path with another route is not steered.
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
		// The plugin checked at ADD; the routes may have changed since.
		iface, err := hostnet.Way(int(ns.Fd()), int(host.Fd()), d.Redirect.ClusterDNS)
		if err == nil {
			err = p.notUplink(host, iface)
		}
		var noWay *hostnet.WayError
		switch {
		case errors.As(err, &noWay):
			d.State, d.Reason = podfile.LeftAlone, noWay.Reason
		case err != nil:
			errs = append(errs, fmt.Errorf("look up the route to %s: %w", d.Redirect.ClusterDNS, err))
		default:
			d.State, d.Reason = podfile.Steered, ""
			if f.HostInterface == "" {
				f.HostInterface = iface
			}
		}
	}
	return f, errors.Join(errs...)
}

// notUplink returns an error for an uplink, because the switch drops packets that enter there.
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

// repair repairs a steered sandbox's table. It also reports pods whose tables keep no evidence to podstate.
func (p *Pods) repair(box *sandbox, verified func(netip.Addr) bool) error {
	want := podfile.Table(box.files...)
	if len(want.Redirects) == 0 {
		return p.removeUnrecorded(box)
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
	if w, ok := table.(steer.BypassReader); !ok {
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

// removeUnrecorded removes, once per agent, a table that no file records as steering: the file was lost, or its writer ended before it
// wrote it. A trial of such a pod would never be answered, because the table gives answers another source.
func (p *Pods) removeUnrecorded(box *sandbox) error {
	at, seen := keyOf(box.files[0]), fingerprint{inode: box.files[0].NetNSInode}
	if p.verified[at] == seen {
		return nil
	}
	if err := removeOf(p.backend, box.ns); err != nil {
		return fmt.Errorf("remove a table that no pod file records: %w", err)
	}
	p.verified[at] = seen
	return nil
}

// connections lists the TCP connections of a sandbox's pod to cluster DNS addresses.
func (p *Pods) connections(box *sandbox) []steer.Connection {
	streams, err := hostnet.Streams(int(box.ns.Fd()), 53)
	if err != nil {
		p.log.Warn("cannot list a pod's TCP connections to kube-dns; steering the pod may reset them", "pod", Name(box.files[0]), "err", err)
	}
	var out []steer.Connection
	for _, s := range streams {
		out = append(out, steer.Connection{ClusterDNS: s.Remote.Addr(), Port: s.Local.Port()})
	}
	return out
}

// apply gives a sandbox the rules that its files describe.
func (p *Pods) apply(box *sandbox) error {
	table, err := p.backend.Open(int(box.ns.Fd()))
	if err != nil {
		return err
	}
	defer table.Close()
	return p.steer(table, box, podfile.Table(box.files...))
}

// steer writes a sandbox's table. Connections that the pod opened to kube-dns stay there. The table first notes the packets of every
// connection; the connections listed after that, and those noted until the rules are in place, are exempt.
func (p *Pods) steer(table rules.Rules, box *sandbox, want steer.Pod) error {
	if n, ok := table.(steer.ConnectionRecorder); ok && len(want.Redirects) > 0 {
		recording, err := n.RecordConnections(want)
		if err != nil {
			return err
		}
		if recording { // else the existing table already knows the connections
			want.Open = p.connections(box)
		}
	}
	_, err := table.Repair(want)
	return err
}

// remove removes neardns's rules of every back end from a netns.
func (p *Pods) remove(ns *os.File) error {
	errs := []error{removeOf(p.backend, ns)}
	for _, other := range p.backend.Others() {
		errs = append(errs, removeOf(other, ns))
	}
	return errors.Join(errs...)
}

// RemoveTables removes every pod's table, for cleanup, and records in the files that the pods are no longer steered. Each error names a pod
// that could not be entered and may still be steered: then the caller must not remove the switch.
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
	// Remove rules even if the files have nothing steered, because an ADD may have been interrupted.
	if err := p.remove(box.ns); err != nil {
		return err
	}
	for _, f := range box.files {
		f.Decisions = slices.Clone(f.Decisions)
		for i := range f.Decisions {
			f.Decisions[i] = podfile.Decision{Redirect: f.Decisions[i].Redirect, Local: f.Decisions[i].Local,
				State: podfile.LeftAlone, Reason: "neardns was removed from this node"}
		}
		if err := p.writeDecisions(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// surelyGone returns nil if the files' netns no longer exists: its path leads to another netns, or is missing from a folder that is
// visible. It is strict because a container without the host's mounts cannot enter living namespaces either.
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
