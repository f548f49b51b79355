package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	// adoptEvery is how often Adopt checks whether the runtime attached or removed a container. It costs a stat of a folder.
	adoptEvery = time.Second
	// maxUnread is how long the folders are not read if they do not change.
	maxUnread = 30 * time.Second
	// adoptWait bounds the wait for the plugin's call for the same container.
	adoptWait = time.Second
)

// Adoption has the inputs of Adopt.
type Adoption struct {
	Root  string   // of libcni's cache
	Paths []string // of sandboxes' resolv.conf, as sandbox.Find takes them
	// Wanted returns the settings in effect.
	Wanted func() Wanted
	// Runtime returns the pods that the runtime reported, by container ID; settled is false while more reports may come. nil: no runtime
	// reports pods.
	Runtime func() (pods map[string]attached.Pod, settled bool)
}

// Wanted are the settings that ADD would apply.
type Wanted struct {
	Redirects []steer.Redirect
	Locals    []steer.Local
	Rules     overlay.Rules // for pods' DNS settings
	Alone     string        // the reason if no pod is steered at all
}

// Adopt makes files for pods that run already and have none, until ctx ends: those that were attached before the plugin was in the network's
// list. Their files have what ADD would have written, but each path is untried: a running pod must lose no query. Files of adopted pods that
// the runtime removed go, with the pod's rules.
func (p *Pods) Adopt(ctx context.Context, a Adoption) {
	k := &adopter{Adoption: a, pods: p, had: map[string]time.Time{}, said: map[string]string{}}
	for {
		if k.due(time.Now()) {
			k.look(ctx)
		}
		if !tick.Pause(ctx, adoptEvery) {
			return
		}
	}
}

// adopter is the state of Adopt, used by one goroutine.
type adopter struct {
	Adoption
	pods   *Pods
	looked time.Time
	stamps []stamp        // of the folders
	again  bool           // something was not to be decided yet
	told   int            // how many pods the runtime had told of
	files  []podfile.File // as this look knows them
	// had are attachments that had a file in this process's time, and when they were made: where theirs is gone, the plugin's DEL was
	// called, and the rest of the DEL is under way.
	had  map[string]time.Time
	said map[string]string // why an attachment is not adopted, as it was logged
}

// due tells whether a look may find news.
func (k *adopter) due(now time.Time) bool {
	folders := append(attached.Folders(k.Root), k.pods.dir())
	changed := k.again || now.Sub(k.looked) >= maxUnread || k.stamps == nil
	if k.stamps == nil {
		k.stamps = make([]stamp, len(folders))
	}
	for i, folder := range folders {
		next := k.stamps[i].next(folder, now)
		changed = changed || !next.settled || !k.stamps[i].settled
		k.stamps[i] = next
	}
	if k.Runtime != nil {
		pods, _ := k.Runtime()
		changed = changed || len(pods) != k.told
		k.told = len(pods)
	}
	return changed
}

// look adopts what is new, and lets go what was taken down.
func (k *adopter) look(ctx context.Context) {
	k.looked, k.again = time.Now(), false
	paths, known, err := attached.List(k.Root)
	if err != nil {
		k.say(k.Root, slog.LevelWarn, "running pods cannot be looked for", err.Error())
		return
	}
	delete(k.said, k.Root)
	k.pods.Outdate()
	files, _ := k.pods.read() // Reconcile reports those that cannot be read
	of := map[string]podfile.File{}
	for _, f := range files {
		of[attached.FileName(f.Network, f.ContainerID, f.IfName)] = f
	}
	k.letGo(files, paths, known)
	k.files = slices.Clone(files)
	for _, a := range k.candidates(paths, of) {
		if ctx.Err() != nil {
			return
		}
		if err := k.adopt(ctx, a); err != nil {
			level := slog.LevelInfo
			if errors.Is(err, fs.ErrNotExist) {
				level = slog.LevelDebug // a reboot may leave hundreds of files of such
			}
			k.say(a.File+a.ContainerID, level, "running pod not adopted", err.Error(), "pod", a.String(), "container_id", a.ContainerID, "netns", a.NetNS)
		}
	}
	for name := range k.said { // of what is gone
		if !strings.Contains(name, "-") || slices.ContainsFunc(paths, func(path string) bool { return strings.HasPrefix(name, filepath.Base(path)) }) {
			continue
		}
		delete(k.said, name)
	}
}

