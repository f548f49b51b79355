package nft_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// Answers over UDP beyond the MTU reach a pod without conntrack, by the agent and by the fallback, in both families.
func TestLargeAnswersWithoutConntrack(t *testing.T) {
	cells(t, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o)
		pod := r.Steered("pod")
		if got := pod.Run("nft", "list", "ruleset"); strings.Contains(got, "ct ") {
			t.Fatalf("the pod table uses conntrack:\n%s", got)
		}
		large := func(who string) {
			t.Helper()
			for _, server := range append(r.ClusterDNS(), r.Local()...) {
				for network, sizes := range map[string][]int{"udp": {1400, 1500, 3000, 9000}, "tcp": {9000, 60000}} {
					for _, size := range sizes {
						name := fmt.Sprintf("size-%d.cluster.local", size)
						answer, err := testutil.Ask(pod.NetNS, server, name, dns.TypeTXT, network, testutil.AskOptions{EDNS: 65000})
						if err != nil || answer.Who != who || answer.Size < size {
							t.Errorf("%d bytes over %s from %s: %v, %v; want %s's", size, network, server, answer, err, who)
						}
					}
				}
			}
		}
		large("KUBEDNS")
		r.Serve()
		large("AGENT")
		testutil.WantNoConntrack(t, pod.NetNS)
	})
}

// If several sockets share one address (SO_REUSEPORT) and one is closed, the others get all queries.
func TestSocketGroups(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: testutil.PTP})
	pod := r.Steered("pod")
	r.Addresses()
	member := func(who string) *dns.Server {
		t.Helper()
		started := make(chan struct{})
		server := &dns.Server{Addr: "169.254.20.11:53", Net: "udp4", ReusePort: true, NotifyStartedFunc: func() { close(started) }}
		server.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
			a := new(dns.Msg).SetReply(m)
			a.Answer = append(a.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{who}})
			_ = w.WriteMsg(a)
		})
		go r.Node.Host.Do(func() { testutil.Check(t, server.ListenAndServe()) })
		testutil.Receive(t, started)
		t.Cleanup(func() { _ = server.Shutdown() })
		return server
	}
	first := member("FIRST")
	member("SECOND")
	must(t, r.Lease.Renew(redirect4.Steering, steer.UDP))
	heard := map[string]int{}
	ask := func() {
		t.Helper()
		answer, err := testutil.Ask(pod.NetNS, r.ClusterDNS()[0], "a.cluster.local", dns.TypeTXT, "udp", testutil.AskOptions{})
		must(t, err)
		heard[answer.Who]++
	}
	for range 64 {
		ask()
	}
	if heard["FIRST"] == 0 || heard["SECOND"] == 0 || heard["KUBEDNS"] > 0 {
		t.Errorf("both members serve: %v", heard)
	}
	must(t, first.Shutdown())
	clear(heard)
	for range 64 {
		ask()
	}
	if heard["SECOND"] != 64 {
		t.Errorf("one member left: %v", heard)
	}
}

func (r *nftRig) services() []testutil.Service {
	var out []testutil.Service
	for i, d := range r.Host.Redirects {
		out = append(out, testutil.DNSService(d.ClusterDNS, r.Node.KubeDNSAddrs()[i])...)
	}
	return out
}

// A Service without endpoints is refused at once also through the fallback, in both families.
func TestServiceWithoutEndpoints(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o)
		pod := r.Steered("pod")
		services := r.services()
		for i := range services {
			services[i].Endpoints = nil
		}
		r.Node.Proxy.Set(services...)
		for _, server := range r.ClusterDNS() {
			c, err := testutil.Dial(pod.NetNS, "udp", server, testutil.AskOptions{})
			must(t, err)
			if _, err := c.Ask("a.cluster.local", dns.TypeA); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s over udp: %v, want %v", server, err, syscall.ECONNREFUSED)
			}
			c.Close()
		}
	})
}

// Packets with sources that no pod can have cause no loop, and do not reach the agent without a lease.
func TestSpoofedSources(t *testing.T) {
	mode(t, testutil.IPTables, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o)
		pod := r.Steered("pod")
		for _, where := range []string{"all", "default", pod.HostInterface} {
			r.Node.Host.Sysctl("net.ipv4.conf."+where+".rp_filter", "0")
		}
		for _, sources := range [][]netip.Addr{
			{addr("127.0.0.1"), addr("::1")},
			{redirect4.Steering, redirect6.Steering},
			{local4.Address, local6.Address},
			r.Node.ClusterDNS(),
		} {
			r.withoutAnswer(pod.NetNS, "KUBEDNS", sources)
		}
		// The prober's addresses have no effect on another interface than its own.
		r.Addresses()
		r.Listen()
		r.withoutAnswer(pod.NetNS, "KUBEDNS", []netip.Addr{steer.ProbeSource4, steer.ProbeSource6})
		if n := r.Agent.Questions(""); n > 0 {
			t.Errorf("%d questions from a pod entered without a lease", n)
		}
		r.Renew()
		for _, sources := range [][]netip.Addr{{addr("127.0.0.1"), addr("::1")}, {redirect4.Steering, redirect6.Steering}} {
			r.withoutAnswer(pod.NetNS, "AGENT", sources)
		}
		r.Want("AGENT", pod.NetNS, "afterwards", r.ClusterDNS()...)
	})
}

// withoutAnswer sends queries from a pod whose own rules forge their sources, and then checks that ordinary queries are answered and that
// no packet looped. It expects no answers to the forged ones: those would go to the forged source.
func (r *nftRig) withoutAnswer(pod *testutil.NetNS, who string, sources []netip.Addr) {
	r.t.Helper()
	before, _ := r.nft.Counters()
	pod.RunInput(fmt.Sprintf(`table inet forge { chain c { type filter hook postrouting priority 299; # before the pod's own rules
		meta nfproto ipv4 udp dport 53 counter ip saddr set %s
		meta nfproto ipv6 udp dport 53 counter ip6 saddr set %s
	}; }`, sources[0], sources[1]), "nft", "-f", "-")
	for _, server := range r.ClusterDNS() {
		c, err := testutil.Dial(pod, "udp", server, testutil.AskOptions{})
		must(r.t, err)
		defer c.Close()
		for range 5 {
			_, err := c.Send("forged.cluster.local", dns.TypeA)
			must(r.t, err)
		}
	}
	if forged := pod.Run("nft", "list", "table", "inet", "forge"); strings.Count(forged, "counter packets 5 ") != 2 {
		r.t.Errorf("not all are forged:\n%s", forged)
	}
	pod.Run("nft", "delete", "table", "inet", "forge")
	// A packet that loops is counted again and again while these queries are answered.
	const more = 3 // each: two servers
	for range more {
		r.Want(who, pod, "after forged sources", r.ClusterDNS()...)
	}
	after, err := r.nft.Counters()
	must(r.t, err)
	for name, c := range after {
		if d := c.Packets - before[name].Packets; d > 5*2+2*2*more {
			r.t.Errorf("from %v: %d packets counted as %s for 10 sent", sources, d, name)
		}
	}
}
