package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/neardns/neardns/pkg/attached"
	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/resolvconf"
	resolver "github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/tick"
)

const (
	// adoptEvery is how often Adopt checks whether the runtime has started or removed a container. A check costs a stat of a few folders.
	adoptEvery = time.Second
	// maxUnread is the longest time between two scans, even if the folders do not change.
	maxUnread = 30 * time.Second
	// adoptWait is the longest wait for a container's lock, which the plugin holds during ADD and DEL.
	adoptWait = time.Second
)

// Adoption has the arguments of Adopt.
type Adoption struct {
	Root  string   // folder of libcni's cache, which has a file for each network interface of a running container
	Paths []string // patterns of the paths of sandboxes' resolv.conf, for sandbox.Find
	// Wanted returns the current settings for pods.
	Wanted func() Wanted
}

// Wanted are the settings for pods, as the plugin's ADD would apply them.
type Wanted struct {
	Redirects []steer.Redirect
	Locals    []steer.Local
	Rules     overlay.Rules // for pods' DNS settings
	Alone     string        // why no pod of this node may be steered; "" if pods may
}

// Adopt finds running pods without a pod file, which usually started before the plugin was in the CNI configuration, and writes a file for
// each, until ctx ends. The file has what ADD would have written, but the pod's resolv.conf does not change, and even with steer: always a
// path is steered only after a trial, because a running pod must not lose a query.
func (p *Pods) Adopt(ctx context.Context, a Adoption) {
	k := &adopter{Adoption: a, pods: p, hadFile: map[string]time.Time{}}
	for {
		if k.due(time.Now()) {
			k.scan(ctx)
		}
		if !tick.Pause(ctx, adoptEvery) {
			return
		}
	}
}

// adopter is the state of Adopt. Only one goroutine uses it.
type adopter struct {
	Adoption
	pods    *Pods
	scanned time.Time      // when the last scan began
	stamps  []stamp        // of the folders that scan reads, to see changes
	retry   bool           // the last scan could not read a file, so the next scan is due at the next check
	files   []podfile.File // pod files as the current scan read them, and those that it wrote
	// hadFile has the files in libcni's cache for which there was a pod file since this process started, by name, each with its
	// modification time. If such a pod file is gone, the plugin's DEL has removed it although the runtime has not finished the DEL, so
	// the pod is not adopted again.
	hadFile map[string]time.Time
	// failed has what logOnce was called for in the current scan (a cache file, pod file, container or folder), each with its reason.
	// lastFailed is that of the scan before.
	failed, lastFailed map[string]string
}

// due reports whether a scan is due: the folders that it reads may have changed, the last scan is to be repeated, or maxUnread has passed.
func (k *adopter) due(now time.Time) bool {
	folders := append(attached.Folders(k.Root), k.pods.dir())
	changed := k.retry || now.Sub(k.scanned) >= maxUnread || k.stamps == nil
	if k.stamps == nil {
		k.stamps = make([]stamp, len(folders))
	}
	for i, folder := range folders {
		next := k.stamps[i].next(folder, now)
		changed = changed || !next.settled || !k.stamps[i].settled
		k.stamps[i] = next
	}
	return changed
}

// scan adopts running pods that have no pod file.
func (k *adopter) scan(ctx context.Context) {
	k.scanned, k.retry = time.Now(), false
	k.failed, k.lastFailed = map[string]string{}, k.failed
	paths, err := attached.List(k.Root)
	if err != nil {
		k.logOnce(k.Root, slog.LevelWarn, "cannot list running pods; they are not adopted", err.Error())
		return
	}
	k.pods.Outdate()
	files, _ := k.pods.read() // Reconcile reports unreadable files
	of := map[string]podfile.File{}
	for _, f := range files {
		of[attached.FileName(f.Network, f.ContainerID, f.IfName)] = f
	}
	k.files = slices.Clone(files)
	for _, a := range k.candidates(paths, of) {
		if ctx.Err() != nil {
			return
		}
		if err := k.adopt(ctx, a); err != nil {
			level := slog.LevelInfo
			if errors.Is(err, fs.ErrNotExist) {
				level = slog.LevelDebug // after a reboot, hundreds of files in libcni's cache may name pods that are gone
			}
			k.logOnce(a.File, level, "running pod not adopted", err.Error(),
				"pod", a.String(), "container_id", a.ContainerID, "netns", a.NetNS)
		}
	}
}

