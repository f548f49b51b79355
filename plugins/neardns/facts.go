package main

import (
	"os"
	"slices"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// collectFacts reads from the node what the plan depends on. It returns no error: makePlan decides by the facts' errors whether
// the pod is steered. With steer: always, the result of the fallback check may be missing.
func (v *verb) collectFacts(in call, ns *os.File) facts {
	var f facts
	if !needsFacts(v.conf, in) {
		return f
	}
	f.Proof, _, f.ProofErr = nodestate.ProofFile(v.conf.PersistDir).Read()
	if f.Proof.Backend != v.backend.Recorded() || f.Proof.Outlived() {
		// The fallback was verified with another back end, or in an earlier boot, perhaps with another kube-proxy. It may not work now.
		f.Proof = nodestate.Proof{}
	}
	f.Unsupported = v.missingRules(rules.Addresses(hostRules(v.conf, nil))...)
	f.Ways = v.env.kernel.Ways(int(ns.Fd()), steer.ClusterDNS(v.conf.Redirects)...)
	if !slices.ContainsFunc(f.Ways, hasWay) {
		return f
	}
	f.SwitchComplete = v.inspectSwitch(f.Ways)
	var podSide []string
	for _, w := range f.Ways {
		if hasWay(w) {
			podSide = append(podSide, w.HostInterface)
		}
	}
	if podSide == nil {
		return f
	}
	f.Siblings = v.siblings(in.ContainerID, in.IfName, in.Inode)
	if !f.SwitchComplete {
		f.Uplinks, f.UplinksErr = v.env.kernel.Uplinks(podSide...)
	}
	return f
}

func hasWay(w hostnet.Found) bool { return w.Err == nil }

// inspectSwitch reports whether the host's rules have everything that this call would add, as they usually do after the first
// ADD. If those rules treat the pod's own link as an uplink, they send its queries to kube-dns, so inspectSwitch sets an error for
// that path. If the rules cannot be read, it returns false; the attempt to add rules then returns the reason.
func (v *verb) inspectSwitch(ways []hostnet.Found) (complete bool) {
	_ = v.withRules(-1, func(host rules.Rules) (err error) {
		up := map[string]bool{} // both families usually share one link
		for i := range ways {
			w := &ways[i]
			if !hasWay(*w) {
				continue
			}
			if _, asked := up[w.HostInterface]; !asked {
				if up[w.HostInterface], err = host.IsUplink(w.HostInterface); err != nil {
					return err
				}
			}
			if up[w.HostInterface] {
				w.Err = &hostnet.WayError{Reason: w.HostInterface + " also leads away from the node, where the cache must not answer"}
			}
		}
		complete, err = host.IsComplete(hostRules(v.conf, nil))
		return err
	})
	return complete
}

// siblings returns the state files of the container's other interfaces in the same netns, because a netns has one pod table for
// all of its interfaces.
func (v *verb) siblings(containerID, ifName string, inode uint64) []podfile.File {
	files, errs := podfile.Siblings(v.conf.StateDir, containerID, ifName)
	for _, err := range errs {
		v.log.Warn("another interface's state file unreadable; its rules may be removed", "verb", v.name, "container_id", containerID, "err", err)
	}
	return slices.DeleteFunc(files, func(f podfile.File) bool { return f.NetNSInode != inode })
}
