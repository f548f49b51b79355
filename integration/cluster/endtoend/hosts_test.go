package endtoend

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/cluster/node"
	"github.com/neardns/neardns/integration/image"
	"github.com/neardns/neardns/pkg/testutil"
)

// The registry in the cluster, as OpenShift names its own.
const (
	registryNamespace = "openshift-image-registry"
	registryName      = "image-registry." + registryNamespace + ".svc"
	registryImage     = "neardns.test/registry:1"
	pushedImage       = "shop/pushed:1"
)

// registryConf has no accounts, and keeps images in the container.
const registryConf = `{version: 0.1, storage: {filesystem: {rootdirectory: /registry}}, http: {addr: ":5000"}}`

// registryPod is Debian's docker-registry. Its Service has an address that is given.
const registryPod = `
apiVersion: v1
kind: Namespace
metadata: {name: ` + registryNamespace + `}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: registry, namespace: ` + registryNamespace + `}
spec:
  selector: {matchLabels: {app: registry}}
  template:
    metadata: {labels: {app: registry}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: ` + registryImage + `
        imagePullPolicy: Never
        readinessProbe: {httpGet: {path: /v2/, port: 5000}, periodSeconds: 1}
`

// registryAddrs are the n-th addresses that its Service has.
func registryAddrs(n int) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", 90+n)), netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%d", 90+n))}
}

