package iptables_test

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// The chains of kube-system/kube-dns, whose names are derived from the Service's name, port and protocol.
const udpChain, tcpChain = "KUBE-SVC-TCOU7JCQXEZGVUNU", "KUBE-SVC-ERIFXISQEP7F7OF4"

// serviceGone is what kube-proxy 1.36 in iptables mode gives to iptables-restore --noflush --counters when the Service is deleted,
// is renamed or has no endpoint left: its chains are emptied and deleted in the transaction that writes all others again.
const serviceGone = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-MARK-MASQ - [0:0]
:` + udpChain + ` - [0:0]
:` + tcpChain + ` - [0:0]
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j RETURN
-X ` + udpChain + `
-X ` + tcpChain + `
COMMIT
`

// TestKubeProxyDeletes shows why there is a hairpin: kube-proxy cannot delete a chain to which another rule jumps, and then its whole
// transaction fails.
func TestKubeProxyDeletes(t *testing.T) {
	variants(t, func(t *testing.T, variant iptables.Variant) {
		r := newRig(t, variant)
		host, kind := r.Node.Host, strings.TrimPrefix(string(variant), "iptables")
		// kube-proxy's rules, written by the same program as neardns's.
		host.RunInput(r.Node.Proxy.Base(true)+r.Node.Proxy.Rules(true, testutil.DNSService(r.Node.ClusterDNS()[0], r.Node.KubeDNSAddrs()[0])),
			"iptables"+kind+"-restore", "--noflush", "-w")
		restore := []string{"iptables" + kind + "-restore", "--noflush", "--counters", "-w"}

		host.Run("iptables"+kind, "-w", "-t", "nat", "-N", "JUMPS")
		host.Run("iptables"+kind, "-w", "-t", "nat", "-A", "JUMPS", "-p", "udp", "-j", udpChain)
		if _, err := host.TryRun(serviceGone, restore...); err == nil {
			t.Error("kube-proxy can delete a chain that another jumps to: the hairpin may not be needed any more")
		}
		host.Run("iptables"+kind, "-w", "-t", "nat", "-F", "JUMPS")

		if out, err := host.TryRun(serviceGone, restore...); err != nil {
			t.Errorf("our rules are in kube-proxy's way: %v\n%s", err, out)
		}
		if left := host.Run("iptables"+kind, "-w", "-t", "nat", "-S"); strings.Contains(left, "KUBE-SVC-") {
			t.Errorf("chains are left:\n%s", left)
		}
		must(t, r.rules.Verify(r.Host))
	})
}

// TestServiceComesAndGoes deletes, makes again and renames kube-dns while pods query.
func TestServiceComesAndGoes(t *testing.T) {
	r := newRig(t, iptables.NFT)
	pod := r.Steered("pod")
	r.Listen()
	var services []testutil.Service
	for i, a := range r.Node.ClusterDNS() {
		services = append(services, testutil.DNSService(a, r.Node.KubeDNSAddrs()[i])...)
	}
	r.Want("KUBEDNS", pod.NetNS, "before", r.Servers()...)
	r.Node.Proxy.Set()
	r.Renew()
	r.Want("AGENT", pod.NetNS, "without the Service, under a lease", r.Servers()...)
	r.Withdraw()
	r.Node.Proxy.Set(services...)
	r.Want("KUBEDNS", pod.NetNS, "made again", r.Servers()...)
	for i := range services {
		services[i].Name, services[i].Port = "rke2-coredns", "udp-53"
	}
	r.Node.Proxy.Set(services...)
	r.Want("KUBEDNS", pod.NetNS, "renamed", r.Servers()...)
	must(t, r.rules.Verify(r.Host))
}
