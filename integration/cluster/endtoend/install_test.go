package endtoend

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/neardns/neardns/integration/cluster/node"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// workload is what runs on the node: the pods that the load comes from, and Services of every kind to look up.
const workload = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: load}
spec:
  replicas: 20
  selector: {matchLabels: {app: load}}
  template:
    metadata: {labels: {app: load}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "neardns.test/pod:1", imagePullPolicy: Never}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: before}
spec:
  replicas: 2
  selector: {matchLabels: {app: before}}
  template:
    metadata: {labels: {app: before}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "neardns.test/pod:1", imagePullPolicy: Never}]
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec:
  clusterIP: None
  ipFamilyPolicy: RequireDualStack
  selector: {app: before}
  ports: [{name: web, port: 8080}, {name: udp, port: 5000, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec:
  ipFamilyPolicy: RequireDualStack
  clusterIP: 10.96.0.77
  clusterIPs: [10.96.0.77, "fd00:10:96::77"]
  selector: {app: before}
  ports: [{name: web, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: away}
spec: {type: ExternalName, externalName: a.outside.test}
`

// The node works without anything of ours.
func (s *suite) testWorkload() {
	s.apply(workload)
	s.before, s.loaded = s.pods("app=before", 2), s.pods("app=load", loadPods)
	s.wantAnsweredBy(direct, append(slices.Clone(s.before), s.loaded[0])...)
}

// Installed under load: no one notices. The init container chains the plugin; pods from before stay as they were, and later
// ones are steered and answered by the cache, which its metrics show.
func (s *suite) testInstall() {
	y := s.underLoad(s.loaded, s.install)
	s.wantMissed(y, 0)
	if y.Direct != y.Sent {
		s.t.Errorf("%d of %d questions of pods from before were not answered by kube-dns itself", y.Sent-y.Direct, y.Sent)
	}
	if got, want := s.plugins(), []string{"bridge", "portmap", "neardns"}; !slices.Equal(got, want) {
		s.t.Errorf("the network's plugins are %q, want %q", got, want)
	}
	for _, p := range s.before {
		if f := s.file(p.name); f != nil {
			s.t.Errorf("pod %s from before has a file: %+v", p.name, f)
		}
	}
	s.renewPods()
	before, inKernel := s.metric(`neardns_switch_packets_total{protocol="udp",way="delivered"}`), s.answeredInKernel()
	y = s.underLoad(s.loaded, func() {})
	s.wantMissed(y, 0)
	if y.Cache != y.Sent {
		s.t.Errorf("%d of %d questions of new pods were not answered by the cache", y.Sent-y.Cache, y.Sent)
	}
	inKernel = s.answeredInKernel() - inKernel
	if got := s.metric(`neardns_switch_packets_total{protocol="udp",way="delivered"}`) - before + inKernel; int(got) < y.Sent*udpRate/(udpRate+tcpRate) {
		s.t.Errorf("the switch counted %v questions over UDP to the agent, and the kernel answered %v, of %d", got-inKernel, inKernel, y.Sent)
	}
	if *kernelHits && inKernel == 0 {
		s.t.Error("the kernel answered nothing")
	}
	s.wantAnsweredBy(cached, s.loaded[:2]...)
	s.wantAnsweredBy(direct, s.before...)
}

// leaveOlder leaves pods that ran before the installation on kube-dns: the suite compares with their answers. testAdopt has the default.
const leaveOlder = "adoptPods: false"

// install applies the overlay of kube-proxy's mode, with kernel hits or without: the counts that follow are of one of the two.
func (s *suite) install() {
	s.t.Helper()
	s.must(s.InstallProduct(s.t.Context(), s.Proxy, leaveOlder, s.kernelHits()))
}

// kernelHits is the line of the NodeConfig that leaves kernel hits as a new installation has them, or switches them off.
func (s *suite) kernelHits() string {
	return fmt.Sprintf("kernelHits: {mode: %q}", map[bool]string{true: "auto", false: "off"}[*kernelHits])
}

// answeredInKernel is how many queries the kernel has answered so far; 0 where it does not.
func (s *suite) answeredInKernel() (sum float64) {
	s.t.Helper()
	if !*kernelHits {
		return 0
	}
	for _, kind := range []string{"A", "AAAA", "other"} {
		for _, rcode := range []string{"NOERROR", "NXDOMAIN"} {
			sum += s.metric(fmt.Sprintf("neardns_kernel_hits_total{rcode=%q,type=%q}", rcode, kind))
		}
	}
	return sum
}

// renewPods puts new pods in the place of those that the load comes from.
func (s *suite) renewPods() {
	s.t.Helper()
	s.kubectl("delete", "pods", "-l", "app=load", "--wait", "--timeout=2m")
	s.loaded = s.pods("app=load", loadPods)
	for _, p := range s.loaded {
		s.eventually(func() error { return s.inState(p, podfile.Steered) }) // by the agent, where the plugin ran out of time
	}
}

// plugins are the types in the network's list.
func (s *suite) plugins() []string {
	s.t.Helper()
	var list struct {
		Plugins []struct{ Type string }
	}
	s.must(json.Unmarshal([]byte(s.conflist()), &list))
	var out []string
	for _, p := range list.Plugins {
		out = append(out, p.Type)
	}
	return out
}

func (s *suite) conflist() string {
	s.t.Helper()
	return testutil.ReadFile(s.t, s.Path("/etc/cni/net.d/10-main.conflist"))
}

// A new version, and back to the old one, under load: the next agent takes over from the one before, and the list and the
// plugin are not touched.
func (s *suite) testUpgrade() {
	s.bring(node.Build{Root: s.Own().Root, Tag: "next"})
	list, plugin := s.stat("/etc/cni/net.d/10-main.conflist"), s.stat("/opt/cni/bin/neardns")
	taken := s.metric(`neardns_handovers_total{result="taken"}`)
	for _, c := range []struct {
		name string
		act  func()
	}{
		{"upgrade", func() {
			s.kubectl("-n", "kube-system", "set", "image", "daemonset/neardns", "install=docker.io/neardns/neardns-plugin:next",
				"agent=docker.io/neardns/neardns-agent:next", "watch=docker.io/neardns/neardns-agent:next")
		}},
		{"roll back", func() { s.kubectl("-n", "kube-system", "rollout", "undo", "daemonset/neardns") }},
	} {
		y := s.underLoad(s.loaded, func() {
			c.act()
			s.must(s.AwaitProduct(s.t.Context()))
		})
		s.wantMissed(y, 0)
		if y.Direct > 0 {
			s.t.Errorf("%s: %d of %d questions went to kube-dns\n%s", c.name, y.Direct, y.Sent, s.kubectl("-n", "kube-system", "logs", "daemonset/neardns", "-c", "agent"))
		}
		if got := s.metric(`neardns_handovers_total{result="taken"}`); got != 1 {
			s.t.Errorf("%s: the agent that serves now counts %v hand-overs, want 1 (the one before %v)", c.name, got, taken)
		}
	}
	if got := s.stat("/etc/cni/net.d/10-main.conflist"); got != list {
		s.t.Errorf("the network's list was written: %s, before %s", got, list)
	}
	if got := s.stat("/opt/cni/bin/neardns"); got != plugin {
		s.t.Errorf("the plugin was written: %s, before %s", got, plugin)
	}
}

// bring imports a build's images.
func (s *suite) bring(b node.Build) {
	s.t.Helper()
	images, err := s.Products(s.t.Context(), b)
	s.must(err)
	for _, i := range images {
		s.must(s.Import(s.t.Context(), i))
	}
}

// stat shows a file from another one in its place.
func (s *suite) stat(name string) string {
	s.t.Helper()
	info, err := os.Stat(s.Path(name))
	s.must(err)
	return fmt.Sprintf("%+v", info.Sys())
}

// Uninstalled under load, as in README: no query is lost, and the node is to the last byte what it was.
func (s *suite) testUninstall(was map[string]string) {
	s.uninstalled(s.Own(), s.Proxy, was)
}

// uninstalled is testUninstall by the manifests of a build.
func (s *suite) uninstalled(b node.Build, overlay string, was map[string]string) {
	s.t.Helper()
	y := s.underLoad(s.loaded, func() { s.must(s.UninstallBuild(s.t.Context(), b, overlay, true)) })
	s.wantMissed(y, 0)
	s.wantAnsweredBy(direct, append(slices.Clone(s.before), s.loaded[:2]...)...)
	for _, p := range s.loaded {
		if out, err := s.Run(s.t.Context(), "nsenter", "--net=/run/netns/"+filepath.Base(p.ns), "nft", "list", "ruleset"); err != nil || strings.TrimSpace(out) != "" {
			s.t.Errorf("pod %s: rules are left: %v\n%s", p.name, err, out)
		}
	}
	now := s.snapshot()
	for name, empty := range ofKubelet {
		if _, there := was[name]; !there && now[name] == empty {
			delete(now, name)
		}
	}
	if diff := cmp.Diff(was, now); diff != "" {
		s.t.Errorf("the node is not what it was before (-before +now):\n%s", diff)
	}
	for _, p := range s.loaded[:2] { // made with the plugin, and ended without it
		s.deletePod(p.name)
	}
	s.loaded = s.pods("app=load", loadPods)
	s.wantAnsweredBy(direct, s.loaded[:2]...)
}

// kube-proxy goes over to its other mode under load; the fallback then leads through rules of the other kind. While kube-proxy
// itself has no rules no program can query kube-dns, so this is about names that were queried before.
func (s *suite) testProxySwitched() {
	s.must(s.InstallProduct(s.t.Context(), s.Proxy, leaveOlder, s.kernelHits()))
	s.renewPods()
	to := map[string]string{"iptables": "nftables", "nftables": "iptables"}[s.Proxy]
	y := s.underLoad(s.loaded, func() {
		s.must(s.SetProxy(to))
		s.eventually(func() error {
			return s.wantProxyRules(to)
		})
	})
	s.wantMissed(y, 0)
	s.eventually(s.serving) // what kube-proxy took away and put back is proven again
	s.wantAnsweredBy(cached, s.loaded[0])
	s.kill(s.agent(), "STOP")
	s.awaitAnsweredBy(direct, s.loaded[0])
	s.kill(s.agent(), "CONT")
	s.awaitAnsweredBy(cached, s.loaded[0])
}

// wantProxyRules holds that kube-proxy has its rules for the cluster DNS addresses, of one kind and not of the other.
func (s *suite) wantProxyRules(mode string) error {
	nft, err := s.Run(s.t.Context(), "nft", "list", "ruleset")
	if err != nil {
		return err
	}
	save, err := s.Run(s.t.Context(), "iptables-save")
	if err != nil {
		return err
	}
	address := node.KubeDNS()[0].String()
	byIPTables, byNFTables := strings.Contains(save, "-d "+address+"/32"), strings.Contains(nft, "table ip kube-proxy") && strings.Contains(nft, address+" . ")
	if byIPTables != (mode == "iptables") || byNFTables != (mode == "nftables") {
		return fmt.Errorf("kube-proxy's rules are in iptables: %v, in nftables: %v; want those of %s", byIPTables, byNFTables, mode)
	}
	return nil
}
