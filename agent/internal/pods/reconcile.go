package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// The states by which Reconcile counts pods' network interfaces: LeftAlone in the host's netns, Gone if the netns is gone or not visible,
// Bypassed if one of the interface's paths is bypassed, else Steered or Pending if one of its paths is, else LeftAlone.
const (
	Steered   = string(podfile.Steered)
	Pending   = string(podfile.Pending)
	LeftAlone = string(podfile.LeftAlone)
	Bypassed  = "given-back" // an older word, which metrics and outputs keep
	Gone      = "gone"
)

// maxSteering is the maximum number of pods whose tables Reconcile writes at the same time. That work mostly waits for the kernel, and a
// node may have a hundred pods to steer when its fallback is verified.
const maxSteering = 8

// Fallback is the state of the fallback to one cluster DNS address: whether kube-dns answers queries that the agent does not.
type Fallback struct {
	Verified bool // the fallback check has succeeded, and the host's rules are in place
	// Lost is the reason if the fallback is lost for good, so that pods must not stay steered; else "". A fallback that is merely not
	// verified at the moment is not lost.
	Lost string
}

// Reconcile reports lost fallbacks and changes of Excludes to podstate, and steers and bypasses pods as podstate decides. It steers only
// pods whose route leads through this host, and only to redirects that the switch has. With deep it also repairs the tables of steered
// pods whose fallback is verified; a pod without its table reaches kube-dns directly. It returns how many pods' network interfaces are in
// each state.
func (p *Pods) Reconcile(ctx context.Context, fallback func(netip.Addr) Fallback, deep bool) (map[string]int, error) {
	counts := map[string]int{Steered: 0, Pending: 0, LeftAlone: 0, Bypassed: 0, Gone: 0}
	host, hostInode, err := podfile.OpenNetNS(p.hostNS)
	if err != nil {
		return counts, fmt.Errorf("open the host's netns: %w", err)
	}
	defer host.Close()
	files, errs := p.reconcileAll(ctx, host, hostInode, fallback, deep, counts)
	if !deep || p.busy.Load() {
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
		// Repair one pod at a time, so that a new pod does not wait until all other tables are checked.
		err := p.inSandbox(box.files[0], func(box *sandbox) error {
			return p.repair(box, func(a netip.Addr) bool { return fallback(a).Verified })
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", Name(box.files[0]), err))
		}
		if p.busy.Load() { // without this, each further pod would wait for the iptables lock
			break
		}
	}
	return counts, errors.Join(errs...)
}

// reconcileAll reconciles every sandbox, except for repairs of tables, and adds each network interface to counts, by state. It returns the
// pod files as they were before.
func (p *Pods) reconcileAll(ctx context.Context, host *os.File, hostInode uint64, fallback func(netip.Addr) Fallback, deep bool,
	counts map[string]int) ([]podfile.File, []error) {
	p.reconciling.Lock()
	defer p.reconciling.Unlock()
	p.busy.Store(false)
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
		atOnce = 1 // iptables programs wait for each other anyway
	}
	var mu sync.Mutex // guards counts and errs
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
			// A pod that shares the host's netns is never steered, because a pod table must never be in the host's netns.
			ofHost := box.files[0].NetNSInode == hostInode
			var more []error
			if !ofHost && box.ns != nil && !p.busy.Load() { // without this, each further pod would wait for the iptables lock
				more = p.reconcile(&box, host, fallback)
			}
			p.busy.CompareAndSwap(false, slices.ContainsFunc(more, iptables.Busy))
			mu.Lock()
			defer mu.Unlock()
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

// reconcile steers and bypasses the paths of one sandbox, as podstate's table decides.
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
		return []error{fmt.Errorf("%s: %w", Name(box.files[0]), err)} // steer no path before all decided bypasses are done
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

// steerPending steers the pending paths of box.files[i] that p.route allows; a path is the pod's queries to one cluster DNS address. It
// writes the pod table first and then the file, so that the plugin's CHECK never finds a steered pod without its rules. If the agent ends
// between the two, the next agent finds the path pending and steers it again.
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
	steers := len(after.In(podfile.Steered)) > len(before.In(podfile.Steered)) // if false, route only found reasons not to steer a path
	if steers {
		if applyErr := p.apply(box); applyErr != nil {
			box.files[i] = before
			return errors.Join(err, applyErr)
		}
	}
	updateErr := p.writeDecisions(after)
	if gone := errors.Is(updateErr, fs.ErrNotExist); gone && steers {
		return errors.Join(err, p.remove(box.ns)) // DEL may have removed the rules before the agent added them
	} else if gone {
		return err
	}
	if updateErr == nil && steers {
		p.log.Info("pod steered", "pod", after.PodNamespace+"/"+after.PodName, "container_id", after.ContainerID, "iface", after.IfName)
	}
	return errors.Join(err, updateErr)
}

// writeDecisions writes the decisions, host interface and back end of f into the pod file on disk. It keeps the rest of that file, which
// may have changed since f was read.
func (p *Pods) writeDecisions(f podfile.File) error {
	defer p.outdateFile(fileName(f))
	return podfile.Amend(p.stateDir, f.ContainerID, f.IfName, func(now *podfile.File) bool {
		if now.NetNSInode != f.NetNSInode {
			return false // the file is now for another netns
		}
		now.Decisions, now.HostInterface, now.Backend = f.Decisions, f.HostInterface, f.Backend
		return true
	})
}

// deleted reports whether the pod file is gone, because DEL has removed it. DEL may then have removed the pod's rules too, before the agent
// adds them.
func (p *Pods) deleted(f podfile.File) (bool, error) {
	_, err := os.Lstat(podfile.Path(p.stateDir, f.ContainerID, f.IfName))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// route returns f with those paths steered that need no trial first (podstate.Waiting), whose fallback is verified, whose redirect the
// switch has, and whose route leads through this host. It marks a path with another route as not steered.
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
		// Check again what the plugin checked at ADD, because the routes may have changed since.
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

// notUplink returns an error if iface is an uplink: the switch does not deliver packets that arrive by an uplink to the agent.
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
