// Package pods is the agent's registry of the pods on its node, fed by the files that the plugin writes.
//
// It steers pods that waited for the proof of the fallback, mends the tables of steered pods, and takes them away at
// cleanup. It must never steer a pod that the plugin left alone, and never enter a netns whose identity differs from the
// file's. The plugin owns the files; this package only changes the decisions in them.
//
// Failure policy: one pod's trouble is that pod's alone: it is named in the returned error, and the others are tended.
package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
)

// poll is the slow look at the folder, for what the watch may miss (a folder removed and made again).
const poll = 10 * time.Second

// Registry reads the files afresh at each call, so it never disagrees with them. Its methods may be called by one goroutine
// at a time.
type Registry struct {
	stateDir string
	log      *slog.Logger
}

// Open returns the registry over a state folder, which need not exist yet.
func Open(stateDir string, log *slog.Logger) *Registry { return &Registry{stateDir: stateDir, log: log} }

// List returns the attachments on this node whose netns still lives. Files that cannot be read are said in the error.
func (r *Registry) List() ([]podfile.File, error) {
	files, errs := podfile.List(r.stateDir)
	alive := files[:0:0]
	for _, f := range files {
		ns, err := f.OpenNetNS()
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone without DEL (a reboot, a runtime that crashed): GC's business
		} else if err == nil {
			_ = ns.Close() // only looked at
		}
		alive = append(alive, f)
	}
	return alive, errors.Join(errs...)
}

// FallbackOnly returns redirects that a pod is steered by and the configuration no longer has. They must stay in the switch,
// or those pods would send into nothing.
func (r *Registry) FallbackOnly(configured []steer.Redirect) []steer.Redirect {
	var out []steer.Redirect
	files, _ := r.List() // Tend says what could not be read
	for _, f := range files {
		for _, red := range f.In(podfile.Steered) {
			known := func(o steer.Redirect) bool { return o.Steering == red.Steering }
			if !slices.ContainsFunc(configured, known) && !slices.ContainsFunc(out, known) {
				out = append(out, red)
			}
		}
	}
	return out
}

// HostInterfaces returns the links by which steered pods' packets enter the host.
func (r *Registry) HostInterfaces() []string {
	var out []string
	files, _ := r.List()
	for _, f := range files {
		if f.HostInterface != "" && len(f.In(podfile.Steered)) > 0 && !slices.Contains(out, f.HostInterface) {
			out = append(out, f.HostInterface)
		}
	}
	return out
}

// OptedOut returns the addresses of pods that opted out of everything.
func (r *Registry) OptedOut() []netip.Addr {
	var out []netip.Addr
	files, _ := r.List()
	for _, f := range files {
		if f.OptOut {
			out = append(out, f.Addresses...)
		}
	}
	return out
}

// Tend steers what was pending and is proven now. With deep it also looks at each steered pod's table and mends it. It
// returns how many attachments are in each state: steered, pending, left-alone (by the furthest decision of each).
func (r *Registry) Tend(ctx context.Context, proven func(netip.Addr) bool, deep bool) (map[string]int, error) {
	counts := map[string]int{string(podfile.Steered): 0, string(podfile.Pending): 0, string(podfile.LeftAlone): 0}
	files, err := r.List()
	errs := []error{err}
	for i, f := range files {
		if ctx.Err() != nil {
			break
		}
		due := slices.ContainsFunc(f.In(podfile.Pending), func(p steer.Redirect) bool { return proven(p.ClusterDNS) })
		if due || deep && len(f.In(podfile.Steered)) > 0 {
			if files[i], err = r.tend(f, files, proven); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("pod %s: %w", name(f), err))
			}
		}
		counts[string(state(files[i]))]++
	}
	return counts, errors.Join(errs...)
}

func state(f podfile.File) podfile.State {
	for _, s := range []podfile.State{podfile.Steered, podfile.Pending} {
		if len(f.In(s)) > 0 {
			return s
		}
	}
	return podfile.LeftAlone
}

