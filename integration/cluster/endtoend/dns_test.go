package endtoend

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/integration/cluster/node"
	"github.com/neardns/neardns/pkg/podfile"
)

func reverse(s *suite, a netip.Addr) string {
	s.t.Helper()
	name, err := dns.ReverseAddr(a.String())
	s.must(err)
	return name
}

// Every dnsPolicy: what the pod reads is Kubernetes' own, pods that query the cluster DNS addresses are steered, and all have answers.
func (s *suite) testPolicies() {
	cluster := []string{node.KubeDNS()[0].String(), node.KubeDNS()[1].String()}
	outside := []string{node.Outside()[0].String(), node.Outside()[1].String()}
	for _, c := range []struct {
		name, annotations, spec string
		nameservers             []string
		state                   podfile.State
	}{
		{"cluster-first", "", ", dnsPolicy: ClusterFirst", cluster, podfile.Steered},
		{"default", "", ", dnsPolicy: Default", outside, podfile.LeftAlone},
		{"none-cluster", "", `, dnsPolicy: None, dnsConfig: {nameservers: ["10.96.0.10"], searches: [cluster.local]}`, cluster[:1], podfile.Steered},
		{"none-own", "", fmt.Sprintf(`, dnsPolicy: None, dnsConfig: {nameservers: [%q]}`, outside[0]), outside[:1], podfile.LeftAlone},
		{"opted-out", `neardns.io/steer: "false"`, "", cluster, podfile.LeftAlone},
	} {
		p := s.onePod(c.name, c.annotations, c.spec)
		if got := nameservers(s.resolvConf(c.name)); !slices.Equal(got, c.nameservers) {
			s.t.Errorf("pod %s has the nameservers %q, want %q", c.name, got, c.nameservers)
		}
		s.eventually(func() error { // the agent steers the pod, soon after ADD
			if f := s.file(c.name); f == nil || len(f.Decisions) != 2 || f.Decisions[0].State != c.state {
				return fmt.Errorf("pod %s: %+v, want %s", c.name, f, c.state)
			}
			return nil
		})
		for _, text := range c.nameservers {
			at := netip.MustParseAddr(text)
			if slices.Contains(outside, text) {
				r, err := ask(p.ns, at, "udp", question{"a.outside.test.", dns.TypeA})
				if err != nil || len(r.Answer) != 1 {
					s.t.Errorf("pod %s asked %s: %v %v", c.name, at, r, err)
				}
			}
		}
		switch {
		case c.name == "none-cluster": // it does not know the second address, and there is no promise about it
			w, err := tryWho(p, c.name, "udp", true)
			if w != cached || err != nil {
				s.t.Errorf("pod %s is answered by %s: %v", c.name, w, err)
			}
		case c.state == podfile.Steered:
			s.wantAnsweredBy(cached, p)
		case slices.Equal(c.nameservers, cluster):
			s.wantAnsweredBy(direct, p)
		}
		s.deletePod(c.name)
		s.eventually(func() error {
			if s.file(c.name) != nil {
				return fmt.Errorf("pod %s is gone and its file is not", c.name)
			}
			return nil
		})
	}
}

// A pod in the node's own network is none of the plugin's business and is answered by kube-dns.
func (s *suite) testHostNetwork() {
	p := s.onePod("host", "", ", hostNetwork: true, dnsPolicy: ClusterFirstWithHostNet")
	if got := nameservers(s.resolvConf("host")); len(got) != 2 || got[0] != node.KubeDNS()[0].String() {
		s.t.Errorf("it has the nameservers %q", got)
	}
	if f := s.file("host"); f != nil {
		s.t.Errorf("it has a file: %+v", f)
	}
	for _, network := range []string{"udp", "tcp"} {
		for _, is4 := range []bool{true, false} {
			r, err := ask(p.ns, server(is4), network, question{"shop.default.svc.cluster.local.", dns.TypeA})
			if err != nil || len(r.Answer) != 1 {
				s.t.Errorf("over %s to %s: %v %v", network, server(is4), r, err)
			}
		}
	}
	s.deletePod("host")
}

// A network policy that lets a pod speak to kube-dns and no other, as a CNI would put it into the host's filters: what is
// for the agent is dropped. The pod is answered by kube-dns, and by the cache again when the policy goes.
func (s *suite) testFilter() {
	p := s.onePod("restricted", "", "")
	s.wantAnsweredBy(cached, p)
	kubeDNS := strings.Fields(s.kubectl("-n", "kube-system", "get", "pods", "-l", "k8s-app=kube-dns", "-o", "jsonpath={.items[*].status.podIPs[*].ip}"))
	if len(kubeDNS) != 2 {
		s.t.Fatalf("kube-dns has the addresses %q", kubeDNS)
	}
	cmd := s.Command(s.t.Context(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`table inet restrict {
  chain egress {
    ip daddr %s accept
    ip6 daddr %s accept
    meta l4proto { tcp, udp } counter drop
  }
  chain input {
    type filter hook input priority filter
    ip saddr %[3]s jump egress
    ip6 saddr %[4]s jump egress
  }
  chain forward {
    type filter hook forward priority filter
    ip saddr %[3]s jump egress
    ip6 saddr %[4]s jump egress
  }
}`, kubeDNS[0], kubeDNS[1], p.addr(true), p.addr(false)))
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	s.awaitAnsweredBy(direct, p) // two queries, a lease's lifetime apart, are dropped before that
	text, err := s.Status(s.t.Context())
	if err != nil || !strings.Contains(text, "restricted") {
		s.t.Errorf("status does not name the pod: %v\n%s", err, text)
	}
	s.wantAnsweredBy(cached, s.loaded[0])
	_, err = s.Run(s.t.Context(), "nft", "delete", "table", "inet", "restrict")
	s.must(err)
	s.awaitAnsweredBy(cached, p)
	s.deletePod("restricted")
}
