package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/neardns/neardns/pkg/podfile"
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
			_ = os.RemoveAll(folder)
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
	s.tell("cluster DNS addresses %s and %s, kube-dns at %s, a DNS server outside at %s",
		s.node.ClusterDNS()[0], s.node.ClusterDNS()[1], s.node.KubeDNSAddrs()[0], s.node.ExternalAddrs()[0])

	before := s.install()
	s.podBeforeAgent()
	s.agentStarts()
	s.podAfterAgent()
	s.hits()
	s.conntrackEmpty()
	s.agentKilled()
	s.agentHangs()
	if s.keep {
		s.leaveStanding()
		return
	}
	s.podsEnd()
	s.uninstall(before)
}

func (s *show) install() (before string) {
	s.step("The plugin is installed: its binary, and its entry at the end of the network's list")
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
	p := s.addPod("early")
	s.expect("pod made before the agent", "pending", s.decisions(p))
	s.expect("a question of that pod", fallback(webAnswer), s.dig(p, clusterName).way(p))
}

func (s *show) agentStarts() {
	s.step("The agent starts: it earns its leases by questions that come the pods' way, and proves the fallback")
	s.startAgent()
	p := s.pods[0]
	testutil.Eventually(s.t, 20*time.Second, func() error {
		if d := s.decisions(p); d != "steered" {
			return fmt.Errorf("the early pod is %s", d)
		}
		return nil
	})
	s.expect("pod made before the agent, now", "steered", s.decisions(p))
	_, _ = s.program("neardns-agent", "status", "--config", nodeConfig)
}

func (s *show) podAfterAgent() {
	s.step("A pod is made: nothing in it changes but a packet rule")
	p := s.addPod("late")
	s.expect("pod made after the agent", "steered", s.decisions(p))
	s.tell("%s$ cat /etc/resolv.conf", p.name)
	text := s.read(p.resolvConf)
	s.tell("%s", text)
	got := "unchanged"
	if text != s.resolvConf() {
		got = "changed"
	}
	s.expect("pod's resolv.conf", "unchanged", got)
}

