package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/neardns/neardns/integration/bench/generator"
	"github.com/neardns/neardns/integration/bench/procstat"
)

// ask puts load on the server from the pod, by the load generator in a process of its own.
func (s *stand) ask(l generator.Load) *generator.Result {
	r, err := s.prepare(l)()
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	s.fresh += r.Numbered
	s.wrong += r.Wrong // also of those that only warm it up
	if s.firstWrong == "" && r.FirstWrong != "" {
		s.firstWrong = l.Workload + ", " + r.FirstWrong
	}
	return r
}

// prepare is ask for another goroutine, which calls what it returns.
func (s *stand) prepare(l generator.Load) func() (*generator.Result, error) {
	l.Server, l.Unique, l.Watch = netip.AddrPortFrom(clusterDNS, 53), 1+s.fresh, s.watch(s)
	in, err := json.Marshal(l)
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	self, err := os.Executable()
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	return func() (*generator.Result, error) {
		out, err := s.pod.TryRun(string(in), self, generator.Verb)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		r := &generator.Result{}
		if err := json.Unmarshal([]byte(out), r); err != nil {
			return nil, fmt.Errorf("%s: load: %w in %q", s.name, err, out)
		}
		// A wrong answer of neardns's ends the run. Another server's is reported: it is one that its clients have to throw away.
		if r.Wrong > 0 && isOurs(s.name) {
			return nil, fmt.Errorf("%s, %s: %d of %d answers are wrong: %s\n%s", s.name, l.Workload, r.Wrong, r.Asked, r.FirstWrong, s.server.Output())
		}
		return r, nil
	}
}

// tries is how often a run is made of which most queries had no answer.
const tries = 3

// outcome is what came of a run, and what of it the server's node did.
type outcome struct {
	*generator.Result
	misses int64 // queries that came to the upstream
	kernel int64 // that the kernel answered
}

// measured is ask for what is measured. Queries without an answer have a figure of their own; where they are the most, as on a
// machine that stands still for a second, the others' figures would be of something else, and the run is made again.
func (s *stand) measured(l generator.Load) outcome {
	var r *generator.Result
	for range tries {
		misses, kernel := s.misses.Load(), s.kernelHits()
		r = s.ask(l)
		s.answered, s.lost = s.answered+r.Answered, s.lost+r.Lost+r.Failed
		if r.Answered*2 >= r.Asked {
			return outcome{r, s.misses.Load() - misses, s.kernelHits() - kernel}
		}
		s.again++
	}
	s.t.Fatalf("%s, %s: of %d questions %d are lost, %d failed, %d wrong, and no better twice before: %s\n%s",
		s.name, l.Workload, r.Asked, r.Lost, r.Failed, r.Wrong, r.FirstWrong, s.server.Output())
	return outcome{}
}

func (s *stand) cpu() time.Duration {
	d, err := procstat.CPU(s.server.PID())
	if err != nil {
		s.t.Fatalf("%s: %v", s.name, err)
	}
	return d
}
