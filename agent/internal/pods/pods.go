// Package pods is the registry of this node's pods, and works in their network namespaces: it reads the files that the plugin writes,
// reports what it sees of each pod to the table in podstate, and steers, tries and bypasses pods as the table decides. It repairs pod
// tables that vanished, and removes all of them at cleanup.
//
// It never enters a netns other than the one that a file names by path and inode, never steers a redirect that the switch does not know,
// and never writes the file of a pod that is gone.
//
// On failure: an error about one pod names it, and the work on the others goes on. A pod whose netns is gone is no error: the plugin's DEL
// or GC will come.
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

// Pods is the registry. All methods are safe for concurrent use; a call of Reconcile or RemoveTables waits for the one before.
type Pods struct {
	// Release lets the next query of a client that the switch bypasses pass to the agent; nil: the back end bypasses no client.
	Release func(steer.Client) error
	// Excludes returns why the configuration does not select a pod; "" if it does. nil: all pods are selected. Set it before the first use.
	Excludes func(podfile.File) string

	stateDir string
	hostNS   string // path of the host's netns
	backend  rules.Kind
	log      *slog.Logger

	reconciling sync.Mutex    // held while pods' namespaces are changed
	busy        atomic.Bool   // a change since Reconcile began found iptables' lock held; others leave pods' tables to the next Reconcile
	stale       atomic.Bool   // any file may have changed since it was read
	version     atomic.Uint64 // how often that was so, for an Index

	// reconciling guards the next two, too.
	verified map[key]fingerprint // of a pod's table when Verify last found no drift
	dead     map[key]time.Time   // when this process first saw that a file's netns is gone

	leaving sync.Map // until when a pod that is no longer steered keeps its table: time.Time by the netns's inode
	due     dueTrials
	slots   chan struct{} // of the trials that run at a time

	mu       sync.Mutex // guards the fields below
	cached   cachedFiles
	switched map[steer.Redirect]bool // what the switch knows, see FallbackOnly
	paths    map[path]podstate.Status
	failed   failedTrials
}

// dueTrials is what only DueTrials uses.
type dueTrials struct {
	tablesRead time.Time // when the pods' own tables were last read
	tablesErr  error     // of that reading
	adoption   adoption.Adoption
	started    map[key]bool // adopted pods that this process has started to try
}

// fingerprint shows that a pod's table is unchanged since it was verified, without reading its rules.
type fingerprint struct {
	inode      uint64
	generation uint32 // the kernel's count of changes in that netns
	want       string
}

// Open makes a registry of the pod files under stateDir. All its methods must be called in the host's netns; nothing is read yet.
// The pods' rules are those of the back end.
func Open(stateDir string, rules rules.Kind, log *slog.Logger) *Pods {
	p := open(stateDir, "/proc/thread-self/ns/net", log)
	p.backend = rules
	return p
}

func open(stateDir, hostNS string, log *slog.Logger) *Pods {
	p := &Pods{stateDir: stateDir, hostNS: hostNS, log: log, verified: map[key]fingerprint{}, dead: map[key]time.Time{},
		slots: make(chan struct{}, maxTrials), paths: map[path]podstate.Status{}, failed: failedTrials{of: map[key]error{}}}
	p.Outdate()
	return p
}

// List returns the pods' attachments, as far as their files can be read. The caller may keep and change the slice.
func (p *Pods) List() []podfile.File {
	files, _ := p.read()
	return slices.Clone(files)
}

// all reads the files again and returns them with the inode of the host's netns. If that inode is unknown it returns no file, since one of
// them may be for the host's netns.
func (p *Pods) all() (files []podfile.File, hostInode uint64, errs []error) {
	p.stale.Store(true)
	files, errs = p.read()
	errs = slices.Clone(errs)
	host, hostInode, err := podfile.OpenNetNS(p.hostNS)
	if err != nil {
		return nil, 0, append(errs, fmt.Errorf("open the host's netns: %w", err))
	}
	_ = host.Close() // only the inode is needed
	return files, hostInode, errs
}

// LookAgain marks the files as changed if their folder changed, before the watch reports it: the next read is not older than this call.
func (p *Pods) LookAgain() {
	changed := modified(p.dir())
	p.mu.Lock()
	same := p.cached.folder.settled && changed.Equal(p.cached.folder.changed)
	p.mu.Unlock()
	if !same {
		p.Outdate()
	}
}

// stamp is the time at which the folder of the pod files was read.
type stamp struct {
	changed time.Time // the folder's modification time; zero if there is no folder
	seen    time.Time // when this process first saw that modification time
	settled bool      // the file system's clock has ticked since, so that another change would show
}

// coarse is longer than a tick of a file system's clock: a jiffy, at most 10 ms (HZ=100), before Linux 6.13.
const coarse = 20 * time.Millisecond

// next returns the stamp of a read that begins now.
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

// FallbackOnly returns the redirects that pods still name and the configuration does not. The switch must go on sending queries for
// their steering addresses to kube-dns. A steering address that is configured with another cluster DNS address is not among them: it can
// go one way only. The configured and the returned redirects are those that Reconcile may steer pods to from then on.
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

// HostInterfaces returns the links by which steered pods' packets enter the host, sorted: these cannot be uplinks. It leaves out the links
// of pending pods, because they are checked only when the pod is steered.
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

// OptedOut returns the addresses of pods that must not be intercepted on the node, sorted.
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

// PodOf names the pod that has an address, as namespace/name; "" if none is known.
func (p *Pods) PodOf(addr netip.Addr) string {
	files, _ := p.read()
	for _, f := range files {
		if f.PodName != "" && slices.Contains(f.Addresses, addr) {
			return f.PodNamespace + "/" + f.PodName
		}
	}
	return ""
}

// Stale returns the attachments whose netns is gone, or cannot be seen from here.
func (p *Pods) Stale() []podfile.File {
	files, _ := p.read()
	var out []podfile.File
	for _, f := range files {
		ns, err := enter(f)
		if err != nil {
			out = append(out, f)
			continue
		}
		ns.Close()
	}
	return out
}

// Name names the pod of an attachment, for messages.
func Name(f podfile.File) string {
	if f.PodName == "" {
		return fmt.Sprintf("container %.12s (%s)", f.ContainerID, f.IfName)
	}
	return fmt.Sprintf("pod %s/%s (container %.12s, %s)", f.PodNamespace, f.PodName, f.ContainerID, f.IfName)
}