// tend brings one attachment's decisions and its netns's table to what is due. The file is written before the table: rules
// without a file would be found by nobody.
func (r *Registry) tend(f podfile.File, all []podfile.File, proven func(netip.Addr) bool) (podfile.File, error) {
	ns, err := f.OpenNetNS()
	if err != nil {
		return f, err
	}
	defer func() { _ = ns.Close() }()
	before := f
	f.Decisions = slices.Clone(f.Decisions)
	for i := range f.Decisions {
		d := &f.Decisions[i]
		if d.State == podfile.Pending && proven(d.Redirect.ClusterDNS) {
			if err := r.decide(d, ns, &f.HostInterface); err != nil {
				return before, err
			}
		}
	}
	attachments := []podfile.File{f}
	for _, o := range all {
		if o.NetNSInode == f.NetNSInode && o.IfName != f.IfName {
			attachments = append(attachments, o)
		}
	}
	if !slices.Equal(before.Decisions, f.Decisions) {
		if err := podfile.Update(r.stateDir, f); err != nil {
			return before, err
		}
	}
	rules, err := steer.OpenNftables(int(ns.Fd()))
	if err != nil {
		return before, err
	}
	defer func() { _ = rules.Close() }()
	drift, err := rules.Repair(podfile.Table(attachments...))
	if err != nil {
		// Back to pending: the next round tries again.
		return before, errors.Join(err, podfile.Update(r.stateDir, before))
	}
	if len(drift) > 0 {
		r.log.Info("pod table set", "pod", name(f), "iface", f.IfName, "what", drift[0])
	}
	return f, nil
}

// decide looks again at the pod's way, which may have changed since ADD, and settles one decision.
func (r *Registry) decide(d *podfile.Decision, ns *os.File, hostInterface *string) error {
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("open the host's netns: %w", err)
	}
	defer func() { _ = host.Close() }()
	entry, err := steer.Way(int(ns.Fd()), int(host.Fd()), d.Redirect)
	var no *steer.WayError
	switch {
	case errors.As(err, &no):
		d.State, d.Reason = podfile.LeftAlone, no.Reason
		return nil
	case err != nil:
		return err
	}
	rules, err := steer.OpenNftables(-1)
	if err != nil {
		return err
	}
	defer func() { _ = rules.Close() }()
	uplink, err := rules.IsUplink(entry)
	if err != nil {
		return err
	}
	if uplink {
		d.State, d.Reason = podfile.LeftAlone, entry+" also leads away from the node, where the cache must not answer"
		return nil
	}
	d.State, d.Reason, *hostInterface = podfile.Steered, "", entry
	return nil
}

// RemoveTables takes the pod table out of every pod's netns and removes the files of those that are free of it. Each
// pod that could not be entered is an error that names it; its file stays, and the switch must then stay too.
func (r *Registry) RemoveTables(ctx context.Context) error {
	files, errs := podfile.List(r.stateDir)
	for _, f := range files {
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
		if err := r.remove(f); err != nil {
			errs = append(errs, fmt.Errorf("pod %s (netns %s): %w", name(f), f.NetNS, err))
		}
	}
	return errors.Join(errs...)
}

func (r *Registry) remove(f podfile.File) error {
	ns, err := f.OpenNetNS()
	switch {
	case errors.Is(err, fs.ErrNotExist): // its rules went with it
	case err != nil:
		return err
	default:
		defer func() { _ = ns.Close() }()
		rules, err := steer.OpenNftables(int(ns.Fd()))
		if err != nil {
			return err
		}
		defer func() { _ = rules.Close() }()
		if err := rules.Remove(); err != nil {
			return err
		}
	}
	return podfile.Remove(r.stateDir, f.ContainerID, f.IfName)
}

func name(f podfile.File) string {
	if f.PodName == "" {
		return f.ContainerID
	}
	return f.PodNamespace + "/" + f.PodName
}

// Watch ticks when pod files come, change or go, until ctx ends, which closes the channel. Ticks are coalesced. Where the
// kernel cannot tell (no inotify left), the folder is looked at every ten seconds alone.
func (r *Registry) Watch(ctx context.Context) (<-chan struct{}, error) {
	dir := filepath.Dir(podfile.Path(r.stateDir, "x", "x"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the pods' folder: %w", err)
	}
	var events chan fsnotify.Event
	var lost chan error
	w, err := fsnotify.NewWatcher()
	if err == nil {
		if err = w.Add(dir); err == nil {
			events, lost = w.Events, w.Errors
		}
	}
	if err != nil {
		r.log.Warn("pod files are only polled", "path", dir, "err", err)
	}
	ticks := make(chan struct{}, 1)
	go func() {
		defer close(ticks)
		if w != nil {
			defer func() { _ = w.Close() }()
		}
		t := time.NewTicker(poll)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-events:
				if filepath.Ext(e.Name) != ".json" { // the temporary file of a write
					continue
				}
			case <-lost:
			case <-t.C:
				if w != nil {
					_ = w.Add(dir) // again, in case the folder was replaced
				}
			}
			select {
			case ticks <- struct{}{}:
			default:
			}
		}
	}()
	return ticks, nil
}
