package main

import (
	"encoding/json"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/neardns/neardns/pkg/podfile"
)

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
