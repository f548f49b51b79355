package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// seen is what one question of a pod showed.
type seen struct {
	answer    string // the last address in it
	server    string // whence it came
	took      time.Duration
	delivered bool    // the switch gave it to the agent
	kubeDNS   []asked // what reached kube-dns of it
}

var (
	digServer = regexp.MustCompile(`;; SERVER: ([^#\s]+)#53`)
	digAnswer = regexp.MustCompile(`(?m)^[^;\s]\S*\s+\d+\s+IN\s+(?:A|AAAA)\s+(\S+)$`)
)

// dig asks as a program in the pod would: through the pod's own resolv.conf, which is mounted in the place of the machine's
// for this one process. It tries once, so that nothing is smoothed over by a second try.
func (s *show) dig(p *pod, name string, options ...string) seen {
	before, heard := s.delivered(), len(s.heard(s.kubeDNS, name))
	args := append([]string{"dig", "+noall", "+answer", "+stats", "+tries=1", "+time=3"}, append(options, name)...)
	s.tell("%s$ dig %s", p.name, strings.Join(append(options, name), " "))
	script := `mount --bind "$0" /etc/resolv.conf && exec "$@"`
	cmd := exec.CommandContext(s.ctx, "nsenter", append([]string{"--net=" + p.Path(), "unshare", "--mount", "sh", "-c", script, p.resolvConf}, args...)...)
	start := time.Now()
	text, err := cmd.CombinedOutput()
	out := seen{took: time.Since(start), answer: "none"}
	if m := digAnswer.FindAllStringSubmatch(string(text), -1); m != nil {
		out.answer = m[len(m)-1][1]
	}
	if m := digServer.FindStringSubmatch(string(text)); m != nil {
		out.server = m[1]
	}
	for line := range strings.Lines(string(text)) {
		if err != nil || strings.HasPrefix(line, ";; SERVER") || strings.HasPrefix(line, ";; Query time") || (line[0] != ';' && strings.TrimSpace(line) != "") {
			s.tell("%s", line)
		}
	}
	out.delivered = s.delivered() > before
	out.kubeDNS = s.heard(s.kubeDNS, name)[heard:]
	return out
}

// way tells in words which way a question went.
func (o seen) way(p *pod) string {
	switch {
	case o.answer == "none":
		return "no answer"
	case o.delivered && len(o.kubeDNS) == 0:
		return o.answer + " from the node, without kube-dns"
	case o.delivered:
		return o.answer + " from the node, which asked kube-dns"
	case len(o.kubeDNS) == 1 && isOne(p, o.kubeDNS[0]):
		return o.answer + " from kube-dns, asked by the pod"
	}
	return fmt.Sprintf("%s, and kube-dns was asked by %v", o.answer, o.kubeDNS)
}

func isOne(p *pod, q asked) bool {
	for _, a := range p.addrs {
		if a == q.from {
			return true
		}
	}
	return false
}

// The ways, as way says them.
func hit(answer string) string      { return answer + " from the node, without kube-dns" }
func miss(answer string) string     { return answer + " from the node, which asked kube-dns" }
func fallback(answer string) string { return answer + " from kube-dns, asked by the pod" }

// delivered is how many packets of pods the switch has given to the agent.
func (s *show) delivered() uint64 {
	counters, err := s.rules.Counters()
	if err != nil {
		return 0 // no switch yet
	}
	return counters[steer.CounterDeliveredUDP].Packets + counters[steer.CounterDeliveredTCP].Packets
}

// tracked lists the pod's DNS entries in the node's connection tracking.
func (s *show) tracked(p *pod) []string {
	var out []string
	for _, line := range testutil.Conntrack(s.node.Host) {
		for _, a := range p.addrs {
			if strings.Contains(line, "src="+a.String()+" ") {
				out = append(out, line)
				break
			}
		}
	}
	return out
}

// startAgent starts the agent and waits until it serves under its leases and has proven the fallback.
func (s *show) startAgent() {
	s.tell("node$ neardns-agent node --config nodeconfig.yaml &")
	start := time.Now()
	s.agent = s.start(s.node.Host, agentLog, s.bin+"/neardns-agent", "node", "--config", nodeConfig)
	testutil.Eventually(s.t, 30*time.Second, func() error {
		select {
		case <-s.agent.Exited():
			s.t.Fatalf("the agent ended:\n%s", s.read(agentLog))
		default:
		}
		out, err := s.quiet("neardns-agent", "status", "--config", nodeConfig)
		if err != nil {
			return fmt.Errorf("the agent does not serve yet:\n%s%s", out, s.read(agentLog))
		}
		return nil
	})
	s.tell("serving after %s", time.Since(start).Round(10*time.Millisecond))
}

// awaitLapse waits until no lease stands, and returns how long that took.
func (s *show) awaitLapse() time.Duration {
	start := time.Now()
	testutil.Eventually(s.t, 10*time.Second, func() error {
		leases, err := s.rules.Leases()
		if err == nil && len(leases) > 0 {
			err = fmt.Errorf("%d leases still stand", len(leases))
		}
		return err
	})
	return time.Since(start)
}

// tables lists the nftables tables of a namespace that are ours.
func (s *show) tables(ns *testutil.NetNS) string {
	var out []string
	for line := range strings.Lines(ns.Run("nft", "list", "tables")) {
		if strings.Contains(line, steer.TableName) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}
