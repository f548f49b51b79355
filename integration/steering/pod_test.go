package steering

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/programs"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// pod is a pod that libcni made by the node's conflist.
type pod struct {
	*testutil.Pod
	node        *node
	name        string
	annotations map[string]string
	addrs       []netip.Addr
	ended       atomic.Int64 // queries of denied.query that were answered or given up
}

type object = map[string]any

const conflistFile = "net.d/10-pods.conflist"

// conflist is the node's network: a reference plugin with host-local, and neardns behind it.
func (n *node) conflist(withNearDNS bool) *libcni.NetworkConfigList {
	n.t.Helper()
	var ranges, routes []any
	for _, a := range n.Gateways() {
		ranges = append(ranges, []any{object{"subnet": n.PodRange(a.Is4()).String(), "gateway": a.String()}})
		routes = append(routes, object{"dst": testutil.DefaultRoute(a).String()})
	}
	primary := object{"type": "ptp", "mtu": 1500}
	if n.setup.attach != testutil.PTP {
		primary = object{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true}
	}
	primary["ipam"] = object{"type": "host-local", "dataDir": n.path("ipam"), "ranges": ranges, "routes": routes}
	plugins := []any{primary}
	if n.attaches != nil {
		plugins = []any{n.attaches}
	}
	if withNearDNS {
		plugin := object{
			"type": "neardns", "redirects": n.redirects, "clusterDomain": "cluster.local", "localAddresses": n.locals(),
			"stateDir": n.stateDir(), "persistDir": n.persistDir(), "steer": "always", "logFile": n.path("plugin.log"),
			"capabilities": object{"dns": true, "io.kubernetes.cri.pod-annotations": true},
		}
		if n.setup.proven {
			delete(plugin, "steer")
		}
		if n.setup.backend != "" {
			plugin["backend"] = n.setup.backend
		}
		maps.Copy(plugin, n.setup.plugin)
		plugins = append(plugins, plugin)
	}
	text, err := json.MarshalIndent(object{"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}, "", "  ")
	testutil.Must(n.t, err)
	testutil.Must(n.t, os.MkdirAll(n.path("net.d"), 0o755))
	n.write(conflistFile, string(text))
	list, err := libcni.ConfListFromFile(n.path(conflistFile))
	testutil.Must(n.t, err)
	return list
}

// addPod makes a pod. Where the plugin leaves it to a running agent to steer the pod, it is steered when addPod returns, unless it never
// will.
func (n *node) addPod(annotations map[string]string) *pod {
	n.t.Helper()
	p := n.makePod(true, annotations)
	if !n.setup.proven || p.in(podfile.LeftAlone) == nil {
		return p
	}
	if a, err := n.agentStatus(); err == nil && a.Ready {
		testutil.Eventually(n.t, func() error { return p.in(podfile.Steered) })
	}
	return p
}

// addOldPod makes a pod as it was before neardns came to the node.
func (n *node) addOldPod() *pod {
	n.t.Helper()
	return n.makePod(false, nil)
}

// addRunningPods makes pods as they were before neardns came, with these annotations.
func (n *node) addRunningPods(count int, annotations map[string]string) (out []*pod) {
	n.t.Helper()
	for range count {
		out = append(out, n.makePod(false, annotations))
	}
	return out
}

func (n *node) makePod(withNearDNS bool, annotations map[string]string) *pod {
	n.t.Helper()
	n.pods++
	name := fmt.Sprintf("pod%d", n.pods)
	p := &pod{Pod: n.AddPod(name), node: n, name: name, annotations: annotations}
	// Duplicate address detection would hold every IPv6 pod up for seconds. It is off for the links of pods alone: the
	// products' own must do with what a node has.
	p.Sysctl("net.ipv6.conf.default.accept_dad", "0")
	n.Host.Sysctl("net.ipv6.conf.default.accept_dad", "0")
	defer n.Host.Sysctl("net.ipv6.conf.default.accept_dad", "1")
	var result types.Result
	err := p.cni(withNearDNS, func(c *libcni.CNIConfig, list *libcni.NetworkConfigList, conf *libcni.RuntimeConf) (err error) {
		result, err = c.AddNetworkList(context.Background(), list, conf)
		return err
	})
	if err != nil {
		n.t.Fatalf("ADD %s: %v", name, err)
	}
	got, err := types100.NewResultFromResult(result)
	testutil.Must(n.t, err)
	for _, ip := range got.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		p.addrs = append(p.addrs, a.Unmap())
	}
	if len(p.addrs) != len(n.ClusterDNS()) {
		n.t.Fatalf("pod %s has the addresses %v", name, p.addrs)
	}
	n.awaitNetwork(p.NetNS)
	return p
}

// awaitNetwork waits until kube-dns's own address is reached, which no rule of ours has to do with: a new link may lose its
// first packets to neighbour discovery, which tries again after a second.
func (n *node) awaitNetwork(ns *testutil.NetNS) {
	n.t.Helper()
	for _, a := range n.KubeDNSAddrs() {
		testutil.Eventually(n.t, func() error {
			_, err := testutil.Ask(ns, netip.AddrPortFrom(a, 53), freshName(), dns.TypeA, "udp", testutil.AskOptions{Timeout: retry})
			return err
		})
	}
}

// cni has libcni call the plugins in the host's netns, as a runtime does.
func (p *pod) cni(withNearDNS bool, verb func(*libcni.CNIConfig, *libcni.NetworkConfigList, *libcni.RuntimeConf) error) (err error) {
	n := p.node
	dirs := append([]string{made.Dir()}, n.pluginDirs...)
	c := libcni.NewCNIConfigWithCacheDir(dirs, n.path("cni-cache"), &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: io.Discard}})
	list := n.conflist(withNearDNS)
	nameservers := n.setup.nameservers
	if nameservers == nil {
		nameservers = n.ClusterDNS()
	}
	conf := &libcni.RuntimeConf{
		ContainerID: p.container(), NetNS: p.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", p.name}},
		CapabilityArgs: map[string]any{
			"dns":                               object{"servers": nameservers, "searches": n.searches(), "options": []string{"ndots:5"}},
			"io.kubernetes.cri.pod-annotations": p.annotations,
		},
	}
	n.Host.Do(func() { err = verb(c, list, conf) })
	return err
}

