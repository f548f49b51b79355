package nodelocal_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// The published manifest with another image: its arguments, its Corefile, its capabilities.
func TestManifestUnchanged(t *testing.T) {
	for _, o := range []testutil.Options{
		{Families: testutil.IPv4, Proxy: testutil.IPTables}, {Families: testutil.IPv4, Proxy: testutil.NFTables}, {Families: testutil.IPv6, Proxy: testutil.IPTables},
	} {
		t.Run(fmt.Sprintf("%s/%s", o.Families, o.Proxy), func(t *testing.T) {
			n := newNode(t, o)
			pod := n.pod()
			p := n.agent()
			n.awaitLeases(p, n.served()...)
			n.awaitLog(p, 0, "fallback proven")
			n.each(pod.NetNS, "serving, from a pod", cached, n.served()...)
			n.each(n.Host, "serving, from the host", cached, n.served()...)
			testutil.Eventually(t, patience, func() error {
				testutil.FlushConntrack(n.Host)
				for _, a := range n.served() {
					if err := cached(pod.NetNS, a, "udp"); err != nil {
						return err
					}
				}
				for _, line := range testutil.Conntrack(n.Host) {
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
			testutil.Eventually(t, patience, func() error { return direct(pod.NetNS, n.served()[0], "udp") })
			n.each(pod.NetNS, "hung, from a pod", direct, n.served()...)
			p.Signal(syscall.SIGCONT)
			testutil.Eventually(t, patience, func() error { return n.all(pod.NetNS, cached, n.served()...) })
			p.Kill()
			n.each(pod.NetNS, "killed, from a pod", direct, n.served()...)
			p = n.agent()
			n.awaitLeases(p, n.served()...)
			n.each(pod.NetNS, "again, from a pod", cached, n.served()...)
			if err := p.Terminate(patience); err != nil {
				t.Errorf("SIGTERM: %v", err)
			}
			n.each(pod.NetNS, "ended, from a pod", direct, n.served()...)
			n.each(n.Host, "ended, from the host", direct, n.served()...)
		})
	}
}
