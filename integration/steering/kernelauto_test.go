package steering

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestKernelHitsAuto: mode auto takes the program away where a policy by name may apply, and reports why without a fault: no warning of
// doctor, no series that fires an alert. With mode on the same node has kernel hits.
func TestKernelHitsAuto(t *testing.T) {
	t.Parallel()
	n := newKernelNode(t, setup{families: testutil.IPv4})
	n.configure("kernelHits: {mode: auto}\n")
	shared, p := n.addPod(nil), n.addPod(nil)
	n.otherProgram(shared)
	n.startAgent()
	n.wantInKernel(1, 1)
	n.Host.Run("ip", "link", "add", "cilium_host", "type", "veth", "peer", "name", "cilium_net")
	n.awaitNoKernelHits("Cilium's links")
	testutil.Eventually(t, func() error { return testutil.ErrorIf(n.hasProgram(p), "the program is at the pod's link still") })
	n.wantSteered(p.client(), "left out", targets(n.ClusterDNS()...)...)
	const off = "off (kernelHits.mode: auto)"
	n.prints(anyCode, "status", "kernel hits: "+off)
	n.prints(anyCode, "doctor", "OK    kernel hits  "+off)
	if metrics := n.fetch("/metrics"); !strings.Contains(metrics, "neardns_kernel_pods") || strings.Contains(metrics, "neardns_kernel_ok") {
		t.Error("the metric of the alert is there")
	}
	n.configure("kernelHits: {mode: \"on\"}\n")
	n.hup()
	n.wantInKernel(1, 1)
	n.heat(p, target{n.ClusterDNS()[0], "udp"}, freshName())
}
