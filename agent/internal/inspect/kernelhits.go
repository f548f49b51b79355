package inspect

import (
	"fmt"
	"strings"

	"github.com/neardns/neardns/agent/internal/node"
)

func checkKernelHits(snap Snapshot, f *findings) {
	k := snap.Agent.InKernel
	who, either := "the agent", "the agent or kube-dns"
	if snap.KernelAlone {
		who, either = "kube-dns", "kube-dns"
	}
	switch {
	case snap.Agent.Err != "":
		f.ok("no agent runs")
		return
	case k == nil:
		f.ok("off: %s answers them", who)
		return
	case k.Fault != "":
		f.add(Warn, "fix what it names, or write kernelHits.mode: \"off\"; "+who+" answers them meanwhile",
			"none is answered in the kernel: %s", k.Fault)
	}
	for _, r := range k.Refused {
		f.add(Warn, "fix the reason, or exclude the pod or its namespace (kernelHits); "+either+" answers it meanwhile",
			"%s is not answered in the kernel: %s", r.Pod, r.Why)
	}
	if f.silent() {
		f.ok("answered for %s, from %s", plural(k.Pods, "pod"), entries(k.Lent))
		if len(k.Served) > 0 {
			f.ok("answered in place of %s", some(texts(k.Served)))
		}
	}
}

func entries(n int) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}

// texts returns values as text.
func texts[T fmt.Stringer](values []T) (out []string) {
	for _, v := range values {
		out = append(out, v.String())
	}
	return out
}

// kernelText is the part of `status` on kernel hits. who answers hits that the kernel does not.
func kernelText(k *node.KernelHits, who string) string {
	if k == nil {
		return ""
	}
	var b strings.Builder
	if k.Fault != "" {
		fmt.Fprintf(&b, "  kernel hits: none, %s answers them: %s\n", who, strings.ReplaceAll(k.Fault, "\n", "; "))
	} else {
		fmt.Fprintf(&b, "  kernel hits: %s, %s offloaded, %s answers\n", plural(k.Pods, "pod"), entries(k.Lent), fmt.Sprint(k.Answers))
	}
	if len(k.Served) > 0 {
		fmt.Fprintf(&b, "    in place of %s; the agent fetched %d times for them, and was too busy %d times\n",
			strings.Join(texts(k.Served), ", "),
			k.Fetched, k.Dropped)
	}
	for _, r := range k.Refused {
		fmt.Fprintf(&b, "    not of %s: %s\n", r.Pod, r.Why)
	}
	return b.String()
}
