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

// nodeSigns are what a node shows of programs that may follow the answers of pods' queries: those that apply policies by name (D-083).
type nodeSigns struct {
	links  []string // names of the network namespace's links
	queues []string // netfilter queues that a program reads
	groups []string // netfilter log groups that a program reads
	err    error    // why the others are not known
}

// autoExcludes returns why mode: auto leaves a node without kernel hits; "" if it does not. A program that learns addresses from pods'
// answers has to be in their path: at the pod's link, where podlinks finds it, or by one of these signs.
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

// readNodeSigns reads the signs below a folder such as /proc, of the network namespace of the process.
func readNodeSigns(proc string) (s nodeSigns) {
	var errs [3]error
	s.links, errs[0] = linkNames(filepath.Join(proc, "sys/net/ipv4/conf"))
	s.queues, errs[1] = bound(filepath.Join(proc, "net/netfilter/nfnetlink_queue"))
	s.groups, errs[2] = bound(filepath.Join(proc, "net/netfilter/nfnetlink_log"))
	s.err = errors.Join(errs[:]...)
	return s
}

// linkNames lists the links by their folders of settings.
func linkNames(folder string) (names []string, err error) {
	entries, err := os.ReadDir(folder)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// bound lists what programs are bound to: the first number of each line. The kernel has no file before something loads the module.
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
