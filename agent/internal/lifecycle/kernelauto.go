package lifecycle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/neardns/neardns/agent/internal/config"
)

// nodeSigns are signs on the node that a program may read the answers to pods' queries, as programs do that apply network policies by DNS
// name (D-083). Kernel hits would bypass such a program.
type nodeSigns struct {
	links  []string // names of the links in the host's network namespace
	queues []string // numbers of the netfilter queues that a program reads
	groups []string // numbers of the netfilter log groups that a program reads
	err    error    // the fields above are incomplete because of this error
}

// autoExcludes returns why kernelHits.mode: auto does not enable kernel hits on a node; "" if it does. Programs at the pods' own links are
// not among the signs, because package offload detects them.
func autoExcludes(conf *config.Node, signs nodeSigns) string {
	const byName = ", which may apply policies by name"
	has := func(name string) bool { return slices.Contains(signs.links, name) }
	switch {
	case conf.KernelAlone():
		return "arrangement: transparent is for datapaths of eBPF" + byName
	case conf.Link.ClusterDNSOnLink:
		return "link.clusterDNSOnLink is true, so no pod is steered"
	case !conf.Steers():
		return "kubeProxyMode is none, so no pod is steered"
	case conf.FastPath == config.FastPathOff:
		return "fastPath is off, and the kernel gets the answers of the fast path"
	case signs.err != nil:
		return fmt.Sprintf("the agent cannot tell whether policies by name apply on the node: %v", signs.err)
	case has("cilium_host"), has("cilium_net"):
		return "the node has Cilium's links" + byName
	case has("ovs-system"), has("ovs-netdev"):
		return "the node has links of Open vSwitch" + byName
	case len(signs.queues) > 0:
		return "a program gets packets from netfilter's queue " + strings.Join(signs.queues, ", ") + byName
	case len(signs.groups) > 0:
		return "a program gets packets from netfilter's log group " + strings.Join(signs.groups, ", ") + byName
	}
	return ""
}

// readNodeSigns reads the signs of this thread's network namespace. proc is /proc, or a folder like it in tests. /proc/net is that of the
// process's first thread, which may be in a pod's namespace for a moment.
func readNodeSigns(proc string) (s nodeSigns) {
	var errs [3]error
	s.links, errs[0] = linkNames(filepath.Join(proc, "sys/net/ipv4/conf"))
	s.queues, errs[1] = bound(filepath.Join(proc, "thread-self/net/netfilter/nfnetlink_queue"))
	s.groups, errs[2] = bound(filepath.Join(proc, "thread-self/net/netfilter/nfnetlink_log"))
	s.err = errors.Join(errs[:]...)
	return s
}

// linkNames lists the network links: each has a folder of its own with sysctl settings. The list also has the folders "all" and "default",
// which are no links.
func linkNames(folder string) (names []string, err error) {
	entries, err := os.ReadDir(folder)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// bound lists the queues or groups to which programs are bound: the first number of each line. While the kernel module is not loaded, the
// file is absent and nothing is bound.
func bound(file string) (numbers []string, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 0 {
			numbers = append(numbers, words[0])
		}
	}
	return numbers, err
}
