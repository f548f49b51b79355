package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// add is the CNI verb ADD: it reads the node's state, decides in a Plan whether to steer the pod, carries the plan out and
// prints the CNI result.
func add(ctx context.Context, e env, args *skel.CmdArgs) error {
	return run(ctx, e, "add", args, (*verb).add)
}

func (v *verb) add(ctx context.Context) error {
	if err := podfile.CheckKey(v.args.ContainerID, v.args.IfName); err != nil {
		return types.NewError(types.ErrInvalidEnvironmentVariables, err.Error(), "")
	}
	if v.conf.PrevResult == nil {
		_, _, err := passOn(v.conf, v.args.IfName)
		return err
	}
	ns, inode, isHost, err := v.netns(v.args.Netns)
	if err != nil {
		return failure(codeNetNS, "CNI_NETNS: %v: the runtime must name the pod's network namespace", err)
	}
	defer ns.Close()
	if isHost && v.args.NetnsOverride != "1" && !strings.EqualFold(v.args.NetnsOverride, "true") {
		return failure(types.ErrInvalidNetNS, "CNI_NETNS %s is the host's own network namespace", v.args.Netns)
	}
	in := call{ContainerID: v.args.ContainerID, IfName: v.args.IfName, NetNS: v.args.Netns, Inode: inode,
		Pod: v.pod, SharesHost: isHost, Backend: v.backend.Recorded()}
	in.Settings = v.applySettings(in, ns)
	plan, err := makePlan(v.conf, in, v.collectFacts(in, ns))
	if err != nil {
		return err
	}
	if err := v.apply(ctx, &plan, ns); err != nil {
		return err
	}
	v.logDecisions(plan.File)
	v.logSettings(plan.File)
	// Write the result last, and in one write: the runtime parses everything that the plugin prints on stdout.
	if _, err := v.stdout.Write(plan.Result); err != nil {
		return types.NewError(types.ErrIOFailure, "write the result: "+err.Error(), "")
	}
	return nil
}

// apply carries the plan out in this order: the host's rules, the pod's state file, the pod table. Without the host's rules the
// pod's rewritten queries would get no answer. Without the file neither GC nor the agent would find the pod table. If a step fails
// for a pod that this ADD steers, or with onUnsupported: fail for a pending pod, apply removes the pod's table and file again. Then
// ADD fails (onUnsupported: fail), or a new file has the reason.
func (v *verb) apply(ctx context.Context, p *Plan, ns *os.File) error {
	f := &p.File
	earlier, err := podfile.Read(podfile.Path(v.conf.StateDir, f.ContainerID, f.IfName))
	hadRules := err == nil && earlier.NetNSInode == f.NetNSInode && len(earlier.In(podfile.Steered)) > 0
	err = v.steer(ctx, p, ns, hadRules)
	if err == nil {
		return nil
	}
	if !p.Steers() && (v.conf.OnUnsupported != unsupportedFail || len(f.In(podfile.Pending)) == 0) {
		// This ADD does not steer the pod, so the failure does not affect its DNS: only the state file, the host's rules for its
		// exemption from node interception or the removal of old rules failed.
		v.log.Warn("cannot write the pod's state file or change packet rules for it; this ADD does not steer the pod", "verb", v.name,
			"container_id", f.ContainerID, "err", err)
		return nil
	}
	undone := v.undo(ns, f)
	if v.conf.OnUnsupported == unsupportedFail {
		return failure(codeNotSteer, "cannot be steered to the node's DNS cache: %v: fix that, or set onUnsupported to allow",
			errors.Join(err, undone))
	}
	state := podfile.LeftAlone
	if errors.Is(err, context.DeadlineExceeded) || iptables.Busy(err) {
		// This call had too little time, for example because the node starts all of its pods at once or another program holds
		// iptables' lock. The agent steers a pending pod later.
		state = podfile.Pending
	}
	for i := range f.Decisions {
		if d := &f.Decisions[i]; d.State == podfile.Steered {
			d.State, d.Reason = state, err.Error()
		}
	}
	if undone = errors.Join(undone, podfile.Write(v.conf.StateDir, *f)); undone != nil {
		v.log.Warn("steering failed; cannot undo or record it", "verb", v.name, "container_id", f.ContainerID, "err", errors.Join(err, undone))
	}
	return nil
}

