package server_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// The benchmarks below ask three servers in turn over loopback UDP: ours with the fast path and without it, in this process, from its
// rendered Corefile, and a stock CoreDNS from NodeLocal DNSCache's Corefile (its reload left out, which sees no question). Each round
// asks all the same number of questions, in changing order; reported are the medians of the paired ratios of CPU time and of wall
// time, with their spread. CPU time is of both processes, client and upstream included, so the
// ratio understates the difference between the chains.
//
//	go test -run xxx -bench Serve -benchtime 1x ./internal/dns/server

const (
	benchRounds    = 21
	benchQuestions = 20000 // per server and round
	benchWindow    = 16    // in flight
)

func BenchmarkServeHit(b *testing.B) {
	names := make([]string, 160)
	for i := range names {
		names[i] = fmt.Sprintf("svc-%d.default.svc.cluster.local.", i)
	}
	compare(b, benchQuestions, func(i int) string { return names[i%len(names)] })
}

func BenchmarkServeMiss(b *testing.B) {
	var n atomic.Int64
	compare(b, benchQuestions/4, func(int) string { return fmt.Sprintf("svc-%d.default.svc.cluster.local.", n.Add(1)) })
}

func compare(b *testing.B, questions int, name func(int) string) {
	b.Helper()
	up := newUpstream(b, address("10.0.0.1"))
	fast, plain := config(b, up), config(b, up)
	plain.FastPath = false
	start(b, fast)
	start(b, plain)
	stock, pid := startStock(b, up)
	servers := []string{"fast", "chain", "stock"}
	ask := map[string]*asker{"fast": newAsker(b, addressOf(fast)), "chain": newAsker(b, addressOf(plain)), "stock": newAsker(b, stock)}
	for _, a := range ask { // warm
		a.run(b, questions/4, name)
	}
	for b.Loop() {
		cpu, wall := map[string][]time.Duration{}, map[string][]time.Duration{}
		for round := range benchRounds {
			order := slices.Concat(servers[round%3:], servers[:round%3])
			for _, who := range order {
				began, before := time.Now(), processCPU(b, pid)
				ask[who].run(b, questions, name)
				wall[who] = append(wall[who], time.Since(began))
				cpu[who] = append(cpu[who], processCPU(b, pid)-before)
			}
		}
		for _, pair := range [][2]string{{"fast", "stock"}, {"chain", "stock"}, {"fast", "chain"}} {
			c, w := ratios(cpu[pair[0]], cpu[pair[1]]), ratios(wall[pair[0]], wall[pair[1]])
			b.ReportMetric(c[len(c)/2], pair[0]+"/"+pair[1]+"-cpu")
			// Of 21 paired ratios, the 6th and 16th bound the median with 97 % confidence.
			b.Logf("%s over %s, median of %d rounds [97 %% interval]: CPU %.3f [%.3f, %.3f], wall %.3f [%.3f, %.3f]", pair[0], pair[1], benchRounds,
				c[10], c[5], c[15], w[10], w[5], w[15])
		}
		for _, who := range servers {
			slices.Sort(cpu[who])
			b.ReportMetric(float64(cpu[who][benchRounds/2].Nanoseconds())/1e3/float64(questions), who+"-cpu-us/query")
		}
	}
}

// ratios are of the rounds, in order.
func ratios(a, b []time.Duration) []float64 {
	var out []float64
	for i := range a {
		out = append(out, float64(a[i])/float64(b[i]))
	}
	slices.Sort(out)
	return out
}

// processCPU is what this process and the stock server have used. Who is not asked uses next to nothing.
func processCPU(b *testing.B, pid int) time.Duration {
	b.Helper()
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(tasks) == 0 {
		b.Fatalf("the stock server's threads: %v", err)
	}
	used := time.Duration(r.Utime.Nano() + r.Stime.Nano())
	for _, t := range tasks {
		text, err := os.ReadFile(t)
		if err != nil {
			continue // the thread has ended
		}
		var ns int64
		if _, err := fmt.Sscan(string(text), &ns); err != nil {
			b.Fatal(err)
		}
		used += time.Duration(ns)
	}
	return used
}

// startStock starts CoreDNS as it is, in a process of its own: two caches cannot have one name in this one.
func startStock(b *testing.B, up *upstream) (at string, pid int) {
	b.Helper()
	port := testutil.FreePort(b, "127.0.0.1")
	text := fmt.Sprintf(`cluster.local:%[1]d {
    errors
    cache {
        success 9984 30
        denial 9984 5
    }
    loop
    bind 127.0.0.1
    forward . %[2]s {
        force_tcp
    }
    prometheus 127.0.0.1:%[3]d
}
.:%[1]d {
    errors
    cache 30
    loop
    bind 127.0.0.1
    forward . %[2]s
    prometheus 127.0.0.1:%[3]d
}
`, port, up.addr, testutil.FreePort(b, "127.0.0.1"))
	file := filepath.Join(b.TempDir(), "Corefile")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), filepath.Join("..", "..", "..", "bin", "tools", "coredns"), "-conf", file)
	if err := cmd.Start(); err != nil {
		b.Fatalf("%v: run make tools", err)
	}
	b.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	at = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port).String()
	waitFor(b, "the stock CoreDNS to answer", func() bool {
		m, _, err := (&mdns.Client{Timeout: time.Second}).Exchange(question("a.cluster.local.", mdns.TypeA), at)
		return err == nil && len(m.Answer) == 1
	})
	return at, cmd.Process.Pid
}

// asker keeps a window of questions in flight on one socket and checks each answer's code and count.
type asker struct{ conn *net.UDPConn }

func newAsker(b *testing.B, server string) *asker {
	b.Helper()
	conn, err := net.Dial("udp", server)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	return &asker{conn.(*net.UDPConn)}
}

func (a *asker) run(b *testing.B, n int, name func(int) string) {
	b.Helper()
	var buf [512]byte
	sent := 0
	send := func() {
		wire, err := question(name(sent), mdns.TypeA).Pack()
		if err != nil {
			b.Fatal(err)
		}
		if _, err := a.conn.Write(wire); err != nil {
			b.Fatal(err)
		}
		sent++
	}
	for range min(benchWindow, n) {
		send()
	}
	for range n {
		a.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		size, err := a.conn.Read(buf[:])
		if err != nil {
			b.Fatal(err)
		}
		// Header: code in the low bits of the fourth byte, answers in bytes 6 and 7.
		if size < 12 || buf[3]&0xf != 0 || buf[7] != 1 {
			b.Fatalf("wrong answer: % x", buf[:size])
		}
		if sent < n {
			send()
		}
	}
}