// candidates returns the running pods without a pod file that may be adopted now, the newest first: if two files in libcni's cache name the
// same netns, the older one is a leftover.
func (k *adopter) candidates(paths []string, of map[string]podfile.File) []attached.Pod {
	var out []attached.Pod
	hadFile := map[string]time.Time{}
	for _, path := range paths {
		name := filepath.Base(path)
		if _, ok := of[name]; ok {
			hadFile[name] = modified(path)
			continue
		}
		if made, ok := k.hadFile[name]; ok && made.Equal(modified(path)) {
			hadFile[name] = made
			continue
		}
		a, err := attached.Read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			k.retry = k.retry || time.Since(modified(path)) < maxUnread // the runtime may still be writing it
			k.logOnce(name, slog.LevelDebug, "unreadable file in libcni's cache skipped", err.Error())
			continue
		}
		if !a.IsPod() {
			continue // skip a loopback interface, or a container that is not a pod
		}
		out = append(out, a)
	}
	k.hadFile = hadFile
	slices.SortStableFunc(out, func(a, b attached.Pod) int { return b.Made.Compare(a.Made) })
	return out
}

// adopt writes the pod file of one running pod. It returns an error if the pod cannot be adopted, and nil if it is adopted or need not be.
func (k *adopter) adopt(ctx context.Context, a attached.Pod) error {
	p := k.pods
	if err := podfile.CheckKey(a.ContainerID, a.IfName); err != nil {
		return err
	}
	if !filepath.IsAbs(a.NetNS) {
		return fmt.Errorf("the runtime names no network namespace for it (%q)", a.NetNS)
	}
	ns, inode, err := openNetNS(a.NetNS)
	if err != nil {
		return fmt.Errorf("its network namespace is gone, or not visible to the agent: %w", err)
	}
	defer ns.Close() //nolint:errcheck // opened only to read
	host, hostInode, err := podfile.OpenNetNS(p.hostNS)
	if err != nil {
		return fmt.Errorf("open the host's netns: %w", err)
	}
	defer host.Close() //nolint:errcheck // opened only to read
	if inode == hostInode {
		return errors.New("it is in the host's network namespace")
	}
	if err := checkAddresses(ns, a.IfName, a.Addresses); err != nil {
		return err
	}
	unlock, err := k.lock(ctx, a.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	// While this lock is held, no ADD and no other agent makes a pod file for this container.
	has := func(folder string) bool { return !modified(filepath.Join(folder, a.File)).IsZero() }
	if !slices.ContainsFunc(attached.Folders(k.Root), has) {
		return nil // the runtime has removed the container meanwhile
	}
	if !modified(podfile.Path(p.stateDir, a.ContainerID, a.IfName)).IsZero() {
		return nil // ADD or another agent has written the pod file meanwhile
	}
	for _, f := range k.files {
		if f.NetNSInode == inode && f.ContainerID != a.ContainerID && leadsToNetNS(f) {
			return fmt.Errorf("its netns now belongs to %s", Name(f))
		}
	}
	f := adoptedFile(a, k.Wanted(), inode, p.backend.Recorded(), k.dnsSettings(a))
	if err := checkRoutes(&f, ns, host); err != nil {
		return err
	}
	if err := podfile.Write(p.stateDir, f); err != nil {
		return err
	}
	p.outdateFile(fileName(f))
	k.files = append(k.files, f)
	k.hadFile[a.File] = a.Made
	p.log.Info("running pod adopted; steered only once test queries from its netns are answered", "pod", a.String(),
		"container_id", a.ContainerID, "iface", a.IfName, "annotations_known", a.Annotations != nil)
	return nil
}

// lock takes a container's lock, for which the plugin's ADD and DEL wait. It creates the state folder, because there may have been no ADD
// yet.
func (k *adopter) lock(ctx context.Context, containerID string) (unlock func(), err error) {
	if err := os.MkdirAll(k.pods.stateDir, 0o755); err != nil { //nolint:gosec // the same mode as the plugin uses
		return nil, fmt.Errorf("make state folder: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, adoptWait)
	defer cancel()
	unlock, err = podfile.Lock(ctx, k.pods.stateDir, containerID)
	if err != nil {
		unlock()
	}
	return unlock, err
}

// dnsSettings returns the pod's DNS settings: those that the runtime reported, or else those in the pod's resolv.conf. The result is empty
// if both are unknown.
func (k *adopter) dnsSettings(a attached.Pod) resolvconf.Settings {
	if a.DNS != nil {
		return *a.DNS
	}
	file, err := resolver.Find(k.Paths, a.ContainerID)
	if err != nil {
		return resolvconf.Settings{}
	}
	own, _ := resolvconf.Parse(file.Text).Settings() // a nameserver line without an address is ignored
	return own
}

// adoptedFile returns the pod file for a running pod: its paths are pending and untried, unless the pod must not be steered. It is pure.
func adoptedFile(a attached.Pod, want Wanted, inode uint64, backend string, own resolvconf.Settings) podfile.File {
	wanted := want.Rules.For("podDNS", a.Namespace, a.Annotations)
	f := podfile.File{
		ContainerID: a.ContainerID, IfName: a.IfName, Network: a.Network, NetNS: a.NetNS, NetNSInode: inode,
		PodName: a.Name, PodNamespace: a.Namespace, PodUID: a.UID, Addresses: a.Addresses,
		Backend: backend, Adopted: podfile.ByCache, DNS: &podfile.DNS{State: podfile.AsGiven, Settings: own},
		Annotations: wanted.Annotations,
	}
	if a.DNS != nil {
		f.Nameservers, f.Searches, f.Options = a.DNS.Nameservers, a.DNS.Searches, a.DNS.Options
	}
	if wanted.Wants() {
		f.DNS.Reason = "the pod is older than neardns on this node; restart it to apply its DNS settings"
	}
	if a.Annotations == nil {
		f.Ignored = append(f.Ignored, podfile.Ignored{What: "the pod's annotations",
			Why: "the runtime reports annotations only at ADD; restart the pod"})
	}
	reason := overlay.NotClusterDNS(own.Nameservers, want.Redirects, want.Locals)
	if want.Alone != "" {
		reason = want.Alone
	}
	if wanted.OptOut {
		reason = overlay.OptedOut
	}
	for _, r := range want.Redirects {
		d := podfile.Decision{Redirect: r, State: podfile.LeftAlone, Reason: reason}
		if reason == "" {
			d.Local = overlay.LocalOf(own.Nameservers, want.Locals, r.ClusterDNS)
			d.State, d.Untried = podfile.Pending, true
			d.Reason = "the pod is older than neardns on this node; its path to the agent has not been tried yet"
		}
		f.Decisions = append(f.Decisions, d)
	}
	return f
}

// checkRoutes marks those redirects in f as not steered for which the pod's queries do not pass this host's switch. ADD does the same.
func checkRoutes(f *podfile.File, ns, host *os.File) error {
	for i := range f.Decisions {
		d := &f.Decisions[i]
		if d.State == podfile.LeftAlone && !f.OptOut {
			continue // adoptedFile found that none of the pod's redirects may be steered
		}
		way := hostnet.Ways(int(ns.Fd()), int(host.Fd()), d.Redirect.ClusterDNS)[0]
		var noWay *hostnet.WayError
		switch {
		case way.Err == nil:
			f.HostInterface = cmp.Or(f.HostInterface, way.HostInterface)
		case f.OptOut:
		case errors.As(way.Err, &noWay):
			*d = podfile.Decision{Redirect: d.Redirect, State: podfile.LeftAlone, Reason: noWay.Reason}
		default:
			return fmt.Errorf("look up the route to %s: %w", d.Redirect.ClusterDNS, way.Err)
		}
	}
	return nil
}

// openNetNS opens a netns by its path, and returns its inode. If the agent runs in a container without that path, it uses the path below
// the host's root.
func openNetNS(path string) (*os.File, uint64, error) {
	ns, inode, err := podfile.OpenNetNS(path)
	if err == nil {
		return ns, inode, nil
	}
	if ns, inode, rootErr := podfile.OpenNetNS("/proc/1/root" + path); rootErr == nil {
		return ns, inode, nil
	}
	return nil, 0, err
}

// checkAddresses returns an error if the interface ifName in the netns has none of addrs. Paths and inodes of namespaces are reused, and
// a file in libcni's cache may outlive its container, so the netns may belong to another container.
func checkAddresses(ns *os.File, ifName string, addrs []netip.Addr) error {
	var have []netip.Addr
	err := hostnet.InNetNS(int(ns.Fd()), func() error {
		i, err := net.InterfaceByName(ifName)
		if err != nil {
			return fmt.Errorf("its netns has no %s, so another container uses the netns now: %w", ifName, err)
		}
		list, err := i.Addrs()
		for _, a := range list {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				have = append(have, prefix.Addr())
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(have, a) }) {
		return fmt.Errorf("%s in its netns has none of the addresses %s, so another container uses the netns now",
			ifName, steer.JoinAddrs(addrs, ", "))
	}
	return nil
}

// logOnce logs why something (about) failed, unless it failed for the same reason in the last scan.
func (k *adopter) logOnce(about string, level slog.Level, message, why string, args ...any) {
	k.failed[about] = why
	if k.lastFailed[about] != why {
		k.pods.log.Log(context.Background(), level, message, append(args, "err", why)...) //nolint:sloglint // the callers pass literals
	}
}
