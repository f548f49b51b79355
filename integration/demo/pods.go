package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/neardns/neardns/pkg/podfile"
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
	s.write(nodeConfig, fmt.Sprintf(`apiVersion: neardns.io/v1alpha1
kind: NodeConfig
clusterDomain: cluster.local
redirects: [%s]
localAddresses: [%s]
upstreams:
  external: [%s]
stateDir: %s
persistDir: %s
`, strings.Join(redirects, ", "), localAddress, filepath.Join(folder, "node-resolv.conf"), stateDir, persistDir))
}

// addPod does what a container runtime does for a pod: a network namespace, a resolv.conf as the kubelet asks for it, and
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
// being checked for duplicates, and the pod's first questions over IPv6 would wait for that.
func (s *show) settle(p *pod) {
	for _, ns := range []*testutil.NetNS{s.node.Host, p.NetNS} {
		testutil.Eventually(s.t, 10*time.Second, func() error {
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

// traces names what there is of a pod: its rules, its file, its place in the host's table, its link, its address.
func (s *show) traces(p *pod) string {
	var found []string
	if s.tables(p.NetNS) != "none" {
		found = append(found, "pod table")
	}
	if _, err := os.Lstat(podfile.Path(stateDir, p.id, "eth0")); err == nil {
		found = append(found, "pod file")
	}
	rules := s.node.Host.Run("nft", "list", "ruleset")
	routes := s.node.Host.Run("ip", "route") + s.node.Host.Run("ip", "-6", "route")
	for _, a := range p.addrs {
		if lasting(rules, a) {
			found = append(found, "element "+a.String())
		}
		if strings.Contains(routes, a.String()+" dev ") {
			found = append(found, "route to "+a.String())
		}
	}
	if _, err := os.Lstat(filepath.Join(cniCache, "results", "demo-"+p.id+"-eth0")); err == nil {
		found = append(found, "the runtime's record")
	}
	if len(found) == 0 {
		return "nothing"
	}
	return strings.Join(found, ", ")
}

// tracesSoon gives the agent a moment to take part in a pod's end.
func (s *show) tracesSoon(p *pod) string {
	for deadline := time.Now().Add(2 * time.Second); ; {
		left := s.traces(p)
		if left == "nothing" || time.Now().After(deadline) {
			return left
		}
	}
}

// lasting tells whether rules name an address in an element that does not expire. Those that do expire are the kernel's own
// memory of single TCP connections.
func lasting(rules string, a netip.Addr) bool {
	elements := strings.FieldsFunc(rules, func(r rune) bool { return strings.ContainsRune(",{}\n", r) })
	return slices.ContainsFunc(elements, func(e string) bool {
		words := strings.Fields(e)
		return slices.Contains(words, a.String()) && !slices.Contains(words, "expires")
	})
}

func (s *show) delPod(p *pod) {
	list, runtime := s.runtime(p)
	s.node.Host.Do(func() {
		if err := s.libcni().DelNetworkList(context.WithoutCancel(s.ctx), list, runtime); err != nil {
			s.t.Fatalf("CNI DEL of %s: %v", p.name, err)
		}
	})
}

func (s *show) libcni() *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{cniBin}, cniCache, &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: teller{s}}})
}

// teller shows what plugins log, as a runtime's journal would.
type teller struct{ s *show }

func (t teller) Write(b []byte) (int, error) {
	t.s.tell("%s", b)
	return len(b), nil
}

func (s *show) runtime(p *pod) (*libcni.NetworkConfigList, *libcni.RuntimeConf) {
	list, err := libcni.NetworkConfFromFile(conflist)
	if err != nil {
		s.t.Fatalf("load network: %v", err)
	}
	namespace, name, _ := strings.Cut(p.name, "/")
	var servers []string
	for _, a := range p.nameservers {
		servers = append(servers, a.String())
	}
	return list, &libcni.RuntimeConf{
		ContainerID: p.id, NetNS: p.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", namespace}, {"K8S_POD_NAME", name}, {"K8S_POD_INFRA_CONTAINER_ID", p.id}},
		// As containerd spells them.
		CapabilityArgs: map[string]any{
			"dns":                               map[string]any{"Servers": servers, "Searches": searchPaths, "Options": []string{"ndots:5"}},
			"io.kubernetes.cri.pod-annotations": p.annotations,
		},
	}
}

// decisions is what the plugin, or later the agent, decided for a pod, one word for all of its redirects where they agree.
func (s *show) decisions(p *pod) string {
	f, err := podfile.Read(podfile.Path(stateDir, p.id, "eth0"))
	if err != nil {
		return "no pod file"
	}
	var states []string
	for _, d := range f.Decisions {
		if state := string(d.State); len(states) == 0 || states[len(states)-1] != state {
			states = append(states, state)
		}
	}
	return strings.Join(states, ", ")
}

// listTypes names the plugins of the network as a runtime reads it.
func (s *show) listTypes() string {
	var list struct{ Plugins []struct{ Type string } }
	if err := json.Unmarshal([]byte(s.read(conflist)), &list); err != nil {
		s.t.Fatalf("read network: %v", err)
	}
	var types []string
	for _, p := range list.Plugins {
		types = append(types, p.Type)
	}
	return strings.Join(types, " → ")
}