func registryService(addrs []netip.Addr) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: image-registry, namespace: %s}, spec: {selector: {app: registry}, ports: [{port: 5000}],
  ipFamilyPolicy: RequireDualStack, clusterIP: %q, clusterIPs: [%[2]q, %[3]q]}}`, registryNamespace, addrs[0], addrs[1])
}

// hostsLines are the role's lines for a Service of these addresses.
func hostsLines(addrs []netip.Addr) string {
	var out strings.Builder
	for _, a := range addrs {
		fmt.Fprintf(&out, "%s\t%s %[2]s.cluster.local # by neardns-agent hosts\n", a, registryName)
	}
	return out.String()
}

// The role hosts. A pod's image is in a registry of the cluster, by its Service's name: without the role the runtime does not find the
// name; with it the pod starts, also while the node's cache is dead. glibc, musl and Go find the name on the node. A Service that is made
// again with other addresses is found by these. A node that leaves the placement of the cache keeps the role and its lines. They stay when
// the role is deleted: the uninstall takes them out, which its comparison of the node's files shows.
func (s *suite) testHosts() {
	was := s.hostsFile()
	first, second := registryAddrs(1), registryAddrs(2)
	s.runRegistry(first)
	lookups := s.lookups()
	s.wantNoPull("unnamed")
	s.wantFound(lookups, nil)

	manifest := s.kubectl("kustomize", s.hostsManifests())
	const listed = "[registry/image-registry]"
	if strings.Count(manifest, listed) != 1 {
		s.t.Fatalf("the manifest lists Services in another way than as %s:\n%s", listed, manifest)
	}
	s.apply(strings.Replace(manifest, listed, "["+registryNamespace+"/image-registry]", 1))
	s.must(s.Rollout(s.t.Context(), "kube-system", "daemonset/neardns-hosts"))
	s.eventually(func() error { return s.wantHosts(was + hostsLines(first)) })
	s.pull("named")
	s.wantFound(lookups, first)

	s.withoutAgent(func() {
		s.pull("without-cache")
		s.wantFound(lookups, first)
	})

	s.withoutCache(func() {
		s.kubectl("-n", registryNamespace, "delete", "service/image-registry", "--wait")
		s.apply(registryService(second))
		made := time.Now()
		s.eventually(func() error { return s.wantHosts(was + hostsLines(second)) })
		s.t.Logf("the hosts file has the new addresses after %v", time.Since(made)) // a round is every 30 s: TestPace (agent/internal/hostsfile)
	})
	s.pull("made-again")
	s.wantFound(lookups, second)

	s.kubectl("apply", "-k", s.leftManifests())
	s.leave()
	s.must(s.wantHosts(was + hostsLines(second)))
	s.pull("out-of-the-placement")
	s.comeBack()
	s.must(s.wantHosts(was + hostsLines(second)))
	s.kubectl("delete", "-k", s.leftManifests(), "--wait", "--timeout=2m")
	s.renewPods()

	s.kubectl("delete", "-k", s.hostsManifests(), "--wait", "--timeout=2m")
	s.must(s.wantHosts(was + hostsLines(second)))
	s.endRegistry()
}

func (s *suite) hostsManifests() string { return filepath.Join(s.Bin, "../install/hosts") }

// hostsFile is the node's.
func (s *suite) hostsFile() string {
	s.t.Helper()
	return testutil.ReadFile(s.t, s.Path("/etc/hosts"))
}

func (s *suite) wantHosts(want string) error {
	if got := s.hostsFile(); got != want {
		return fmt.Errorf("the node's hosts file is\n%s\nwant\n%s", got, want)
	}
	return nil
}

// runRegistry runs a registry with an image, behind a Service of these addresses, and has the runtime reach it without TLS.
func (s *suite) runRegistry(addrs []netip.Addr) {
	s.t.Helper()
	s.must(s.Import(s.t.Context(), s.registryImage()))
	s.apply(registryPod)
	s.apply(registryService(addrs))
	s.must(s.Rollout(s.t.Context(), registryNamespace, "deployment/registry"))

	pushed := netip.AddrPortFrom(addrs[0], 5000).String() + "/" + pushedImage
	s.must(s.Import(s.t.Context(), image.Image{
		Name: pushed, Files: map[string]string{"podimage": filepath.Join(s.Bin, "tools/podimage")},
		Contents:   map[string][]byte{"pushed": []byte("a layer that the runtime's store does not have\n")},
		Entrypoint: []string{"/podimage"}, Cmd: []string{"pause"},
	}))
	s.eventually(func() error { return s.Push(s.t.Context(), pushed) })

	folder := filepath.Join(node.Registries, registryName+":5000")
	how := fmt.Sprintf("[host.\"http://%s:5000\"]\n  capabilities = [\"pull\", \"resolve\"]\n", registryName)
	s.must(errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, "hosts.toml"), []byte(how), 0o644)))
}

// registryImage has Debian's program, and the libraries that it is linked with.
func (s *suite) registryImage() image.Image {
	s.t.Helper()
	program, err := exec.LookPath("docker-registry")
	s.must(err)
	linked, err := exec.Command("ldd", program).Output()
	s.must(err)
	i := image.Image{Name: registryImage, Files: map[string]string{"docker-registry": program}, Contents: map[string][]byte{"conf.yaml": []byte(registryConf)},
		Entrypoint: []string{"/docker-registry"}, Cmd: []string{"serve", "/conf.yaml"}}
	for _, word := range strings.Fields(string(linked)) {
		if filepath.IsAbs(word) {
			i.Files[strings.TrimPrefix(word, "/")] = word
		}
	}
	return i
}

// nudge is a Service without endpoints, for which kube-proxy makes no chain.
const nudge = `{apiVersion: v1, kind: Service, metadata: {name: nudge}, spec: {ipFamilyPolicy: RequireDualStack, ports: [{port: 1}]}}`

// endRegistry waits until kube-proxy has no rule of it either. In nftables mode kube-proxy deletes a chain a round after the one that took
// it out of use, and has a round where a Service changes: another one is made and deleted, or the chains could stay for an hour.
func (s *suite) endRegistry() {
	s.t.Helper()
	s.kubectl("delete", "namespace", registryNamespace, "--wait", "--timeout=2m")
	s.eventually(func() error {
		for _, command := range [][]string{{"nft", "list", "ruleset"}, {"iptables-save"}, {"ip6tables-save"}} {
			text, err := s.Run(s.t.Context(), command[0], command[1:]...)
			if err != nil {
				return fmt.Errorf("look for rules: %w", err)
			}
			if strings.Contains(text, registryNamespace) {
				s.apply(nudge)
				s.kubectl("delete", "service/nudge", "--wait")
				return fmt.Errorf("kube-proxy has rules for the registry:\n%s", text)
			}
		}
		return nil
	})
}

// pulledPod makes a pod of the image in the registry, which is pulled each time.
func (s *suite) pulledPod(name string) {
	s.t.Helper()
	s.apply(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %[1]s, labels: {app: %[1]s}}, spec: {terminationGracePeriodSeconds: 1,
  containers: [{name: main, image: "%s:5000/%s", imagePullPolicy: Always}]}}`, name, registryName, pushedImage))
}

// pull holds that the pod starts.
func (s *suite) pull(name string) {
	s.t.Helper()
	s.pulledPod(name)
	s.pods("app="+name, 1)
	s.deletePod(name)
}

