package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/nft"
	"github.com/neardns/neardns/pkg/testutil"
)

const (
	webAnswer, webAnswer6 = "10.96.7.7", "fd00:96::77"
	stockAnswer           = "10.96.8.8"
	freshAnswer           = "10.96.9.9"
	outsideAnswer         = "203.0.113.80"
)

// run is the show, in its order.
func (s *show) run(t testutil.TB) {
	s.t = t
	t.Cleanup(func() {
		if !s.kept {
			s.tellWhy()
			removeBPF()
			_ = os.RemoveAll(folder)
			if s.node != nil {
				_ = os.Remove(filepath.Dir(s.node.Host.Path())) // the namespaces' folder, if no other run has any there
			}
		}
	})
	s.step("A node without neardns: kube-dns (CoreDNS) behind kube-proxy's %s rules, a network by the reference ptp plugin", s.proxy)
	s.cluster()
	s.network()
	rules, err := nft.Open(s.node.Host.FD())
	if err != nil {
		t.Fatalf("open the host's nftables: %v", err)
	}
	t.Cleanup(func() { _ = rules.Close() })
	s.rules = rules
	s.tell("cluster DNS %s, kube-dns at %s, a DNS server outside at %s",
		joined(s.node.ClusterDNS()), joined(s.node.KubeDNSAddrs()), s.node.ExternalAddrs()[0])

	s.older = s.addPod("older", podOptions{})
	before := s.install()
	s.podBeforeAgent()
	s.agentStarts()
	s.podAfterAgent()
	s.hits()
	s.kernelHits()
	s.otherPods()
	s.conntrackEmpty()
	s.agentKilled()
	s.agentHangs()
	s.agentRestarted()
	s.resolvConfs()
	s.step("Pods end: CNI DEL leaves nothing of theirs")
	s.end(s.older)
	s.end(s.late)
	s.end(s.plain)
	if s.keep {
		s.leaveStanding()
		return
	}
	s.end(s.early)
	s.end(s.legacy)
	s.uninstall(before)
}

func joined(addrs []netip.Addr) string {
	var parts []string
	for _, a := range addrs {
		parts = append(parts, a.String())
	}
	return strings.Join(parts, " and ")
}

func (s *show) install() (before string) {
	s.step("The plugin is installed: its binary, and its entry at the end of the network's list")
	s.tell("node$ cat nodeconfig.yaml\n%s", s.read(nodeConfig))
	before = s.read(conflist)
	_, err := s.program("neardns-install", "install", "--nodeconfig", nodeConfig, "--cni-bin", cniBin, "--cni-conf", cniConf)
	if err != nil {
		s.t.Fatalf("neardns-install: %v", err)
	}
	s.expect("network's plugins", "ptp → neardns", s.listTypes())
	return before
}

func (s *show) podBeforeAgent() {
	s.step("A pod is made before any agent ran: CNI ADD needs none")
	p := s.addPod("early", podOptions{})
	s.early = p
	s.expect("pod made before the agent", "pending", s.decisions(p))
	s.expect("a question of that pod", fallback(webAnswer), s.dig(p, clusterName).way(p))
}

func (s *show) agentStarts() {
	s.step("The agent starts: it earns its leases by questions that come the pods' way, proves the fallback, and adopts a running pod")
	s.expect("pod made before neardns", "no pod file", s.decisions(s.older))
	s.mountBPF()
	s.startAgent()
	for _, p := range []*pod{s.early, s.older} {
		s.awaitSteered(p)
	}
	s.expect("pod made before the agent, now", "steered", s.decisions(s.early))
	s.expect("pod made before neardns, now", "steered", s.decisions(s.older))
	_, _ = s.program("neardns-agent", "status", "--config", nodeConfig)
}

// awaitSteered waits until the agent has tried the pod's path and steered it.
func (s *show) awaitSteered(p *pod) {
	testutil.Eventually(s.t, func() error {
		if d := s.decisions(p); d != "steered" {
			return fmt.Errorf("%s is %s; the agent's log:\n%s", p.name, d, s.read(agentLog))
		}
		return nil
	})
}

