package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// del is the CNI verb DEL. It never returns an error: DEL calls the plugins in reverse order, so neardns is early, and its
// error would keep the plugins that release the pod's addresses from running. It logs what it could not remove. The agent or GC
// removes a readable state file that is left; the pod's rules end with its netns.
func del(ctx context.Context, e env, args *skel.CmdArgs) error {
	_ = run(ctx, e, "del", args, (*verb).del)
	return nil
}

func (v *verb) del(context.Context) error {
	id, ifName := v.args.ContainerID, v.args.IfName
	if err := podfile.CheckKey(id, ifName); err != nil {
		return fmt.Errorf("not an attachment of this plugin: %w", err)
	}
	f, err := podfile.Read(podfile.Path(v.conf.StateDir, id, ifName))
	v.addOutcome("had_file", err == nil)
	if err == nil {
		return v.forget(f, v.args.Netns)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		v.log.Warn("state file unreadable; the pod's rules are looked for in CNI_NETNS, if set", "verb", v.name, "container_id", id, "err", err)
	}
	var cleared error
	if v.args.Netns != "" {
		cleared = v.clearUnknown(v.args.Netns, id, ifName)
	}
	return errors.Join(cleared, podfile.Remove(v.conf.StateDir, id, ifName))
}

// forget removes what a state file records of an interface: its rules, the file, and the exemption from node interception. It removes the
// file before the exemption: while the file exists, an agent adds the exemption again.
func (v *verb) forget(f podfile.File, otherPath string) error {
	errs := []error{v.clear(f, otherPath), podfile.Remove(v.conf.StateDir, f.ContainerID, f.IfName)}
	if f.OptOut && len(f.Addresses) > 0 {
		errs = append(errs, v.withRules(-1, func(host rules.Rules) error { return host.Exempt(nil, f.Addresses) }))
	}
	return errors.Join(errs...)
}

// clear removes the rules that a state file records from the pod's netns, after checking the netns's inode: paths are reused,
// and CNI_NETNS may be another pod's by now. If the netns no longer exists, its rules do not either.
func (v *verb) clear(f podfile.File, otherPath string) error {
	defer v.useBackendOf(f)()
	ns, err := f.OpenNetNS()
	if err != nil && otherPath != "" {
		f.NetNS = otherPath
		ns, err = f.OpenNetNS()
	}
	if err != nil {
		v.log.Debug("pod's netns is gone or cannot be opened; no rules removed", "verb", v.name, "container_id", f.ContainerID, "err", err)
		return nil
	}
	defer ns.Close()
	return v.clearNS(ns, f.NetNSInode, f.ContainerID, f.IfName)
}

// clearUnknown removes the rules of an interface without a readable state file from the netns at path. It removes nothing if
// another state file has this netns: in a repeated DEL, the path may contain a process ID that was reused.
func (v *verb) clearUnknown(path, containerID, ifName string) error {
	ns, inode, err := podfile.OpenNetNS(path)
	if err != nil {
		v.log.Debug("cannot open the netns at CNI_NETNS; no rules removed", "verb", v.name, "container_id", containerID, "err", err)
		return nil
	}
	defer ns.Close()
	// an unreadable file does not show which netns it is about, so it is ignored
	files, _ := podfile.List(v.conf.StateDir)
	for _, f := range files {
		if f.NetNSInode == inode {
			v.addOutcome("note", "the netns belongs to "+f.ContainerID+" "+f.IfName)
			return nil
		}
	}
	return v.clearNS(ns, inode, containerID, ifName)
}

func (v *verb) clearNS(ns *os.File, inode uint64, containerID, ifName string) error {
	isHost, err := isHostNS(inode)
	if err != nil {
		return err
	}
	if isHost {
		v.addOutcome("note", "the netns is the host's: its rules stay")
		return nil
	}
	err = v.withRules(int(ns.Fd()), func(pod rules.Rules) error { return v.removeTable(pod, containerID, ifName, inode) })
	if err != nil {
		return fmt.Errorf("pod table in %s: %w", ns.Name(), err)
	}
	return nil
}

// isHostNS reports whether the netns with this inode is the host's.
func isHostNS(inode uint64) (bool, error) {
	own, ownInode, err := podfile.OpenNetNS(ownNamespace)
	if err != nil {
		return false, err
	}
	return inode == ownInode, own.Close()
}

// gc is the CNI verb GC: it removes, as DEL does, the rules and files of every pod interface of this network that the runtime
// does not list as valid. An unlisted state file that cannot be read is removed whatever its network.
func gc(ctx context.Context, e env, args *skel.CmdArgs) error {
	return run(ctx, e, "gc", args, (*verb).gc)
}

func (v *verb) gc(context.Context) error {
	if !v.conf.ValidKnown {
		// cnitool sends no list. If that meant that no interface is valid, every pod of the node would lose its rules.
		v.addOutcome("decision", "no list of valid attachments: nothing removed")
		return nil
	}
	valid := map[podfile.Key]bool{}
	for _, a := range v.conf.Valid {
		valid[podfile.Key{ContainerID: a.ContainerID, IfName: a.IfName}] = true
	}
	keys, err := podfile.Keys(v.conf.StateDir)
	errs := []error{err, podfile.Sweep(v.conf.StateDir, sweepOlder)}
	removed := 0
	for _, k := range keys {
		if valid[k] {
			continue
		}
		gone, err := v.collect(k)
		if gone {
			removed++
		}
		errs = append(errs, err)
	}
	v.addOutcome("valid", len(valid), "removed", removed)
	if err := errors.Join(errs...); err != nil {
		return types.NewError(codeGC, "garbage collection incomplete: "+err.Error(), "")
	}
	return nil
}

// collect removes the rules and the state file of one interface that is not in the runtime's list, if the interface belongs to
// this network: lists are per network, and a node may have neardns in several networks. If the file cannot be read, it removes only
// the file. collect returns true if it found something to remove.
func (v *verb) collect(k podfile.Key) (bool, error) {
	f, err := podfile.Read(podfile.Path(v.conf.StateDir, k.ContainerID, k.IfName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		// An unreadable file is of no use to any network.
		v.log.Warn("state file of an interface that the runtime does not list is unreadable; only the file is removed",
			"verb", v.name, "container_id", k.ContainerID, "err", err)
		return true, podfile.Remove(v.conf.StateDir, k.ContainerID, k.IfName)
	case f.Network != v.conf.Name:
		return false, nil
	}
	return true, v.forget(f, "")
}
