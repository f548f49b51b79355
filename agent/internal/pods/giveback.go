package pods

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// key names an attachment.
type key struct{ containerID, ifName string }

func keyOf(f podfile.File) key { return key{f.ContainerID, f.IfName} }

// unanswered tells whether a decision waits for an answer from the pod's netns.
func unanswered(d podfile.Decision) bool { return len(d.Unanswered) > 0 }

// untried tells whether a decision waits for the first question from the netns of a pod that ran already.
func untried(d podfile.Decision) bool { return d.Untried }

// waits tells whether a decision waits for an answer, whatever came before.
func waits(d podfile.Decision) bool { return unanswered(d) || untried(d) }

// look is what tells that a pod's table is as it was when it was found right, without reading its rules: the kernel's count of
// changes in that netns, and what is wanted.
type look struct {
	inode      uint64
	generation uint32
	want       string
}

// look takes a cheap look at a steered pod's table: whether it gives the pod back, which makes it a suspect, and whether anything
// changed since it was found right. A back end without evidence has every pod asked from.
func (p *Pods) look(table rules.Rules, box *sandbox, want steer.Pod) (seen look, same bool, err error) {
	k := keyOf(box.files[0])
	w, ok := table.(steer.Witness)
	if !ok {
		p.suspect(k)
		return look{}, false, nil
	}
	lost, err := w.Unanswered(want)
	if err != nil {
		return look{}, false, err
	}
	if len(lost) > 0 {
		p.suspect(k)
	}
	generation, err := w.Generation()
	if err != nil {
		return look{}, false, err
	}
	seen = look{box.files[0].NetNSInode, generation, fmt.Sprint(want)}
	return seen, p.verified[k] == seen, nil
}

// Suspect has Try ask from a pod's netns, once: the kernel answers hits at its link, and its other questions may all be lost, of which its
// table knows nothing.
func (p *Pods) Suspect(f podfile.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.suspects[keyOf(f)] = suspicion{inKernel: true}
}

func (p *Pods) suspect(k key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.suspects[k]; !known {
		p.suspects[k] = suspicion{}
	}
}

// suspicion is why Try is to ask from a steered pod's netns.
type suspicion struct {
	inKernel bool // so answers over UDP that the pod's table saw say nothing of the way to the agent
}

// giveBack takes a sandbox's redirects out of its table for which why has a reason, and notes it: first the table, then the
// files, so that none who ends between the two leaves rules that no file tells of.
func (p *Pods) giveBack(box *sandbox, why func(podfile.Decision) (reason string, protocols []string)) error {
	files := slices.Clone(box.files)
	changed := false
	var said string
	for i := range files {
		files[i].Decisions = slices.Clone(files[i].Decisions)
		for j := range files[i].Decisions {
			d := &files[i].Decisions[j]
			if d.State != podfile.Steered {
				continue
			}
			if reason, protocols := why(*d); reason != "" {
				*d = podfile.Decision{Redirect: d.Redirect, State: podfile.Pending, Reason: reason, Unanswered: protocols}
				changed, said = true, reason
			}
		}
	}
	if !changed {
		return nil
	}
	if box.ns != nil {
		left := podfile.Table(files...)
		var err error
		if len(left.Redirects) == 0 {
			err = p.remove(box.ns)
		} else {
			err = p.apply(&sandbox{files: files, ns: box.ns})
		}
		if err != nil {
			return fmt.Errorf("give it back: %w", err)
		}
	}
	for i, f := range files {
		if err := p.note(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		box.files[i] = f
	}
	p.Outdate()
	p.log.Warn("pod given back to kube-dns", "pod", files[0].PodNamespace+"/"+files[0].PodName, "container_id", files[0].ContainerID, "reason", said)
	return nil
}

// deadFor is how long a file is kept whose path leads to no netns of its own: DEL and GC, whose it is, come sooner where they come.
const deadFor = time.Hour

// sweep removes files of pods that are surely gone and whose DEL never came. tend is held.
func (p *Pods) sweep(files []podfile.File) {
	gone := map[key]bool{}
	now := time.Now()
	for _, f := range files {
		k := keyOf(f)
		if p.surelyGone([]podfile.File{f}) != nil {
			continue
		}
		gone[k] = true
		since, known := p.dead[k]
		if !known {
			p.dead[k] = now
			continue
		}
		if now.Sub(since) < deadFor {
			continue
		}
		if err := p.forget(f); err != nil {
			p.log.Warn("file of a pod that is gone is not removed", "pod", f.PodNamespace+"/"+f.PodName, "container_id", f.ContainerID, "err", err)
			continue
		}
		p.log.Info("file of a pod that is gone removed: its DEL never came", "pod", f.PodNamespace+"/"+f.PodName, "container_id", f.ContainerID, "netns", f.NetNS)
	}
	for k := range p.dead {
		if !gone[k] {
			delete(p.dead, k)
		}
	}
	for k := range p.verified {
		if !slices.ContainsFunc(files, func(f podfile.File) bool { return keyOf(f) == k }) {
			delete(p.verified, k)
		}
	}
}

// forget removes a file unless an ADD has written another one meanwhile.
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
	p.Outdate()
	return podfile.Remove(p.stateDir, f.ContainerID, f.IfName)
}

// words joins protocols for people.
func words(protocols []string) string { return strings.Join(protocols, " and ") }
