package bpf

import (
	"errors"
	"fmt"
	"math/rand/v2"
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
			others := 0 // a few of ten thousand answers found no room in full buckets
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
		if err := l.Put(&a); err != nil && !errors.Is(err, ErrFull) {
			b.Fatal(err)
		}
		frames = append(frames, plain(name))
		switch n := i + 1; n {
		case 1, 160, 1000, 4096, 10_000:
			run(fmt.Sprint("hit of ", n), frames, redirect)
		}
	}
}
