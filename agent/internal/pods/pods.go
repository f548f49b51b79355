// Package pods is the registry of this node's pods, and does the agent's work in their network namespaces. It reads the pod files that
// the plugin writes, reports events about each pod to podstate's state table, and steers, tries and bypasses pods as the table decides.
// It repairs pod tables that are missing or changed, and removes all of them at cleanup.
//
// It enters only a netns that a pod file names, by path and inode, or that the runtime names for a running pod without a file. It never
// steers a redirect that the switch does not have, and never restores the file of a pod that is gone.
//
// On failure: an error about one pod names it, and the work on the others goes on. A pod whose netns is gone is no error, because the
// plugin's DEL or GC will follow.
package pods

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/agent/internal/pods/adoption"
	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// Pods is the registry. All methods are safe for concurrent use, except that only one goroutine may call DueTrials. Methods that change
// pods' namespaces, such as Reconcile and RemoveTables, wait for each other.
type Pods struct {
	// Release makes the switch deliver the next query of a client that it bypasses. It is nil if the back end's switch bypasses no
	// client.
	Release func(steer.Client) error
	// Excludes returns the reason why the configuration does not select a pod; "" if it does. If it is nil, all pods are selected. Set it
	// before the first use.
	Excludes func(podfile.File) string

	stateDir string
	hostNS   string // path that leads to the host's netns
	backend  rules.Kind
	log      *slog.Logger

	reconciling sync.Mutex // held while pods' namespaces are changed
	// busy is set if, since Reconcile last began, another program held iptables' lock. Pod tables are then left to the next Reconcile.
	busy    atomic.Bool
	stale   atomic.Bool   // any pod file may have changed since it was read, so the next read reads all of them
	version atomic.Uint64 // grows each time pod files may have changed, so that an Index knows that it is outdated

	// reconciling also guards verified and dead.
	verified map[key]fingerprint // pods' interfaces to the fingerprint that the pod table had when it last matched the pod's files
	dead     map[key]time.Time   // pods' interfaces to the time at which this process first found that their netns is gone

	// leaving has, by the netns's inode, the time until which Reconcile leaves the table of a pod that is no longer steered in place.
	leaving sync.Map
	due     dueTrials
	slots   chan struct{} // limits how many trials run at once

	mu       sync.Mutex // guards the fields below
	cached   cachedFiles
	switched map[steer.Redirect]bool  // redirects that the switch has, see FallbackOnly
	paths    map[path]podstate.Status // the status of each path, as podstate last returned it
	failed   failedTrials
}

// dueTrials is state that only DueTrials uses.
type dueTrials struct {
	tablesRead time.Time // when reportTables last read the pod tables
	tablesErr  error     // the error of that reading
	adoption   adoption.Adoption
	started    map[key]bool // adopted pods for which this process has allowed the first trial
}

// fingerprint identifies the state in which a pod table was verified. While it is equal to the stored one, neither the nftables rules in
// the pod's netns nor the wanted table has changed, and the rules need not be read.
type fingerprint struct {
	inode      uint64
	generation uint32 // the kernel's counter of nftables changes in that netns
	want       string // the pod table that the pod's files describe, as text
}

// Open makes a registry of the pod files below stateDir. rules is the back end that writes pods' rules. All methods must be called in the
// host's netns. Open itself reads nothing.
func Open(stateDir string, rules rules.Kind, log *slog.Logger) *Pods {
	p := &Pods{stateDir: stateDir, hostNS: "/proc/thread-self/ns/net", backend: rules, log: log,
		verified: map[key]fingerprint{}, dead: map[key]time.Time{}, slots: make(chan struct{}, maxTrials),
		paths: map[path]podstate.Status{}, failed: failedTrials{of: map[key]error{}}}
	p.Outdate()
	return p
}

// List returns all pod files that can be read, one for each network interface of a pod. The caller may keep and change the slice.
func (p *Pods) List() []podfile.File {
	files, _ := p.read()
	return slices.Clone(files)
}

// stamp is the modification time of a folder, with what is needed to know whether a later change would be visible in it.
type stamp struct {
	changed time.Time // the folder's modification time; zero if there is no folder
	seen    time.Time // when this process first saw that modification time
	settled bool      // the file system's clock has advanced since seen, so a further change would change the modification time
}

// coarse is longer than a tick of the clock that gives files their times: a jiffy, at most 10 ms (HZ=100), before Linux 6.13.
const coarse = 20 * time.Millisecond

// next returns the folder's stamp at the time now, given its previous stamp s. Call it before the folder is read.
func (s stamp) next(folder string, now time.Time) stamp {
	changed := modified(folder)
	if !changed.Equal(s.changed) || s.seen.IsZero() {
		return stamp{changed: changed, seen: now}
	}
	s.settled = now.Sub(s.seen) >= coarse
	return s
}

func modified(folder string) time.Time {
	st, err := os.Stat(folder)
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

// FallbackOnly returns the redirects that pods still use although the configuration does not have them. The switch must go on sending
// queries for their steering addresses to kube-dns. It leaves out a steering address that the configuration pairs with another cluster
// DNS address, because the switch cannot send its queries two ways. After this call, Reconcile steers pods only to the configured and
// the returned redirects.
func (p *Pods) FallbackOnly(configured []steer.Redirect) []steer.Redirect {
	files, _ := p.read()
	taken, switched := map[netip.Addr]bool{}, map[steer.Redirect]bool{}
	for _, r := range configured {
		taken[r.Steering], switched[r] = true, true
	}
	var out []steer.Redirect
	for _, f := range files {
		for _, r := range append(f.In(podfile.Steered), f.In(podfile.Pending)...) {
			if !taken[r.Steering] {
				taken[r.Steering], switched[r] = true, true
				out = append(out, r)
			}
		}
	}
	slices.SortFunc(out, func(a, b steer.Redirect) int {
		return cmp.Or(a.Steering.Compare(b.Steering), a.ClusterDNS.Compare(b.ClusterDNS))
	})
	p.mu.Lock()
	p.switched = switched
	p.mu.Unlock()
	return out
}

// HostInterfaces returns, sorted, the host's links by which steered pods' packets arrive; these cannot be uplinks. It leaves out the
// links of pending pods, because Reconcile checks a pod's link when it steers the pod.
func (p *Pods) HostInterfaces() []string {
	files, _ := p.read()
	var out []string
	for _, f := range files {
		if f.HostInterface != "" && len(f.In(podfile.Steered)) > 0 {
			out = append(out, f.HostInterface)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// OptedOut returns, sorted, the addresses of pods that opted out, whose queries the node must not intercept.
func (p *Pods) OptedOut() []netip.Addr {
	files, _ := p.read()
	var out []netip.Addr
	for _, f := range files {
		if f.OptOut {
			out = append(out, f.Addresses...)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// PodOf returns the namespace/name of the pod that has an address; "" if none is known.
func (p *Pods) PodOf(addr netip.Addr) string {
	files, _ := p.read()
	for _, f := range files {
		if f.PodName != "" && slices.Contains(f.Addresses, addr) {
			return f.PodNamespace + "/" + f.PodName
		}
	}
	return ""
}

// Name names a pod, its container and the network interface of the pod file, for messages.
func Name(f podfile.File) string {
	if f.PodName == "" {
		return fmt.Sprintf("container %.12s (%s)", f.ContainerID, f.IfName)
	}
	return fmt.Sprintf("pod %s/%s (container %.12s, %s)", f.PodNamespace, f.PodName, f.ContainerID, f.IfName)
}
