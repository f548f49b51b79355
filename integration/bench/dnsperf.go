package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/neardns/neardns/integration/bench/peers"
	"github.com/neardns/neardns/integration/bench/workload"
)

// dnsperfClients is how many sockets dnsperf has, dnsperfWindow how many queries in flight on all of them.
const (
	dnsperfClients = "20"
	dnsperfWindow  = "64"
)

// dnsperf sends W1 by dnsperf at full speed, for figures that others can compare with theirs. It costs twice what the bench's own
// generator does, and looks at codes only.
func (b *bench) dnsperf(s *stand) {
	program, err := peers.Find("dnsperf")
	b.must(err)
	file := filepath.Join(b.dir, "dnsperf.txt")
	if _, err := os.Stat(file); err != nil {
		w, err := workload.New("W1", seed, b.short)
		b.must(err)
		b.must(os.WriteFile(file, []byte(dnsperfInput(w)), 0o644))
	}
	seconds := b.long(3*time.Second, time.Second)
	before := s.cpu()
	cmd := exec.CommandContext(context.Background(), "taskset", "-c", strconv.Itoa(clientCPU), program, "-s", clusterDNS.String(), "-d", file,
		"-l", strconv.Itoa(int(seconds.Seconds())), "-c", dnsperfClients, "-q", dnsperfWindow, "-T", "1")
	out, err := s.pod.TryRun("", cmd.Args...)
	b.must(err)
	ran := s.cpu() - before
	got, err := parseDnsperf(out)
	b.must(err)
	b.add(cellKey{dnsperfLoad, "full", "qps"}, s.name, got.rate)
	b.add(cellKey{dnsperfLoad, "full", "server"}, s.name, float64(ran.Nanoseconds())/1e3/float64(got.completed))
	b.add(cellKey{dnsperfLoad, "full", "mean"}, s.name, got.latency*1e6)
	b.add(cellKey{dnsperfLoad, "full", "lost"}, s.name, 100*float64(got.lost)/float64(got.completed+got.lost))
}

// dnsperfInput is a workload as dnsperf reads it: a name and a type a line. dnsperf goes through it again and again.
func dnsperfInput(w *workload.Workload) string {
	var text strings.Builder
	for _, i := range w.Order {
		q := &w.Questions[i]
		kind := "A"
		if q.Type == workload.TypeAAAA {
			kind = "AAAA"
		}
		fmt.Fprintf(&text, "%s %s\n", q.Name, kind)
	}
	return text.String()
}

// perf is what dnsperf prints at its end.
type perf struct {
	completed, lost int
	rate            float64 // a second
	latency         float64 // mean, in seconds
}

var perfLine = regexp.MustCompile(`(?m)^\s*(Queries completed|Queries lost|Queries per second|Average Latency \(s\)):\s+([0-9.]+)`)

func parseDnsperf(text string) (p perf, err error) {
	seen := 0
	for _, m := range perfLine.FindAllStringSubmatch(text, -1) {
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return p, fmt.Errorf("dnsperf: %q: %w", m[0], err)
		}
		seen++
		switch m[1] {
		case "Queries completed":
			p.completed = int(v)
		case "Queries lost":
			p.lost = int(v)
		case "Queries per second":
			p.rate = v
		default:
			p.latency = v
		}
	}
	if seen != 4 || p.completed == 0 {
		return p, fmt.Errorf("dnsperf printed no result:\n%s", text)
	}
	return p, nil
}
