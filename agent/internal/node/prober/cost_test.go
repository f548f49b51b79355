package prober

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// BenchmarkProbe measures the CPU time that the process spends on one probe, including the stand-in's answer, which costs about as much as
// the agent's. At the default pace, one probe per address and protocol each 250 ms, an address costs four probes a second per protocol.
func BenchmarkProbe(b *testing.B) {
	n := newNode(b, testutil.Options{Families: testutil.Dual})
	p := n.prober(b)
	for _, protocol := range protocols {
		b.Run(protocol.String(), func(b *testing.B) {
			before := cpu(b)
			for b.Loop() {
				if r := probe(b, p, n.ClusterDNS()[0], protocol); r.Failure != None {
					b.Fatal(r.Err)
				}
			}
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
	// With idle time between the rounds, so that the wake-ups count as well.
	b.Run("pace", func(b *testing.B) {
		const rounds, pace = 20, 150 * time.Millisecond
		before, start := cpu(b), time.Now()
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		total := 0
		for b.Loop() {
			for range rounds {
				<-ticker.C
				for _, a := range n.ClusterDNS() {
					for _, protocol := range protocols {
						if r := probe(b, p, a, protocol); r.Failure != None {
							b.Fatal(r.Err)
						}
						total++
					}
				}
			}
		}
		b.ReportMetric(100*float64(cpu(b)-before)/float64(time.Since(start)), "%core")
		b.ReportMetric(float64(cpu(b)-before)/float64(total), "cpu-ns/probe")
	})
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	testutil.Must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Probing must leave no TIME_WAIT, no open socket and no conntrack entry behind, in neither netns.
func TestProbesLeaveNoSockets(t *testing.T) {
	n := newNode(t, testutil.Options{Families: testutil.Dual})
	p := n.prober(t)
	for range 50 {
		for _, a := range n.ClusterDNS() {
			wantOK(t, probe(t, p, a, steer.TCP))
		}
	}
	testutil.Eventually(t, func() error { return noTCP(n.Host.Run("ss", "-Htan", "state", "connected")) })
	if err := noTCP(p.output(t, "ss", "-Htan", "state", "all")); err != nil {
		t.Error(err)
	}
	testutil.WantNoConntrack(t, n.Host)
}

func noTCP(list string) error {
	if list != "" {
		return errors.New("TCP sockets left:\n" + list)
	}
	return nil
}