func (v *verb) steer(ctx context.Context, p *Plan, ns *os.File, hadRules bool) error {
	var hostErr error
	if p.Touches() {
		hostErr = v.withRules(-1, func(host rules.Rules) error {
			if !p.SwitchComplete {
				if err := v.ensureSwitch(host, p.Host); err != nil {
					return fmt.Errorf("host table: %w", err)
				}
			}
			if len(p.Exempt) == 0 {
				return nil
			}
			return host.Exempt(p.Exempt, nil)
		})
		if hostErr != nil && p.Steers() {
			return hostErr
		}
	}
	if err := podfile.Write(v.conf.StateDir, p.File); err != nil {
		return errors.Join(hostErr, err)
	}
	if !p.Steers() && !hadRules {
		return hostErr
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("out of time before the pod table: %w", err)
	}
	err := v.withRules(int(ns.Fd()), func(pod rules.Rules) error {
		if !p.Steers() {
			return v.removeTable(pod, p.File.ContainerID, p.File.IfName, p.File.NetNSInode)
		}
		_, err := pod.Repair(p.Pod)
		return err
	})
	if err != nil {
		err = fmt.Errorf("pod table: %w", err)
	}
	return errors.Join(hostErr, err)
}

// undo removes the pod's state file and its rules after a failure to steer. The rules may be from an earlier ADD or, with
// iptables, which writes each IP family by itself, a part of those that this ADD wrote.
func (v *verb) undo(ns *os.File, f *podfile.File) error {
	err := podfile.Remove(v.conf.StateDir, f.ContainerID, f.IfName)
	return errors.Join(err, v.withRules(int(ns.Fd()), func(pod rules.Rules) error {
		return v.removeTable(pod, f.ContainerID, f.IfName, f.NetNSInode)
	}))
}

// removeTable removes the pod table. If other interfaces of the same netns are steered, it keeps the rules for those.
func (v *verb) removeTable(pod rules.Rules, containerID, ifName string, inode uint64) error {
	if left := podfile.Table(v.siblings(containerID, ifName, inode)...); len(left.Redirects) > 0 {
		_, err := pod.Repair(left)
		return err
	}
	present, err := pod.Present()
	if err != nil || !present {
		return err
	}
	return pod.Remove()
}

// logDecisions adds the decision for each cluster DNS address to the attributes that done logs.
func (v *verb) logDecisions(f podfile.File) {
	var parts []string
	for _, d := range f.Decisions {
		part := fmt.Sprintf("%s %s", d.Redirect.ClusterDNS, d.State)
		if d.Reason != "" {
			part += " (" + d.Reason + ")"
		}
		parts = append(parts, part)
	}
	v.addOutcome("decision", strings.Join(parts, ", "), "host_iface", f.HostInterface)
}

// logSettings logs what happened to the pod's DNS settings, and warns of each wanted setting that was ignored or not applied.
func (v *verb) logSettings(f podfile.File) {
	log := v.log.With("verb", v.name, "container_id", f.ContainerID, "pod", v.pod.String())
	for _, i := range f.Ignored {
		log.Warn("a setting wanted for the pod has no effect", "what", i.What, "why", i.Why)
	}
	d := f.DNS
	if d.Overlay == nil && d.Reason == "" {
		return
	}
	v.addOutcome("dns", d.State, "method", d.Method)
	if d.State != podfile.Overlaid && d.State != podfile.HandedOn {
		log.Warn("pod's resolv.conf lacks the wanted DNS settings; in state waiting, the agent adds them later", "state", d.State,
			"why", d.Reason)
	}
	for _, n := range d.Notes {
		log.Warn("DNS settings wanted for the pod are applied or handed to the runtime, but see the note", "note", n.Text)
	}
}
