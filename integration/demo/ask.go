package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/tick"
)

const typeA = dns.TypeA

// seen is what one query of a pod showed.
type seen struct {
	answer    string  // the last address in it
	server    string  // whence it came
	delivered bool    // the switch gave it to the agent
	kubeDNS   []asked // what reached kube-dns of it
}

var (
	digServer = regexp.MustCompile(`;; SERVER: ([^#\s]+)#53`)
	digAnswer = regexp.MustCompile(`(?m)^[^;\s]\S*\s+\d+\s+IN\s+(?:A|AAAA)\s+(\S+)$`)
)

// dig queries as a program in the pod would: through the pod's own resolv.conf, which is mounted in the place of the machine's
// for this one process. It tries once, so that nothing is smoothed over by a second try.
func (s *show) dig(p *pod, name string, options ...string) seen {
	before, heard := s.delivered(), len(s.heard(s.kubeDNS, name))
	args := slices.Concat([]string{"dig", "+noall", "+answer", "+stats"}, testutil.DigOnce, options, []string{name})
	s.tell("%s$ dig %s", p.name, strings.Join(append(options, name), " "))
	script := `mount --bind "$0" /etc/resolv.conf && exec "$@"`
	cmd := exec.CommandContext(s.ctx, "nsenter", append([]string{"--net=" + p.Path(), "unshare", "--mount", "sh", "-c", script, p.resolvConf}, args...)...)
	text, err := cmd.CombinedOutput()
	out := parseDig(string(text))
	for line := range strings.Lines(string(text)) {
		if err != nil || strings.HasPrefix(line, ";; SERVER") || strings.HasPrefix(line, ";; Query time") || (line[0] != ';' && strings.TrimSpace(line) != "") {
			s.tell("%s", line)
		}
	}
	out.delivered = s.delivered() > before
	out.kubeDNS = s.heard(s.kubeDNS, name)[heard:]
	return out
}

// parseDig reads what dig printed.
func parseDig(text string) seen {
	out := seen{answer: "none"}
	if m := digAnswer.FindAllStringSubmatch(text, -1); m != nil {
		out.answer = m[len(m)-1][1]
	}
	if m := digServer.FindStringSubmatch(text); m != nil {
		out.server = m[1]
	}
	return out
}

// way names the way that a query went.
func (o seen) way(p *pod) string {
	switch {
	case o.answer == "none":
		return "no answer"
	case len(o.kubeDNS) == 0: // by the agent, or by the kernel where the switch did not see it
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

// The ways, by the names that way returns.
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

// awaitNoTrials waits until the agent no longer tries new pods: their trials are packets that the switch gives to the agent, too.
func (s *show) awaitNoTrials() {
	testutil.Eventually(s.t, func() error {
		before := s.delivered()
		tick.Pause(context.Background(), 1200*time.Millisecond) // a new pod is tried about twice a second
		if s.delivered() != before {
			return errors.New("the agent still tries new pods")
		}
		return nil
	})
}

// tracked shows and returns the pod's DNS entries in connection tracking, the node's and those in the pod itself.
func (s *show) tracked(p *pod) []string {
	all := append(testutil.Conntrack(s.node.Host), testutil.Conntrack(p.NetNS)...)
	entries := entriesOf(all, p.addrs)
	s.tell("node, pod$ conntrack -L | grep %s\n%s", p.addrs[0], strings.Join(append(slices.Clone(entries), fmt.Sprintf("(%d entries)", len(entries))), "\n"))
	return entries
}

// entriesOf picks the lines of testutil.Conntrack that have one of the addresses, on whatever side.
func entriesOf(lines []string, addrs []netip.Addr) []string {
	var out []string
	for _, line := range lines {
		if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return strings.Contains(line, " "+a.String()+":") }) {
			out = append(out, line)
		}
	}
	return out
}

// awaitAnswer sends queries that are no hits again and again, as a resolver does that waits 50 ms for each answer, and shows how long the
// pod was without one.
func (s *show) awaitAnswer(p *pod) {
	start := time.Now()
	testutil.Eventually(s.t, func() error {
		_, err := testutil.Ask(p.NetNS, s.node.Service(true), s.fresh(), typeA, "udp", testutil.AskOptions{Timeout: 50 * time.Millisecond})
		return err
	})
	s.tell("%s was without answers for %s", p.name, time.Since(start).Round(10*time.Millisecond))
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

// digShort queries a name that needs the search list. What reaches kube-dns is counted for the full name.
func (s *show) digShort(p *pod) string {
	before, heard := s.delivered(), len(s.heard(s.kubeDNS, otherName))
	o := s.dig(p, "stock", "+search")
	o.delivered = s.delivered() > before
	o.kubeDNS = s.heard(s.kubeDNS, otherName)[heard:]
	return o.way(p)
}

// digInKernel queries a name that the kernel has, without the cookie of dig, which the kernel leaves to the agent.
func (s *show) digInKernel(p *pod) string { return s.dig(p, clusterName, "+nocookie").way(p) }

// freshen makes sure that the next query is a hit, however long ago the last one was.
func (s *show) freshen(p *pod) {
	at := netip.AddrPortFrom(s.node.ClusterDNS()[0], 53)
	if _, err := testutil.Ask(p.NetNS, at, clusterName, typeA, "udp", testutil.AskOptions{}); err != nil {
		s.t.Fatalf("%s: %v", p.name, err)
	}
}

// fresh is a name that no pod has asked for.
func (s *show) fresh() string {
	s.markers++
	return fmt.Sprintf("n%d.fresh.shop.svc.cluster.local.", s.markers)
}
