package pods

import (
	"errors"
	"io/fs"
	"maps"
	"slices"

	"github.com/neardns/neardns/pkg/podfile"
)

// sweep removes the files of pods whose netns is gone. The runtime's DEL removes a file before the netns, but CRI-O calls only the plugins
// that a pod was made with, and a DEL may never come. The caller holds p.reconciling.
func (p *Pods) sweep(files []podfile.File) {
	for _, f := range files {
		if !surelyGone(f) {
			continue
		}
		if err := p.forget(f); err != nil {
			p.log.Warn("cannot remove the state file of a pod that is gone",
				"pod", f.PodNamespace+"/"+f.PodName, "container_id", f.ContainerID, "err", err)
			continue
		}
		p.log.Info("removed the state file of a pod that is gone; no DEL removed it",
			"pod", f.PodNamespace+"/"+f.PodName, "container_id", f.ContainerID, "netns", f.NetNS)
	}
	maps.DeleteFunc(p.verified, func(k key, _ fingerprint) bool { return !slices.ContainsFunc(files, k.isOf) })
}

// forget removes a pod file, unless a later ADD has replaced it.
func (p *Pods) forget(f podfile.File) error {
	same := false
	err := podfile.Amend(p.stateDir, f.ContainerID, f.IfName, func(now *podfile.File) bool {
		same = now.NetNS == f.NetNS && now.NetNSInode == f.NetNSInode
		return false
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !same {
		return err
	}
	defer p.outdateFile(fileName(f))
	return podfile.Remove(p.stateDir, f.ContainerID, f.IfName)
}