func (p *pod) container() string { return programs.ContainerID(p.name) }

func (p *pod) check() error {
	return p.cni(true, func(c *libcni.CNIConfig, list *libcni.NetworkConfigList, conf *libcni.RuntimeConf) error {
		return c.CheckNetworkList(context.Background(), list, conf)
	})
}

func (p *pod) del() {
	p.node.t.Helper()
	p.delBy(true)
}

// delBy has the runtime take the pod down by the list with or without our entry: CRI-O does so by the one that the pod was made by,
// containerd by the one of now.
func (p *pod) delBy(withNearDNS bool) {
	p.node.t.Helper()
	err := p.cni(withNearDNS, func(c *libcni.CNIConfig, list *libcni.NetworkConfigList, conf *libcni.RuntimeConf) error {
		return c.DelNetworkList(context.Background(), list, conf)
	})
	if err != nil {
		p.node.t.Errorf("DEL %s: %v", p.name, err)
	}
}

// decisions is what the pod's file has, one state and reason a cluster DNS address.
func (p *pod) decisions() []podfile.Decision {
	p.node.t.Helper()
	f, err := podfile.Read(podfile.Path(p.node.stateDir(), p.container(), "eth0"))
	testutil.Must(p.node.t, err)
	return f.Decisions
}

// in returns an error unless all of the pod's decisions are in one state.
func (p *pod) in(state podfile.State) error {
	for _, d := range p.decisions() {
		if d.State != state {
			return fmt.Errorf("%s is %s for %s (%s), want %s", p.name, d.State, d.Redirect.ClusterDNS, d.Reason, state)
		}
	}
	return nil
}

// addr is the pod's address of a family.
func (p *pod) addr(is4 bool) netip.Addr {
	for _, a := range p.addrs {
		if a.Is4() == is4 {
			return a
		}
	}
	p.node.t.Fatalf("%s has no such address: %v", p.name, p.addrs)
	return netip.Addr{}
}

// rules lists the rules in the pod's netns that nft shows: not those of iptables-legacy, which ruleText has.
func (p *pod) rules() string { return p.Run("nft", "-s", "list", "ruleset") }

// ours reports whether a pod has rules of ours; iptables leaves its own empty chains.
func (p *pod) ours() bool { return oursIn.MatchString(p.rules()) }

// wantNoRules fails the test if a pod has rules that nft shows, but for what iptables-nft leaves.
func (p *pod) wantNoRules(when string) {
	p.node.t.Helper()
	if rules := p.rules(); oursIn.MatchString(rules) || p.node.setup.backend == "" && rules != "" {
		p.node.t.Errorf("%s: rules in %s:\n%s", when, p.name, rules)
	}
}

// tracked lists the connections of the pod's DNS in a netns.
func (p *pod) tracked(ns *testutil.NetNS) []string {
	var out []string
	for _, line := range testutil.Conntrack(ns) {
		for _, a := range p.addrs {
			if strings.Contains(line, " "+a.String()+":") {
				out = append(out, line)
				break
			}
		}
	}
	return out
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
