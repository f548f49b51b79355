package iptables_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestSourceOfEachPod has two pods query from the same ports while the agent is dead. kube-dns sees each pod's own address, as without
// neardns, so the pods share no ports. Only if kube-dns is on the pods' own bridge, it sees an address of the hairpin, so that its answers
// come back through the host; all queries of a pod have the same one.
func TestSourceOfEachPod(t *testing.T) {
	testutil.RequireRoot(t)
	for attach, variant := range map[testutil.Attach]iptables.Variant{ // either variant will do for a way to attach
		testutil.PTP: iptables.NFT, testutil.ProxyARP: iptables.Legacy, testutil.BridgeCNI: iptables.Legacy, testutil.BridgeNF: iptables.NFT,
	} {
		t.Run(string(attach), func(t *testing.T) {
			if attach == testutil.BridgeNF {
				testutil.RequireSysctl(t, testutil.NewNS(t, "probe"), "net.bridge.bridge-nf-call-iptables")
			}
			r := newRigOn(t, attach, variant)
			pods := []*testutil.Pod{r.Steered("one"), r.Steered("two")}
			for _, near := range []bool{false, true} {
				if near {
					r.kubeDNSBesidePods(t)
				}
				onBridge := near && (attach == testutil.BridgeCNI || attach == testutil.BridgeNF)
				for _, server := range r.Servers() {
					clients := map[netip.Addr]bool{}
					for _, pod := range pods {
						for port := range 5 {
							source := netip.AddrPortFrom(pod.Addr(server.Addr().Is4()), uint16(40000+port))
							answer, err := testutil.Ask(pod.NetNS, server, "a.cluster.local", dns.TypeTXT, "udp", testutil.AskOptions{Source: source})
							if err != nil || answer.Who != "KUBEDNS" {
								t.Fatalf("%s asks %s: %v, %v", pod.Name(), server, answer, err)
							}
							clients[answer.Client] = true
							if !onBridge && answer.Client != source.Addr() {
								t.Errorf("kube-dns saw %s, want the pod itself, %s", answer.Client, source.Addr())
							}
						}
					}
					if len(clients) > len(pods) {
						t.Errorf("kube-dns saw %d pods as %v", len(pods), clients)
					}
					r.Want("KUBEDNS", pods[0].NetNS, "over both protocols", server)
				}
			}
		})
	}
}

// kubeDNSBesidePods makes another pod kube-dns, attached as the others are.
func (r *variantRig) kubeDNSBesidePods(t *testing.T) {
	t.Helper()
	pod := r.Node.AddPod("dns")
	var at []netip.AddrPort
	var services []testutil.Service
	for i, a := range pod.Addrs {
		at = append(at, netip.AddrPortFrom(a, 53))
		services = append(services, testutil.DNSService(r.Node.ClusterDNS()[i], a)...)
	}
	testutil.ServeDNS(t, pod.NetNS, testutil.DNSConfig{Name: "KUBEDNS", Listen: at})
	r.Node.Proxy.Set(services...)
}

// TestOnePodCannotEndTheFallback has a pod query from all of its ports while the agent is dead. It may use up its own ports, as without
// neardns, but no other pod's.
func TestOnePodCannotEndTheFallback(t *testing.T) {
	r := newRig(t, iptables.NFT)
	greedy, other := r.Steered("greedy"), r.Steered("other")
	server := r.Servers()[0]
	r.Node.KubeDNS.Run("iptables", "-A", "INPUT", "-j", "DROP") // a query without an answer holds a port just as long
	greedy.Do(func() { must(t, floodPorts(server)) })
	r.Node.KubeDNS.Run("iptables", "-F", "INPUT")
	for i := range 20 {
		testutil.WantWho(t, "KUBEDNS", other.NetNS, server, fmt.Sprintf("n%d.cluster.local", i), "udp")
	}
}

// floodPorts sends one query to a server from each port of the calling thread's netns.
func floodPorts(server netip.AddrPort) error {
	q := new(dns.Msg)
	q.SetQuestion("flood.cluster.local.", dns.TypeA)
	wire, err := q.Pack()
	if err != nil {
		return err
	}
	for port := 1024; port <= 65535; port++ {
		c, err := net.DialUDP("udp4", &net.UDPAddr{Port: port}, net.UDPAddrFromAddrPort(server))
		if err != nil {
			return err
		}
		_, err = c.Write(wire)
		_ = c.Close()
		if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
	}
	return nil
}
