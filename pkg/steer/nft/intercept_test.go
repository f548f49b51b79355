package nft_test

import (
	"net/netip"
	"testing"

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
		plain, steered, out := r.Pod("plain"), r.Steered("steered"), r.Pod("out")
		must(t, r.nft.Exempt(out.Addrs, nil))
		check := func(who, when string) {
			t.Helper()
			r.Want(who, plain.NetNS, when+", plain", append(r.ClusterDNS(), r.Local()...)...)
			r.Want(who, steered.NetNS, when+", steered", append(r.ClusterDNS(), r.Local()...)...)
			r.Want("KUBEDNS", out.NetNS, when+", opted out", r.ClusterDNS()...)
		}
		check("KUBEDNS", "no agent")
		r.Addresses()
		check("KUBEDNS", "nobody listens")
		r.Listen()
		check("KUBEDNS", "no lease")
		r.Renew()
		check("AGENT", "lease")
		r.WantUntracked("AGENT", plain.NetNS, r.ClusterDNS()...)
		for _, d := range r.Host.Redirects {
			s, err := testutil.OpenUDP(plain.NetNS, d.Steering.Is4(), testutil.AskOptions{EDNS: 1232})
			must(t, err)
			for _, at := range []netip.Addr{d.Steering, d.ClusterDNS} { // from one port, as if a client took that of a pod's trial
				by(t, "AGENT", "lease, %s", at)(s.Ask(netip.AddrPortFrom(at, 53), "a.cluster.local", dns.TypeTXT))
			}
			s.Close()
		}
		r.Kill()
		check("KUBEDNS", "killed, lease stands")
		r.Listen()
		check("AGENT", "back")
		r.Withdraw()
		check("KUBEDNS", "withdrawn")
		must(t, r.nft.Exempt(nil, out.Addrs))
		r.Renew()
		r.Want("AGENT", out.NetNS, "no longer opted out", r.ClusterDNS()...)
		must(t, r.nft.Verify(r.Host))
	})
}

// With node interception, a TCP connection stays with its server, and an open UDP socket is answered however often the lease comes and
// goes.
func TestInterceptedConnections(t *testing.T) {
	mode(t, testutil.NFTables, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o, intercepting)
		plain := r.Pod("plain")
		r.Addresses()
		r.Listen()
		kept := r.dial(plain.NetNS, r.ClusterDNS()...)
		kept.want("KUBEDNS", "before")
		for range 3 {
			r.Renew()
			kept.want("KUBEDNS", "lease")
			ours := r.dial(plain.NetNS, r.ClusterDNS()...)
			ours.want("AGENT", "lease")
			r.Withdraw()
			r.drain()
			kept.want("KUBEDNS", "withdrawn")
			ours.want("AGENT", "withdrawn, drain")
		}
		r.oneSocket(plain.NetNS, r.ClusterDNS(), "a.cluster.local", "size-3000.cluster.local")
	})
}

// The agent serves the node's own processes under the lease; otherwise kube-dns does, also once a killed agent's lease has
// expired. A TCP connection stays with the server that it reached.
func TestHostProcesses(t *testing.T) {
	mode(t, testutil.NFTables, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o, intercepting)
		host := r.Node.Host
		r.Want("KUBEDNS", host, "no agent", r.ClusterDNS()...)
		r.Addresses()
		r.Want("KUBEDNS", host, "nobody listens", r.ClusterDNS()...)
		r.Listen()
		r.Want("KUBEDNS", host, "no lease", r.ClusterDNS()...)
		kept := r.dial(host, r.ClusterDNS()...)
		kept.want("KUBEDNS", "no lease")

		r.Renew()
		r.Want("AGENT", host, "lease", append(r.ClusterDNS(), r.Local()...)...)
		kept.want("KUBEDNS", "a lease started")
		ours := r.dial(host, r.ClusterDNS()...)
		ours.want("AGENT", "lease")
		r.WantUntracked("AGENT", host, r.ClusterDNS()...)
		counters, err := r.nft.Counters()
		must(t, err)
		if counters[steer.CounterHostUDP].Packets == 0 || counters[steer.CounterHostTCP].Packets == 0 {
			t.Errorf("host processes are not counted: %v", counters)
		}
		r.Withdraw()
		r.Want("KUBEDNS", host, "withdrawn", r.ClusterDNS()...)
		ours.want("AGENT", "withdrawn")
		kept = r.dial(host, r.ClusterDNS()...)
		kept.want("KUBEDNS", "withdrawn")

		r.Renew()
		r.Want("AGENT", host, "lease again", r.ClusterDNS()...)
		r.Kill()
		r.expire()
		r.Want("KUBEDNS", host, "killed and expired", r.ClusterDNS()...)
	})
}

// A host process gets its answers however often the lease comes and goes: by an open, connected UDP socket, and by connection after
// connection from one port.
func TestInterceptedHostSockets(t *testing.T) {
	mode(t, testutil.IPTables, func(t *testing.T, o testutil.Options) {
		r := newRig(t, o, intercepting)
		r.Addresses()
		r.Listen()
		r.oneSocket(r.Node.Host, r.ClusterDNS(), "a.cluster.local", "size-3000.cluster.local")
		r.onePort(r.Node.Host, r.ClusterDNS())
	})
}
