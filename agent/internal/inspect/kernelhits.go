package inspect

import (
	"fmt"
	"strings"

	"github.com/neardns/neardns/agent/internal/node"
)

func checkKernelHits(p Picture, f *findings) {
	k := p.Agent.InKernel
	switch {
	case p.Agent.Err != "":
		f.ok("no agent tells of any")
		return
	case k == nil:
		f.ok("off: the agent answers them")
		return
	case k.Fault != "":
		f.add(Warn, "mend what it names, or write kernelHits.mode: \"off\"; the agent answers them meanwhile", "none is answered in the kernel: %s", k.Fault)
	}
	for _, r := range k.Refused {
		f.add(Warn, "mend the reason, or let the pod or its namespace out (kernelHits); the agent or kube-dns answers it meanwhile",
			"%s is not answered in the kernel: %s", r.Pod, r.Why)
	}
	if f.silent() {
		f.ok("answered for %s, from %s", plural(k.Pods, "pod"), plural(k.Lent, "answer"))
	}
}

// kernelText is what `status` says of it.
func kernelText(k *node.KernelHits) string {
	if k == nil {
		return ""
	}
	var b strings.Builder
	if k.Fault != "" {
		fmt.Fprintf(&b, "  kernel hits: none, the agent answers them: %s\n", strings.ReplaceAll(k.Fault, "\n", "; "))
	} else {
		fmt.Fprintf(&b, "  kernel hits: %s, %s lent, %s given\n", plural(k.Pods, "pod"), plural(k.Lent, "answer"), fmt.Sprint(k.Answers))
	}
	for _, r := range k.Refused {
		fmt.Fprintf(&b, "    not of %s: %s\n", r.Pod, r.Why)
	}
	return b.String()
}
