package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/testutil"
)

func (r *run) grown() {
	if r.before > 0 {
		r.Grown = r.peak / r.before
	}
}

// watch keeps the most memory that a process had, and the most that one of its threads waited for a CPU within a second.
func (r *run) watch(pid int, stop <-chan struct{}) {
	const second = 10 // ticks
	tick := time.NewTicker(time.Second / second)
	defer tick.Stop()
	var waits []map[string]time.Duration // since each thread's begin, at each tick
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			r.peak = max(r.peak, memory(pid))
			if waits = append(waits, waited(pid)); len(waits) > second {
				waits = waits[1:]
			}
			r.Waited = max(r.Waited, longest(waits[0], waits[len(waits)-1]))
		}
	}
}

// memory is a process's resident memory in MiB; 0 when it is gone.
func memory(pid int) float64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.Atoi(fields[1])
	return float64(pages) * float64(os.Getpagesize()) / (1 << 20)
}

// flushRuleset is `nft flush ruleset`, with kube-proxy's own rules back in the same transaction: what kube-proxy does
// about it is not the matter here.
func (s *stand) flushRuleset() {
	s.t.Helper()
	p := s.node.Proxy
	services := testutil.DNSService(clusterDNS, s.node.KubeDNSAddrs()[0])
	o, is := s.subject.(*ours)
	if is {
		services = append(services, second(s)...)
	} else {
		services = append(services, upstreamService(s)...)
	}
	if is && o.lease.rules.Recorded() == string(iptables.Legacy) {
		// What flushes those rules does it table by table; kube-proxy's are not among them here.
		for _, table := range []string{"raw", "nat", "filter"} {
			s.node.Host.Run("iptables-legacy", "-w", "-t", table, "-F")
		}
		return
	}
	if p.Mode() == testutil.IPTables {
		s.node.Host.Run("nft", "flush", "ruleset") // and what iptables-nft has in it; its program makes only its own again
		s.node.Host.RunInput(p.Base(true)+p.Rules(true, services), p.Loader(true)...)
		return
	}
	s.node.Host.RunInput("flush ruleset\n"+p.Base(true)+p.Rules(true, services), p.Loader(true)...)
}

// fresh is the first of n names' numbers that no client queried.
func (s *stand) fresh(n int) int {
	s.asked += n
	return s.asked
}
