package steering

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
)

// second is the address of a second Service, which the agent asks in these tests.
var second = netip.MustParseAddr("10.96.0.11")

// TestClusterUpstreamDead lets the cluster upstream be dead or wrong in every way while the cluster DNS address answers:
// a client hears the right answer within a second each time, and soon at once. Node interception changes nothing in that.
func TestClusterUpstreamDead(t *testing.T) {
	for _, tc := range []struct {
		name      string
		services  func(n *node) []testutil.Service // behind the second address; nil: none knows it
		behave    testutil.Behaviour               // of who answers there
		intercept bool
		proxy     testutil.ProxyMode
		reason    string
	}{
		{name: "no endpoints, iptables", services: func(*node) []testutil.Service { return secondService() }, proxy: testutil.IPTables, reason: "connection refused"},
		{name: "no endpoints, nftables", services: func(*node) []testutil.Service { return secondService() }, proxy: testutil.NFTables, intercept: true, reason: "connection refused"},
		{name: "an endpoint that is gone", services: func(*node) []testutil.Service {
			return secondService(netip.MustParseAddr("192.0.2.77")) // nobody has it: no answer to ARP
		}, proxy: testutil.NFTables, reason: "silent"},
		{name: "hangs", services: elsewhere, behave: testutil.Behaviour{Drop: true}, proxy: testutil.IPTables, intercept: true, reason: "silent"},
		{name: "REFUSED", services: elsewhere, behave: testutil.Behaviour{Rcode: dns.RcodeRefused}, proxy: testutil.NFTables, reason: "REFUSED"},
		{name: "SERVFAIL", services: elsewhere, behave: testutil.Behaviour{Rcode: dns.RcodeServerFailure}, proxy: testutil.NFTables, intercept: true, reason: "SERVFAIL"},
		{name: "does not know the cluster", services: elsewhere, proxy: testutil.NFTables, reason: "answers for another zone", behave: testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg {
			m := new(dns.Msg).SetRcode(q.Msg, dns.RcodeNameError)
			m.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 5}, Ns: "a.", Mbox: "b."}}
			return m
		}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			config := fmt.Sprintf("upstreams: {cluster: [%q], external: []}\n", second)
			if tc.intercept {
				config += "interceptNode: true\n"
			}
			n := newNode(t, setup{proxy: tc.proxy, external: true, config: config})
			n.External.Behave(tc.behave)
			n.Proxy.Add(tc.services(n)...)
			pod := n.addPod(nil)
			n.startAgent()
			at := n.all()[0]
			var waits []string
			var known []time.Duration // waits when the dead upstream is known
			for i := range 12 {
				began := time.Now()
				answer, err := pod.client().ask(at, freshName(), 2*time.Second)
				took := time.Since(began)
				if err != nil || pod.client().direct(answer) || took > time.Second+slack {
					t.Errorf("question %d: %v after %s, answer %v", i, err, took.Round(time.Millisecond), answer)
				}
				if i >= 5 {
					known = append(known, took)
				}
				waits = append(waits, took.Round(100*time.Microsecond).String())
			}
			t.Logf("%s: waits %s", tc.name, strings.Join(waits, " "))
			// A silent one that is asked first costs 300 ms. A busy machine costs one question as much now and then, not most of them.
			slices.Sort(known)
			if usual := known[len(known)/2]; usual > 200*time.Millisecond {
				t.Errorf("most questions took %s and more: the dead upstream is known by then", usual.Round(time.Millisecond))
			}
			code, text, _ := n.run("status", "--config", n.configFile())
			if code != 0 || !strings.Contains(text, "failing ("+tc.reason+")") || !strings.Contains(text, "last resort") {
				t.Errorf("status ends with %d:\n%s", code, text)
			}
		})
	}
}

// secondService is a Service of another name than kube-dns's.
func secondService(endpoints ...netip.Addr) []testutil.Service {
	services := testutil.DNSService(second, endpoints...)
	for i := range services {
		services[i].Name = "kube-dns-upstream"
	}
	return services
}

// elsewhere puts the server outside of the cluster behind the second Service.
func elsewhere(n *node) []testutil.Service { return secondService(n.ExternalAddrs()[0]) }

// TestLoopThroughAnotherResolver has the external resolver ask this node's local address: the agent finds out, says so,
// asks kube-dns instead, and the node goes on serving.
func TestLoopThroughAnotherResolver(t *testing.T) {
	n := newNode(t, setup{external: true, config: "upstreams: {external: [\"198.51.100.53\"]}\n"})
	// As a resolver on the host would: the question comes to the agent's own socket.
	n.External.Behave(testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg {
		c, err := testutil.Dial(n.Host, "udp", netip.AddrPortFrom(local4, 53), testutil.AskOptions{Timeout: time.Second})
		if err != nil {
			return nil
		}
		defer c.Close()
		answer, err := c.Ask(q.Name, q.Type)
		if err != nil {
			return nil
		}
		answer.Msg.Id = q.Msg.Id
		return answer.Msg
	}})
	pod := n.addPod(nil)
	n.startAgent()
	for _, server := range []string{"198.51.100.53:53", "10.96.0.10:53"} { // kube-dns asks the resolver, too
		n.awaitLog(0, "upstream leads back to this node and is not asked\" server="+server+" ")
	}
	before := n.External.Questions("")
	began := time.Now()
	answer, err := testutil.Ask(pod.NetNS, n.all()[0].server(), "www.example.", dns.TypeA, "udp", testutil.AskOptions{Timeout: 2 * time.Second})
	if err != nil || answer.Rcode() != "SERVFAIL" || time.Since(began) > time.Second {
		t.Errorf("a name outside: %v, %v after %s; want SERVFAIL at once", answer, err, time.Since(began))
	}
	if asked := n.External.Questions("") - before; asked > 1 { // the watch may have looked once more
		t.Errorf("the looping resolver was asked %d times", asked)
	}
	n.wantSteered(pod.client(), "with the loop", n.all()...)
	code, text, _ := n.run("status", "--config", n.configFile())
	if code != 3 || !strings.Contains(text, "198.51.100.53:53 asks this node for names in .,") || !strings.Contains(text, "take this node's DNS addresses out of its configuration") {
		t.Errorf("status ends with %d:\n%s", code, text)
	}
}

