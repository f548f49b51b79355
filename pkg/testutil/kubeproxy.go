package testutil

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// ProxyMode is how a cluster's Service addresses are translated.
type ProxyMode string

// The modes that kube-proxy has; NoProxy translates nothing.
const (
	NoProxy  ProxyMode = "none"
	IPTables ProxyMode = "iptables"
	NFTables ProxyMode = "nftables"
	IPVS     ProxyMode = "ipvs" // takes ipvsadm, ipset and the modules ip_vs and dummy; the guests of integration/vm have them
)

// Proxies returns the modes that tests run with: those in the variable NEARDNS_PROXIES, separated by commas, or IPTables and NFTables if it
// is empty.
func Proxies() []ProxyMode {
	var out []ProxyMode
	for name := range strings.SplitSeq(os.Getenv("NEARDNS_PROXIES"), ",") {
		if name != "" {
			out = append(out, ProxyMode(name))
		}
	}
	if out == nil {
		out = []ProxyMode{IPTables, NFTables}
	}
	return out
}

// podCIDR4 and podCIDR6 are the cluster's pod ranges; a Service's clients from elsewhere are masqueraded.
const (
	podCIDR4 = "10.244.0.0/16"
	podCIDR6 = "fd00:244::/32"
)

// Service is one port of one Service.
type Service struct {
	Namespace, Name, Port string // Port is the port's name
	Protocol              string // "udp" or "tcp"
	ClusterIP             netip.AddrPort
	Endpoints             []netip.AddrPort // none: kube-proxy rejects packets to the Service
}

// DNSService is kube-dns: ports dns and dns-tcp of one cluster DNS address, answered by the endpoints.
func DNSService(clusterDNS netip.Addr, endpoints ...netip.Addr) []Service {
	var at []netip.AddrPort
	for _, e := range endpoints {
		at = append(at, netip.AddrPortFrom(e, 53))
	}
	ip := netip.AddrPortFrom(clusterDNS, 53)
	return []Service{
		{Namespace: "kube-system", Name: "kube-dns", Port: "dns", Protocol: "udp", ClusterIP: ip, Endpoints: at},
		{Namespace: "kube-system", Name: "kube-dns", Port: "dns-tcp", Protocol: "tcp", ClusterIP: ip, Endpoints: at},
	}
}

// ManyServices returns n Services of an IP family with one endpoint each, for the load of a large cluster.
func ManyServices(is4 bool, n int) []Service {
	ip, endpoint := netip.MustParseAddr("10.100.0.0"), netip.MustParseAddr("10.245.0.0")
	if !is4 {
		ip, endpoint = netip.MustParseAddr("fd00:96:1::"), netip.MustParseAddr("fd00:245::")
	}
	services := make([]Service, n)
	for i := range services {
		ip, endpoint = ip.Next(), endpoint.Next()
		services[i] = Service{
			Namespace: "load", Name: fmt.Sprintf("service-%d", i), Port: "http", Protocol: "tcp",
			ClusterIP: netip.AddrPortFrom(ip, 80), Endpoints: []netip.AddrPort{netip.AddrPortFrom(endpoint, 8080)},
		}
	}
	return services
}

func (s Service) String() string { return s.Namespace + "/" + s.Name + ":" + s.Port }

// chainHash returns the part of a chain's name that kube-proxy in iptables mode puts after KUBE-SVC- or, for an endpoint, KUBE-SEP-.
func (s Service) chainHash(endpoint string) string {
	sum := sha256.Sum256([]byte(s.String() + s.Protocol + endpoint))
	return base32.StdEncoding.EncodeToString(sum[:])[:16]
}

// chainName returns the part of a chain's name that kube-proxy in nftables mode puts after service- or, for an endpoint, endpoint-.
func (s Service) chainName(endpoint netip.AddrPort) string {
	name := s.Namespace + "/" + s.Name + "/" + s.Protocol + "/" + s.Port
	if endpoint.IsValid() {
		// Names of nftables chains may have no colons.
		name += fmt.Sprintf("__%s/%d", strings.ReplaceAll(endpoint.Addr().String(), ":", "."), endpoint.Port())
	}
	sum := sha256.Sum256([]byte(name))
	return base32.StdEncoding.EncodeToString(sum[:])[:8] + "-" + name
}

