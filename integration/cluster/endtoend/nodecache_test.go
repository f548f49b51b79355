package endtoend

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/cluster/node"
	"github.com/neardns/neardns/pkg/testutil"
)

// localDNS is where NodeLocal DNSCache listens.
var localDNS = netip.MustParseAddr("169.254.20.10")

// nodeLocalDNS is the manifest of NodeLocal DNSCache, filled in as its instructions say, with our image in place of its own.
func (s *suite) nodeLocalDNS() string {
	s.t.Helper()
	text := testutil.ReadFile(s.t, "../../nodelocal/testdata/nodelocaldns.yaml")
	filled := strings.NewReplacer("__PILLAR__LOCAL__DNS__", localDNS.String(), "__PILLAR__DNS__SERVER__", node.KubeDNS()[0].String(),
		"__PILLAR__DNS__DOMAIN__", "cluster.local", "registry.k8s.io/dns/k8s-dns-node-cache:1.26.4", "neardns/neardns-agent:dev").Replace(text)
	if !strings.Contains(filled, "image: neardns/neardns-agent:dev") {
		s.t.Fatal("the manifest names another image than expected")
	}
	return filled
}

// askedAt reports who answers a pod at an IPv4 address, by both protocols.
func (s *suite) askedAt(p pod, at netip.Addr, want who) error {
	for _, network := range []string{"udp", "tcp"} {
		name := fmt.Sprintf("t%d", time.Now().UnixNano())
		r, err := ask(p.ns, at, network, question{name + ".who.cluster.local.", dns.TypeTXT})
		if err != nil {
			return err
		}
		got := cached
		for _, rr := range r.Answer {
			if txt, ok := rr.(*dns.TXT); ok && len(txt.Txt) == 1 {
				if client, err := netip.ParseAddr(txt.Txt[0]); err == nil && slices.Contains(p.addrs, client) {
					got = direct
				}
			}
		}
		if r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1 || got != want {
			return fmt.Errorf("pod %s, %s over %s: answered by %s (%s), want %s", p.name, at, network, got, dns.RcodeToString[r.Rcode], want)
		}
	}
	return nil
}

// nodeCaches are the agents in node-cache's place, by the node's own numbers.
func (s *suite) nodeCaches() (out []int) {
	files, err := filepath.Glob(s.Path("/proc/[0-9]*/cmdline"))
	s.must(err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it ended
		}
		if args := strings.Split(string(text), "\x00"); filepath.Base(args[0]) == "neardns-agent" && slices.Contains(args, "-localip") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			s.must(err)
			out = append(out, pid)
		}
	}
	return out
}

// NodeLocal DNSCache's manifest with our image, on a node without the plugin: by a real kubelet and runtime, with the capabilities
// that they grant. Pods name 169.254.20.10 or the cluster DNS address, and are answered by the cache, by kube-dns when it is
// killed, and when it is deleted.
func (s *suite) testNodeCache() {
	p := s.before[0]
	both := []netip.Addr{localDNS, node.KubeDNS()[0]}
	answered := func(want who) {
		s.t.Helper()
		for _, at := range both {
			s.eventually(func() error { return s.askedAt(p, at, want) })
		}
	}
	s.apply(s.nodeLocalDNS())
	s.must(s.Rollout(s.t.Context(), "kube-system", "daemonset/node-local-dns"))
	answered(cached)
	s.eventually(func() error {
		_, err := s.Kubectl(s.t.Context(), "--namespace", "kube-system", "exec", "daemonset/node-local-dns", "--", "/bin/neardns-agent", "ready")
		return err
	})

	found := s.nodeCaches()
	if len(found) != 1 {
		s.t.Fatalf("agents in node-cache's place: %v, want one", found)
	}
	// The kubelet starts it again within moments; what counts is that queries are answered meanwhile. A kill costs what lies in
	// the sockets until the kernel has closed them.
	s.kill(found[0], "KILL")
	asked, lost := 0, 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		for _, at := range both {
			asked++
			if _, err := ask(p.ns, at, "udp", question{"kubernetes.default.svc.cluster.local.", dns.TypeA}); err != nil {
				lost++
				s.t.Logf("after a kill: %v", err)
			}
		}
	}
	if lost > len(both) {
		s.t.Errorf("a kill lost %d of %d questions, want %d at most: one on the way to each address", lost, asked, len(both))
	}
	s.eventually(func() error {
		if again := s.nodeCaches(); len(again) != 1 || again[0] == found[0] {
			return fmt.Errorf("agents in node-cache's place: %v, want another than %v", again, found)
		}
		return nil
	})
	answered(cached)

	s.kubectl("--namespace", "kube-system", "delete", "daemonset/node-local-dns", "--wait", "--timeout=2m")
	answered(direct)
	s.kubectl("--namespace", "kube-system", "delete", "configmap/node-local-dns", "service/kube-dns-upstream")
	s.cleanNodeCache()
	if err := s.askedAt(p, node.KubeDNS()[0], direct); err != nil {
		s.t.Errorf("after cleanup: %v", err)
	}
}

// cleanNodeCache takes the switch away, by a container as in docs/move-from-nodelocal.md.
func (s *suite) cleanNodeCache() {
	s.t.Helper()
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: neardns-cleanup, namespace: kube-system}
spec:
  hostNetwork: true
  restartPolicy: Never
  tolerations: [{operator: Exists}]
  containers:
  - name: cleanup
    image: neardns/neardns-agent:dev
    args: [cleanup, --link, nodelocaldns]
    securityContext: {capabilities: {add: [NET_ADMIN]}}
`)
	s.eventually(func() error {
		phase, err := s.Kubectl(s.t.Context(), "--namespace", "kube-system", "get", "pod/neardns-cleanup", "-o", "jsonpath={.status.phase}")
		if err == nil && phase != "Succeeded" {
			said, _ := s.Kubectl(s.t.Context(), "--namespace", "kube-system", "logs", "pod/neardns-cleanup")
			err = fmt.Errorf("the clean-up is %s: %s", phase, said)
		}
		return err
	})
	s.kubectl("--namespace", "kube-system", "delete", "pod/neardns-cleanup", "--wait", "--timeout=2m")
}
