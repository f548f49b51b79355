package nft_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// BenchmarkPodEvidence measures what the pod table's records cost: a query and its answer, and making the table in a fresh netns.
// The two kinds of table take turns, so that a busy machine slows both alike.
func BenchmarkPodEvidence(b *testing.B) {
	r := newRig(b, testutil.Options{Families: testutil.IPv4, Proxy: testutil.NFTables, Attach: testutil.PTP})
	r.Addresses()
	var echo net.PacketConn
	var err error
	at := netip.AddrPortFrom(r.Host.Redirects[0].Steering, 53).String()
	r.Node.Host.Do(func() { echo, err = net.ListenPacket("udp4", at) })
	must(b, err)
	b.Cleanup(func() { _ = echo.Close() })
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := echo.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo(buf[:n], from)
		}
	}()
	r.Renew()
	pod := r.Pod("pod")
	var conn net.Conn
	pod.Do(func() { conn, err = net.Dial("udp4", r.ClusterDNS()[0].String()) })
	must(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	tables := []steer.Pod{{Redirects: r.Host.Redirects, Always: true}, {Redirects: r.Host.Redirects}}
	const turn = 1000
	b.Run("hit", func(b *testing.B) {
		var took [2]time.Duration
		buf := make([]byte, 64)
		rounds := 0
		backend := open(b, pod.NetNS)
		for b.Loop() {
			rounds++
			for i, table := range tables {
				must(b, backend.Apply(table))
				start := time.Now()
				for range turn {
					_, err := conn.Write(buf)
					must(b, err)
					_, err = conn.Read(buf)
					must(b, err)
				}
				took[i] += time.Since(start)
			}
		}
		b.ReportMetric(float64(took[0].Nanoseconds())/float64(rounds*turn), "ns/plain")
		b.ReportMetric(float64(took[1].Nanoseconds())/float64(rounds*turn), "ns/evidence")
		b.ReportMetric(float64(took[1])/float64(took[0]), "ratio")
	})
	b.Run("make", func(b *testing.B) {
		var took [2]time.Duration
		rounds := 0
		for b.Loop() {
			rounds++
			for i, table := range tables {
				ns := testutil.NewNS(b, fmt.Sprintf("make%d", i))
				backend := open(b, ns)
				start := time.Now()
				must(b, backend.Ensure(table))
				took[i] += time.Since(start)
				ns.Close()
			}
		}
		b.ReportMetric(float64(took[0].Nanoseconds())/float64(rounds), "ns/plain")
		b.ReportMetric(float64(took[1].Nanoseconds())/float64(rounds), "ns/evidence")
	})
}
