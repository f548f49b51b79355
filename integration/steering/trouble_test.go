package steering

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"github.com/neardns/neardns/pkg/testutil"
)

// deadZones are such as no server answers for; the second kind goes to kube-dns.
const deadZone, deadReverse = "dead.example.", "9.10.in-addr.arpa."

// endpoints is how many addresses the headless Services of these tests have: more than fit a datagram.
const endpoints = 100

// troubled answers as a resolver before whose authoritative servers there is trouble: names below the dead zones are never
// answered, "headless…" with many addresses.
func troubled(s *testutil.DNSServer) testutil.Behaviour {
	return testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg {
		name := strings.ToLower(q.Name)
		switch {
		case strings.HasSuffix(name, deadZone), strings.HasSuffix(name, deadReverse):
			return nil
		case strings.HasPrefix(name, "headless"):
			m := new(dns.Msg).SetReply(q.Msg)
			m.Compress = true
			for i := range endpoints {
				m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: net.IPv4(10, 1, 0, byte(i))})
			}
			return m
		}
		return s.Answer(q)
	}}
}

// longName is a fresh name with many addresses.
func longName() string { return fmt.Sprintf("headless%d.default.svc.cluster.local.", names.Add(1)) }

// withoutTCP has rules stand in kube-dns's way over TCP while f runs. Connections that are kept are closed before, so that new ones are
// made.
func (n *node) withoutTCP(verdict string, f func()) {
	n.t.Helper()
	n.DNS.Stop()
	n.DNS.Start()
	n.Host.RunInput("table inet trouble {\n counter hit { }\n chain out {\n type filter hook output priority 300\n"+
		" tcp dport 53 tcp flags & (syn | ack) == syn oifname != lo counter name hit "+verdict+"\n }\n}\n", "nft", "-f", "-")
	defer n.Host.Run("nft", "delete", "table", "inet", "trouble")
	f()
	if strings.Contains(n.Host.Run("nft", "list", "counter", "inet", "trouble", "hit"), "packets 0") {
		n.t.Errorf("%s: no connection was hindered", verdict)
	}
}

// TestUpstreamInTrouble takes kube-dns's TCP away for a moment; has names be slow; and has two pods flood names below dead zones,
// and looks at what another pod hears meanwhile.
func TestUpstreamInTrouble(t *testing.T) {
	n, quiet := newServed(t, setup{external: true, config: "upstreams: {external: [\"198.51.100.53\"]}\n"})
	n.External.Behave(troubled(n.External))
	n.DNS.Behave(troubled(n.DNS))
	outside, reverse := n.addPod(nil), n.addPod(nil)
	udp, tcp := n.all()[0].server(), n.all()[1].server()
	ask := func(server netip.AddrPort, network, name string) (rcode string, records int) {
		a, err := testutil.Ask(quiet.NetNS, server, name, dns.TypeA, network, testutil.AskOptions{EDNS: 1232})
		if err != nil {
			return err.Error(), 0
		}
		return a.Rcode(), len(a.Msg.Answer)
	}
	whole := func(t *testing.T) {
		t.Helper()
		if got, records := ask(tcp, "tcp", longName()); got != "NOERROR" || records != endpoints {
			t.Errorf("after it: %s with %d of %d addresses", got, records, endpoints)
		}
	}
	t.Run("a SYN is lost", func(t *testing.T) {
		n.withoutTCP("drop", func() {
			// A name of the usual size is answered all the same, and a long one over TCP is not cut.
			if got, _ := ask(udp, "udp", freshName()); got != "NOERROR" {
				t.Errorf("meanwhile: %s", got)
			}
		})
		whole(t)
	})
	t.Run("TCP is refused for a while", func(t *testing.T) {
		n.withoutTCP("reject with tcp reset", func() {
			for range 20 {
				if got, records := ask(tcp, "tcp", longName()); got == "NOERROR" && records != endpoints {
					t.Fatalf("meanwhile: %d of %d addresses over TCP", records, endpoints)
				}
			}
		})
		whole(t)
	})
	t.Run("floods below dead zones", func(t *testing.T) {
		endOutside := flood(t, outside.NetNS, udp, strings.TrimSuffix(deadZone, "."), 400)
		endReverse := flood(t, reverse.NetNS, udp, strings.TrimSuffix(deadReverse, "."), 400)
		testutil.Eventually(t, func() error {
			a, b := n.External.Questions("udp"), n.DNS.Questions("tcp")
			return testutil.ErrorIf(a < 500 || b < 500, "%d and %d questions of the floods", a, b)
		})
		for i := range 50 {
			for _, name := range []string{fmt.Sprintf("shop%d.example.", i), freshName()} {
				testutil.Eventually(t, func() error {
					got, _ := ask(udp, "udp", name)
					return testutil.ErrorIf(got != "NOERROR", "%s: %s", name, got)
				})
			}
		}
		testutil.Eventually(t, func() error {
			_, text, _ := n.run("status", "--config", n.configFile())
			return testutil.ErrorIf(strings.Contains(text, "failing"), "an upstream is held to fail:\n%s", text)
		})
		endOutside()
		endReverse()
	})
	t.Run("slow names", func(t *testing.T) {
		testutil.Eventually(t, func() error { // the agent gives up after 4.5 s
			var all errgroup.Group
			for _, delay := range []string{"delay-2400.", "delay-4000."} {
				for who, name := range map[string]string{"EXTERNAL": delay + "example.", "KUBEDNS": delay + freshName()} {
					all.Go(func() error {
						a, err := testutil.Ask(quiet.NetNS, udp, name, dns.TypeA, "udp", testutil.AskOptions{EDNS: 1232})
						return testutil.ErrorIf(err != nil || a.Rcode() != "NOERROR" || a.Who != who, "%s: %v, %w", name, a, err)
					})
				}
			}
			return all.Wait()
		})
	})
}
