package nodelocal_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// The published manifest with another image: its arguments, its Corefile, its capabilities.
func TestManifestUnchanged(t *testing.T) {
	for _, c := range append([]cell{
		{testutil.IPv4, testutil.IPTables, ""}, {testutil.IPv4, testutil.NFTables, ""}, {testutil.IPv6, testutil.IPTables, ""},
		{testutil.IPv6, testutil.IPTables, string(iptables.NFT)},
	}, onIPTables(testutil.IPv4)...) {
		t.Run(c.String(), func(t *testing.T) {
			n := c.node(t)
			pod := n.pod()
			p := n.serve()
			n.awaitLog(p, 0, "fallback verified")
			testutil.Eventually(t, func() error {
				out, err := n.exec(p, "neardns-agent", "ready")
				return testutil.ErrorIf(err != nil || !strings.Contains(out, "ready"), "%w\n%s", err, out)
			})
			n.each(pod.NetNS, "serving, from a pod", cached, n.served()...)
			n.each(n.Host, "serving, from the host", cached, n.served()...)
			testutil.Eventually(t, func() error {
				testutil.FlushConntrack(n.Host)
				for _, a := range n.served() {
					if err := cached(pod.NetNS, a, "udp"); err != nil {
						return err
					}
				}
				for _, line := range testutil.Conntrack(n.Host) {
					if c.backend != "" && strings.HasPrefix(line, "tcp") {
						continue // the prober's: over TCP it is conntrack that knows a connection's way
					}
					for _, a := range n.served() {
						if strings.Contains(line, a.String()) {
							return fmt.Errorf("a hit is tracked: %s", line)
						}
					}
				}
				return nil
			})
			// One that hangs still has its sockets, and they are no other program's.
			p.Signal(syscall.SIGSTOP)
			testutil.Eventually(t, func() error { return direct(pod.NetNS, n.served()[0], "udp") })
			n.each(pod.NetNS, "hung, from a pod", direct, n.served()...)
			p.Signal(syscall.SIGCONT)
			testutil.Eventually(t, func() error { return n.all(pod.NetNS, cached, n.served()...) })
			p.Kill()
			n.each(pod.NetNS, "killed, from a pod", direct, n.served()...)
			p = n.serve()
			n.each(pod.NetNS, "again, from a pod", cached, n.served()...)
			testutil.Check(t, p.Terminate(testutil.Patience()), "SIGTERM")
			n.each(pod.NetNS, "ended, from a pod", direct, n.served()...)
			n.each(n.Host, "ended, from the host", direct, n.served()...)
		})
	}
}
