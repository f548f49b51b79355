package pods

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/neardns/neardns/pkg/podfile"
)

// deadFor is how long the agent keeps a pod file after it found the netns gone: the runtime's DEL or GC should remove the file first.
const deadFor = time.Hour

// sweep removes the files of pods that have been gone for deadFor without a DEL, and of adopted ones at once, because CRI-O calls only the
// plugins that a pod was made with. The caller holds p.reconciling.
func (p *Pods) sweep(files []podfile.File) {
	gone := map[key]bool{}
	now := time.Now()
	for _, f := range files {
		k := keyOf(f)
		if !surelyGone(f) {
			continue
		}
		gone[k] = true
		since, known := p.dead[k]
		if !known {
			p.dead[k], since = now, now
		}
		if f.Adopted == "" && now.Sub(since) < deadFor {
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
	maps.DeleteFunc(p.dead, func(k key, _ time.Time) bool { return !gone[k] })
	maps.DeleteFunc(p.verified, func(k key, _ fingerprint) bool {
		return !slices.ContainsFunc(files, func(f podfile.File) bool { return keyOf(f) == k })
	})
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
