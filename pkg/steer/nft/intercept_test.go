package nft_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

func intercepting(h *steer.Host) { h.InterceptNode = true }

// Node interception: a pod without a pod table is served like a steered one, in each state, by the cluster DNS address; a
// pod that opted out is left alone.
func TestInterceptPods(t *testing.T) {
	cells(t, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o, intercepting)
		plain, steered, out := r.pod("plain"), r.steered("steered"), r.pod("out")
		must(t, r.nft.Exempt(out.Addrs...))
		check := func(who, when string) {
			t.Helper()
			r.want(who, plain.NetNS, when+", plain", append(r.clusterDNS(), r.local()...)...)
			r.want(who, steered.NetNS, when+", steered", append(r.clusterDNS(), r.local()...)...)
			r.want("KUBEDNS", out.NetNS, when+", opted out", r.clusterDNS()...)
		}
		check("KUBEDNS", "no agent")
		r.addresses()
		check("KUBEDNS", "nobody listens")
		r.listen()
		check("KUBEDNS", "no lease")
		r.renew()
		check("AGENT", "lease")
		r.wantUntracked(plain.NetNS, r.clusterDNS()...)
		r.kill()
		check("KUBEDNS", "killed, lease stands")
		r.listen()
		check("AGENT", "back")
		r.withdraw()
		check("KUBEDNS", "withdrawn")
		must(t, r.nft.Unexempt(out.Addrs...))
		r.renew()
		r.want("AGENT", out.NetNS, "no longer opted out", r.clusterDNS()...)
		must(t, r.nft.Verify(r.host))
	})
}

// Connections under interception stay with whom they reached, and sockets kept open are answered through flips.
func TestInterceptedConnections(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o, intercepting)
		plain := r.pod("plain")
		r.addresses()
		r.listen()
		kept := r.dial(plain.NetNS, r.clusterDNS()...)
		kept.want("KUBEDNS", "before")
		var sockets []*testutil.Conn
		for _, s := range r.clusterDNS() {
			c, err := testutil.Dial(plain.NetNS, "udp", s, testutil.AskOptions{EDNS: 4096})
			must(t, err)
			t.Cleanup(c.Close)
			sockets = append(sockets, c)
		}
		udp := func(who string) {
			t.Helper()
			for _, c := range sockets {
				for _, name := range []string{"a.cluster.local", "size-3000.cluster.local"} {
					if answer, err := c.Ask(name, dns.TypeTXT); err != nil || answer.Who != who {
						t.Errorf("udp, %s: %v, %v; want %s", name, answer, err, who)
					}
				}
			}
		}
		udp("KUBEDNS")
		for range 3 {
			r.renew()
			kept.want("KUBEDNS", "lease")
			ours := r.dial(plain.NetNS, r.clusterDNS()...)
			ours.want("AGENT", "lease")
			udp("AGENT")
			r.withdraw()
			kept.want("KUBEDNS", "withdrawn")
			ours.want("AGENT", "withdrawn, drain")
			udp("KUBEDNS")
		}
	})
}

// A.10: the node's own processes are served under the lease, and otherwise untouched; after a kill they wait for one
// lifetime at most; their TCP connections stay with whom they reached.
func TestCritiqueA10HostProcesses(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		const lifetime = 500 * time.Millisecond
		r := newRig(t, o, intercepting, func(h *steer.Host) { h.Lifetime = lifetime })
		host := r.node.Host
		r.want("KUBEDNS", host, "no agent", r.clusterDNS()...)
		r.addresses()
		r.want("KUBEDNS", host, "nobody listens", r.clusterDNS()...)
		r.listen()
		r.want("KUBEDNS", host, "no lease", r.clusterDNS()...)
		kept := r.dial(host, r.clusterDNS()...)
		kept.want("KUBEDNS", "no lease")

		stop := r.keepRenewing(lifetime / 5)
		r.want("AGENT", host, "lease", append(r.clusterDNS(), r.local()...)...)
		kept.want("KUBEDNS", "a lease started")
		ours := r.dial(host, r.clusterDNS()...)
		ours.want("AGENT", "lease")
		r.wantUntracked(host, r.clusterDNS()...)
		counters, err := r.nft.Counters()
		must(t, err)
		if counters[steer.CounterHostUDP].Packets == 0 || counters[steer.CounterHostTCP].Packets == 0 {
			t.Errorf("host processes are not counted: %v", counters)
		}
		stop()
		r.withdraw()
		r.want("KUBEDNS", host, "withdrawn", r.clusterDNS()...)
		ours.want("AGENT", "withdrawn")
		kept = r.dial(host, r.clusterDNS()...)
		kept.want("KUBEDNS", "withdrawn")

		stop = r.keepRenewing(lifetime / 5)
		r.want("AGENT", host, "lease again", r.clusterDNS()...)
		stop()
		r.renew()
		r.kill()
		killed := time.Now()
		for _, s := range r.clusterDNS() {
			testutil.Eventually(t, 5*time.Second, func() error {
				_, err := testutil.Ask(host, s, "a.cluster.local", dns.TypeA, "udp", testutil.AskOptions{Timeout: 20 * time.Millisecond})
				return err
			})
		}
		if took := time.Since(killed); took > lifetime+lateness {
			t.Errorf("host processes waited %v for a killed agent, lifetime %v", took, lifetime)
		}
		r.want("KUBEDNS", host, "killed and lapsed", r.clusterDNS()...)
	})
}

