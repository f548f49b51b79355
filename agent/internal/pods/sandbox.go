package pods

import (
	"iter"
	"os"
	"slices"

	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// sandbox is one netns with the pod files of its network interfaces, which share one pod table.
type sandbox struct {
	files []podfile.File
	ns    *os.File // nil if the netns is gone, or not visible to the agent
	err   error    // why ns is nil
}

// inSandbox reads the pod files of f's netns again and calls do with that sandbox. No other goroutine changes the sandbox meanwhile. If the
// netns or the file f is gone, it returns nil and does not call do.
func (p *Pods) inSandbox(f podfile.File, do func(*sandbox) error) error {
	p.reconciling.Lock()
	defer p.reconciling.Unlock()
	for box := range sandboxes(p.attachmentsOf(f)) {
		defer box.close()
		if box.ns != nil && slices.ContainsFunc(box.files, func(g podfile.File) bool { return keyOf(g) == keyOf(f) }) {
			err := do(&box)
			p.busy.CompareAndSwap(false, iptables.Busy(err))
			return err
		}
	}
	return nil
}

// sandboxes groups pod files by netns, in the order of the files, and opens each netns. If a file's path leads nowhere, or to another
// netns than the file records, ns is nil, because the recorded inode may belong to another pod now. The caller closes each sandbox.
func sandboxes(files []podfile.File) iter.Seq[sandbox] {
	type place struct {
		path  string
		inode uint64
	}
	at, paths := map[place]int{}, map[uint64][]int{}
	var out []sandbox
	for _, f := range files {
		here := place{f.NetNS, f.NetNSInode}
		i, ok := at[here]
		if !ok {
			i = len(out)
			at[here] = i
			paths[f.NetNSInode] = append(paths[f.NetNSInode], i)
			out = append(out, sandbox{})
		}
		out[i].files = append(out[i].files, f)
	}
	for _, same := range paths { // if several paths lead to one netns, which is rare, their files form one sandbox
		first := -1
		for _, i := range same {
			switch {
			case len(same) == 1 || !leadsToNetNS(out[i].files[0]):
			case first < 0:
				first = i
			default:
				out[first].files = append(out[first].files, out[i].files...)
				out[i].files = nil
			}
		}
	}
	// Open each netns only when its turn comes, so that a node full of pods does not need a descriptor for each.
	return func(yield func(sandbox) bool) {
		for _, box := range out {
			if len(box.files) == 0 {
				continue
			}
			box.ns, box.err = enter(box.files[0])
			if !yield(box) {
				return
			}
		}
	}
}

// leadsToNetNS reports whether the netns path in a pod file leads to the netns whose inode the file records. The netns then exists, and is
// visible to the agent.
func leadsToNetNS(f podfile.File) bool {
	ns, err := enter(f)
	if err != nil {
		return false
	}
	_ = ns.Close()
	return true
}

func (s sandbox) close() {
	if s.ns != nil {
		_ = s.ns.Close() // was opened only to enter the netns
	}
}

// enter opens the netns of a pod file. If the agent runs in a container without that path, it uses the path below the host's root.
func enter(f podfile.File) (*os.File, error) {
	ns, err := f.OpenNetNS()
	if err == nil {
		return ns, nil
	}
	f.NetNS = "/proc/1/root" + f.NetNS
	if ns, rootErr := f.OpenNetNS(); rootErr == nil {
		return ns, nil
	}
	return nil, err
}

func (s sandbox) state(f podfile.File) string {
	switch {
	case s.ns == nil:
		return Gone
	case slices.ContainsFunc(f.Decisions, func(d podfile.Decision) bool { return StateOf(d) == podstate.Bypassed }):
		return Bypassed
	case len(f.In(podfile.Steered)) > 0:
		return Steered
	case len(f.In(podfile.Pending)) > 0:
		return Pending
	}
	return LeftAlone
}
