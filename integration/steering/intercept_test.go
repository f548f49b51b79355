package steering

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// optOut is the annotation of a pod that wants nothing of neardns.
var optOut = map[string]string{"neardns.io/steer": "false"}

// intercepting makes a node whose agent takes everybody's queries, with the second Service that this needs.
func intercepting(t *testing.T, s setup) *node {
	t.Helper()
	s.config = "interceptNode: true\nupstreams: {cluster: [" + strings.Join(quoted(s.upstreams()), ", ") + "], external: []}\n"
	n := newNode(t, s)
	for i, a := range s.upstreams() {
		services := testutil.DNSService(a, n.KubeDNSAddrs()[i])
		for j := range services {
			services[j].Name = "kube-dns-upstream"
		}
		n.Proxy.Add(services...)
	}
	return n
}

// upstreams are the second Service's addresses.
func (s setup) upstreams() []netip.Addr {
	all := []netip.Addr{netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("fd00:96::b")}
	switch s.families {
	case testutil.IPv4:
		return all[:1]
	case testutil.IPv6:
		return all[1:]
	}
	return all
}

func quoted(addrs []netip.Addr) (out []string) {
	for _, a := range addrs {
		out = append(out, `"`+a.String()+`"`)
	}
	return out
}

// TestInterceptNode shows the cache, and kube-dns in each fault, for a pod that was there before the plugin and for a
// process on the host; and that a pod which opted out is not touched.
func TestInterceptNode(t *testing.T) {
	for _, s := range []setup{
		{families: testutil.Dual, proxy: testutil.IPTables, attach: testutil.BridgeNF},
		{families: testutil.Dual, proxy: testutil.NFTables, attach: testutil.PTP},
		{families: testutil.Dual, proxy: testutil.NFTables, attach: testutil.BridgeCNI},
	} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			n := intercepting(t, s)
			old, steered, out := n.addOldPod(), n.addPod(nil), n.addPod(optOut)
			testutil.Check(t, out.in(podfile.LeftAlone))
			cluster := targets(n.ClusterDNS()...)
			host := client{ns: n.Host}
			direct := func(when string) {
				t.Helper()
				n.wantFallback(old.client(), when+", pod from before", cluster...)
				n.wantFallback(steered.client(), when+", steered pod", n.all()...)
				n.wantFallback(out.client(), when+", pod that opted out", cluster...)
			}
			cached := func(when string) {
				t.Helper()
				n.wantSteered(old.client(), when+", pod from before", cluster...)
				n.wantSteered(steered.client(), when+", steered pod", n.all()...)
				n.wantSteered(host, when+", host process", cluster...)
				n.wantFallback(out.client(), when+", pod that opted out", cluster...)
			}
			direct("never started")
			n.wantFallback(host, "never started, host process", cluster...)

			n.startAgent()
			cached("up")
			n.wantUntracked(old, cluster...)

			n.agent.Kill()
			direct("killed")
			n.awaitFallback(host, "killed, host process", cluster...)

			n.startAgent()
			cached("up again")
			n.agent.Stop()
			n.awaitFallback(host, "stopped, host process", cluster...)
			n.awaitFallback(old.client(), "stopped, pod from before", cluster...)
			n.agent.Cont()
			cached("goes on")

			testutil.Must(t, n.agent.Terminate(testutil.Patience()))
			direct("ended")
			n.wantFallback(host, "ended, host process", cluster...)
			n.startAgent()
			cached("up after an orderly stop")
		})
	}
}

// TestInterceptNodeTrial: the trial of a new pod is answered from the steering address, so the pod is steered and not bypassed.
func TestInterceptNodeTrial(t *testing.T) {
	t.Parallel()
	n := intercepting(t, setup{families: testutil.Dual, proven: true})
	n.startAgent()
	p := n.makePod(true, nil)
	testutil.Eventually(t, func() error { return p.in(podfile.Steered) })
	n.wantSteered(p.client(), "tried", n.all()...)
}