// candidates are the pods without a file, the newest first: of two that name one netns, the older is a file that was left behind.
func (k *adopter) candidates(paths []string, of map[string]podfile.File) []attached.Pod {
	told, settled := map[string]attached.Pod(nil), true
	if k.Runtime != nil {
		told, settled = k.Runtime()
		told = maps.Clone(told)
	}
	var out []attached.Pod
	had := map[string]time.Time{}
	for _, path := range paths {
		name := filepath.Base(path)
		if f, ok := of[name]; ok {
			had[name] = modified(path)
			delete(told, f.ContainerID)
			continue
		}
		if made, ok := k.had[name]; ok && made.Equal(modified(path)) {
			had[name] = made
			continue
		}
		a, err := attached.Read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			k.again = k.again || time.Since(modified(path)) < maxUnread // it may be half written
			k.say(name, slog.LevelDebug, "attachment passed over", err.Error())
			continue
		}
		if !a.IsPod() {
			continue // a loopback, or another program's container
		}
		if by, ok := told[a.ContainerID]; ok && a.Annotations == nil {
			a.Annotations = by.Annotations
		}
		delete(told, a.ContainerID)
		if a.Annotations == nil && !settled {
			k.again = true // the runtime may be about to tell whether its owner wants it steered
			continue
		}
		out = append(out, a)
	}
	k.had = had
	for _, f := range of {
		delete(told, f.ContainerID)
	}
	for _, id := range slices.Sorted(maps.Keys(told)) {
		if told[id].IsPod() && told[id].NetNS != "" {
			out = append(out, told[id])
		}
	}
	slices.SortStableFunc(out, func(a, b attached.Pod) int { return b.Made.Compare(a.Made) })
	return out
}