// wantNoPull holds that it does not, since the registry's name has no answer.
func (s *suite) wantNoPull(name string) {
	s.t.Helper()
	s.pulledPod(name)
	s.eventually(func() error {
		said := s.kubectl("get", "pod", name, "-o", "jsonpath={.status.containerStatuses[0].state.waiting.reason}: {.status.containerStatuses[0].state.waiting.message}")
		if !strings.Contains(said, "ErrImagePull: ") || !strings.Contains(said, registryName) || !strings.Contains(said, "no such host") {
			return fmt.Errorf("the pod's container is %q, want ErrImagePull, since there is no such host", said)
		}
		s.t.Log(said)
		return nil
	})
	s.deletePod(name)
}

// lookups are programs that look a name up on the node, by the library that does it for them.
func (s *suite) lookups() map[string]string {
	s.t.Helper()
	const sources = "../../steering/testdata/"
	out := map[string]string{}
	for library, build := range map[string][]string{
		"glibc": {"gcc", "-o", "", sources + "lookup-c/lookup.c"},
		"musl":  {"musl-gcc", "-static", "-o", "", sources + "lookup-c/lookup.c"},
		"Go":    {"go", "build", "-trimpath", "-buildvcs=false", "-o", "", sources + "lookup/lookup.go"},
	} {
		out[library] = filepath.Join(node.Dir, "lookup-"+library)
		build[slices.Index(build, "")] = out[library]
		cmd := exec.Command(build[0], build[1:]...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			s.t.Fatalf("build a lookup by %s: %v\n%s", library, err, text)
		}
	}
	return out
}

// wantFound holds which addresses of the registry are found on the node, by every library.
func (s *suite) wantFound(lookups map[string]string, want []netip.Addr) {
	s.t.Helper()
	for library, program := range lookups {
		out, err := s.Run(s.t.Context(), program, "any", registryName)
		s.must(err)
		found := strings.Fields(out)[1:]
		slices.Sort(found)
		expected := []string{"address", "error", "no"} // its words for none
		if want != nil {
			expected = []string{want[0].String(), want[1].String()}
		}
		if !slices.Equal(found, expected) {
			s.t.Errorf("%s finds %s at %q, want %q", library, registryName, found, expected)
		}
	}
	if _, err := s.Run(s.t.Context(), "getent", "hosts", registryName); (err == nil) != (want != nil) {
		s.t.Errorf("getent: %v", err)
	}
}

// withoutAgent does something while the agent is killed and none comes in its place.
func (s *suite) withoutAgent(f func()) {
	s.t.Helper()
	old := s.agent()
	s.kubectl("label", "node", node.Name, "neardns.io/cache=excluded")
	include := sync.OnceFunc(func() { s.kubectl("label", "node", node.Name, "neardns.io/cache-") })
	defer include()                                                 // for the steps that follow, if this one fails
	_, _ = s.Run(s.t.Context(), "kill", "-KILL", strconv.Itoa(old)) // fails if the label has ended it already
	s.eventually(func() error {
		found, err := s.Agents()
		if err == nil && len(found) > 0 {
			err = fmt.Errorf("agents run: %v", found)
		}
		return err
	})
	f()
	include()
	s.eventually(s.serving)
	s.awaitAnsweredBy(cached, s.loaded[0])
}

// withoutCache does something while kube-dns keeps no answer about the cluster's names, as kubeadm configures it: one that it kept
// would be given for 30 s more.
func (s *suite) withoutCache(f func()) {
	s.t.Helper()
	const cache = "cache 30\n"
	was := s.corefile()
	if strings.Count(was, cache) != 1 {
		s.t.Fatalf("kube-dns's Corefile has not one %q:\n%s", cache, was)
	}
	set := func(corefile string, keeps bool) {
		s.setCorefile(corefile)
		s.eventually(func() error {
			kept := false
			for range 2 {
				r, err := ask(s.hostNS(), server(true), "udp", question{"kubernetes.default.svc.cluster.local.", dns.TypeA})
				if err != nil || len(r.Answer) != 1 {
					return fmt.Errorf("kube-dns answers %v: %w", r, err)
				}
				kept = kept || r.Answer[0].Header().Ttl < 30
				pass(1100 * time.Millisecond) // after which a kept one has a smaller TTL
			}
			if kept != keeps {
				return fmt.Errorf("kube-dns keeps its answers: %v, want %v", kept, keeps)
			}
			return nil
		})
	}
	set(strings.Replace(was, cache, "cache 30 {\n disable success cluster.local\n disable denial cluster.local\n}\n", 1), false)
	defer set(was, true)
	f()
}