// TestResolvConfNamesOurselves starts the agent on a resolv.conf that leads nowhere but to itself: it serves, asks kube-dns
// for everything, and says what to mend. Once the file names another server, that one is asked.
func TestResolvConfNamesOurselves(t *testing.T) {
	n := newNode(t, setup{external: true})
	n.write("resolv.conf", "nameserver 169.254.20.10\nnameserver 169.254.20.11\n")
	n.configure(fmt.Sprintf("upstreams: {external: [%q]}\n", n.path("resolv.conf")))
	pod := n.addPod(nil)
	n.startAgent()
	n.wantSteered(pod.client(), "with a resolv.conf that names ourselves", n.all()...)
	outside := func(want string) error {
		answer, err := testutil.Ask(pod.NetNS, n.all()[0].server(), fmt.Sprintf("www%d.example.", names.Add(1)), dns.TypeA, "udp", testutil.AskOptions{Timeout: 2 * time.Second})
		if err != nil {
			return fmt.Errorf("a name outside: %w", err)
		}
		if answer.Rcode() != "NOERROR" || answer.Who != "EXTERNAL" || (answer.Client == n.HostAddrs()[0]) != (want == "the agent") {
			return fmt.Errorf("a name outside: %v; want it fetched by %s", answer, want)
		}
		return nil
	}
	if err := outside("kube-dns"); err != nil {
		t.Error(err)
	}
	code, text, _ := n.run("status", "--config", n.configFile())
	if code != 3 || !strings.Contains(text, "resolv.conf:1: 169.254.20.10 is an address of the agent itself") || !strings.Contains(text, "name a server in it") {
		t.Errorf("status ends with %d:\n%s", code, text)
	}
	n.write("resolv.conf", fmt.Sprintf("nameserver 169.254.20.10\nnameserver %s\n", n.ExternalAddrs()[0]))
	testutil.Eventually(t, func() error { return outside("the agent") })
	if code, text, _ := n.run("status", "--config", n.configFile()); code != 0 {
		t.Errorf("mended, status ends with %d:\n%s", code, text)
	}
}

// TestKubeDNSRestarts lets the only upstream hang, end and come back: a miss ends in SERVFAIL within two seconds, and the
// first question after the return is answered, over connections that were made anew.
func TestKubeDNSRestarts(t *testing.T) {
	n := newNode(t, setup{families: testutil.Dual})
	pod := n.addPod(nil)
	n.startAgent()
	miss := func() (*testutil.Answer, time.Duration, error) {
		began := time.Now()
		a, err := testutil.Ask(pod.NetNS, n.all()[0].server(), freshName(), dns.TypeA, "udp", testutil.AskOptions{Timeout: 4 * time.Second})
		return a, time.Since(began), err
	}
	answered := func(when string) {
		t.Helper()
		if a, took, err := miss(); err != nil || a.Rcode() != "NOERROR" || took > time.Second {
			t.Errorf("%s: %v, %v after %s", when, a, err, took.Round(time.Millisecond))
		}
	}
	// The answer comes after 1.9 s, so the quickest of several shows the bound, and each may be late by what a busy machine adds.
	fails := func(when string, times int) {
		t.Helper()
		quickest := time.Hour
		for range times {
			a, took, err := miss()
			if err != nil || a.Rcode() != "SERVFAIL" || took > 2*time.Second+slack {
				t.Errorf("%s: %v, %v after %s, want SERVFAIL within 2s", when, a, err, took.Round(time.Millisecond))
			}
			t.Logf("%s: SERVFAIL after %s", when, took.Round(time.Millisecond))
			quickest = min(quickest, took)
		}
		if quickest > 2*time.Second {
			t.Errorf("%s: the quickest SERVFAIL came after %s, want one within 2s", when, quickest.Round(time.Millisecond))
		}
	}
	answered("before")
	n.DNS.Behave(testutil.Behaviour{Drop: true})
	fails("hung", failLimit)
	n.DNS.Behave(testutil.Behaviour{})
	answered("after the hang")
	n.DNS.Stop()
	fails("ended", failLimit+1)
	n.DNS.Start()
	answered("after the restart")
}

// failLimit is after how many failures an upstream is asked last (agent/internal/coredns/ask).
const failLimit = 3
