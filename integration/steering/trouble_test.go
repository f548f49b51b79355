package steering

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// deadZones are such as nobody answers for; the second kind goes to kube-dns.
const deadZone, deadReverse = "dead.example.", "9.10.in-addr.arpa."

// endpoints is how many addresses the headless Services of these tests have: more than fit a datagram.
const endpoints = 100

// troubled answers as a resolver before whose authoritative servers there is trouble: names below the dead zones are never
// answered, "slow2400.…" after so many milliseconds, "headless…" with many addresses.
func troubled(s *testutil.DNSServer) testutil.Behaviour {
	return testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg {
		name := strings.ToLower(q.Name)
		label, _, _ := strings.Cut(name, ".")
		digits, slow := strings.CutPrefix(label, "slow")
		switch {
		case strings.HasSuffix(name, deadZone), strings.HasSuffix(name, deadReverse):
			return nil
		case slow:
			ms, _ := strconv.Atoi(digits)
			<-time.After(time.Duration(ms) * time.Millisecond)
		case strings.HasPrefix(label, "headless"):
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

// TestUpstreamInTrouble takes kube-dns's TCP away for a moment; has names be slow; and has two pods flood names below dead zones,
// and looks at what another pod hears meanwhile.
func TestUpstreamInTrouble(t *testing.T) {
	n := newNode(t, setup{external: true, config: "upstreams: {external: [\"198.51.100.53\"]}\n"})
	n.External.Behave(troubled(n.External))
	n.DNS.Behave(troubled(n.DNS))
	outside, reverse, quiet := n.addPod(nil), n.addPod(nil), n.addPod(nil)
	n.startAgent()
	udp, tcp := n.all()[0].server(), n.all()[1].server()
	ask := func(server netip.AddrPort, network, name string, timeout time.Duration) (string, int, time.Duration) {
		began := time.Now()
		a, err := testutil.Ask(quiet.NetNS, server, name, dns.TypeA, network, testutil.AskOptions{Timeout: timeout, EDNS: 1232})
		took := time.Since(began)
		if err != nil {
			return err.Error(), 0, took
		}
		return a.Rcode(), len(a.Msg.Answer), took
	}

	whole := func(t *testing.T, when string, within time.Duration) {
		t.Helper()
		name := fmt.Sprintf("headless%d.default.svc.cluster.local.", names.Add(1))
		if got, records, took := ask(tcp, "tcp", name, 5*time.Second); got != "NOERROR" || records != endpoints || took > within {
			t.Errorf("%s: %s with %d of %d addresses after %s", when, got, records, endpoints, took.Round(time.Millisecond))
		}
	}
	// trouble has rules stand in kube-dns's way while f runs. Connections that are kept are closed before, so that new ones are made.
	trouble := func(t *testing.T, verdict string, f func()) {
		t.Helper()
		n.DNS.Stop()
		n.DNS.Start()
		n.Host.RunInput("table inet trouble {\n counter hit { }\n chain out {\n type filter hook output priority 300\n"+
			" tcp dport 53 tcp flags & (syn | ack) == syn oifname != lo counter name hit "+verdict+"\n }\n}\n", "nft", "-f", "-")
		defer n.Host.Run("nft", "delete", "table", "inet", "trouble")
		f()
		if strings.Contains(n.Host.Run("nft", "list", "counter", "inet", "trouble", "hit"), "packets 0") {
			t.Errorf("%s: nobody was hindered", verdict)
		}
	}
	t.Run("a SYN is lost", func(t *testing.T) {
		trouble(t, "drop", func() {
			// A name of the usual size is answered all the same, and a long one over TCP is not cut.
			if got, _, took := ask(udp, "udp", freshName(), 2*time.Second); got != "NOERROR" {
				t.Errorf("meanwhile: %s after %s", got, took)
			}
		})
		whole(t, "after it", 2*time.Second)
	})
	t.Run("TCP is refused for a second", func(t *testing.T) {
		trouble(t, "reject with tcp reset", func() {
			for until := time.Now().Add(time.Second); time.Now().Before(until); {
				name := fmt.Sprintf("headless%d.default.svc.cluster.local.", names.Add(1))
				if got, records, _ := ask(tcp, "tcp", name, 5*time.Second); got == "NOERROR" && records != endpoints {
					t.Fatalf("meanwhile: %d of %d addresses over TCP", records, endpoints)
				}
			}
		})
		whole(t, "after it", 2*time.Second)
	})
	t.Run("floods below dead zones", func(t *testing.T) {
		stop := make(chan struct{})
		var wg sync.WaitGroup
		end := sync.OnceFunc(func() {
			close(stop)
			wg.Wait()
		})
		t.Cleanup(end)
		wg.Go(func() { flood(t, outside.NetNS, udp, strings.TrimSuffix(deadZone, "."), 400, stop) })
		wg.Go(func() { flood(t, reverse.NetNS, udp, strings.TrimSuffix(deadReverse, "."), 400, stop) })
		testutil.Eventually(t, func() error {
			if a, b := n.External.Questions("udp"), n.DNS.Questions("tcp"); a < 500 || b < 500 {
				return fmt.Errorf("%d and %d questions of the floods", a, b)
			}
			return nil
		})
		const each = 50
		lost := map[string][]string{}
		tick := time.NewTicker(80 * time.Millisecond)
		for i := range each {
			<-tick.C
			for where, name := range map[string]string{"outside": fmt.Sprintf("shop%d.example.", i), "cluster": freshName()} {
				if got, _, took := ask(udp, "udp", name, 2*time.Second); got != "NOERROR" {
					lost[where] = append(lost[where], fmt.Sprintf("%s after %s", got, took.Round(time.Millisecond)))
				}
			}
		}
		tick.Stop()
		end()
		if all := len(lost["outside"]) + len(lost["cluster"]); all > 2*each/100 {
			t.Errorf("of %d new names each: %v", each, lost)
		}
		if code, text, _ := n.run("status", "--config", n.configFile()); strings.Contains(text, "failing") {
			t.Errorf("status ends with %d, an upstream is held to fail:\n%s", code, text)
		}
	})
	t.Run("slow names", func(t *testing.T) {
		var wg sync.WaitGroup
		for _, ms := range []int{2400, 4000} {
			for _, name := range []string{"slow%d.example.", "slow%d.default.svc.cluster.local."} {
				wg.Go(func() {
					name := fmt.Sprintf(name, ms)
					if got, _, took := ask(udp, "udp", name, 5*time.Second); got != "NOERROR" {
						t.Errorf("%s: %s after %s", name, got, took.Round(time.Millisecond))
					}
				})
			}
		}
		wg.Wait()
	})
}
