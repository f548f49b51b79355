package endtoend

import (
	"fmt"
	"strings"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/cluster/node"
)

// An annotation makes a pod's resolv.conf name the node's own address, by a real runtime: the file in place with containerd 1.6, over NRI
// with containerd 2. It is served, given to kube-dns by the switch, and given its nameserver back at the uninstall.
func (s *suite) testNameserverLocal() {
	overlay := map[bool]string{true: "pod-dns", false: s.Proxy}[s.Runtime == "containerd2"]
	s.must(s.InstallProduct(s.t.Context(), overlay, leaveOlder, s.kernelHits()))
	p := s.onePod("local", `neardns.io/dns-params: "nameservers: local"`, "")
	not := map[string]string{localDNS.String(): node.KubeDNS()[0].String(), node.KubeDNS()[0].String(): localDNS.String()}
	names := func(want string) error {
		if text := s.resolvConf("local"); !strings.Contains(text, "nameserver "+want+"\n") || strings.Contains(text, "nameserver "+not[want]) ||
			!strings.Contains(text, "default.svc.cluster.local") || !strings.Contains(text, "ndots:") {
			return fmt.Errorf("the pod's resolv.conf does not name %s, or lost something:\n%s", want, text)
		}
		return nil
	}
	s.must(names(localDNS.String()))
	s.eventually(func() error { return s.askedAt(p, localDNS, cached) })
	if text, err := s.Status(s.t.Context()); err != nil || !strings.Contains(text, "served") {
		s.t.Errorf("status does not show the pod as served (%v):\n%s", err, text)
	}
	old := s.agent()
	s.kill(old, "STOP")
	s.eventually(func() error { return s.askedAt(p, localDNS, direct) })
	s.kill(old, "CONT")
	s.eventually(func() error { return s.askedAt(p, localDNS, cached) })
	s.kill(old, "KILL")
	// The kubelet starts it again within moments; who answers is not the point. A kill costs what lies in the socket until the kernel has
	// closed it.
	lost := 0
	for range 20 {
		if _, err := ask(p.ns, localDNS, "udp", question{"kubernetes.default.svc.cluster.local.", dns.TypeA}); err != nil {
			lost++
			s.t.Logf("after a kill: %v", err)
		}
	}
	if lost > 1 {
		s.t.Errorf("a kill lost %d of 20 questions, want 1 at most: the one on the way", lost)
	}
	s.must(s.UninstallProduct(s.t.Context(), overlay, false))
	s.must(names(node.KubeDNS()[0].String()))
	s.wantAnsweredBy(direct, p)
	s.deletePod("local")
}
