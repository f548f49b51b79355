package iptables_test

import (
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/trace"
)

// What the tracer takes the kernel to do, the kernel does.
func TestTraceOnTheKernel(t *testing.T) {
	testutil.RequireRoot(t)
	trace.Backend{Name: "iptables"}.CheckKernel(t, func(t *testing.T, a trace.Arrangement) trace.Kernel {
		r := newRig(t, iptables.NFT, func(h *steer.Host) {
			uplinks := h.Uplinks
			*h = a.Host
			h.Uplinks, h.Lifetime = uplinks, lasting
		})
		for _, dns := range r.node.KubeDNSAddrs() {
			r.node.Proxy.Add(testutil.DNSService(trace.Address("second", dns.Is4()), dns)...)
		}
		r.node.Host.Serving("neardns0", r.ours()...)
		return trace.Kernel{Node: r.node, Steered: r.steered("steered"), Plain: r.node.AddPod("plain"), Lease: r.lease}
	})
}
