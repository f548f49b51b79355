package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

const (
	webAnswer, webAnswer6 = "10.96.7.7", "fd00:96::77"
	stockAnswer           = "10.96.8.8"
	outsideAnswer         = "203.0.113.80"
)

// run is the show, in its order.
func (s *show) run(t testutil.TB) {
	s.t = t
	t.Cleanup(func() {
		if !s.kept {
			s.tellWhy()
			_ = os.RemoveAll(folder)
			if s.node != nil {
				_ = os.Remove(filepath.Dir(s.node.Host.Path())) // the namespaces' folder, if nobody else has any there
			}
		}
	})
	s.step("A node without neardns: kube-dns (CoreDNS) behind kube-proxy's %s rules, a network by the reference ptp plugin", s.proxy)
	s.cluster()
	s.network()
	rules, err := steer.OpenNftables(s.node.Host.FD())
	if err != nil {
		t.Fatalf("open the host's nftables: %v", err)
	}
	t.Cleanup(func() { _ = rules.Close() })
	s.rules = rules
	s.tell("cluster DNS %s, kube-dns at %s, a DNS server outside at %s",
		joined(s.node.ClusterDNS()), joined(s.node.KubeDNSAddrs()), s.node.ExternalAddrs()[0])

	before := s.install()
	s.podBeforeAgent()
	s.agentStarts()
	s.podAfterAgent()
	s.hits()
	s.otherPods()
	s.conntrackEmpty()
	s.agentKilled()
	s.agentHangs()
	s.agentRestarted()
	s.resolvConfs()
	s.step("Pods end: CNI DEL leaves nothing of theirs")
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
	s.step("The agent starts: it earns its leases by questions that come the pods' way, and proves the fallback")
	s.startAgent()
	p := s.early
	testutil.Eventually(s.t, 20*time.Second, func() error {
		if d := s.decisions(p); d != "steered" {
			return fmt.Errorf("the early pod is %s; the agent's log:\n%s", d, s.read(agentLog))
		}
		return nil
	})
	s.expect("pod made before the agent, now", "steered", s.decisions(p))
	_, _ = s.program("neardns-agent", "status", "--config", nodeConfig)
}

