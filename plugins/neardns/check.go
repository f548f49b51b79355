package main

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// check is the CNI verb CHECK. For a pod that its state file records as steered, it compares the pod's rules with that file, and checks
// that the host has neardns's rules. For any pod whose resolv.conf neardns changed, it compares the DNS settings in resolv.conf with those
// in the state file. A pod without a state file passes.
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
		// The pod started before the plugin was installed, or ADD could not write its file. Such a pod is not steered and
		// works, so CHECK must succeed: CRI-O runs it right after ADD.
		v.addOutcome("decision", "no pod file: not steered")
		return nil
	}
	if err != nil {
		return failure(codeState, "%v: restart the pod, or remove the file to treat the pod as not steered", err)
	}
	ns, inode, isHost, err := v.netns(v.args.Netns)
	if err != nil {
		return failure(codeNetNS, "CNI_NETNS: %v", err)
	}
	defer ns.Close()
	if inode != f.NetNSInode {
		return failure(codeState, "%s belongs to another network namespace than CNI_NETNS %s: restart the pod", path, v.args.Netns)
	}
	if len(f.In(podfile.Steered)) == 0 || isHost {
		v.logDecisions(f)
		return checkSettings(f)
	}
	defer v.useBackendOf(f)()
	want := podfile.Table(append([]podfile.File{f}, v.siblings(id, ifName, inode)...)...)
	err = v.withRules(int(ns.Fd()), func(pod rules.Rules) error { return pod.Verify(want) })
	var drift *steer.DriftError
	if errors.As(err, &drift) {
		return failure(codeDrift, "pod table (%s) in %s: %v: the agent repairs it, or restart the pod",
			tableName(v.backend), v.args.Netns, drift)
	}
	if err != nil {
		return failure(types.ErrTryAgainLater, "pod table in %s cannot be read: %v", v.args.Netns, err)
	}
	v.logDecisions(f)
	if err := checkSettings(f); err != nil {
		return err
	}
	return v.checkSwitch()
}

// checkSettings returns an error if the pod's resolv.conf no longer has the DNS settings that ADD or the agent wrote into it. It
// returns nil if neither wrote any.
func checkSettings(f podfile.File) error {
	if err := drifted(f.DNS); err != nil {
		return failure(codeDrift, "DNS settings: %v: restart the pod", err)
	}
	return nil
}

// checkSwitch returns an error if the host has none of neardns's rules, because then a steered pod has no DNS while no agent
// runs. It does not compare the rules, because the agent may have added some that the plugin does not know.
func (v *verb) checkSwitch() error {
	return v.withRules(-1, func(host rules.Rules) error {
		present, err := host.Present()
		if err != nil {
			return failure(types.ErrTryAgainLater, "the host's rules cannot be read: %v", err)
		}
		if !present {
			return failure(codeDrift, "the host has no %s, so the pod has no DNS while no agent runs: "+
				"start the agent or any pod to restore it", hostRulesName(v.backend))
		}
		return nil
	})
}

// status is the CNI verb STATUS. An error makes the whole node NotReady, so with a correct configuration status returns one only with
// onUnsupported: fail, if the kernel does not support the rules or the state folder cannot be written.
func status(ctx context.Context, e env, args *skel.CmdArgs) error {
	return run(ctx, e, "status", args, (*verb).status)
}

func (v *verb) status(context.Context) error {
	if v.conf.OnUnsupported != unsupportedFail || v.conf.Steer == conflist.SteerOff {
		return nil
	}
	err := v.backend.Supported(-1, steer.ClusterDNS(v.conf.Redirects)...)
	if err == nil {
		err = checkWritable(v.conf.StateDir)
	}
	if err != nil {
		return failure(types.ErrPluginNotAvailable,
			"no pod could be steered (%v), and onUnsupported is fail: fix that, or set onUnsupported to allow", err)
	}
	return nil
}

// checkWritable returns an error if it cannot create and remove a file in the state folder, as ADD must.
func checkWritable(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".status-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