// A host process with a connected UDP socket kept open gets its answers through flips.
func TestInterceptedHostSockets(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o, intercepting)
		r.addresses()
		r.listen()
		for _, s := range r.clusterDNS() {
			c, err := testutil.Dial(r.node.Host, "udp", s, testutil.AskOptions{EDNS: 4096})
			must(t, err)
			t.Cleanup(c.Close)
			for flip := range 6 {
				want := "KUBEDNS"
				if flip%2 == 1 {
					want = "AGENT"
					r.renew()
				} else {
					r.withdraw()
				}
				for _, name := range []string{"a.cluster.local", "size-3000.cluster.local"} {
					if answer, err := c.Ask(name, dns.TypeTXT); err != nil || answer.Who != want {
						t.Errorf("flip %d of %s, %s: %v, %v; want %s", flip, s, name, answer, err, want)
					}
				}
			}
		}
	})
}

// A host process that uses one source port again and again, with and without a lease, has each connection whole.
func TestInterceptedHostSameFiveTuple(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o, intercepting)
		r.addresses()
		r.listen()
		for i, server := range r.clusterDNS() {
			source := netip.AddrPortFrom(netip.Addr{}, uint16(42000+i)) //nolint:gosec // small
			for round := range 6 {
				want := "KUBEDNS"
				if round%2 == 1 {
					want = "AGENT"
					r.renew()
				} else {
					r.withdraw()
				}
				answer, err := testutil.Ask(r.node.Host, server, "a.cluster.local", dns.TypeTXT, "tcp", testutil.AskOptions{Source: source, Abort: true})
				if err != nil || answer.Who != want {
					t.Errorf("%s from port %d, round %d: %v, %v; want %s", server, source.Port(), round, answer, err, want)
				}
			}
		}
	})
}

// The agent's own questions to its upstream, from the host, are not caught as long as interception is off.
func TestHostIsLeftAlone(t *testing.T) {
	modes(t, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o)
		r.serving()
		r.want("KUBEDNS", r.node.Host, "under a lease", r.clusterDNS()...)
		r.want("KUBEDNS", r.pod("plain").NetNS, "under a lease", r.clusterDNS()...)
		r.wantUntracked(r.node.Host, r.local()...)
	})
}

// Pods that opted out are known by address; an uplink's traffic to the cluster DNS address is not intercepted at all.
func TestInterceptionIsForPods(t *testing.T) {
	r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.NFTables, Attach: testutil.PTP}, intercepting)
	r.serving()
	for i, a := range r.node.HostAddrs() {
		r.node.Neighbour.AddRoute(testutil.Host(r.node.ClusterDNS()[i]), a, "seg0")
	}
	r.want("KUBEDNS", r.node.Neighbour, "beside the node", r.clusterDNS()...)
	for i := range 20 {
		pod := r.pod(fmt.Sprint("pod", i))
		if i%2 == 0 {
			must(t, r.nft.Exempt(pod.Addrs...))
		}
		want := map[bool]string{true: "KUBEDNS", false: "AGENT"}[i%2 == 0]
		r.want(want, pod.NetNS, "pod", []netip.AddrPort{r.clusterDNS()[i%2]}...)
	}
}
