package lifecycle

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestAutoExcludes: mode auto leaves out each node that shows a program which may follow pods' answers, or that cannot be judged.
func TestAutoExcludes(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*config.Node)
		signs  nodeSigns
		want   string // a part of the reason; "" for none
	}{
		"nothing":            {nil, nodeSigns{links: []string{"all", "lo", "eth0", "cni0", "veth1", "neardns0"}}, ""},
		"Calico's links":     {nil, nodeSigns{links: []string{"cali123", "vxlan.calico"}}, ""},
		"Cilium":             {nil, nodeSigns{links: []string{"lo", "cilium_host"}}, "Cilium"},
		"Cilium's other end": {nil, nodeSigns{links: []string{"cilium_net"}}, "Cilium"},
		"a similar name":     {nil, nodeSigns{links: []string{"cilium_hosts"}}, ""},
		"Open vSwitch":       {nil, nodeSigns{links: []string{"ovs-system", "antrea-gw0"}}, "Open vSwitch"},
		"its user space":     {nil, nodeSigns{links: []string{"ovs-netdev"}}, "Open vSwitch"},
		"a queue":            {nil, nodeSigns{queues: []string{"100", "101"}}, "netfilter's queue 100, 101"},
		"a log group":        {nil, nodeSigns{groups: []string{"3"}}, "netfilter's log group 3"},
		"unreadable":         {nil, nodeSigns{err: errors.New("permission denied")}, "cannot tell"},
		"transparent":        {func(c *config.Node) { c.Arrangement = config.ArrangementTransparent }, nodeSigns{}, "transparent"},
		"on the link":        {func(c *config.Node) { c.Link.ClusterDNSOnLink = true }, nodeSigns{}, "clusterDNSOnLink"},
		"no kube-proxy":      {func(c *config.Node) { c.KubeProxyMode = config.KubeProxyNone }, nodeSigns{}, "kubeProxyMode"},
		"no fast path":       {func(c *config.Node) { c.FastPath = config.FastPathOff }, nodeSigns{}, "fastPath"},
	} {
		t.Run(name, func(t *testing.T) {
			conf := config.Default()
			if tc.change != nil {
				tc.change(&conf)
			}
			if got := autoExcludes(&conf, tc.signs); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestReadNodeSigns reads files as the kernel writes them.
func TestReadNodeSigns(t *testing.T) {
	proc := t.TempDir()
	if s := readNodeSigns(proc); s.err == nil {
		t.Errorf("no links, and no error: %+v", s)
	}
	testutil.Must(t, os.MkdirAll(filepath.Join(proc, "sys/net/ipv4/conf/eth0"), 0o755))
	testutil.Must(t, os.MkdirAll(filepath.Join(proc, "thread-self/net/netfilter"), 0o755))
	unexported := cmp.AllowUnexported(nodeSigns{})
	testutil.Equal(t, "without the modules", nodeSigns{links: []string{"eth0"}}, readNodeSigns(proc), unexported)
	for name, text := range map[string]string{
		"queue": "  100  17245     0 2 65531     0     0        1  1\n",
		"log":   "    3  17245     0 2 65535     10 1\n    0   4711     0 2 65535     10 1\n",
	} {
		testutil.Must(t, os.WriteFile(filepath.Join(proc, "thread-self/net/netfilter/nfnetlink_"+name), []byte(text), 0o600))
	}
	// The process's first thread may be in a pod's network namespace, where other programs are bound.
	testutil.WriteFile(t, filepath.Join(proc, "net/netfilter/nfnetlink_queue"), "7 1\n")
	want := nodeSigns{links: []string{"eth0"}, queues: []string{"100"}, groups: []string{"3", "0"}}
	testutil.Equal(t, "signs", want, readNodeSigns(proc), unexported)
}
