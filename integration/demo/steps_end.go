package main

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

func (s *show) agentKilled() {
	p := s.late
	s.step("The agent is killed: kube-dns answers at once, and the kernel what it has")
	if s.kernel {
		s.heat(p)
	}
	s.tell("node$ kill -9 %d", s.agent.PID())
	s.agent.Kill()
	// Before anything else, so that the leases may still stand.
	o := s.dig(p, s.fresh())
	s.expect("question right after kill -9", fallback(freshAnswer), o.way(p))
	s.expect("its answer comes from", s.node.ClusterDNS()[0].String(), o.server)
	if s.kernel {
		s.expect("killed, question for a name that the kernel has", hit(webAnswer), s.digInKernel(p))
	}
	s.expect("killed, question over TCP", fallback(freshAnswer), s.dig(p, s.fresh(), "+tcp").way(p))
	if s.ipv6 {
		s.expect("killed, question to the IPv6 address", fallback(freshAnswer), s.dig(p, s.fresh(), "@"+s.node.ClusterDNS()[1].String()).way(p))
	}
	o = s.dig(s.legacy, s.fresh())
	s.expect("killed, pod that names "+localAddress, fallback(freshAnswer), o.way(s.legacy))
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
	name := s.fresh()
	s.expect("agent back, first question", miss(freshAnswer), s.dig(p, name).way(p))
	s.expect("agent back, second question", hit(freshAnswer), s.dig(p, name).way(p))
}

func (s *show) agentHangs() {
	p := s.late
	s.step("The agent hangs: its sockets stay, its leases lapse")
	if s.kernel {
		s.heat(p)
	}
	s.tell("node$ kill -STOP %d", s.agent.PID())
	s.agent.Stop()
	s.awaitAnswer(p)
	s.expect("agent hung, answers again", fallback(freshAnswer), s.dig(p, s.fresh()).way(p))
	if s.kernel {
		s.expect("agent hung, question for a name that the kernel has", hit(webAnswer), s.digInKernel(p))
	}
	s.expect("agent hung, pod that names "+localAddress, fallback(freshAnswer), s.dig(s.legacy, s.fresh()).way(s.legacy))
	s.tell("node$ kill -CONT %d", s.agent.PID())
	s.agent.Cont()
	testutil.Eventually(s.t, s.ready)
	s.freshen(p)
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

// resolvConfs looks at the pods' files after everything else.
func (s *show) resolvConfs() {
	s.step("What the pods' own settings saw of all this")
	for _, p := range []*pod{s.older, s.early, s.late, s.legacy} {
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
	case <-time.After(testutil.Patience()):
		return "still running"
	}
	if err := s.agent.Wait(); err != nil {
		return err.Error()
	}
	return "exit code 0"
}
