package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// repair repairs the pod table of a steered sandbox, and removes a pod table that no pod file records. If the back end's pod tables keep no
// record of unanswered queries (iptables), it also reports that to podstate, so that a trial checks the pod.
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
	f := box.files[0]
	p.log.Warn("pod's packet rules repaired", "pod", f.PodNamespace+"/"+f.PodName, "container_id", f.ContainerID, "drift", drift.Items)
	return nil
}

// removeUnrecorded removes a pod table that no pod file records: the pod has not been steered for leaveTime, its file was lost, or the
// process that steered it ended before it wrote the file. The table rewrites the source of answers, so a trial of such a pod would never be
// answered. With a back end that counts no changes (iptables), a netns without such a table is not checked again until the pod was steered,
// because each check starts programs.
func (p *Pods) removeUnrecorded(box *sandbox) error {
	at, seen := keyOf(box.files[0]), fingerprint{inode: box.files[0].NetNSInode}
	if until, leaves := p.leaving.Load(seen.inode); leaves && time.Now().Before(until.(time.Time)) {
		return nil
	}
	p.leaving.Delete(seen.inode)
	table, err := p.backend.Open(int(box.ns.Fd()))
	if err != nil {
		return err
	}
	defer table.Close()
	counter, counts := table.(steer.BypassReader)
	if counts {
		seen.generation, err = counter.Generation()
	}
	if err != nil || p.verified[at] == seen {
		return err
	}
	if present, err := table.Present(); err != nil {
		return err
	} else if present {
		if err := table.Remove(); err != nil {
			return fmt.Errorf("remove a table that no pod file records: %w", err)
		}
		if counts { // the removal changed the count
			if seen.generation, err = counter.Generation(); err != nil {
				return err
			}
		}
	}
	p.verified[at] = seen
	return nil
}

// connections returns the remote address and local port of each open TCP connection from a sandbox to port 53.
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

// apply writes the pod table that a sandbox's files describe.
func (p *Pods) apply(box *sandbox) error {
	table, err := p.backend.Open(int(box.ns.Fd()))
	if err != nil {
		return err
	}
	defer table.Close()
	return p.steer(table, box, podfile.Table(box.files...))
}

// steer writes a sandbox's pod table. With nftables, it exempts TCP connections that the pod already has to kube-dns, which would otherwise
// be reset. First the table only records which connections send packets. Exempt are the connections that the kernel lists after that, and
// those that the table records until its rules are complete.
func (p *Pods) steer(table rules.Rules, box *sandbox, want steer.Pod) error {
	if n, ok := table.(steer.ConnectionRecorder); ok && len(want.Redirects) > 0 {
		recording, err := n.RecordConnections(want)
		if err != nil {
			return err
		}
		if recording { // if false, the pod table existed before and already has the exempt connections
			want.Open = p.connections(box)
		}
	}
	_, err := table.Repair(want)
	if errors.Is(err, unix.ENFILE) { // the table's record is full: a pod opens more connections than it has room for
		want.Open = nil
		_, err = table.Repair(want)
	}
	return err
}

// remove removes the rules of every back end from a netns.
func (p *Pods) remove(ns *os.File) error {
	return errors.Join(removeOf(p.backend, ns), removeOf(p.backend.Other(), ns))
}

// RemoveTables removes every pod's table, for cleanup, and records in the files that the pods are no longer steered. After an error a pod
// may still be steered, for example because its netns cannot be entered, so the caller must not remove the switch.
func (p *Pods) RemoveTables(ctx context.Context) []error {
	p.reconciling.Lock()
	defer p.reconciling.Unlock()
	host, hostInode, err := podfile.OpenNetNS(p.hostNS)
	if err != nil {
		return []error{fmt.Errorf("open the host's netns: %w", err)}
	}
	_ = host.Close() // only the inode is needed
	p.stale.Store(true)
	files, errs := p.read()
	errs = slices.Clone(errs)
	for box := range sandboxes(files) {
		if ctx.Err() != nil {
			box.close()
			return append(errs, fmt.Errorf("not all pod tables removed: %w", ctx.Err()))
		}
		if box.files[0].NetNSInode == hostInode { // the table in the host's netns is the host table, not a pod table
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
		if len(podfile.Table(box.files...).Redirects) == 0 || slices.ContainsFunc(box.files, surelyGone) {
			return nil // no file records a steered path, or the table went with the netns
		}
		f := box.files[0]
		return fmt.Errorf("its netns cannot be entered, so its table may still be there: %w "+
			"(make the path visible to the agent, or delete %s if the pod is gone)",
			box.err, podfile.Path(p.stateDir, f.ContainerID, f.IfName))
	}
	defer box.ns.Close()
	// Remove the rules even if the files record no steered path: an agent that was killed may have written the table and not the file.
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

// ForgetEntries removes the conntrack entries that lead pods' ports to steering addresses, for cleanup: a client that takes such a port
// again would query an address that is gone. Call it once the host's rules are gone, which translate the answers until then.
func (p *Pods) ForgetEntries() {
	files, _ := p.read()
	for box := range sandboxes(files) {
		if box.ns != nil {
			p.forgetEntries(box, func(podfile.Decision) bool { return true })
			box.close()
		}
	}
}

// forgetEntries removes a sandbox's conntrack entries for these paths. With an iptables back end they outlive the rules, and each query
// from their port keeps them. Without ctnetlink they end by themselves.
func (p *Pods) forgetEntries(box sandbox, which func(podfile.Decision) bool) {
	if p.backend.Caps().Leaves {
		return
	}
	for _, f := range box.files {
		for _, d := range f.Decisions {
			if which(d) {
				_ = hostnet.ForgetAnswersOf(int(box.ns.Fd()), d.Redirect.Steering)
			}
		}
	}
}

// surelyGone reports whether a pod file's netns certainly no longer exists: its path leads to another netns, or is missing from a folder
// that this process sees. It is false in a container without the host's mounts, which cannot enter living namespaces either.
func surelyGone(f podfile.File) bool {
	ns, inode, err := podfile.OpenNetNS(f.NetNS)
	if err == nil {
		ns.Close()
		return inode != f.NetNSInode
	}
	return errors.Is(err, fs.ErrNotExist) && folderSeen(f.NetNS)
}

// removeOf removes the rules of back end k from a netns. It does nothing if there are none.
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
