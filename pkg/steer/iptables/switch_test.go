package iptables_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestSwitch takes one pod through the agent's life: the table of DESIGN section 3.
func TestSwitch(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant)
		pod := r.steered("pod")
		all := r.servers()
		r.want("KUBEDNS", pod.NetNS, "agent never started, addresses absent", all...)
		r.listen()
		r.want("KUBEDNS", pod.NetNS, "listening without a lease", all...)
		r.renew()
		r.want("AGENT", pod.NetNS, "under a lease", all...)
		testutil.FlushConntrack(r.node.Host)
		for _, s := range all {
			if _, err := testutil.Ask(pod.NetNS, s, "a.cluster.local", dns.TypeTXT, "udp", testutil.AskOptions{}); err != nil {
				t.Error(err)
			}
		}
		for _, line := range testutil.Conntrack(r.node.Host) {
			if strings.HasPrefix(line, "udp") {
				t.Errorf("a hit over UDP is tracked on the host: %s", line)
			}
		}
		r.agent.Stop()
		r.want("KUBEDNS", pod.NetNS, "killed while its lease stands", all...)
		r.listen()
		r.want("AGENT", pod.NetNS, "back under the same lease", all...)
		r.withdraw()
		r.want("KUBEDNS", pod.NetNS, "withdrawn", all...)
	})
}

// TestStrictFilter has the reverse path checked on every link.
func TestStrictFilter(t *testing.T) {
	r := newRig(t, iptables.NFT)
	r.node.Host.Sysctl("net.ipv4.conf.all.rp_filter", "1")
	_, err := r.hairpin.Ensure(r.behind(), false)
	must(t, err)
	r.want("KUBEDNS", r.steered("pod").NetNS, "rp_filter 1", r.servers()...)
}

// TestFlips keeps sockets open while the way changes under them.
func TestFlips(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant)
		pod := r.steered("pod")
		r.listen()
		for _, server := range r.servers() {
			s, err := testutil.OpenUDP(pod.NetNS, server.Addr().Is4(), testutil.AskOptions{})
			must(t, err)
			for range 4 {
				for _, who := range []string{"KUBEDNS", "AGENT"} {
					answer, err := s.Ask(server, "a.cluster.local", dns.TypeTXT)
					if err != nil || answer.Who != who {
						t.Errorf("an open socket to %s: %v, %v; want %s", server, answer, err, who)
					}
					if who == "KUBEDNS" {
						r.renew()
					} else {
						r.withdraw()
					}
				}
			}
			s.Close()
			r.withdraw()
			// A connection stays with whom it was opened to, in both directions.
			c, err := testutil.Dial(pod.NetNS, "tcp", server, testutil.AskOptions{})
			must(t, err)
			r.renew()
			wantConn(t, c, "KUBEDNS")
			c.Close()
			c, err = testutil.Dial(pod.NetNS, "tcp", server, testutil.AskOptions{})
			must(t, err)
			wantConn(t, c, "AGENT")
			r.withdraw()
			wantConn(t, c, "AGENT")
			c.Close()
		}
	})
}

func wantConn(t *testing.T, c *testutil.Conn, who string) {
	t.Helper()
	answer, err := c.Ask("a.cluster.local", dns.TypeTXT)
	if err != nil || answer.Who != who {
		t.Errorf("an open connection: %v, %v; want %s", answer, err, who)
	}
}

// TestLapse looks at the lease's own end, when nobody withdraws it.
func TestLapse(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant, func(h *steer.Host) { h.Lifetime = steer.DefaultLifetime })
		pod := r.steered("pod")
		r.listen()
		server := r.servers()[0]
		ask := func() string {
			answer, err := testutil.Ask(pod.NetNS, server, "a.cluster.local", dns.TypeTXT, "udp", testutil.AskOptions{})
			must(t, err)
			return answer.Who
		}
		testutil.Eventually(t, 30*time.Second, func() error { // a busy machine may be late
			begun := time.Now()
			must(t, r.lease.Renew(r.ours()[0], steer.UDP))
			if who := ask(); who != "AGENT" && time.Since(begun) < iptables.Lifetime(steer.DefaultLifetime) {
				t.Fatalf("%s answers under a lease", who)
			} else if who != "AGENT" {
				return errLate
			}
			return nil
		})
		// Asked with the socket still bound: only time has passed.
		testutil.Eventually(t, 30*time.Second, func() error {
			if ask() == "AGENT" {
				return errHeld
			}
			return nil
		})
	})
}