func (s *show) podAfterAgent() {
	s.step("A pod is made: once its path to the agent is tried, nothing in it changes but a packet rule")
	p := s.addPod("late", podOptions{})
	s.late = p
	s.awaitSteered(p)
	s.expect("pod made after the agent", "steered", s.decisions(p))
	s.tell("%s$ cat /etc/resolv.conf\n%s", p.name, s.read(p.resolvConf))
	s.tell("%s$ nft list table inet neardns\n%s", p.name, p.Run("nft", "list", "table", "inet", steer.TableName))
}

func (s *show) hits() {
	early, late := s.early, s.late
	s.step("The first question for a name is a miss, the second a hit; each answer comes from the address that was asked")
	first := s.dig(late, clusterName)
	s.expect("first question for a name", miss(webAnswer), first.way(late))
	s.expect("its answer comes from", s.node.ClusterDNS()[0].String(), first.server)
	s.expect("second question", hit(webAnswer), s.dig(late, clusterName).way(late))
	s.expect("another pod's question", hit(webAnswer), s.dig(early, clusterName).way(early))
	s.expect("question over TCP", hit(webAnswer), s.dig(late, clusterName, "+tcp").way(late))
	if s.ipv6 {
		six := s.dig(late, clusterName, "@"+s.node.ClusterDNS()[1].String())
		s.expect("question to the IPv6 address", hit(webAnswer), six.way(late))
		s.expect("its answer comes from", s.node.ClusterDNS()[1].String(), six.server)
	}
	s.expect("question for AAAA", miss(webAnswer6), s.dig(late, clusterName, "-t", "AAAA").way(late))
	s.expect("short name, through the search list", miss(stockAnswer), s.digShort(late))

	s.step("Names outside the cluster go past kube-dns")
	s.expect("name outside, first question", hit(outsideAnswer), s.dig(late, outsideName).way(late))
	asked := len(questions(s.t, s.outside.log, outsideName))
	s.expect("name outside, second question", hit(outsideAnswer), s.dig(late, outsideName).way(late))
	s.expect("questions that reached the server outside", "1, then 1", fmt.Sprintf("%d, then %d", asked, len(questions(s.t, s.outside.log, outsideName))))
}

// kernelHits has the kernel answer pods, where it can.
func (s *show) kernelHits() {
	s.step("A name that was asked for twice is answered in the kernel, at the pod's own link")
	if why := s.status().KernelHits.Fault; why != "" {
		s.tell("not on this machine: %s", why)
		return
	}
	s.kernel = true
	for _, p := range []*pod{s.older, s.late} {
		s.heat(p)
		s.expect(p.name+"'s question, a hit in the kernel", hit(webAnswer), s.digInKernel(p))
	}
}

// otherPods are one that knows of a cache on its node, as in a cluster with NodeLocal DNSCache, and one that wants none.
func (s *show) otherPods() {
	s.step("A pod that names the local address %s itself, and one that opted out", localAddress)
	s.legacy = s.addPod("legacy", podOptions{nameservers: []netip.Addr{netip.MustParseAddr(localAddress)}})
	s.freshen(s.late)
	o := s.dig(s.legacy, clusterName)
	s.expect("pod that names "+localAddress, hit(webAnswer), o.way(s.legacy))
	s.expect("its answer comes from", localAddress, o.server)
	s.plain = s.addPod("plain", podOptions{annotations: map[string]string{"neardns.io/steer": "false"}})
	s.expect("pod that opted out", "left-alone", s.decisions(s.plain))
	s.awaitNoTrials()
	s.expect("a question of that pod", fallback(webAnswer), s.dig(s.plain, clusterName).way(s.plain))
}

func (s *show) conntrackEmpty() {
	s.step("A hit leaves no trace in connection tracking, neither on the node nor in the pod")
	p := s.late
	s.freshen(p)
	testutil.FlushConntrack(s.node.Host)
	testutil.FlushConntrack(p.NetNS)
	s.expect("question after conntrack was flushed", hit(webAnswer), s.dig(p, clusterName).way(p))
	s.expect("the same over TCP", hit(webAnswer), s.dig(p, clusterName, "+tcp").way(p))
	s.expect("connection tracking entries of that pod", "0", fmt.Sprint(len(s.tracked(p))))
}
