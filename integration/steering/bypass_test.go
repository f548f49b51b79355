package steering

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// refuse drops what a pod sends to the node's own addresses, as an egress policy does that allows only kube-dns.
func (n *node) refuse(p *pod) (allow func()) {
	n.t.Helper()
	change := func(how string) {
		for _, a := range p.addrs {
			for _, ours := range []netip.Addr{steering4, local4, steering6, local6} {
				if command := map[bool]string{true: "iptables", false: "ip6tables"}[a.Is4()]; ours.Is4() == a.Is4() {
					n.Host.Run(command, "-w", how, "INPUT", "-s", a.String(), "-d", ours.String(), "-j", "DROP")
				}
			}
		}
	}
	change("-I")
	return func() { change("-D") }
}

// crowd is pods under a steady load; what fails and what kube-dns answers itself is counted.
type crowd struct {
	n                   *node
	asked, lost, direct atomic.Int64
	since               atomic.Pointer[time.Time] // what was queried before does not count
	starved             int                       // leases that the agent had lost then to a busy machine
	last                atomic.Value              // what was wrong last
	stop                chan struct{}
	wg                  sync.WaitGroup
}

func (n *node) crowd(count int) *crowd {
	n.t.Helper()
	c := &crowd{n: n, stop: make(chan struct{})}
	c.forget()
	all := n.all()
	for i := range count {
		p, at := n.addPod(nil), all[i%len(all)]
		c.wg.Go(func() {
			tick := time.NewTicker(300 * time.Millisecond)
			defer tick.Stop()
			name := freshName()
			for {
				select {
				case <-c.stop:
					return
				case <-tick.C:
				}
				c.asked.Add(1)
				begun := time.Now()
				switch a, err := p.client().ask(at, name, 5*time.Second); {
				case begun.Before(*c.since.Load()):
				case err != nil:
					c.lost.Add(1)
					c.last.Store(fmt.Sprintf("%s, %s: %v", p.name, at, err))
				case p.client().direct(a):
					c.direct.Add(1)
					c.last.Store(fmt.Sprintf("%s, %s: answered by kube-dns itself", p.name, at))
				}
			}
		})
	}
	n.t.Cleanup(c.end)
	return c
}

func (c *crowd) end() {
	select {
	case <-c.stop:
	default:
		close(c.stop)
	}
	c.wg.Wait()
}

// forget has what was queried until now not count, such as what is on its way and will be lost after five seconds.
func (c *crowd) forget() {
	now := time.Now()
	c.since.Store(&now)
	c.lost.Store(0)
	c.direct.Store(0)
	c.starved = c.leasesStarved()
}

// leasesStarved is how many leases the agent has lost because it came too late, by its log.
func (c *crowd) leasesStarved() (count int) {
	for line := range strings.Lines(c.n.agent.Output()) {
		if strings.Contains(line, "lease lost") && strings.Contains(line, "CPU time") {
			count++
		}
	}
	return count
}

// undisturbed fails if anything befell the crowd since it was last looked at. Where the agent had too little CPU time for its leases,
// kube-dns answers: that is the machine's doing.
func (c *crowd) undisturbed(t *testing.T, when string) {
	t.Helper()
	if starved := c.leasesStarved(); starved != c.starved {
		t.Logf("%s: %d leases are lost to a busy machine, and kube-dns answered %d questions", when, starved-c.starved, c.direct.Swap(0))
		c.starved = starved
	}
	if lost, direct := c.lost.Swap(0), c.direct.Swap(0); lost+direct > 0 {
		t.Errorf("%s: of %d questions of the other pods %d were lost, %d answered by kube-dns itself; last: %v", when, c.asked.Load(), lost, direct, c.last.Load())
	}
}

// One pod of fifty-one is behind a policy that lets it reach only kube-dns. kube-dns serves it, over the agent's restart too; it comes
// back, and is named. The others, under load, notice nothing, and are not bypassed while the agent is stopped. TestTimingEgressPolicy
// counts the queries that it loses.
func TestEgressPolicy(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{families: testutil.Dual, proxy: testutil.IPTables})
	p := n.addPod(nil)
	n.startAgent()
	others := n.crowd(50)
	n.wantSteered(p.client(), "no policy", n.all()...)
	others.forget() // what it began in

	allow := n.refuse(p)
	n.awaitFallback(p.client(), "policy comes", n.all()...)
	for range 5 {
		n.wantFallback(p.client(), "policy stands", n.all()...)
	}
	others.undisturbed(t, "policy comes")
	n.wantBypassed(p)
	if _, text, _ := n.run("status", "--config", n.configFile()); !strings.Contains(text, "default/"+p.name) {
		t.Errorf("status does not name the pod:\n%s", text)
	}

	if _, text, _ := n.run("doctor", "--config", n.configFile()); !strings.Contains(text, "default/"+p.name) {
		t.Errorf("doctor does not name the pod:\n%s", text)
	}

	// A stopped agent sees no queries. It must not take any pod for cut off.
	n.lapse(func() { n.wantFallback(p.client(), "stopped", n.all()...) })
	n.awaitReady()
	testutil.Eventually(t, func() error { // the queries of the pause are over
		if direct := others.direct.Swap(0); direct > 0 {
			return fmt.Errorf("%d answers by kube-dns itself", direct)
		}
		return nil
	})
	n.wantBypassed(p)
	n.wantFallback(p.client(), "agent stopped and continued", n.all()...)

	n.agent.Kill()
	_ = n.agent.Wait() // killed
	n.startAgent()
	n.wantFallback(p.client(), "another agent", n.all()...)
	n.wantBypassed(p)

	from := len(n.agent.Output())
	allow()
	others.forget()
	// The pod sends nothing: the agent's own trials bring it back, over each address and protocol.
	n.wantBypassed(nil)
	n.wantGivenBack(nil)
	n.wantSteered(p.client(), "policy gone", n.all()...)
	n.awaitLog(from, "served by the agent again")
	others.undisturbed(t, "policy gone")
	others.end()
}