// Proxy is kube-proxy's rules in one namespace, for both families.
type Proxy struct {
	t        TB
	ns       *NetNS
	mode     ProxyMode
	legacy   bool // whether it uses iptables-legacy
	services []Service
}

// InstallProxy writes kube-proxy's rules for the services into ns. The kernel removes the rules with the namespace.
func InstallProxy(t TB, ns *NetNS, mode ProxyMode, services ...Service) *Proxy {
	t.Helper()
	return installProxy(&Proxy{t: t, ns: ns, mode: mode}, services)
}

func installProxy(p *Proxy, services []Service) *Proxy {
	p.t.Helper()
	p.Set(services...)
	return p
}

// Mode is the proxy's mode.
func (p *Proxy) Mode() ProxyMode { return p.mode }

// Set replaces all services. Like Remove, it also removes all connection tracking entries.
func (p *Proxy) Set(services ...Service) {
	p.t.Helper()
	p.Remove()
	p.services = services
	for _, is4 := range []bool{true, false} {
		own := ofFamily(services, is4)
		if len(own) > 0 {
			p.load(is4, p.Base(is4)+p.Rules(is4, own))
		}
	}
}

// Add adds services in one transaction for each IP family and does not touch the existing ones, like a sync of kube-proxy.
// With many services, it puts the load of a large cluster on the kernel.
func (p *Proxy) Add(services ...Service) {
	p.t.Helper()
	p.services = append(p.services, services...)
	for _, is4 := range []bool{true, false} {
		if own := ofFamily(services, is4); len(own) > 0 {
			p.load(is4, p.Rules(is4, own))
		}
	}
}

func ofFamily(services []Service, is4 bool) []Service {
	var own []Service
	for _, s := range services {
		if s.ClusterIP.Addr().Is4() == is4 {
			own = append(own, s)
		}
	}
	return own
}

// Loader returns the command that reads the text of Base and Rules from its standard input and makes these rules.
func (p *Proxy) Loader(is4 bool) []string {
	switch p.mode {
	case NFTables:
		return []string{"nft", "-f", "-"}
	case IPVS:
		return []string{"sh", "-e"}
	}
	program := "ip6tables"
	if is4 {
		program = "iptables"
	}
	if p.legacy {
		program += "-legacy"
	}
	return []string{program + "-restore", "--noflush", "-w"}
}

func (p *Proxy) load(is4 bool, rules string) {
	p.t.Helper()
	if p.mode != NoProxy {
		p.ns.RunInput(rules, p.Loader(is4)...)
	}
}

// Base returns the text, for Loader, of the rules that do not depend on the services.
func (p *Proxy) Base(is4 bool) string {
	switch p.mode {
	case IPTables:
		return iptablesBase
	case NFTables:
		return nftBase(is4)
	case IPVS:
		return ipvsBase(is4)
	}
	return ""
}

// Rules returns the text, for Loader, of the rules that add services of one IP family.
func (p *Proxy) Rules(is4 bool, services []Service) string {
	switch p.mode {
	case IPTables:
		return iptablesServices(is4, services)
	case NFTables:
		return nftServices(is4, services)
	case IPVS:
		return ipvsServices(is4, services)
	}
	return ""
}

// Remove removes all rules, so that no program translates Service addresses, and all connection tracking entries.
func (p *Proxy) Remove() {
	p.t.Helper()
	if p.mode == IPVS && len(p.services) > 0 {
		p.removeIPVS()
	}
	for _, is4 := range []bool{true, false} {
		if len(ofFamily(p.services, is4)) == 0 {
			continue
		}
		switch p.mode {
		case NFTables:
			p.ns.Run("nft", "delete", "table", nftFamily(is4), "kube-proxy")
		case IPTables:
			p.removeIPTables(is4)
		}
	}
	p.services = nil
	FlushConntrack(p.ns)
}
