package nft_test

import (
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/rig"
	"github.com/neardns/neardns/pkg/testutil/trace"
)

// The kernel does what the tracer expects of it.
func TestTraceOnTheKernel(t *testing.T) {
	testutil.RequireRoot(t)
	trace.Backend{Name: "nftables"}.CheckKernel(t, func(t *testing.T, a trace.Arrangement) trace.Kernel {
		r := newRig(t, testutil.Options{Families: testutil.Dual, Proxy: testutil.IPTables, Attach: testutil.PTP}, func(h *steer.Host) {
			uplinks := h.Uplinks
			*h = a.Host
			h.Uplinks, h.Lifetime, h.Secret = uplinks, rig.Forever, testSecret
		})
		for _, dns := range r.Node.KubeDNSAddrs() {
			r.Node.Proxy.Add(testutil.DNSService(trace.Address("second", dns.Is4()), dns)...)
		}
		r.Addresses()
		return trace.Kernel{Node: r.Node, Steered: r.Steered("steered"), Plain: r.Pod("plain"), Lease: r.Lease}
	})
}
