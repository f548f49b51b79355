package inspect

import (
	"fmt"
	"strings"

	"github.com/neardns/neardns/agent/internal/node"
)

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
