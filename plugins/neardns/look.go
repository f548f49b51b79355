package main

import (
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// look gathers the facts. What cannot be found out is a reason not to steer, never an error.
func (v *verb) look(in call, ns *os.File) facts {
	var f facts
	if !wantsFacts(v.conf, in) {
		return f
	}
	f.Proof, f.ProofErr = nodestate.ReadProof(v.conf.PersistDir)
	if f.Proof.Backend != v.backend.Recorded() || f.Proof.Outlived() {
		f.Proof = nodestate.Proof{} // another back end's rules give back in another way, and another boot's kube-proxy may, too
	}
	f.Lacks = v.lacks(rules.Addresses(hostRules(v.conf, nil))...)
	f.Ways = v.ways(ns)
	if !slices.ContainsFunc(f.Ways, hasWay) {
		return f
	}
	f.SwitchStands = v.lookAtSwitch(f.Ways)
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
	if !f.SwitchStands {
		f.Uplinks, f.UplinksErr = v.env.kernel.Uplinks(podSide...)
	}
	return f
}

func hasWay(w hostnet.Found) bool { return w.Err == nil }

// lookAtSwitch tells whether the host table has all that this call could add, as it has at every ADD but the first. A
// switch that stands may hold the pod's own link for an uplink, from which it drops what comes for our addresses: such a
// way becomes none. Where the table cannot be read it does not stand, and making it will say why.
func (v *verb) lookAtSwitch(ways []hostnet.Found) (stands bool) {
	_ = v.inRules(-1, func(host rules.Rules) (err error) {
		up := map[string]bool{} // both families mostly come by one link
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
		stands, err = host.Whole(hostRules(v.conf, nil))
		return err
	})
	return stands
}

func (v *verb) ways(ns *os.File) []hostnet.Found {
	host, err := os.Open(ownNamespace)
	if err != nil {
		err = fmt.Errorf("the host's network namespace cannot be opened: %w", err)
		return slices.Repeat([]hostnet.Found{{Err: err}}, len(v.conf.Redirects))
	}
	defer host.Close()
	var asked []netip.Addr
	for _, r := range v.conf.Redirects {
		asked = append(asked, r.ClusterDNS)
	}
	return v.env.kernel.Ways(int(ns.Fd()), int(host.Fd()), asked...)
}

// siblings returns the other attachments of the same netns: one netns has one pod table.
func (v *verb) siblings(containerID, ifName string, inode uint64) []podfile.File {
	files, errs := podfile.Siblings(v.conf.StateDir, containerID, ifName)
	for _, err := range errs {
		v.log.Warn("pod file unreadable", "verb", v.name, "container_id", containerID, "err", err)
	}
	return slices.DeleteFunc(files, func(f podfile.File) bool { return f.NetNSInode != inode })
}
