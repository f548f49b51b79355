package steering

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/internal/cli"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestClusterUpstreamDead lets the cluster upstream be dead or wrong in seven ways while the cluster DNS address answers: a client gets the
// right answer each time, by the agent. Node interception changes nothing in that.
func TestClusterUpstreamDead(t *testing.T) {
	for _, tc := range []struct {
		name      string
		services  func(n *node) []testutil.Service // behind the second address; nil: none knows it
		behave    testutil.Behaviour               // of who answers there
		intercept bool
		proxy     testutil.ProxyMode
		reason    string
	}{
		{name: "no endpoints, iptables", services: func(*node) []testutil.Service { return secondService(upstream4) }, proxy: testutil.IPTables, reason: "connection refused"},
		{name: "no endpoints, nftables", services: func(*node) []testutil.Service { return secondService(upstream4) }, proxy: testutil.NFTables, intercept: true, reason: "connection refused"},
		{name: "an endpoint that is gone", services: func(*node) []testutil.Service {
			return secondService(upstream4, netip.MustParseAddr("192.0.2.77")) // unused: no answer to ARP
		}, proxy: testutil.NFTables, reason: ""}, // silent, or unreachable once the kernel has sent its last ARP request
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
			config := calm + fmt.Sprintf("upstreams: {cluster: [%q], external: []}\n", upstream4)
			if tc.intercept {
				config += "interceptNode: true\n"
			}
			n := newNode(t, setup{proxy: tc.proxy, external: true, config: config})
			n.External.Behave(tc.behave)
			n.Proxy.Add(tc.services(n)...)
			pod := n.addPod(nil)
			n.startAgent()
			at := n.all()[0]
			tries := 0
			for i := range 12 {
				testutil.Eventually(t, func() error { // a busy kube-dns may be silent until the agent gives up
					tries++
					answer, err := pod.client().ask(at, freshName(), testutil.Attempt)
					if err == nil && pod.client().direct(answer) {
						t.Fatalf("query %d: %v", i, answer)
					}
					return err
				})
			}
			testutil.Equal(t, "nearly all of 12 queries are answered at once", true, tries <= 15)
			testutil.Eventually(t, func() error { // on a busy machine it may have been late as well
				_, asked := pod.client().ask(at, freshName(), testutil.Attempt)
				_, err := n.printed(cli.Good, "status", "failing ("+tc.reason, "last resort")
				return errors.Join(asked, err)
			})
		})
	}
}

// elsewhere puts the server outside of the cluster behind the second Service.
func elsewhere(n *node) []testutil.Service { return secondService(upstream4, n.ExternalAddrs()[0]) }

// TestLoopThroughAnotherResolver has the external resolver query this node's local address: the agent finds out and reports it. For names
// outside it uses neither the resolver nor kube-dns, which queries the same one, and answers SERVFAIL. It goes on serving the cluster's
// names.
func TestLoopThroughAnotherResolver(t *testing.T) {
	n := newNode(t, setup{external: true, config: "upstreams: {external: [\"198.51.100.53\"]}\n"})
	// As a resolver on the host would: the query comes to the agent's own socket.
	n.External.Behave(testutil.Behaviour{Handler: func(q testutil.Question) *dns.Msg {
		c, err := testutil.Dial(n.Host, "udp", netip.AddrPortFrom(local4, 53), testutil.AskOptions{Timeout: testutil.Silence})
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
	for _, server := range []string{"198.51.100.53:53", "10.96.0.10:53"} { // kube-dns queries the resolver, too
		n.awaitLog(0, "upstream leads back to this node and is not used\" server="+server+" ")
	}
	answer, err := testutil.Ask(pod.NetNS, n.all()[0].server(), "www.example.", dns.TypeA, "udp", testutil.AskOptions{})
	if err != nil || answer.Rcode() != "SERVFAIL" {
		t.Errorf("a name outside: %v, %v; want SERVFAIL", answer, err)
	}
	if asked := n.External.Asked("www.example."); asked > 0 {
		t.Errorf("the looping resolver was asked %d times", asked)
	}
	n.wantSteered(pod.client(), "with the loop", n.all()...)
	n.prints(cli.Degraded, "status", "198.51.100.53:53 forwards names in . to this node,", "take this node's DNS addresses out of its configuration")
}

// TestResolvConfNamesOurselves starts the agent on a resolv.conf that leads nowhere but to itself: it serves, queries kube-dns
// for everything, and reports what to mend. Once the file names another server, that one is queried.
func TestResolvConfNamesOurselves(t *testing.T) {
	n := newNode(t, setup{external: true})
	n.write("resolv.conf", "nameserver 169.254.20.10\nnameserver 169.254.20.11\n")
	n.configure(fmt.Sprintf("upstreams: {external: [%q]}\n", n.path("resolv.conf")))
	pod := n.addPod(nil)
	n.startAgent()
	n.wantSteered(pod.client(), "with a resolv.conf that names ourselves", n.all()...)
	outside := func(want string) error {
		answer, err := testutil.Ask(pod.NetNS, n.all()[0].server(), fmt.Sprintf("www%d.example.", names.Add(1)), dns.TypeA, "udp", testutil.AskOptions{})
		if err != nil {
			return fmt.Errorf("a name outside: %w", err)
		}
		if answer.Rcode() != "NOERROR" || answer.Who != "EXTERNAL" || (answer.Client == n.HostAddrs()[0]) != (want == "the agent") {
			return fmt.Errorf("a name outside: %v; want it fetched by %s", answer, want)
		}
		return nil
	}
	testutil.Check(t, outside("kube-dns"))
	n.prints(cli.Degraded, "status", "resolv.conf:1: 169.254.20.10 is an address of the agent itself", "name a server in it")
	n.write("resolv.conf", fmt.Sprintf("nameserver 169.254.20.10\nnameserver %s\n", n.ExternalAddrs()[0]))
	testutil.Eventually(t, func() error { return outside("the agent") })
	n.prints(cli.Good, "status")
}

// TestKubeDNSRestarts lets the only upstream hang, end and come back: a miss ends in SERVFAIL, and the first query after the return is
// answered, over new connections.
func TestKubeDNSRestarts(t *testing.T) {
	n, pod := newServed(t, setup{families: testutil.Dual})
	want := func(when, rcode string, times int) {
		t.Helper()
		for range times {
			a, err := testutil.Ask(pod.NetNS, n.all()[0].server(), freshName(), dns.TypeA, "udp", testutil.AskOptions{})
			if err != nil || a.Rcode() != rcode {
				t.Errorf("%s: %v, %v, want %s", when, a, err, rcode)
			}
		}
	}
	want("before", "NOERROR", 1)
	n.DNS.Behave(testutil.Behaviour{Drop: true})
	want("hung", "SERVFAIL", failLimit)
	n.DNS.Behave(testutil.Behaviour{})
	want("after the hang", "NOERROR", 1)
	n.DNS.Stop()
	want("ended", "SERVFAIL", failLimit+1)
	n.DNS.Start()
	want("after the restart", "NOERROR", 1)
}

// failLimit is after how many failures an upstream is queried last (internal/dns/forward).
const failLimit = 3
