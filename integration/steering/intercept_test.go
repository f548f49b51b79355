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
	n := newNode(t, s)
	n.configure("interceptNode: true\n" + n.addUpstreams())
	return n
}

// The second Service of kube-dns's pods, which the agent queries in some tests.
var upstream4, upstream6 = netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("fd00:96::b")

// addUpstreams makes that Service, and returns the line of a NodeConfig with it.
func (n *node) addUpstreams() string {
	n.t.Helper()
	var upstreams []netip.Addr
	for i, a := range n.ClusterDNS() {
		upstreams = append(upstreams, map[bool]netip.Addr{true: upstream4, false: upstream6}[a.Is4()])
		n.Proxy.Add(secondService(upstreams[i], n.KubeDNSAddrs()[i])...)
	}
	return "upstreams: {cluster: [" + strings.Join(quoted(upstreams), ", ") + "], external: []}\n"
}

// secondService is a Service of another name than kube-dns's.
func secondService(at netip.Addr, endpoints ...netip.Addr) []testutil.Service {
	services := testutil.DNSService(at, endpoints...)
	for i := range services {
		services[i].Name = "kube-dns-upstream"
	}
	return services
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

			n.kill()
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
