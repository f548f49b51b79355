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
	types "github.com/containernetworking/cni/pkg/types/100"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

const (
	conflistFile = "net.d/10-demo.conflist"
	podInterface = "eth0"
)

// pod is one pod, made as a container runtime makes it.
type pod struct {
	*testutil.Pod
	c           *cluster
	name        string
	container   string
	resolvConf  string // path of the file that is the pod's /etc/resolv.conf
	original    []byte
	annotations map[string]string
	addrs       []netip.Addr
	veth        string // on the node's side
	client      *dns.ClientConfig
}

// writeConflist writes the node's network as a cluster's installer does: the reference plugins ptp and host-local.
func (c *cluster) writeConflist() {
	families := []bool{true}
	routes := []any{map[string]string{"dst": "0.0.0.0/0"}}
	if c.ipv6 {
		families = append(families, false)
		routes = append(routes, map[string]string{"dst": "::/0"})
	}
	var ranges []any
	for _, is4 := range families {
		ranges = append(ranges, []any{map[string]any{"subnet": c.PodRange(is4)}})
	}
	ptp := map[string]any{"type": "ptp", "mtu": 1500, "ipam": map[string]any{
		"type": "host-local", "dataDir": c.path("ipam"), "ranges": ranges, "routes": routes,
	}}
	text, err := json.MarshalIndent(map[string]any{"cniVersion": "1.0.0", "name": "demo", "plugins": []any{ptp}}, "", "  ")
	c.must(err)
	c.write(conflistFile, string(text)+"\n")
	for _, plugin := range []string{"ptp", "host-local"} {
		c.must(os.Symlink(c.program("tools/"+plugin), c.path("cni-bin/"+plugin)))
	}
}

// chain is the types of the conflist's plugins, in order.
func (c *cluster) chain() string {
	list, err := libcni.ConfListFromFile(c.path(conflistFile))
	c.must(err)
	var names []string
	for _, p := range list.Plugins {
		names = append(names, p.Network.Type)
	}
	return strings.Join(names, ", ")
}

// addPod makes a pod: its namespace, its resolv.conf as the kubelet writes it, and the plugins of the conflist.
func (c *cluster) addPod(ctx context.Context, name string, nameservers []netip.Addr, annotations map[string]string) *pod {
	p := &pod{Pod: c.AddPod(name), c: c, name: name, container: name + "-0123456789", annotations: annotations}
	c.note(p.NetNS)
	var b strings.Builder
	for _, a := range nameservers {
		fmt.Fprintf(&b, "nameserver %s\n", a)
	}
	b.WriteString("search default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n")
	p.original = []byte(b.String())
	c.must(os.MkdirAll(c.path("pods/"+name), 0o755))
	p.resolvConf = c.path("pods/" + name + "/resolv.conf")
	c.must(os.WriteFile(p.resolvConf, p.original, 0o644))

	result, err := p.plugins(ctx, (*libcni.CNIConfig).AddNetworkList)
	if err != nil {
		c.t.Fatalf("make pod %s: %v", name, err)
	}
	got, err := types.NewResultFromResult(result)
	c.must(err)
	for _, ip := range got.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		p.addrs = append(p.addrs, a.Unmap())
	}
	for _, i := range got.Interfaces {
		if i.Sandbox == "" {
			p.veth = i.Name
		}
	}
	p.client, err = dns.ClientConfigFromFile(p.resolvConf)
	c.must(err)
	return p
}

// plugins has libcni call the plugins of the conflist as it stands, in the node's netns, as a runtime does.
func (p *pod) plugins(ctx context.Context, verb cniVerb) (result cniResult, err error) {
	list, err := libcni.ConfListFromFile(p.c.path(conflistFile))
	if err != nil {
		return nil, err
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{p.c.path("cni-bin")}, p.c.path("cni-cache"), nil)
	p.c.Host.Do(func() { result, err = verb(cni, ctx, list, p.runtimeConf()) })
	return result, err
}

// runtimeConf is what containerd tells the plugins.
func (p *pod) runtimeConf() *libcni.RuntimeConf {
	conf, _ := dns.ClientConfigFromReader(strings.NewReader(string(p.original)))
	return &libcni.RuntimeConf{
		ContainerID: p.container, NetNS: p.Path(), IfName: podInterface,
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", p.name}, {"K8S_POD_INFRA_CONTAINER_ID", p.container}},
		CapabilityArgs: map[string]any{
			"dns":                               map[string]any{"servers": conf.Servers, "searches": conf.Search, "options": []string{"ndots:5"}},
			"io.kubernetes.cri.pod-annotations": p.annotations,
		},
	}
}

// remove ends the attachment; the namespace stays, to be looked at.
func (p *pod) remove(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	_, err := p.plugins(ctx, func(cni *libcni.CNIConfig, ctx context.Context, list *libcni.NetworkConfigList, conf *libcni.RuntimeConf) (cniResult, error) {
		return nil, cni.DelNetworkList(ctx, list, conf)
	})
	return time.Since(begun), err
}

// state is what the pod's file says of it.
func (p *pod) state() podfile.State {
	f, err := podfile.Read(p.file())
	if err != nil || len(f.Decisions) == 0 {
		return podfile.State(fmt.Sprintf("no pod file (%v)", err))
	}
	states := map[podfile.State]bool{}
	for _, d := range f.Decisions {
		states[d.State] = true
	}
	if len(states) > 1 {
		return "differs by address"
	}
	return f.Decisions[0].State
}

func (p *pod) reason() string {
	f, err := podfile.Read(p.file())
	if err != nil || len(f.Decisions) == 0 {
		return ""
	}
	return f.Decisions[0].Reason
}

func (p *pod) file() string { return podfile.Path(p.c.stateDir(), p.container, podInterface) }

// unchanged tells whether the pod's resolv.conf is what the kubelet wrote.
func (p *pod) unchanged() bool {
	now, err := os.ReadFile(p.resolvConf)
	return err == nil && slices.Equal(now, p.original)
}

// traces names what is left of the pod on the node and in its own netns.
func (p *pod) traces() []string {
	var found []string
	if rules, _ := p.TryRun("", "nft", "list", "ruleset"); strings.Contains(rules, "neardns") {
		found = append(found, "pod table")
	}
	if exists(p.file()) {
		found = append(found, "pod file")
	}
	rules := p.c.Host.Run("nft", "list", "table", "inet", "neardns")
	for _, a := range p.addrs {
		if slices.Contains(strings.FieldsFunc(rules, func(r rune) bool { return strings.ContainsRune(" \t\n,{}", r) }), a.String()) {
			found = append(found, fmt.Sprintf("%s in the host table", a))
		}
		if exists(filepath.Join(p.c.path("ipam/demo"), a.String())) {
			found = append(found, fmt.Sprintf("lease of %s", a))
		}
	}
	if links := p.c.Host.Run("ip", "-o", "link"); strings.Contains(links, p.veth+"@") {
		found = append(found, "link "+p.veth)
	}
	return found
}
