package nft_test

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// conns are connections to each server, kept open.
type conns struct {
	r *nftRig
	c []*testutil.Conn
}

func (r *nftRig) dial(ns *testutil.NetNS, servers ...netip.AddrPort) *conns {
	r.t.Helper()
	out := &conns{r: r}
	for _, s := range servers {
		c, err := testutil.Dial(ns, "tcp", s, testutil.AskOptions{})
		must(r.t, err)
		r.t.Cleanup(c.Close)
		out.c = append(out.c, c)
	}
	return out
}

func (cs *conns) want(who, when string) {
	cs.r.t.Helper()
	for _, c := range cs.c {
		by(cs.r.t, who, "%s", when)(c.Ask("a.cluster.local", dns.TypeTXT))
		answers, err := c.Pipeline(dns.TypeTXT, "a.cluster.local", "size-4000.cluster.local", "c.cluster.local")
		if err != nil || answers[2].Who != who {
			cs.r.t.Errorf("%s, pipelined: %v, %v; want %s", when, answers, err, who)
		}
	}
}

// A lease that is granted, withdrawn or expires cuts no TCP connection: each stays with the server that got its SYN.
func TestLeaseCutsNoConnection(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		for _, loose := range []string{"0", "1"} {
			t.Run("loose="+loose, func(t *testing.T) {
				r := newRig(t, o)
				r.Node.Host.Sysctl("net.netfilter.nf_conntrack_tcp_loose", loose)
				// Packets that conntrack cannot place are dropped, as kube-proxy and many firewalls do.
				r.Node.Host.RunInput("table inet strict { chain f { type filter hook forward priority 0; ct state invalid drop; }; }", "nft", "-f", "-")
				pod := r.Steered("pod")
				servers := append(r.ClusterDNS(), r.Local()...)
				r.Addresses()
				r.Listen()

				kept := r.dial(pod.NetNS, servers...)
				kept.want("KUBEDNS", "before the lease")
				r.Renew()
				kept.want("KUBEDNS", "a lease started")
				ours := r.dial(pod.NetNS, servers...)
				ours.want("AGENT", "under the lease")
				kept.want("KUBEDNS", "under the lease, still")

				r.Withdraw()
				r.drain()
				ours.want("AGENT", "lease withdrawn, drain")
				kept.want("KUBEDNS", "lease withdrawn")
				r.Want("KUBEDNS", pod.NetNS, "lease withdrawn, new", servers...)

				r.Renew()
				r.drain()
				kept.want("KUBEDNS", "a lease again")
				ours.want("AGENT", "a lease again")
				r.Want("AGENT", pod.NetNS, "a lease again, new", servers...)

				r.expire()
				ours.want("AGENT", "lease lapsed, drain")
				kept.want("KUBEDNS", "lease lapsed")
				r.Want("KUBEDNS", pod.NetNS, "lease lapsed, new", servers...)
				must(t, r.nft.Verify(r.Host))
			})
		}
	})
}

// drain has open connections to the agent reach it for as long as the test takes, until a lease is renewed.
func (r *nftRig) drain() {
	r.t.Helper()
	for _, a := range r.Ours() {
		set := "element inet " + steer.TableName + map[bool]string{true: " drain4", false: " drain6"}[a.Is4()] + " { " + a.String()
		r.Node.Host.RunInput("delete "+set+" }; add "+set+" timeout 10m }\n", "nft", "-f", "-")
	}
}

// expire removes the lease elements and nothing else, as the kernel does at the end of their timeout.
// TestSwitchAfterALapse waits for the kernel itself.
func (r *nftRig) expire() {
	r.t.Helper()
	for _, set := range []string{"lease_udp4", "lease_tcp4", "lease_udp6", "lease_tcp6"} {
		r.Node.Host.Run("nft", "flush", "set", "inet", steer.TableName, set)
	}
}

// A client may use one source port for connection after connection, with and without a lease: each connection works.
func TestSameFiveTuple(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o)
		pod := r.Steered("pod")
		r.Addresses()
		r.Listen()
		r.onePort(pod.NetNS, append(r.ClusterDNS(), r.Local()...))
	})
}

// onePort makes connection after connection from one port, to each server from another, while the lease comes and goes.
func (r *nftRig) onePort(ns *testutil.NetNS, servers []netip.AddrPort) {
	r.t.Helper()
	for i, server := range servers {
		source := netip.AddrPortFrom(netip.Addr{}, uint16(40000+i)) //nolint:gosec // small
		r.Turns(6, func(round int, want string) {
			for range 2 {
				by(r.t, want, "%s from port %d, round %d", server, source.Port(), round)(
					testutil.Ask(ns, server, "a.cluster.local", dns.TypeTXT, "tcp", testutil.AskOptions{Source: source, Abort: true}))
			}
		})
	}
}

// One UDP socket, connected and kept open, gets every answer from the address that it queried, however often the lease comes and goes.
func TestConnectedUDPThroughFlips(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		for _, strict := range []bool{false, true} {
			r := newRig(t, o)
			if strict {
				r.Node.Host.Sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")
				r.Node.Host.RunInput("table inet strict { chain f { type filter hook forward priority 0; ct state invalid drop; }; }", "nft", "-f", "-")
			}
			pod := r.Steered("pod")
			r.Addresses()
			r.Listen()
			r.oneSocket(pod.NetNS, append(r.ClusterDNS(), r.Local()...), "a.cluster.local", "a.cluster.local")
		}
	})
}

// oneSocket queries names by one socket to each server, while the lease comes and goes.
func (r *nftRig) oneSocket(ns *testutil.NetNS, servers []netip.AddrPort, names ...string) {
	r.t.Helper()
	for _, server := range servers {
		c, err := testutil.Dial(ns, "udp", server, testutil.AskOptions{EDNS: 4096})
		must(r.t, err)
		r.t.Cleanup(c.Close)
		r.Turns(8, func(flip int, want string) {
			for _, name := range names {
				by(r.t, want, "flip %d of %s, %s", flip, server, name)(c.Ask(name, dns.TypeTXT))
			}
		})
	}
}
