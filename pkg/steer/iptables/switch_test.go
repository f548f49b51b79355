package iptables_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestStrictFilter sets a strict reverse path filter on every link.
func TestStrictFilter(t *testing.T) {
	r := newRig(t, iptables.NFT)
	r.Node.Host.Sysctl("net.ipv4.conf.all.rp_filter", "1")
	_, err := r.hairpin.Ensure(r.behind(), false)
	must(t, err)
	r.Want("KUBEDNS", r.Steered("pod").NetNS, "rp_filter 1", r.Servers()...)
}

// TestFlips keeps sockets and connections open while the lease comes and goes. One UDP socket queries the local and the cluster DNS
// address, as musl does.
func TestFlips(t *testing.T) {
	r := newRig(t, iptables.NFT)
	pod := r.Steered("pod")
	r.Listen()
	for _, is4 := range []bool{true, false} {
		s, err := testutil.OpenUDP(pod.NetNS, is4, testutil.AskOptions{})
		must(t, err)
		defer s.Close()
		r.Turns(8, func(_ int, want string) {
			for _, server := range r.Servers() {
				if server.Addr().Is4() != is4 {
					continue
				}
				if answer, err := s.Ask(server, "a.cluster.local", dns.TypeTXT); err != nil || answer.Who != want {
					t.Errorf("an open socket to %s: %v, %v; want %s", server, answer, err, want)
				}
			}
		})
	}
	for _, server := range r.Servers() {
		r.Withdraw()
		// A connection stays with the server that it was opened to.
		fell := r.Dial(pod.NetNS, server)
		r.Renew()
		fell.Want("KUBEDNS")
		served := r.Dial(pod.NetNS, server)
		served.Want("AGENT")
		r.Withdraw()
		served.Want("AGENT")
	}
}

// TestLapse lets a lease expire: the agent answers until then, and kube-dns afterwards.
func TestLapse(t *testing.T) {
	r := newRig(t, iptables.Legacy, func(h *steer.Host) { h.Lifetime = steer.DefaultLifetime })
	pod := r.Steered("pod")
	r.Listen()
	server := r.Servers()[0]
	answeredBy := func(who string) error {
		answer, err := testutil.Ask(pod.NetNS, server, "a.cluster.local", dns.TypeTXT, "udp", testutil.AskOptions{})
		must(t, err)
		return testutil.ErrorIf(answer.Who != who, "%s answers, not %s", answer.Who, who)
	}
	testutil.Eventually(t, func() error { // the lease may expire before the query gets there
		must(t, r.Lease.Renew(r.Ours()[0], steer.UDP))
		return answeredBy("AGENT")
	})
	// The socket is still bound: only time has passed.
	testutil.Eventually(t, func() error { return answeredBy("KUBEDNS") })
}

// TestDropPolicy gives the base chains of the host's table filter the policy DROP.
func TestDropPolicy(t *testing.T) {
	const variant = iptables.Legacy
	r := newRig(t, variant)
	pod := r.Steered("pod")
	for _, program := range []string{"iptables", "ip6tables"} {
		program += "-" + variant.Suffix()
		for _, chain := range []string{"INPUT", "OUTPUT", "FORWARD"} {
			r.Node.Host.Run(program, "-P", chain, "DROP")
		}
		// Neighbour discovery and what a CNI accepts.
		r.Node.Host.Run(program, "-A", "FORWARD", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT")
		r.Node.Host.Run(program, "-A", "FORWARD", "-i", pod.HostInterface, "-j", "ACCEPT")
		for _, chain := range []string{"INPUT", "OUTPUT"} {
			proto := map[bool]string{true: "icmp", false: "ipv6-icmp"}[!strings.HasPrefix(program, "ip6")]
			r.Node.Host.Run(program, "-A", chain, "-p", proto, "-j", "ACCEPT")
		}
	}
	r.Want("KUBEDNS", pod.NetNS, "fallback", r.Servers()...)
	r.Listen()
	r.Renew()
	r.Want("AGENT", pod.NetNS, "under a lease", r.Servers()...)
}

// TestKubeProxyMarksNothing: kube-proxy knows no range of pods, and so neither masquerades nor accepts packets from outside of it.
// kube-dns must still be able to answer packets that take the fallback, on whichever node it is.
func TestKubeProxyMarksNothing(t *testing.T) {
	const variant = iptables.NFT
	r := newRig(t, variant)
	pod := r.Steered("pod")
	for _, program := range []string{"iptables", "ip6tables"} {
		program += "-" + variant.Suffix()
		r.Node.Host.Run(program, "-w", "-t", "nat", "-F", "KUBE-MARK-MASQ")
		r.Node.Host.Run(program, "-w", "-P", "FORWARD", "DROP")
		r.Node.Host.Run(program, "-w", "-A", "FORWARD", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT")
		r.Node.Host.Run(program, "-w", "-A", "FORWARD", "-i", pod.HostInterface, "-j", "ACCEPT")
	}
	r.Want("KUBEDNS", pod.NetNS, "fallback", r.Servers()...)
	behind := 0
	for _, line := range testutil.Conntrack(r.Node.Host) {
		question, answer, _ := strings.Cut(line, ", reply ")
		for _, a := range r.Node.ClusterDNS() {
			if !strings.Contains(question, " > "+netip.AddrPortFrom(a, 53).String()) && !strings.Contains(question, " > "+a.String()+":53") {
				continue
			}
			if behind++; strings.Contains(answer, " > 169.254.") || strings.Contains(answer, " > fd00:90de:") {
				t.Errorf("kube-dns is asked from an address of the hairpin's: %s", line)
			}
		}
	}
	if behind == 0 {
		t.Error("nothing went by the hairpin")
	}
}

// TestForgedSource: a pod sends a query from its neighbour's address, under a lease and without a reverse path filter. The agent never
// gets it. kube-dns does, as without neardns.
func TestForgedSource(t *testing.T) {
	r := newRig(t, iptables.Legacy)
	pod, victim := r.Steered("pod"), r.Steered("victim")
	for _, link := range []string{"all", "default", pod.HostInterface, victim.HostInterface} {
		r.Node.Host.Sysctl("net.ipv4.conf."+link+".rp_filter", "0")
	}
	r.Listen()
	r.Renew()
	r.Want("AGENT", pod.NetNS, "in its own name", r.Servers()...)
	r.Agent.Forget()
	r.Node.DNS.Forget()
	for i, a := range victim.Addrs {
		pod.AddAddr("lo", netip.PrefixFrom(a, a.BitLen()))
		name := []string{"four.cluster.local", "six.cluster.local"}[i]
		source := netip.AddrPortFrom(a, 40053)
		_, _ = testutil.Ask(pod.NetNS, r.Servers()[i], name, dns.TypeTXT, "udp", testutil.AskOptions{Source: source, Timeout: testutil.Silence})
		testutil.Eventually(t, func() error {
			return testutil.ErrorIf(r.Node.DNS.Asked(name)+r.Agent.Asked(name) == 0, "no server received %s", name)
		})
		if r.Agent.Asked(name) > 0 {
			t.Errorf("the agent is asked %s in the name of %s", name, a)
		}
	}
	counters, err := r.rules.Counters()
	must(t, err)
	if counters[steer.CounterStranger].Packets == 0 {
		t.Errorf("not counted: %v", counters)
	}
}
