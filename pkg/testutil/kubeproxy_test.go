package testutil

import (
	"net/netip"
	"testing"

	"github.com/neardns/neardns/pkg/testutil/golden"
)

// TestServiceHashes compares names with those that kube-proxy makes.
func TestServiceHashes(t *testing.T) {
	dns := DNSService(clusterDNS4)
	for i, want := range []string{"TCOU7JCQXEZGVUNU", "ERIFXISQEP7F7OF4"} {
		Equal(t, dns[i].String(), want, dns[i].chainHash(""))
	}
	// From kube-proxy's tests of its nftables mode.
	svc := Service{Namespace: "ns1", Name: "svc1", Port: "p80", Protocol: "tcp"}
	Equal(t, "service", "ULMVA6XW-ns1/svc1/tcp/p80", svc.chainName(netip.AddrPort{}))
	Equal(t, "endpoint", "5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80", svc.chainName(netip.MustParseAddrPort("10.180.0.1:80")))
}

func TestProxyRules(t *testing.T) {
	for _, mode := range []ProxyMode{IPTables, NFTables, IPVS} {
		p := &Proxy{mode: mode}
		golden.Check(t, string(mode)+"-4.golden", p.Base(true)+p.Rules(true, DNSService(clusterDNS4, kubeDNS4, kubeDNS4.Next())))
		golden.Check(t, string(mode)+"-6.golden", p.Base(false)+p.Rules(false, DNSService(clusterDNS6, kubeDNS6)))
		golden.Check(t, string(mode)+"-refused.golden", p.Rules(true, DNSService(clusterDNS4)))
	}
}