// One pod of twenty-one is hit at its own link, before the switch, some time after it was steered: the host counts nothing of it, so
// only its pod table and the agent's query from its netns can tell. It is answered by kube-dns, named, and steered again
// when the policy goes. The others notice nothing.
func TestLatePolicyAtTheLink(t *testing.T) {
	t.Parallel()
	n := newNode(t, setup{families: testutil.Dual, proxy: testutil.NFTables})
	p := n.addPod(nil)
	n.startAgent()
	others := n.crowd(20)
	ats := targets(n.ClusterDNS()...)
	n.wantSteered(p.client(), "no policy", ats...)
	others.forget() // what it began in

	allow := n.refuseAtLink(p)
	n.awaitFallback(p.client(), "policy comes", ats...)
	n.wantGivenBack(p)
	for range 5 {
		n.wantFallback(p.client(), "policy stands", ats...)
	}
	if _, text, _ := n.run("doctor", "--config", n.configFile()); !strings.Contains(text, "default/"+p.name) {
		t.Errorf("doctor does not name the pod:\n%s", text)
	}
	others.undisturbed(t, "policy stands")

	allow()
	testutil.Eventually(t, func() error { return p.client().steered(ats[0]) }) // it is tried after 15 s
	n.wantSteered(p.client(), "policy gone", ats...)
	n.wantGivenBack(nil)
	others.undisturbed(t, "policy gone")
	others.end()
}

// refuseAtLink drops what a pod sends to the node's own addresses where a tc or XDP program of a policy does.
func (n *node) refuseAtLink(p *pod) (allow func()) {
	n.t.Helper()
	var rules strings.Builder
	for _, a := range []netip.Addr{steering4, local4, steering6, local6} {
		fmt.Fprintf(&rules, "%s daddr %s drop\n", map[bool]string{true: "ip", false: "ip6"}[a.Is4()], a)
	}
	n.Host.RunInput(fmt.Sprintf("table netdev at_link {\nchain c {\ntype filter hook ingress device %q priority 0;\n%s}\n}\n", p.hostLink(n), rules.String()), "nft", "-f", "-")
	return func() { n.Host.Run("nft", "delete", "table", "netdev", "at_link") }
}

// hostLink is the host's end of the pod's veth.
func (p *pod) hostLink(n *node) string {
	n.t.Helper()
	out := n.Host.Run("ip", "-o", "route", "get", p.addr(true).String())
	fields := strings.Fields(out)
	at := slices.Index(fields, "dev")
	if at < 0 || at+1 == len(fields) {
		n.t.Fatalf("no link in %q", out)
	}
	return fields[at+1]
}

// wantGivenBack waits until the pods that the agent gave back are this one, or none.
func (n *node) wantGivenBack(p *pod) {
	n.t.Helper()
	testutil.Eventually(n.t, func() error {
		_, text, _ := n.run("pods", "--config", n.configFile())
		lines := slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return !strings.Contains(l, "given-back") })
		if p == nil && len(lines) == 0 || p != nil && len(lines) == 1 && strings.Contains(lines[0], p.name) {
			return nil
		}
		return fmt.Errorf("given back: %q\n%s", lines, text)
	})
}

// wantBypassed waits until the status lists one pod, over each of its addresses and protocols, and no other.
func (n *node) wantBypassed(p *pod) {
	n.t.Helper()
	want := 0
	if p != nil {
		want = len(n.all())
	}
	testutil.Eventually(n.t, func() error {
		s := n.status()
		if s.Agent == nil || len(s.Agent.Bypassed) != want {
			return fmt.Errorf("want %d clients passed by: %+v", want, s.Agent)
		}
		for _, b := range s.Agent.Bypassed {
			if b.Pod != "default/"+p.name || !slices.Contains(p.addrs, b.Source) || b.NextTrial.Before(b.Since) {
				return fmt.Errorf("not %s: %+v", p.name, b)
			}
		}
		return nil
	})
}