// TestSameSourcePort asks a local and a cluster DNS address from one port, as musl does.
func TestSameSourcePort(t *testing.T) {
	r := newRig(t, iptables.NFT)
	pod := r.steered("pod")
	all := r.servers()
	s, err := testutil.OpenUDP(pod.NetNS, true, testutil.AskOptions{})
	must(t, err)
	defer s.Close()
	for range 2 {
		for _, server := range []netip.AddrPort{all[0], all[2]} {
			if _, err := s.Ask(server, "a.cluster.local", dns.TypeTXT); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestUplink asks from beside the node: under a lease the segment has kube-dns, and never the cache.
func TestUplink(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant)
		r.listen()
		r.renew()
		steering := r.ours()[0]
		r.node.Neighbour.Run("ip", "route", "replace", testutil.Host(steering).String(), "via", r.node.HostAddrs()[0].String())
		r.want("KUBEDNS", r.node.Neighbour, "from beside the node", netip.AddrPortFrom(steering, 53))
		counters, err := r.rules.Counters()
		must(t, err)
		if counters[steer.CounterUplink].Packets == 0 {
			t.Errorf("not counted: %v", counters)
		}
	})
}

// TestDropPolicy has all of the host's base chains drop what nobody accepts.
func TestDropPolicy(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant)
		pod := r.steered("pod")
		for _, program := range []string{"iptables", "ip6tables"} {
			program += strings.TrimPrefix(string(variant), "iptables")
			for _, chain := range []string{"INPUT", "OUTPUT", "FORWARD"} {
				r.node.Host.Run(program, "-P", chain, "DROP")
			}
			// Neighbour discovery and what a CNI accepts.
			r.node.Host.Run(program, "-A", "FORWARD", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT")
			r.node.Host.Run(program, "-A", "FORWARD", "-i", pod.HostInterface, "-j", "ACCEPT")
			for _, chain := range []string{"INPUT", "OUTPUT"} {
				proto := map[bool]string{true: "icmp", false: "ipv6-icmp"}[!strings.HasPrefix(program, "ip6")]
				r.node.Host.Run(program, "-A", chain, "-p", proto, "-j", "ACCEPT")
			}
		}
		r.want("KUBEDNS", pod.NetNS, "fallback", r.servers()...)
		r.listen()
		r.renew()
		r.want("AGENT", pod.NetNS, "under a lease", r.servers()...)
	})
}

// TestKubeProxyMarksNothing is a kube-proxy that knows no range of pods, and so neither masquerades nor accepts what comes from
// beyond it: kube-dns must be able to answer what we give back, on whichever node it is.
func TestKubeProxyMarksNothing(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant)
		pod := r.steered("pod")
		for _, program := range []string{"iptables", "ip6tables"} {
			program += strings.TrimPrefix(string(variant), "iptables")
			r.node.Host.Run(program, "-w", "-t", "nat", "-F", "KUBE-MARK-MASQ")
			r.node.Host.Run(program, "-w", "-P", "FORWARD", "DROP")
			r.node.Host.Run(program, "-w", "-A", "FORWARD", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT")
			r.node.Host.Run(program, "-w", "-A", "FORWARD", "-i", pod.HostInterface, "-j", "ACCEPT")
		}
		r.want("KUBEDNS", pod.NetNS, "fallback", r.servers()...)
		behind := 0
		for _, line := range testutil.Conntrack(r.node.Host) {
			question, answer, _ := strings.Cut(line, ", reply ")
			for _, a := range r.node.ClusterDNS() {
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
	})
}

// TestForgedSource has a pod ask in its neighbour's name, under a lease and with no filter of reverse paths: the agent, which shares
// its work by source, never sees it. kube-dns does, as without us.
func TestForgedSource(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant)
		pod, victim := r.steered("pod"), r.steered("victim")
		for _, link := range []string{"all", "default", pod.HostInterface, victim.HostInterface} {
			r.node.Host.Sysctl("net.ipv4.conf."+link+".rp_filter", "0")
		}
		r.listen()
		r.renew()
		r.want("AGENT", pod.NetNS, "in its own name", r.servers()...)
		r.agent.Forget()
		r.node.DNS.Forget()
		for i, a := range victim.Addrs {
			pod.AddAddr("lo", netip.PrefixFrom(a, a.BitLen()))
			name := []string{"four.cluster.local", "six.cluster.local"}[i]
			source := netip.AddrPortFrom(a, 40053)
			_, _ = testutil.Ask(pod.NetNS, r.servers()[i], name, dns.TypeTXT, "udp", testutil.AskOptions{Source: source, Timeout: 100 * time.Millisecond})
			testutil.Eventually(t, 10*time.Second, func() error {
				if r.node.DNS.Asked(name)+r.agent.Asked(name) == 0 {
					return errors.New("nobody heard " + name)
				}
				return nil
			})
			if r.agent.Asked(name) > 0 {
				t.Errorf("the agent is asked %s in the name of %s", name, a)
			}
		}
		counters, err := r.rules.Counters()
		must(t, err)
		if counters[steer.CounterStranger].Packets == 0 {
			t.Errorf("not counted: %v", counters)
		}
	})
}
