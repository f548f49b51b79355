package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/neardns/neardns/integration/programs"
	"github.com/neardns/neardns/pkg/testutil"
)

// Where the demo's container runtime keeps what it needs.
var (
	cniBin      = filepath.Join(folder, "cni/bin")
	cniConf     = filepath.Join(folder, "cni/net.d")
	cniCache    = filepath.Join(folder, "cni/cache")
	cniIPAM     = filepath.Join(folder, "cni/ipam")
	conflist    = filepath.Join(cniConf, "10-demo.conflist")
	stateDir    = filepath.Join(folder, "state")
	persistDir  = filepath.Join(folder, "persist")
	nodeConfig  = filepath.Join(folder, "nodeconfig.yaml")
	agentLog    = filepath.Join(folder, "agent.log")
	searchPaths = []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local"}
)

// localAddress is what clients name that know of a cache on their node.
const localAddress = "169.254.20.10"

// pod is what the demo's runtime knows of one.
type pod struct {
	*testutil.Pod
	name       string // namespace/name
	id         string
	resolvConf string // its file
	original   string // what the kubelet wrote there
	addrs      []netip.Addr
	podOptions
}

// podOptions is what differs between pods.
type podOptions struct {
	nameservers []netip.Addr // none: the cluster DNS addresses, as the kubelet does it
	annotations map[string]string
}

// network writes what a cluster's network leaves on a node: its plugins and its configuration.
func (s *show) network() {
	for _, dir := range []string{cniBin, cniCache, cniIPAM, stateDir, persistDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			s.t.Fatalf("make folder: %v", err)
		}
	}
	for _, name := range []string{"ptp", "host-local"} {
		if err := os.Symlink(filepath.Join(s.bin, "tools", name), filepath.Join(cniBin, name)); err != nil {
			s.t.Fatalf("link plugin: %v", err)
		}
	}
	ranges, routes := []string{fmt.Sprintf(`[{"subnet": "%s"}]`, s.node.PodRange(true))}, []string{`{"dst": "0.0.0.0/0"}`}
	redirects := []string{fmt.Sprintf("%q", s.node.ClusterDNS()[0])}
	if s.ipv6 {
		ranges = append(ranges, fmt.Sprintf(`[{"subnet": "%s"}]`, s.node.PodRange(false)))
		routes = append(routes, `{"dst": "::/0"}`)
		redirects = append(redirects, fmt.Sprintf("%q", s.node.ClusterDNS()[1]))
	}
	s.write(conflist, fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "demo",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {
        "type": "host-local",
        "dataDir": %q,
        "ranges": [%s],
        "routes": [%s]
      }
    }
  ]
}
`, cniIPAM, strings.Join(ranges, ", "), strings.Join(routes, ", ")))
	s.write(nodeConfig, programs.NodeConfig(s.t, fmt.Sprintf(`clusterDomain: cluster.local
redirects: [%s]
localAddresses: [%s]
upstreams:
  external: [%s]
stateDir: %s
persistDir: %s
`, strings.Join(redirects, ", "), localAddress, filepath.Join(folder, "node-resolv.conf"), stateDir, persistDir)))
}

// addPod does what a container runtime does for a pod: a network namespace, a resolv.conf as the kubelet writes it, and
// ADD of every plugin in the list.
func (s *show) addPod(name string, o podOptions) *pod {
	p := &pod{Pod: s.node.AddPod("pod-" + name), name: "shop/" + name, id: "demo-" + name, podOptions: o}
	if len(p.nameservers) == 0 {
		p.nameservers = s.node.ClusterDNS()
	}
	p.resolvConf = filepath.Join(folder, "pods", name, "resolv.conf")
	p.original = p.resolvConfText()
	s.write(p.resolvConf, p.original)

	list, runtime := s.runtime(p)
	s.node.Host.Do(func() {
		result, err := s.libcni().AddNetworkList(s.ctx, list, runtime)
		if err != nil {
			s.t.Fatalf("CNI ADD of %s: %v", p.name, err)
		}
		r, err := types100.GetResult(result)
		if err != nil {
			s.t.Fatalf("CNI ADD of %s: %v", p.name, err)
		}
		for _, ip := range r.IPs {
			if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
				p.addrs = append(p.addrs, a.Unmap())
			}
		}
	})
	s.settle(p)
	return p
}

// settle waits until the reference plugin's IPv6 addresses serve on both ends: it returns while the node's end is still
// being checked for duplicates, and the pod's first queries over IPv6 would wait for that.
func (s *show) settle(p *pod) {
	for _, ns := range []*testutil.NetNS{s.node.Host, p.NetNS} {
		testutil.Eventually(s.t, func() error {
			if out := ns.Run("ip", "-6", "-o", "addr", "show", "tentative"); out != "" {
				return fmt.Errorf("still tentative: %s", out)
			}
			return nil
		})
	}
}

// resolvConfText is what the kubelet has a runtime write for a pod of namespace shop.
func (p *pod) resolvConfText() string {
	var text strings.Builder
	for _, a := range p.nameservers {
		fmt.Fprintf(&text, "nameserver %s\n", a)
	}
	fmt.Fprintf(&text, "search %s\noptions ndots:5\n", strings.Join(searchPaths, " "))
	return text.String()
}

func (s *show) delPod(p *pod) {
	list, runtime := s.runtime(p)
	s.node.Host.Do(func() {
		if err := s.libcni().DelNetworkList(context.WithoutCancel(s.ctx), list, runtime); err != nil {
			s.t.Fatalf("CNI DEL of %s: %v", p.name, err)
		}
	})
}
