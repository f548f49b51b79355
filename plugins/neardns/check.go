package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// check is the CHECK verb: is this pod's steering as ADD, or since then the agent, left it?
func check(ctx context.Context, e env, args *skel.CmdArgs) error {
	return run(ctx, e, "check", args, (*verb).check)
}

func (v *verb) check(context.Context) error {
	id, ifName := v.args.ContainerID, v.args.IfName
	if err := podfile.CheckKey(id, ifName); err != nil {
		return types.NewError(types.ErrInvalidEnvironmentVariables, err.Error(), "")
	}
	path := podfile.Path(v.conf.StateDir, id, ifName)
	f, err := podfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		// A pod from before the plugin, or one whose record could not be written: it was passed through, and CRI-O, which
		// checks right after ADD, must not fail it for that.
		v.say("decision", "no pod file: not steered")
		return nil
	}
	if err != nil {
		return types.NewError(codeState, fmt.Sprintf("%v: restart the pod, or remove the file to have it taken for unsteered", err), "")
	}
	ns, inode, isHost, err := v.netns(v.args.Netns)
	if err != nil {
		return types.NewError(codeNetNS, fmt.Sprintf("CNI_NETNS: %v", err), "")
	}
	defer ns.Close()
	if inode != f.NetNSInode {
		return types.NewError(codeState, fmt.Sprintf("%s is about another network namespace than CNI_NETNS %s: restart the pod", path, v.args.Netns), "")
	}
	if len(f.In(podfile.Steered)) == 0 || isHost {
		v.sayDecisions(f)
		return checkSettings(f)
	}
	defer v.useBackendOf(f)()
	want := podfile.Table(append([]podfile.File{f}, v.siblings(id, ifName, inode)...)...)
	err = v.inRules(int(ns.Fd()), func(pod rules.Rules) error { return pod.Verify(want) })
	var drift *steer.DriftError
	if errors.As(err, &drift) {
		return types.NewError(codeDrift, fmt.Sprintf("pod table (%s) in %s: %v: the agent mends it, or restart the pod", tableName(v.backend), v.args.Netns, drift), "")
	}
	if err != nil {
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("pod table in %s cannot be read: %v", v.args.Netns, err), "")
	}
	v.sayDecisions(f)
	if err := checkSettings(f); err != nil {
		return err
	}
	return v.checkSwitch()
}

// checkSettings looks whether an overlay still stands in the pod's resolv.conf.
func checkSettings(f podfile.File) error {
	if err := drifted(f.DNS); err != nil {
		return types.NewError(codeDrift, fmt.Sprintf("DNS settings: %v: restart the pod", err), "")
	}
	return nil
}

// checkSwitch looks whether the host has our table at all: without one a steered pod depends on the agent alone. What is in
// the table is the agent's to compare, since it may have put more there than a plugin knows of.
func (v *verb) checkSwitch() error {
	return v.inRules(-1, func(host rules.Rules) error {
		present, err := host.Present()
		if err != nil {
			return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("the host's rules cannot be read: %v", err), "")
		}
		if !present {
			return types.NewError(codeDrift, fmt.Sprintf("the host has no %s, so the pod would have no answers without the agent: start the agent, or any pod, to have it again", hostRulesName(v.backend)), "")
		}
		return nil
	})
}

// status is the STATUS verb. A failure makes the whole node NotReady, so it fails only where ADD would fail every pod.
func status(ctx context.Context, e env, args *skel.CmdArgs) error {
	return run(ctx, e, "status", args, (*verb).status)
}

func (v *verb) status(context.Context) error {
	if v.conf.OnUnsupported != unsupportedFail || v.conf.Steer == steerOff {
		return nil
	}
	var addrs []netip.Addr
	for _, r := range v.conf.Redirects {
		addrs = append(addrs, r.ClusterDNS)
	}
	err := v.backend.Supported(-1, addrs...)
	if err == nil {
		err = writable(v.conf.StateDir)
	}
	if err != nil {
		return types.NewError(types.ErrPluginNotAvailable, fmt.Sprintf("no pod could be steered (%v), and onUnsupported is fail: mend that, or set it to allow", err), "")
	}
	return nil
}

// writable tries what ADD does to the state folder.
func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".status-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
