package prober

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// output runs a command in the prober's netns.
func (p *Prober) output(t testing.TB, args ...string) string {
	t.Helper()
	var out []byte
	err := p.sockets.do(func() (err error) {
		out, err = exec.Command(args[0], args[1:]...).CombinedOutput() //nolint:gosec // a test's own
		return err
	})
	testutil.Check(t, err, strings.Join(args, " "), string(out))
	return string(out)
}

func TestEnsureRepairs(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables})
	p := n.prober(t)
	for _, c := range []struct {
		name  string
		wreck func()
	}{
		{"nothing", func() {}},
		{"link deleted", func() { n.Host.DelLink(steer.ProberInterface) }},
		{"link down", func() { n.Host.Down(steer.ProberInterface) }},
		{"link deleted inside", func() { p.output(t, "ip", "link", "del", ownInterface) }},
		{"link down inside", func() { p.output(t, "ip", "link", "set", ownInterface, "down") }},
		{"hardware address changed", func() { n.Host.SetMAC(steer.ProberInterface, "02:00:00:00:00:09") }},
		{"routes flushed", func() {
			n.Host.Run("ip", "route", "flush", "dev", steer.ProberInterface)
			n.Host.Run("ip", "-6", "route", "flush", "dev", steer.ProberInterface)
		}},
		{"neighbours flushed", func() {
			n.Host.Run("ip", "neigh", "flush", "nud", "permanent", "dev", steer.ProberInterface)
			p.output(t, "ip", "neigh", "flush", "nud", "permanent", "dev", ownInterface)
		}},
		{"addresses flushed inside", func() { p.output(t, "ip", "addr", "flush", "dev", ownInterface) }},
		{"default routes deleted inside", func() {
			p.output(t, "ip", "route", "del", "default")
			p.output(t, "ip", "-6", "route", "del", "default")
		}},
		{"pod table deleted", func() { p.output(t, "nft", "flush", "ruleset") }},
		{"IPv6 turned off", func() { n.Host.Sysctl("net.ipv6.conf."+steer.ProberInterface+".disable_ipv6", "1") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.wreck()
			repaired := p.settle(t)
			if want := map[string]string{"pod table deleted": "its pod table"}[c.name]; want != "" && repaired != want {
				t.Errorf("repaired %q, want %q", repaired, want)
			}
			wantAllOK(t, p, n.targets())
			for _, a := range n.ClusterDNS() {
				testutil.Check(t, p.CheckFallback(testutil.Context(t), a, serviceName))
			}
		})
	}
}

// A check of a healthy prober must not show up in what other programs watch.
func TestEnsureUnchangedIsSilent(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.Dual})
	p := n.prober(t)
	monitor := n.Host.Start("ip", "-ts", "monitor", "all")
	marker := func(name string) {
		testutil.Eventually(t, func() error {
			n.Host.Run("ip", "link", "add", name, "type", "bridge")
			n.Host.DelLink(name)
			return testutil.ErrorIf(!strings.Contains(monitor.Output(), name), "the monitor is silent")
		})
	}
	marker("before")
	before := strings.Count(monitor.Output(), steer.ProberInterface)
	for range 3 {
		_, err := p.Repair()
		testutil.Must(t, err)
	}
	marker("after")
	testutil.Equal(t, "events: "+monitor.Output(), before, strings.Count(monitor.Output(), steer.ProberInterface))
}

func TestCloseLeavesNothing(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.Dual})
	state := func() string {
		return n.Host.Run("ip", "-o", "link") + n.Host.Run("ip", "route", "show", "table", "all") +
			n.Host.Run("ip", "-6", "route", "show", "table", "all") + n.Host.Run("ip", "neigh", "show", "nud", "permanent")
	}
	// The kernel's work queue adds the routes of the node's own addresses some time after the addresses.
	testutil.Eventually(t, func() error {
		routes := n.Host.Run("ip", "-6", "route", "show", "table", "local")
		for line := range strings.Lines(n.Host.Run("ip", "-6", "-o", "addr")) {
			address, _, _ := strings.Cut(strings.Fields(line)[3], "/")
			if !strings.Contains(routes, "local "+address+" ") {
				return fmt.Errorf("no route for %s", address)
			}
		}
		return nil
	})
	before := state()
	p := n.prober(t)
	wantOK(t, probe(t, p, n.ClusterDNS()[0], steer.UDP))
	wantOK(t, probe(t, p, n.ClusterDNS()[0], steer.TCP))
	for range 2 {
		testutil.Must(t, p.Close())
	}
	testutil.Equal(t, "residue", before, state())
	again, err := New(n.config())
	testutil.Must(t, err)
	testutil.Check(t, again.Close())
}
