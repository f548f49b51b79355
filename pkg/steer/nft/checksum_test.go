package nft_test

import (
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// Every packet that the rules rewrite leaves with a right checksum, with each attachment and each mode of kube-proxy. Each of
// them runs with and without interception, but not every combination of the three.
func TestChecksumsOnTheWire(t *testing.T) {
	cells(t, func(t *testing.T, o testutil.Options) {
		intercept := (o.Proxy == testutil.NFTables) == (o.Attach == testutil.PTP || o.Attach == testutil.BridgeNF)
		r := newRig(t, o, func(h *steer.Host) { h.InterceptNode = intercept })
		pod, plain := r.Steered("steered"), r.Pod("plain")
		pod.NetNS.ComputeChecksums("eth0")
		plain.NetNS.ComputeChecksums("eth0")
		r.Node.KubeDNS.ComputeChecksums("eth0")
		for _, link := range []string{"kubedns0", pod.HostInterface, plain.HostInterface} {
			r.Node.Host.ComputeChecksums(link)
		}
		all := append(r.ClusterDNS(), r.Local()...)
		r.Want("KUBEDNS", pod.NetNS, "no agent", all...)
		r.Want("KUBEDNS", plain.NetNS, "no agent", all...)
		r.Serve()
		r.Want("AGENT", pod.NetNS, "lease", all...)
		r.Want("AGENT", plain.NetNS, "lease, by the local address", r.Local()...)
		if intercept {
			r.Want("AGENT", plain.NetNS, "lease, intercepted", r.ClusterDNS()...)
		}
		r.Kill()
		r.Want("KUBEDNS", pod.NetNS, "killed", all...)
		r.Want("KUBEDNS", plain.NetNS, "killed", all...)
	})
}