// adopt makes the file of one pod, or tells why it has none.
func (k *adopter) adopt(ctx context.Context, a attached.Pod) error {
	p := k.pods
	if err := podfile.CheckKey(a.ContainerID, a.IfName); err != nil {
		return err
	}
	if !filepath.IsAbs(a.NetNS) {
		return fmt.Errorf("the runtime names no network namespace of it (%q)", a.NetNS)
	}
	ns, inode, err := openNetNS(a.NetNS)
	if err != nil {
		return fmt.Errorf("it is gone, or not to be seen from here: %w", err)
	}
	defer ns.Close() //nolint:errcheck // only to look
	host, hostInode, err := podfile.OpenNetNS(p.hostNS)
	if err != nil {
		return fmt.Errorf("open the host's netns: %w", err)
	}
	defer host.Close() //nolint:errcheck // only to look
	if inode == hostInode {
		return errors.New("it is in the host's network namespace")
	}
	if err := holds(ns, a.IfName, a.Addresses); err != nil {
		return err
	}
	unlock, err := k.lock(ctx, a.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	// Under the lock no ADD or DEL of ours is under way for this container, and none of another agent.
	if a.File != "" && !slices.ContainsFunc(attached.Folders(k.Root), func(folder string) bool { return !modified(filepath.Join(folder, a.File)).IsZero() }) {
		return nil // taken down meanwhile
	}
	if !modified(podfile.Path(p.stateDir, a.ContainerID, a.IfName)).IsZero() {
		return nil // ADD or another agent was faster
	}
	for _, f := range k.files {
		if f.NetNSInode == inode && f.ContainerID != a.ContainerID && leads(f) {
			return fmt.Errorf("its netns is that of %s by now", Name(f))
		}
	}
	f := adopted(a, k.Wanted(), inode, p.backend.Recorded(), k.settings(a))
	if err := findWays(&f, ns, host); err != nil {
		return err
	}
	if err := podfile.Write(p.stateDir, f); err != nil {
		return err
	}
	p.Outdate()
	k.files = append(k.files, f)
	if a.File != "" {
		k.had[a.File] = a.Made
	}
	delete(k.said, a.File+a.ContainerID)
	p.log.Info("running pod adopted", "pod", a.String(), "container_id", a.ContainerID, "iface", a.IfName, "by", f.Adopted,
		"annotations_known", a.Annotations != nil)
	return nil
}

// lock keeps the plugin's calls for a container away. The folder is made by the first ADD, or here.
func (k *adopter) lock(ctx context.Context, containerID string) (unlock func(), err error) {
	if err := os.MkdirAll(k.pods.stateDir, 0o755); err != nil { //nolint:gosec // as the plugin makes it
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

// settings are the pod's own, as ADD would learn them: of the runtime, else of the pod's file.
func (k *adopter) settings(a attached.Pod) resolvconf.Settings {
	if a.DNS != nil {
		return *a.DNS
	}
	file, err := resolver.Find(k.Paths, a.ContainerID)
	if err != nil {
		return resolvconf.Settings{} // not known
	}
	own, _ := resolvconf.Parse(file.Text).Settings() // a nameserver line without an address names nobody
	return own
}

// adopted is the file of a pod that ran already. It is pure.
func adopted(a attached.Pod, want Wanted, inode uint64, backend string, own resolvconf.Settings) podfile.File {
	wish := want.Rules.For("podDNS", a.Namespace, a.Annotations)
	f := podfile.File{
		ContainerID: a.ContainerID, IfName: a.IfName, Network: a.Network, NetNS: a.NetNS, NetNSInode: inode,
		PodName: a.Name, PodNamespace: a.Namespace, PodUID: a.UID, Addresses: a.Addresses,
		Backend: backend, OptOut: wish.OptOut, Adopted: podfile.ByCache,
		DNS: &podfile.DNS{State: podfile.AsGiven, Settings: own}, SearchCompletion: wish.SearchCompletion, KernelHits: wish.KernelHits, Ignored: wish.Ignored,
	}
	if a.File == "" {
		f.Adopted = podfile.ByNRI
	}
	if a.DNS != nil {
		f.Nameservers, f.Searches, f.Options = a.DNS.Nameservers, a.DNS.Searches, a.DNS.Options
	}
	if wish.Wants() {
		f.DNS.Reason = "the pod ran before neardns came: its DNS settings are laid when it is made anew"
	}
	if a.Annotations == nil {
		f.Ignored = append(f.Ignored, podfile.Ignored{What: "the pod's annotations",
			Why: "the runtime tells nobody of them after ADD: enable its NRI for the agent, or restart the pod"})
	}
	reason := overlay.AsksOthers(own.Nameservers, want.Redirects, want.Locals)
	if want.Alone != "" {
		reason = want.Alone
	}
	if wish.OptOut {
		reason = overlay.OptedOut
	}
	for _, r := range want.Redirects {
		d := podfile.Decision{Redirect: r, State: podfile.LeftAlone, Reason: reason}
		if reason == "" {
			d.Local = overlay.LocalOf(own.Nameservers, want.Locals, r.ClusterDNS)
			d.State, d.Reason, d.Untried = podfile.Pending, "the pod ran already: its path to the agent is tried first", true
		}
		f.Decisions = append(f.Decisions, d)
	}
	return f
}

// findWays leaves those redirects alone whose queries would not pass this host's switch, as ADD does.
func findWays(f *podfile.File, ns, host *os.File) error {
	for i := range f.Decisions {
		d := &f.Decisions[i]
		if d.State == podfile.LeftAlone && !f.OptOut {
			continue // for all redirects alike
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
			return fmt.Errorf("look for the way to %s: %w", d.Redirect.ClusterDNS, way.Err)
		}
	}
	return nil
}

// openNetNS opens a netns by its path, which may be visible only from the host's root.
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

// holds tells whether a netns has one of the addresses on the interface: paths and numbers of namespaces are used again, and a file of
// the cache may outlive its container.
func holds(ns *os.File, ifName string, addrs []netip.Addr) error {
	var have []netip.Addr
	err := hostnet.InNetNS(int(ns.Fd()), func() error {
		i, err := net.InterfaceByName(ifName)
		if err != nil {
			return fmt.Errorf("its netns has no %s, and is another container's by now: %w", ifName, err)
		}
		list, err := i.Addrs()
		for _, a := range list {
			if prefix, ok := a.(*net.IPNet); ok {
				if addr, ok := netip.AddrFromSlice(prefix.IP); ok {
					have = append(have, addr.Unmap())
				}
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(have, a) }) {
		return fmt.Errorf("%s in its netns has none of the addresses %s: another container's by now", ifName, steer.JoinAddrs(addrs, ", "))
	}
	return nil
}

// letGo ends the adoption of pods that the runtime took down. known tells that the cache can be seen at all.
func (k *adopter) letGo(files []podfile.File, paths []string, known bool) {
	there := map[string]bool{}
	for _, path := range paths {
		there[filepath.Base(path)] = true
	}
	for _, f := range files {
		if f.Adopted == "" {
			continue
		}
		down := f.Adopted == podfile.ByCache && known && !there[attached.FileName(f.Network, f.ContainerID, f.IfName)]
		if !down && k.pods.surelyGone([]podfile.File{f}) != nil {
			continue
		}
		if err := k.pods.drop(f); err != nil {
			k.again = true
			k.say(f.ContainerID+"-", slog.LevelWarn, "adopted pod that was taken down is not let go", err.Error(), "pod", f.PodNamespace+"/"+f.PodName, "container_id", f.ContainerID)
			continue
		}
		k.pods.log.Info("adopted pod was taken down", "pod", f.PodNamespace+"/"+f.PodName, "container_id", f.ContainerID)
	}
}

// drop does for an attachment what the plugin's DEL does: rules, then file.
func (p *Pods) drop(f podfile.File) error {
	p.reconciling.Lock()
	defer p.reconciling.Unlock()
	files, hostInode, errs := p.all()
	if hostInode == 0 {
		return errors.Join(errs...)
	}
	for box := range sandboxes(files) {
		at := slices.IndexFunc(box.files, func(g podfile.File) bool { return keyOf(g) == keyOf(f) })
		if at < 0 || box.ns == nil || f.NetNSInode == hostInode {
			box.close()
			continue
		}
		defer box.close()
		box.files = slices.Delete(slices.Clone(box.files), at, at+1)
		var err error
		if len(podfile.Table(box.files...).Redirects) == 0 {
			err = p.remove(box.ns)
		} else {
			err = p.apply(&box)
		}
		if err != nil {
			return err
		}
		break
	}
	return p.forget(f)
}

// say logs what is news about one thing.
func (k *adopter) say(about string, level slog.Level, message, why string, args ...any) {
	if k.said[about] == why {
		return
	}
	k.said[about] = why
	k.pods.log.Log(context.Background(), level, message, append(args, "err", why)...) //nolint:sloglint // the callers' are literals
}
