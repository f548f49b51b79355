package bpf

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// BenchmarkProgram reports the program's own time, as the kernel counts it (bpf_stats), for frames of test runs: for random hits among so
// many entries, and for packets that go on. About 40 ns of each time are the counting itself, which "nothing" shows.
func BenchmarkProgram(b *testing.B) {
	l := open(b, 16384)
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	testutil.Must(b, err)
	defer stats.Close()
	run := func(name string, frames [][]byte, want uint32) {
		b.Run(name, func(b *testing.B) {
			o := ebpf.RunOptions{DataOut: make([]byte, 2048)}
			before, err := l.objects.NeardnsHits.Stats()
			testutil.Must(b, err)
			others := 0 // of ten thousand answers a few had to make room in full buckets
			for b.Loop() {
				o.Data, o.DataOut = frames[rand.IntN(len(frames))], o.DataOut[:2048]
				if got, err := l.objects.NeardnsHits.Run(&o); err != nil {
					b.Fatal(err)
				} else if got != want {
					others++
				}
			}
			if others > b.N/200 {
				b.Errorf("of %d packets %d had another action than %d", b.N, others, int32(want))
			}
			after, err := l.objects.NeardnsHits.Stats()
			testutil.Must(b, err)
			b.ReportMetric(float64((after.Runtime-before.Runtime).Nanoseconds())/float64(after.RunCount-before.RunCount), "program-ns/packet")
		})
	}
	plain := func(name string) []byte { return packet(false, partial, ask(b, name, dns.TypeA, nil)) }
	tcp := plain("unknown.example.")
	tcp[23] = 6
	run("nothing", [][]byte{tcp}, unspec)
	run("passed, another address", [][]byte{set(33, 99)(plain("unknown.example."))}, unspec)
	run("passed, unknown name", [][]byte{plain("unknown.some-namespace.svc.cluster.local.")}, unspec)
	run("passed, DO", [][]byte{packet(false, partial, ask(b, "svc-1.some-namespace.svc.cluster.local.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) }))}, unspec)
	var frames [][]byte
	for i := range 10_000 {
		name := fmt.Sprintf("svc-%d.some-namespace.svc.cluster.local.", i)
		a := answerOf(b, name, dns.TypeA, nil, fmt.Sprintf("%s 30 IN A 10.96.%d.%d", name, i>>8, i&0xff))
		a.Expires, a.Until = Now()+time.Hour, Now()+time.Hour
		put(b, l, a)
		frames = append(frames, plain(name))
		switch n := i + 1; n {
		case 1, 160, 1000, 4096, 10_000:
			run(fmt.Sprint("hit of ", n), frames, redirect)
		}
	}
}

// BenchmarkPod sends queries from a pod, one after the other, and reports the time of the whole round trip and the program's own time as
// the kernel counts it (bpf_stats): for hits among so many entries, and for packets that the program passes on.
func BenchmarkPod(b *testing.B) {
	l := open(b, 16384)
	node := testutil.NewNode(b, testutil.Options{Families: testutil.Dual, Attach: testutil.PTP})
	for _, a := range []netip.Addr{server4, server6} {
		node.Host.AddAddr("lo", testutil.Host(a))
	}
	pod := node.AddPod("pod")
	var sink net.PacketConn
	var err error
	node.Host.Do(func() {
		if err = l.Attach(pod.HostLink().Attrs().Index); err == nil {
			sink, err = net.ListenPacket("udp", netip.AddrPortFrom(server4, 53).String())
		}
	})
	testutil.Must(b, err)
	trust(b, l, pod.HostLink().Attrs().Index)
	defer sink.Close()
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	testutil.Must(b, err)
	defer stats.Close()

	run := func(name string, server netip.Addr, questions [][]byte, answered bool) {
		b.Run(name, func(b *testing.B) {
			var conn net.Conn
			var err error
			pod.Do(func() { conn, err = net.Dial("udp", netip.AddrPortFrom(server, 53).String()) })
			testutil.Must(b, err)
			defer conn.Close()
			buf := make([]byte, 2048)
			before, err := l.objects.NeardnsHits.Stats()
			testutil.Must(b, err)
			i := 0
			for b.Loop() {
				_, err := conn.Write(questions[i%len(questions)])
				if i++; !answered {
					continue // the port may be closed, which the socket reports
				}
				testutil.Must(b, err)
				conn.SetReadDeadline(time.Now().Add(time.Second))
				if n, err := conn.Read(buf); err != nil || n < 12 || buf[2]&0x80 == 0 {
					b.Fatal("no answer: ", err)
				}
			}
			after, err := l.objects.NeardnsHits.Stats()
			testutil.Must(b, err)
			b.ReportMetric(float64((after.Runtime-before.Runtime).Nanoseconds())/float64(after.RunCount-before.RunCount), "program-ns/packet")
		})
	}
	late := func(a Answer) Answer {
		a.Expires, a.Until = Now()+time.Hour, Now()+time.Hour
		return a
	}
	var questions, edns [][]byte
	for i := range 10_000 {
		name := fmt.Sprintf("svc-%d.some-namespace.svc.cluster.local.", i)
		put(b, l, late(answerOf(b, name, dns.TypeA, nil, fmt.Sprintf("%s 30 IN A 10.96.%d.%d", name, i>>8, i&0xff))))
		questions, edns = append(questions, ask(b, name, dns.TypeA, nil)), append(edns, ask(b, name, dns.TypeA, withOPT(1232)))
		switch n := i + 1; n {
		case 1, 160, 10_000:
			run(fmt.Sprint("hit of ", n), server4, questions, true)
			run(fmt.Sprint("hit of ", n, " with EDNS"), server4, edns, true)
			run(fmt.Sprint("hit of ", n, " over IPv6"), server6, questions, true)
		}
	}
	var lots []string
	for i := range 50 {
		lots = append(lots, fmt.Sprintf("headless.example. 30 IN A 10.0.0.%d", i))
	}
	a := late(answerOf(b, "headless.example.", dns.TypeA, nil, lots...))
	a.Rotate = true
	put(b, l, a)
	run("hit of 50 addresses", server4, [][]byte{ask(b, "headless.example.", dns.TypeA, withOPT(1232))}, true)
	run("passed, unknown name", server4, [][]byte{ask(b, "unknown.some-namespace.svc.cluster.local.", dns.TypeA, nil)}, false)
	run("passed, DO", server4, [][]byte{ask(b, "svc-1.some-namespace.svc.cluster.local.", dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) })}, false)
	run("passed, another address", netip.MustParseAddr("192.0.2.10"), [][]byte{ask(b, "unknown.example.", dns.TypeA, nil)}, false)
}
