//go:build cutoff

package steering

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// What pods see when a living agent cannot do its work, or the world around it changes: somebody is cut off from somebody, and
// pods are to be answered soon as if neardns did not exist. Each cell is a node of its own on which a pod asks over UDP and TCP,
// in IPv4 and IPv6, for names that the cache holds and for new ones, from before the cut until all is well for good.

// Limits of a cell, from the cut on. A lease knows within seconds that the agent cannot ask; evidence takes questions.
const (
	cutLease    = 5 * time.Second
	cutEvidence = 20 * time.Second
	cutNone     = 2 * time.Second // what needs neither
	cutCalm     = 8 * time.Second // that long without a loss: over
	cutEnd      = 75 * time.Second
)

// docEnv names the file that the table is written to.
const docEnv = "NEARDNS_CUTOFF"

// way is how a node's pods come to the cache.
type way string

const (
	waySteered   way = "steered"
	wayLocal     way = "names 169.254.20.10"
	wayIntercept way = "node interception"
)

func ways() []way { return []way{waySteered, wayLocal, wayIntercept} }

// cut is one way to be cut off.
type cut struct {
	name  string // who is cut off from whom
	limit time.Duration
	zone  string
	do    func(t *testing.T, n *node, p *pod)
	// named: not tried where pods name our address by themselves. What is dropped is what they ask for then, with us or without.
	named bool
}

func cuts() []cut {
	each := func(n *node, f func(is4 bool, iptables string)) {
		for _, a := range n.ClusterDNS() {
			f(a.Is4(), map[bool]string{true: "iptables", false: "ip6tables"}[a.Is4()])
		}
	}
	family := map[bool]string{true: "ip", false: "ip6"}
	ours := func(is4 bool) string {
		return map[bool]string{true: "{ 169.254.20.10, 169.254.20.11 }", false: "{ fd00:90de:d95::a, fd00:90de:d95::b }"}[is4]
	}
	return []cut{
		{"agent ↛ kube-dns (the host's OUTPUT)", cutLease, "", func(_ *testing.T, n *node, _ *pod) {
			each(n, func(is4 bool, iptables string) {
				kube := n.KubeDNSAddrs()[map[bool]int{true: 0, false: 1}[is4]].String()
				for _, proto := range []string{"udp", "tcp"} {
					n.Host.Run(iptables, "-w", "-I", "OUTPUT", "-d", kube, "-p", proto, "--dport", "53", "-j", "DROP")
				}
			})
		}, false},
		{"agent ↛ kube-dns (no route from the host)", cutLease, "", func(_ *testing.T, n *node, p *pod) {
			// The host's own questions have no route; what is forwarded has one.
			each(n, func(is4 bool, _ string) {
				flag := map[bool]string{true: "-4", false: "-6"}[is4]
				n.Host.Run("ip", flag, "rule", "add", "pref", "10", "iif", "lo", "ipproto", "udp", "dport", "53", "unreachable")
				n.Host.Run("ip", flag, "rule", "add", "pref", "10", "iif", "lo", "ipproto", "tcp", "dport", "53", "unreachable")
			})
		}, false},
		{"kube-dns ↛ node (its policy admits pods alone)", cutLease, "", func(_ *testing.T, n *node, _ *pod) {
			each(n, func(is4 bool, iptables string) {
				for _, proto := range []string{"udp", "tcp"} {
					n.KubeDNS.Run(iptables, "-w", "-A", "INPUT", "-p", proto, "--dport", "53", "!", "-s", n.PodRange(is4).String(), "-j", "DROP")
				}
			})
		}, false},
		{"agent ↛ its resolver outside, kube-dns ↛ nobody", cutLease, "example.org.", func(_ *testing.T, n *node, _ *pod) {
			for _, a := range n.ExternalAddrs() {
				n.Host.Run(map[bool]string{true: "iptables", false: "ip6tables"}[a.Is4()], "-w", "-I", "OUTPUT", "-d", a.String(), "-j", "DROP")
			}
		}, false},
		{"pod ↛ agent, dropped at its link", cutEvidence, "", func(_ *testing.T, n *node, p *pod) { n.refuseAtLink(p) }, true},
		{"pod ↛ agent, dropped in INPUT", cutEvidence, "", func(_ *testing.T, n *node, p *pod) { n.refuse(p) }, false},
		{"agent ↛ pod, answers dropped in OUTPUT", cutEvidence, "", func(_ *testing.T, n *node, p *pod) {
			each(n, func(is4 bool, _ string) {
				n.Host.Run("nft", "add", "table", "inet", "egress")
				n.Host.Run("nft", "add", "chain", "inet", "egress", "out", "{ type filter hook output priority 0; }")
				n.Host.Run("nft", "add", "rule", "inet", "egress", "out", family[is4], "saddr", ours(is4), family[is4], "daddr", p.addr(is4).String(), "drop")
			})
		}, true},
		{"kube-proxy gone, others translate; agent dead", cutEvidence, "", func(_ *testing.T, n *node, p *pod) {
			n.replaceProxy(p)
			n.agent.Kill()
		}, true},
		{"table gone, agent dead, watch alive", cutLease, "", func(_ *testing.T, n *node, _ *pod) {
			n.startWatch()
			n.agent.Kill()
			n.Host.Run("nft", "delete", "table", "inet", "neardns")
		}, false},
		{"table gone, agent and watch dead", cutEvidence, "", func(_ *testing.T, n *node, _ *pod) {
			n.agent.Kill()
			n.Host.Run("nft", "delete", "table", "inet", "neardns")
		}, true},
		{"agent dead", cutNone, "", func(_ *testing.T, n *node, _ *pod) { n.agent.Kill() }, false},
		{"agent hung", cutLease, "", func(_ *testing.T, n *node, _ *pod) { n.agent.Stop() }, false},
	}
}