func (s *show) podAfterAgent() {
	s.step("A pod is made: nothing in it changes but a packet rule")
	p := s.addPod("late", podOptions{})
	s.late = p
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

// digShort asks for a name that needs the search list. What reaches kube-dns is counted for the full name.
func (s *show) digShort(p *pod) string {
	before, heard := s.delivered(), len(s.heard(s.kubeDNS, otherName))
	o := s.dig(p, "stock", "+search")
	o.delivered = s.delivered() > before
	o.kubeDNS = s.heard(s.kubeDNS, otherName)[heard:]
	return o.way(p)
}

// otherPods are one that knows of a cache on its node, as in a cluster with NodeLocal DNSCache, and one that wants none.
func (s *show) otherPods() {
	s.step("A pod that names the local address %s itself, and one that opted out", localAddress)
	s.legacy = s.addPod("legacy", podOptions{nameservers: []netip.Addr{netip.MustParseAddr(localAddress)}})
	s.freshen()
	o := s.dig(s.legacy, clusterName)
	s.expect("pod that names "+localAddress, hit(webAnswer), o.way(s.legacy))
	s.expect("its answer comes from", localAddress, o.server)
	s.plain = s.addPod("plain", podOptions{annotations: map[string]string{"neardns.io/steer": "false"}})
	s.expect("pod that opted out", "left-alone", s.decisions(s.plain))
	s.expect("a question of that pod", fallback(webAnswer), s.dig(s.plain, clusterName).way(s.plain))
}

// freshen makes sure that the next question is a hit, however long ago the last one was.
func (s *show) freshen() {
	at := netip.AddrPortFrom(s.node.ClusterDNS()[0], 53)
	if _, err := testutil.Ask(s.late.NetNS, at, clusterName, typeA, "udp", testutil.AskOptions{}); err != nil {
		s.t.Fatalf("%s: %v", s.late.name, err)
	}
}

func (s *show) conntrackEmpty() {
	s.step("A hit leaves no trace in connection tracking, neither on the node nor in the pod")
	p := s.late
	s.freshen()
	testutil.FlushConntrack(s.node.Host)
	testutil.FlushConntrack(p.NetNS)
	s.expect("question after conntrack was flushed", hit(webAnswer), s.dig(p, clusterName).way(p))
	s.expect("the same over TCP", hit(webAnswer), s.dig(p, clusterName, "+tcp").way(p))
	s.expect("connection tracking entries of that pod", "0", fmt.Sprint(len(s.tracked(p))))
}

func (s *show) agentKilled() {
	p := s.late
	s.step("The agent is killed: the next question is answered by kube-dns, at once")
	s.tell("node$ kill -9 %d", s.agent.PID())
	s.agent.Kill()
	// Before anything else, so that the leases may still stand.
	o := s.dig(p, clusterName)
	s.expect("question right after kill -9", fallback(webAnswer), o.way(p))
	s.expect("its answer comes from", s.node.ClusterDNS()[0].String(), o.server)
	s.expect("and it comes", "within a second", within(o.took, time.Second))
	s.expect("killed, question over TCP", fallback(webAnswer), s.dig(p, clusterName, "+tcp").way(p))
	if s.ipv6 {
		s.expect("killed, question to the IPv6 address", fallback(webAnswer), s.dig(p, clusterName, "@"+s.node.ClusterDNS()[1].String()).way(p))
	}
	o = s.dig(s.legacy, clusterName)
	s.expect("killed, pod that names "+localAddress, fallback(webAnswer), o.way(s.legacy))
	s.expect("its answer comes from", localAddress, o.server)
	// The counterpart of the empty list above: what kube-proxy translates is tracked, and this is where it is seen.
	tracked := "no entries"
	if len(s.tracked(p)) > 0 {
		tracked = "entries"
	}
	s.expect("connection tracking on the way to kube-dns", "entries", tracked)
	out, _ := s.quiet("neardns-agent", "status", "--config", nodeConfig)
	first, _, _ := strings.Cut(out, "\n")
	s.tell("node$ neardns-agent status | head -1\n%s", first)

	s.step("The agent is back")
	s.startAgent()
	s.expect("agent back, first question", miss(webAnswer), s.dig(p, clusterName).way(p))
	s.expect("agent back, second question", hit(webAnswer), s.dig(p, clusterName).way(p))
}

func (s *show) agentHangs() {
	p := s.late
	s.step("The agent hangs: its sockets stay, its leases lapse")
	s.tell("node$ kill -STOP %d", s.agent.PID())
	s.agent.Stop()
	without := s.firstAnswer(p)
	s.tell("%s was without answers for %s", p.name, without.Round(10*time.Millisecond))
	s.expect("agent hung, answers again", "within a second", within(without, time.Second))
	s.expect("agent hung, question", fallback(webAnswer), s.dig(p, clusterName).way(p))
	s.expect("agent hung, pod that names "+localAddress, fallback(webAnswer), s.dig(s.legacy, clusterName).way(s.legacy))
	s.tell("node$ kill -CONT %d", s.agent.PID())
	s.agent.Cont()
	testutil.Eventually(s.t, 20*time.Second, s.ready)
	s.freshen()
	s.expect("agent goes on, question", hit(webAnswer), s.dig(p, clusterName).way(p))
}

// agentRestarted ends the agent in an orderly way and starts it again, as an update does.
func (s *show) agentRestarted() {
	s.step("The agent is restarted while a pod asks all the time")
	load, stop := s.startLoad(s.late)
	s.tell("node$ kill %d", s.agent.PID())
	s.agent.Signal(syscall.SIGTERM)
	s.expect("agent ended by SIGTERM", "exit code 0", s.exitCode())
	s.startAgent()
	stop()
	s.tell("%d questions, the slowest answered after %s", load.questions.Load(), time.Duration(load.slowest.Load()).Round(100*time.Microsecond))
	s.expect("questions without an answer", "0", fmt.Sprint(load.lost.Load()))
}

func within(took, limit time.Duration) string {
	if took <= limit {
		return "within a second"
	}
	return fmt.Sprintf("only after %s", took.Round(10*time.Millisecond))
}

// resolvConfs looks at the pods' files after everything else.
func (s *show) resolvConfs() {
	s.step("What the pods' own settings saw of all this")
	for _, p := range []*pod{s.early, s.late, s.legacy} {
		got := "unchanged"
		if s.read(p.resolvConf) != p.original {
			got = "changed"
		}
		s.expect(p.name+"'s resolv.conf", "unchanged", got)
	}
}

// end ends a pod. Its namespace stays meanwhile, to be looked at.
func (s *show) end(p *pod) {
	s.tell("runtime$ DEL %s, of which there is: %s", p.name, s.traces(p))
	s.delPod(p)
	s.expect("left of "+p.name, "nothing", s.tracesSoon(p))
}

func (s *show) uninstall(before string) {
	s.step("neardns is taken off the node: the entry first, then the agent, then what it left for DNS to go on")
	if _, err := s.program("neardns-install", "uninstall", "--cni-bin", cniBin, "--cni-conf", cniConf, "--cni-cache", cniCache, "--remove-binary"); err != nil {
		s.t.Fatalf("neardns-install: %v", err)
	}
	got := "as before"
	if s.read(conflist) != before {
		got = "changed:\n" + s.read(conflist)
	}
	s.expect("network's list", "as before", got)
	s.tell("node$ kill %d", s.agent.PID())
	s.agent.Signal(syscall.SIGTERM)
	s.expect("agent ended by SIGTERM", "exit code 0", s.exitCode())
	if _, err := s.program("neardns-agent", "cleanup", "--config", nodeConfig); err != nil {
		s.t.Fatalf("neardns-agent cleanup: %v", err)
	}
	s.expect("rules on the node", "none", s.tables(s.node.Host))
	links := "gone"
	if out := s.node.Host.Run("ip", "-br", "link"); strings.Contains(out, "neardns") {
		links = out
	}
	s.expect("links of neardns", "gone", links)
	s.expect("files of neardns but the plugin's log", "none", s.leftFiles())
}

func (s *show) exitCode() string {
	select {
	case <-s.agent.Exited():
	case <-time.After(15 * time.Second):
		return "still running"
	}
	if err := s.agent.Wait(); err != nil {
		return err.Error()
	}
	return "exit code 0"
}
