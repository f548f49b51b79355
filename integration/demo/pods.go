package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

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

// pod is what the demo's runtime knows of one.
type pod struct {
	*testutil.Pod
	name       string // namespace/name
	id         string
	resolvConf string // its file
	addrs      []netip.Addr
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
	s.write(conflist, fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "demo",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {
        "type": "host-local",
        "dataDir": %q,
        "ranges": [[{"subnet": "%s"}], [{"subnet": "%s"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
      }
    }
  ]
}
`, cniIPAM, s.node.PodRange(true), s.node.PodRange(false)))
	s.write(nodeConfig, fmt.Sprintf(`apiVersion: neardns.io/v1alpha1
kind: NodeConfig
clusterDomain: cluster.local
redirects: ["%s", "%s"]
localAddresses: [169.254.20.10, "fd00:90de:d95::a"]
upstreams:
  external: [%s]
stateDir: %s
persistDir: %s
`, s.node.ClusterDNS()[0], s.node.ClusterDNS()[1], filepath.Join(folder, "node-resolv.conf"), stateDir, persistDir))
}

// addPod does what a container runtime does for a pod: a network namespace, a resolv.conf as the kubelet asks for it, and
// ADD of every plugin in the list.
func (s *show) addPod(name string) *pod {
	p := &pod{Pod: s.node.AddPod("pod-" + name), name: "shop/" + name, id: "demo-" + name}
	p.resolvConf = filepath.Join(folder, "pods", name, "resolv.conf")
	s.write(p.resolvConf, s.resolvConf())

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
	s.pods = append(s.pods, p)
	return p
}

// resolvConf is what the kubelet has a runtime write for a pod of namespace shop.
func (s *show) resolvConf() string {
	var text strings.Builder
	for _, a := range s.node.ClusterDNS() {
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
	for _, a := range s.node.ClusterDNS() {
		servers = append(servers, a.String())
	}
	return list, &libcni.RuntimeConf{
		ContainerID: p.id, NetNS: p.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", namespace}, {"K8S_POD_NAME", name}, {"K8S_POD_INFRA_CONTAINER_ID", p.id}},
		// As containerd spells them.
		CapabilityArgs: map[string]any{"dns": map[string]any{"Servers": servers, "Searches": searchPaths, "Options": []string{"ndots:5"}}},
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
