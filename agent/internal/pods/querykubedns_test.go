package pods

import (
	"context"
	"net/netip"
	"testing"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/testutil"
)

// One answered pod is enough: a policy of another pod, or a pod that is not steered, shows nothing about kube-dns.
func TestQueryKubeDNS(t *testing.T) {
	n := newNode(t, testutil.PTP)
	n.Host.Serving("dns0", r4.ClusterDNS)
	testutil.ServeDNS(t, n.Host, testutil.DNSConfig{Name: "KUBEDNS", Listen: []netip.AddrPort{netip.AddrPortFrom(r4.ClusterDNS, 53)}})
	silent, other := n.AddPod("silent"), n.AddPod("other")
	write(t, n.dir, fileOf(other, "b", "eth0", decisions(podfile.Pending, r4)))
	want := func(sent, answered bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience())
		if !answered {
			ctx, cancel = context.WithTimeout(t.Context(), testutil.Silence)
		}
		defer cancel()
		got, err := n.QueryKubeDNS(ctx, r4.ClusterDNS, "kubernetes.default.svc.cluster.local")
		if got != sent || (err == nil) != answered {
			t.Errorf("sent %v, %v; want sent %v, answered %v", got, err, sent, answered)
		}
	}
	want(false, true)
	write(t, n.dir, fileOf(silent, "a", "eth0", decisions(podfile.Steered, r4)))
	want(true, true)
	end := n.drop(silent, "ip daddr "+r4.ClusterDNS.String()+" drop")
	defer end()
	want(true, false)
	write(t, n.dir, fileOf(other, "b", "eth0", decisions(podfile.Steered, r4)))
	want(true, true)
}
