package nft_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// BenchmarkDelivery measures what the records and the lookup of the source's route cost a query over UDP, from the pod's socket to the
// agent's, which is not read: with all rules, with a lookup for each query, without lookups, and without lookups and records.
func BenchmarkDelivery(b *testing.B) {
	r := newRig(b, testutil.Options{Families: testutil.IPv4, Proxy: testutil.NFTables, Attach: testutil.PTP})
	pod := r.Steered("pod")
	r.Addresses()
	steering := net.UDPAddrFromAddrPort(netip.AddrPortFrom(r.Host.Redirects[0].Steering, 53))
	var server, conn *net.UDPConn
	var err error
	r.Node.Host.Do(func() { server, err = net.ListenUDP("udp4", steering) })
	must(b, err)
	defer func() { _ = server.Close() }()
	must(b, server.SetReadBuffer(4096))
	pod.Do(func() { conn, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(r.ClusterDNS()[0])) })
	must(b, err)
	defer func() { _ = conn.Close() }()
	r.Renew()
	question := make([]byte, 40)
	run := func(b *testing.B) {
		for b.Loop() {
			if _, err := conn.Write(question); err != nil {
				b.Fatal(err)
			}
		}
	}
	// All kinds take turns, so that a busy machine slows all alike.
	for range 4 {
		must(b, r.nft.Apply(r.Host))
		b.Run("noted", run)
		for _, command := range []string{
			"flush chain inet neardns switch4",
			"add rule inet neardns switch4 fib saddr . iif oif 0 counter name refused_source goto fallback4",
			"add rule inet neardns switch4 goto known4",
		} {
			r.Node.Host.Run("nft", command)
		}
		b.Run("looked", run)
		r.Node.Host.Run("nft", "flush chain inet neardns switch4")
		r.Node.Host.Run("nft", "add rule inet neardns switch4 goto known4")
		b.Run("unlooked", run)
		for _, command := range []string{
			"flush chain inet neardns input", "flush chain inet neardns deliver_udp4",
			"add rule inet neardns deliver_udp4 counter name delivered_udp notrack accept",
		} {
			r.Node.Host.Run("nft", command)
		}
		b.Run("plain", run)
	}
}