// startWatch runs the installer's watch on the node, as the DaemonSet does.
func (n *node) startWatch() {
	n.t.Helper()
	for _, dir := range []string{"cni-bin", "cni-conf"} {
		if err := os.MkdirAll(n.path(dir), 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	n.Host.Start(made.Path("neardns-install"), "watch", "--nodeconfig", n.configFile(), "--cni-bin", n.path("cni-bin"), "--cni-conf", n.path("cni-conf"),
		"--state-dir", n.stateDir(), "--plugin", made.Path("neardns"), "--agent", made.Path("neardns-agent"))
	testutil.Eventually(n.t, patience, func() error {
		if w, ok, err := nodestate.ReadWatch(n.stateDir()); err != nil || !ok || w.Looked.IsZero() {
			return fmt.Errorf("the watch has not looked yet: %+v, %w", w, err)
		}
		return nil
	})
}

// replaceProxy takes kube-proxy's rules away and has the cluster DNS address translated at the links instead, statelessly, as
// what stands in kube-proxy's place may do it: the pod's own questions are answered, those of the host are not.
func (n *node) replaceProxy(p *pod) {
	n.t.Helper()
	n.Proxy.Remove()
	rules := "table netdev replacement {\n"
	for _, hook := range []struct{ link, match, set string }{{p.hostLink(n), "daddr", "dport"}, {"kubedns0", "saddr", "sport"}} {
		rules += fmt.Sprintf("chain %s { type filter hook ingress device %s priority -400;\n", hook.match, hook.link)
		for i, service := range n.ClusterDNS() {
			from, to := service, n.KubeDNSAddrs()[i]
			if hook.match == "saddr" {
				from, to = to, from
			}
			for _, proto := range []string{"udp", "tcp"} {
				rules += fmt.Sprintf("%[1]s %[2]s %[3]s %[4]s %[5]s 53 %[1]s %[2]s set %[6]s\n", ipFamily(from), hook.match, from, proto, hook.set, to)
			}
		}
		rules += "}\n"
	}
	n.Host.RunInput(rules+"}\n", "nft", "-f", "-")
}

func ipFamily(a netip.Addr) string { return map[bool]string{true: "ip", false: "ip6"}[a.Is4()] }

// cell is what came of one cut: for each of the ways to ask, how long after the cut the last question was lost, and how many.
type cell struct {
	after time.Duration // the latest of all; 0: nothing was lost
	lost  int
	asked int
	none  bool // not tried
	ended bool // all was well for cutCalm before cutEnd
	worst string
}

func (c cell) String() string {
	switch {
	case c.none:
		return "–"
	case !c.ended:
		return fmt.Sprintf("**no end** (%d of %d lost)", c.lost, c.asked)
	case c.lost == 0:
		return "at once, 0"
	}
	return fmt.Sprintf("%.1f s, %d", c.after.Seconds(), c.lost)
}

// asker asks one target at a pace, by turns a name that the cache holds and a new one.
type asker struct {
	at   target
	mu   sync.Mutex // guards the fields below
	last time.Time  // when the last lost question was asked
	lost int
	sent int
	why  error
}

const (
	cutPace     = 200 * time.Millisecond
	cutPatience = 2 * time.Second // of a question: musl's resolver library waits 2.5 s, glibc's 5
)

func (a *asker) run(p *pod, zone string, stop <-chan struct{}, asked *sync.WaitGroup) {
	known := freshName()
	tick := time.NewTicker(cutPace)
	defer tick.Stop()
	for i := 0; ; i++ {
		name := known
		if i%2 == 1 {
			name = strings.Replace(freshName(), "default.svc.cluster.local.", zone, 1)
		}
		asked.Go(func() {
			begun := time.Now()
			answer, err := testutil.Ask(p.NetNS, a.at.server(), name, dns.TypeA, a.at.network, testutil.AskOptions{Timeout: cutPatience, EDNS: 1232})
			if err == nil && (answer.Rcode() != "NOERROR" || len(answer.Msg.Answer) == 0) {
				err = fmt.Errorf("%s", answer)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			a.sent++
			if err != nil {
				a.lost++
				a.why = err
				if begun.After(a.last) {
					a.last = begun
				}
			}
		})
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}

func (a *asker) state() (last time.Time, lost, sent int, why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last, a.lost, a.sent, a.why
}

// calm waits until nobody has lost a question for cutCalm, or until the end.
func calm(askers []*asker, since time.Time, end time.Time) bool {
	for {
		quiet := since
		for _, a := range askers {
			if last, _, _, _ := a.state(); last.After(quiet) {
				quiet = last
			}
		}
		wait := time.Until(quiet.Add(cutCalm + cutPatience))
		if wait <= 0 {
			return true
		}
		if time.Now().Add(wait).After(end) {
			return false
		}
		<-time.After(wait)
	}
}

// run makes the cell's node, cuts, and looks.
func (c cut) run(t *testing.T, w way) cell {
	t.Helper()
	s := setup{families: testutil.Dual, proxy: testutil.IPTables, external: true}
	external := quoted([]netip.Addr{netip.MustParseAddr("198.51.100.53")})
	s.config = "upstreams: {external: [" + external[0] + "]}\n"
	var n *node
	if w == wayIntercept {
		n = intercepting(t, s)
	} else {
		n = newNode(t, s)
	}
	var p *pod
	at := n.ClusterDNS()
	switch w {
	case waySteered:
		p = n.addPod(nil)
	case wayLocal:
		p, at = n.addOldPod(), n.locals()
	case wayIntercept:
		p = n.addOldPod()
	}
	n.startAgent()
	zone := c.zone
	if zone == "" {
		zone = "default.svc.cluster.local."
	}
	var askers []*asker
	stop := make(chan struct{})
	var wg, asked sync.WaitGroup
	for _, to := range targets(at...) {
		a := &asker{at: to}
		askers = append(askers, a)
		wg.Go(func() { a.run(p, zone, stop, &asked) })
	}
	defer func() {
		close(stop)
		wg.Wait()
		asked.Wait()
	}()
	if !calm(askers, time.Now().Add(-cutCalm), time.Now().Add(patience)) {
		t.Fatal("questions are lost before anything is cut")
	}
	var before []int
	for _, a := range askers {
		_, lost, _, _ := a.state()
		before = append(before, lost)
	}
	begun := time.Now()
	c.do(t, n, p)
	var out cell
	end := cutEnd
	if c.limit > end {
		end = c.limit + cutCalm
	}
	out.ended = calm(askers, begun, begun.Add(end))
	for i, a := range askers {
		last, lost, sent, why := a.state()
		out.asked += sent
		out.lost += lost - before[i]
		if after := last.Sub(begun); lost > before[i] && after > out.after {
			out.after, out.worst = after, fmt.Sprintf("%s: %v", a.at, why)
		}
	}
	return out
}

// TestCutOff tries every cell, and draws the table. It is what `make cutoff` runs.
func TestCutOff(t *testing.T) {
	t.Parallel()
	document := os.Getenv(docEnv)
	all, columns := cuts(), ways()
	cells := make([][]cell, len(all))
	t.Run("cells", func(t *testing.T) {
		for i, c := range all {
			cells[i] = make([]cell, len(columns))
			for j, w := range columns {
				t.Run(c.name+"/"+string(w), func(t *testing.T) {
					t.Parallel()
					if c.named && w == wayLocal {
						cells[i][j] = cell{none: true}
						return
					}
					got := c.run(t, w)
					cells[i][j] = got
					t.Logf("%s; last lost: %s", got, got.worst)
					if !got.ended || got.after > c.limit {
						t.Errorf("pods are not answered as without neardns within %v: %s; last lost: %s", c.limit, got, got.worst)
					}
				})
			}
		}
	})
	if document != "" {
		drawCells(t, document, all, columns, cells)
	}
}

// drawCells writes the table as Markdown.
func drawCells(t *testing.T, document string, rows []cut, columns []way, cells [][]cell) {
	t.Helper()
	var b strings.Builder
	b.WriteString("| cut off |")
	for _, w := range columns {
		fmt.Fprintf(&b, " %s |", w)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(columns)) + "\n")
	for i, c := range rows {
		fmt.Fprintf(&b, "| %s |", c.name)
		for j := range columns {
			fmt.Fprintf(&b, " %s |", cells[i][j])
		}
		b.WriteString("\n")
	}
	if err := os.WriteFile(document, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