func (s *show) hits() {
	early, late := s.pods[0], s.pods[1]
	s.step("The first question for a name is a miss, the second a hit; each answer comes from the address that was asked")
	first := s.dig(late, clusterName)
	s.expect("first question for a name", miss(webAnswer), first.way(late))
	s.expect("that answer's source", s.node.ClusterDNS()[0].String(), first.server)
	s.expect("second question", hit(webAnswer), s.dig(late, clusterName).way(late))
	s.expect("another pod's question", hit(webAnswer), s.dig(early, clusterName).way(early))
	s.expect("question over TCP", hit(webAnswer), s.dig(late, clusterName, "+tcp").way(late))
	six := s.dig(late, clusterName, "@"+s.node.ClusterDNS()[1].String())
	s.expect("question to the IPv6 address", hit(webAnswer), six.way(late))
	s.expect("that answer's source", s.node.ClusterDNS()[1].String(), six.server)
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

func (s *show) conntrackEmpty() {
	s.step("A hit leaves no trace in the node's connection tracking")
	p := s.pods[1]
	testutil.FlushConntrack(s.node.Host)
	s.expect("question after conntrack was flushed", hit(webAnswer), s.dig(p, clusterName).way(p))
	s.tell("node$ conntrack -L | grep %s", p.addrs[0])
	tracked := s.tracked(p)
	s.tell("%s", strings.Join(append(tracked, fmt.Sprintf("(%d entries)", len(tracked))), "\n"))
	s.expect("connection tracking entries of the pod", "0", fmt.Sprint(len(tracked)))
}

func (s *show) agentKilled() {
	p := s.pods[1]
	s.step("The agent is killed: the next question is answered by kube-dns, at once")
	s.tell("node$ kill -9 %d", s.agent.PID())
	s.agent.Kill()
	// Before anything else, so that the leases may still stand.
	o := s.dig(p, clusterName)
	s.expect("question right after kill -9", fallback(webAnswer), o.way(p))
	s.expect("that answer's source", s.node.ClusterDNS()[0].String(), o.server)
	s.expect("that answer came", "within a second", within(o.took, time.Second))
	s.expect("killed, question over TCP", fallback(webAnswer), s.dig(p, clusterName, "+tcp").way(p))
	s.expect("killed, question to the IPv6 address", fallback(webAnswer), s.dig(p, clusterName, "@"+s.node.ClusterDNS()[1].String()).way(p))

	s.step("The agent is back")
	s.startAgent()
	s.expect("agent back, first question", miss(webAnswer), s.dig(p, clusterName).way(p))
	s.expect("agent back, second question", hit(webAnswer), s.dig(p, clusterName).way(p))
}

func (s *show) agentHangs() {
	p := s.pods[1]
	s.step("The agent hangs: its sockets stay, its leases lapse")
	s.tell("node$ kill -STOP %d", s.agent.PID())
	s.agent.Stop()
	lapsed := s.awaitLapse()
	s.tell("leases gone after %s", lapsed.Round(10*time.Millisecond))
	s.expect("leases of a hung agent lapse", "within a second", within(lapsed, time.Second))
	s.expect("agent hung, question", fallback(webAnswer), s.dig(p, clusterName).way(p))
	s.tell("node$ kill -CONT %d", s.agent.PID())
	s.agent.Cont()
	testutil.Eventually(s.t, 20*time.Second, func() error {
		_, err := s.quiet("neardns-agent", "status", "--config", nodeConfig)
		return err
	})
	s.expect("agent goes on, question", hit(webAnswer), s.dig(p, clusterName).way(p))
}

func within(took, limit time.Duration) string {
	if took <= limit {
		return "within a second"
	}
	return fmt.Sprintf("only after %s", took.Round(10*time.Millisecond))
}

func (s *show) podsEnd() {
	s.step("The pods end: CNI DEL leaves nothing of theirs")
	for _, p := range s.pods {
		s.tell("DEL %s", p.name)
		s.delPod(p)
	}
	for _, p := range s.pods {
		s.expect("rules in "+p.name, "none", s.tables(p.NetNS))
	}
	files, _ := podfile.List(stateDir)
	s.expect("pod files", "0", fmt.Sprint(len(files)))
	cached, _ := filepath.Glob(filepath.Join(cniCache, "results", "*"))
	s.expect("the runtime's records", "0", fmt.Sprint(len(cached)))
}

func (s *show) uninstall(before string) {
	s.step("neardns is taken off the node: the entry first, then the agent, then what it left for DNS to go on")
	if _, err := s.program("neardns-install", "uninstall", "--cni-bin", cniBin, "--cni-conf", cniConf, "--remove-binary"); err != nil {
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
	done := make(chan error, 1)
	go func() { done <- s.agent.Wait() }()
	select {
	case err := <-done:
		if err == nil {
			return "exit code 0"
		}
		return err.Error()
	case <-time.After(15 * time.Second):
		return "still running"
	}
}

func (s *show) leftFiles() string {
	var left []string
	for _, dir := range []string{stateDir, persistDir} {
		err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() && e.Name() != "plugin.log" { // the log is kept for whoever asks what happened
				left = append(left, strings.TrimPrefix(path, folder+"/"))
			}
			return nil
		})
		if err != nil {
			return err.Error()
		}
	}
	if _, err := os.Lstat(filepath.Join(cniBin, "neardns")); err == nil {
		left = append(left, "cni/bin/neardns")
	}
	if len(left) == 0 {
		return "none"
	}
	return strings.Join(left, ", ")
}

// leaveStanding keeps the node and says how to look around in it.
func (s *show) leaveStanding() {
	s.step("KEEP: the node is left standing")
	s.node.Keep()
	s.kept = true
	p := s.pods[1]
	s.tell(`ask from a pod      nsenter --net=%s dig @%s web.shop.svc.cluster.local
the pod's rules     nsenter --net=%s nft list table inet neardns
the switch          nsenter --net=%s nft list table inet neardns
what the agent says nsenter --net=%s %s/neardns-agent status --config %s
its log             tail -f %s
its metrics         nsenter --net=%s curl -s http://127.0.0.1:9253/metrics
kill it             kill -9 %d
start it again      nsenter --net=%s %s/neardns-agent node --config %s
what kube-dns hears tail -f %s
take it all away    make demo-clean (the next make demo does so too)`,
		p.Path(), s.node.ClusterDNS()[0], p.Path(), s.node.Host.Path(), s.node.Host.Path(), s.bin, nodeConfig, agentLog, s.node.Host.Path(),
		s.agent.PID(), s.node.Host.Path(), s.bin, nodeConfig, s.kubeDNS.log)
}
