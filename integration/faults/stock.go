package main

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/neardns/neardns/integration/nodelocal"
	"github.com/neardns/neardns/pkg/testutil"
)

// stock is a node as NodeLocal DNSCache sets it up, with a stock CoreDNS.
type stock struct{ *stand }

func newStock(t testutil.TB, bin func(string) string, dir string) *stand {
	s := newStand(t, bin, dir, "stock", testutil.NFTables)
	k := &stock{s}
	s.subject = k
	s.node.Proxy.Add(upstreamService(s)...)
	nodelocal.Install(s.node.Host, localAddress, clusterDNS)
	k.configure(-1)
	s.start()
	s.pod, s.noisy = addPod(s, "pod"), addPod(s, "noisy")
	s.await()
	return s
}

func upstreamService(s *stand) []testutil.Service {
	services := testutil.DNSService(upstreamDNS, s.node.KubeDNSAddrs()[0])
	for i := range services {
		services[i].Name = "kube-dns-upstream"
	}
	return services
}

func (k *stock) configure(i int) {
	text := nodelocal.Corefile(localAddress, clusterDNS, upstreamDNS)
	if i >= 0 {
		text += fmt.Sprintf("corp%d.example:53 {\n    errors\n    cache 30\n    bind %s %s\n    forward . %s\n}\n", i, localAddress, clusterDNS, upstreamDNS)
	}
	k.write("Corefile", text)
}

func (k *stock) command() *exec.Cmd {
	return exec.Command(k.bin("tools/coredns"), "-conf", k.path("Corefile"))
}

func (k *stock) ready() error {
	_, err := testutil.Ask(k.pod.NetNS, netip.AddrPortFrom(clusterDNS, 53), "ready.svc.cluster.local.", dns4, "udp", testutil.AskOptions{Timeout: 200 * time.Millisecond})
	return err
}

// reload has CoreDNS read its file at once; its reload plugin would look within half a minute.
func (k *stock) reload(i int) {
	k.t.Helper()
	const done = "Reloading complete"
	from := len(k.server.Output())
	k.configure(i)
	k.server.Signal(syscall.SIGUSR1)
	testutil.Eventually(k.t, func() error {
		if said := k.server.Output()[from:]; !strings.Contains(said, done) {
			return fmt.Errorf("%s did not say %q:\n%s", k.name, done, tail(said))
		}
		return nil
	})
}

// mend does what node-cache does once a minute.
func (k *stock) mend() { nodelocal.Install(k.node.Host, localAddress, clusterDNS) }

func (k *stock) steered() (string, netip.Addr) { return nodelocal.Link, clusterDNS }
