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

// del is the DEL verb. It never returns an error: DEL runs the chain backwards, so this plugin comes first, and an error would keep the
// plugins that release the pod's addresses from running. It logs what it could not remove; the agent or GC removes that later.
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
	known := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.log.Warn("pod file unreadable", "verb", v.name, "container_id", id, "err", err)
	}
	var errs []error
	if known {
		errs = append(errs, v.clear(f, v.args.Netns))
	} else if v.args.Netns != "" {
		errs = append(errs, v.clearUnknown(v.args.Netns, id, ifName))
	}
	// The file goes first: as long as it exists, an agent restores the exemption.
	errs = append(errs, podfile.Remove(v.conf.StateDir, id, ifName))
	if known && f.OptOut && len(f.Addresses) > 0 {
		errs = append(errs, v.withRules(-1, func(host rules.Rules) error { return host.Exempt(nil, f.Addresses) }))
	}
	v.addOutcome("had_file", known)
	return errors.Join(errs...)
}

// clear removes a recorded attachment's rules from its netns, which it finds by inode: paths are reused, and CNI_NETNS may be another
// pod's by now. If the netns is gone, so are its rules.
func (v *verb) clear(f podfile.File, otherPath string) error {
	defer v.useBackendOf(f)()
	ns, err := f.OpenNetNS()
	if err != nil && otherPath != "" {
		f.NetNS = otherPath
		ns, err = f.OpenNetNS()
	}
	if err != nil {
		v.log.Debug("netns not opened", "verb", v.name, "container_id", f.ContainerID, "err", err)
		return nil
	}
	defer ns.Close()
	return v.clearNS(ns, f.NetNSInode, f.ContainerID, f.IfName)
}

// clearUnknown does the same for an attachment without a usable file, in the netns that the runtime names, unless a file shows that the
// netns now belongs to another attachment: a second DEL may name a process id that was reused.
func (v *verb) clearUnknown(path, containerID, ifName string) error {
	ns, inode, err := podfile.OpenNetNS(path)
	if err != nil {
		v.log.Debug("netns not opened", "verb", v.name, "container_id", containerID, "err", err)
		return nil
	}
	defer ns.Close()
	files, _ := podfile.List(v.conf.StateDir) // an unreadable file is evidence for neither case
	for _, f := range files {
		if f.NetNSInode == inode {
			v.addOutcome("note", "the netns belongs to "+f.ContainerID+" "+f.IfName)
			return nil
		}
	}
	return v.clearNS(ns, inode, containerID, ifName)
}

func (v *verb) clearNS(ns *os.File, inode uint64, containerID, ifName string) error {
	own, ownInode, err := podfile.OpenNetNS(ownNamespace)
	if err != nil {
		return err
	}
	own.Close()
	if inode == ownInode {
		v.addOutcome("note", "CNI_NETNS is the host's: its table stays")
		return nil
	}
	err = v.withRules(int(ns.Fd()), func(pod rules.Rules) error { return v.removeTable(pod, containerID, ifName, inode) })
	if err != nil {
		return fmt.Errorf("pod table in %s: %w", ns.Name(), err)
	}
	return nil
}

// gc is the GC verb: it removes, as DEL does, each attachment that the runtime does not list.
func gc(ctx context.Context, e env, args *skel.CmdArgs) error {
	return run(ctx, e, "gc", args, (*verb).gc)
}

func (v *verb) gc(context.Context) error {
	if !v.conf.ValidKnown {
		// cnitool sends no list. If that meant "no attachment is valid", every pod of the node would lose its rules.
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

// collect removes one unlisted attachment if it belongs to this network. Lists are per network, and another network may chain this
// plugin too.
func (v *verb) collect(k podfile.Key) (bool, error) {
	f, err := podfile.Read(podfile.Path(v.conf.StateDir, k.ContainerID, k.IfName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		// An unreadable file is useless to every network.
		v.log.Warn("pod file unreadable, removed", "verb", v.name, "container_id", k.ContainerID, "err", err)
		return true, podfile.Remove(v.conf.StateDir, k.ContainerID, k.IfName)
	case f.Network != v.conf.Name:
		return false, nil
	}
	errs := []error{v.clear(f, ""), podfile.Remove(v.conf.StateDir, k.ContainerID, k.IfName)}
	if f.OptOut && len(f.Addresses) > 0 {
		errs = append(errs, v.withRules(-1, func(host rules.Rules) error { return host.Exempt(nil, f.Addresses) }))
	}
	return true, errors.Join(errs...)
}
