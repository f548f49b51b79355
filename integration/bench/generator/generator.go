// Package generator sends a DNS server the queries of a workload over UDP and checks every answer. It has none of dnsperf's caps:
// one thread, connected sockets, and many messages a system call (sendmmsg, recvmmsg), so that it costs less than what it measures.
//
// It sends queries in one of two ways. At full speed it keeps a window of queries in flight on each socket. At a fixed rate it is an open
// loop: query i is due i/rate after the start, whatever the answers do, and its time counts from then. A server that stalls is
// so charged for all queries of that while (no coordinated omission). Lag reports how late the generator itself was.
//
// It sends to private, link-local and loopback addresses only, and within the bounds of check.
//
// Failure policy: what comes back is counted, whatever it is; only a system call that fails, or a run of over two minutes, is an error.
package generator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/neardns/neardns/integration/bench/procstat"
	"github.com/neardns/neardns/integration/bench/workload"
)

// Verb is the argument by which a program becomes the generator.
const Verb = "load"

// Load is the generator's task.
type Load struct {
	Server   netip.AddrPort
	Workload string // of package workload; "memory" for Names names
	Seed     uint64
	Small    bool
	Names    int
	Unique   int // the number of the first name that was never queried
	// Each sends every query of the workload once, in place of its order: to warm a cache up.
	Each     bool
	Pods     []string      // network namespaces to send queries from, one after the other for each socket; none: the generator's own
	Sockets  int           // 0: the workload's own
	Window   int           // queries in flight on each socket, at full speed
	Rate     int           // queries per second in all; 0: full speed
	Duration time.Duration // or
	Count    int           // how many queries
	Patience time.Duration // after it a query is lost; 0: 1 s
	CPU      int           // to run on, from 1 on; 0: any. CPU 1 is the kernel's CPU 0
	Watch    []int         // processes whose CPU time is taken between the first query and the last answer
}

// Result is what came of it. Every query sent is Answered, Failed, Wrong or Lost.
type Result struct {
	Asked, Answered int
	Failed          int    // SERVFAIL or REFUSED
	Wrong           int    // another answer than the workload's, or to another query
	Lost            int    // no answer within the patience
	Late            int    // answers after it; their queries are Lost
	Unasked         int    // answers that no client waits for: doubled, or with a foreign id
	FirstWrong      string // what was wrong with the first
	Numbered        int    // queries with names that were never queried
	Took, CPU       time.Duration
	Ran             []time.Duration  // how long each process of Watch ran; none of a process that ended
	Machine         procstat.Machine // what all CPUs did
	Times           Histogram        // of answers, right or not: from when the query was due, at full speed from sending it
	Lag             Histogram        // from when a query was due until it was sent
}

// Add sums up what two runs found.
func (r *Result) Add(o *Result) {
	r.Asked, r.Answered, r.Failed, r.Wrong = r.Asked+o.Asked, r.Answered+o.Answered, r.Failed+o.Failed, r.Wrong+o.Wrong
	r.Lost, r.Late, r.Unasked, r.Numbered = r.Lost+o.Lost, r.Late+o.Late, r.Unasked+o.Unasked, r.Numbered+o.Numbered
	r.Took, r.CPU = r.Took+o.Took, r.CPU+o.CPU
	r.Machine.CPUs, r.Machine.Idle, r.Machine.Steal = o.Machine.CPUs, r.Machine.Idle+o.Machine.Idle, r.Machine.Steal+o.Machine.Steal
	for i := range o.Ran {
		if i == len(r.Ran) {
			r.Ran = append(r.Ran, 0)
		}
		r.Ran[i] += o.Ran[i]
	}
	if r.FirstWrong == "" {
		r.FirstWrong = o.FirstWrong
	}
	r.Times.Merge(&o.Times)
	r.Lag.Merge(&o.Lag)
}

// The generator refuses more than this, so that a slip in a number cannot make it a flood.
const (
	maxDuration = time.Minute
	maxRate     = 50_000
	maxSockets  = 256
	maxWindow   = 256
	maxCount    = 1_000_000
	defPatience = time.Second
)

func (l Load) check() error {
	sockets := max(l.Sockets, 1)
	switch {
	case l.Duration < 0 || l.Duration > maxDuration:
		return fmt.Errorf("load: %v is not a duration up to %v", l.Duration, maxDuration)
	case l.Rate < 0 || l.Rate > maxRate:
		return fmt.Errorf("load: %d questions a second are not 0 to %d", l.Rate, maxRate)
	case l.Count < 0 || l.Count > maxCount:
		return fmt.Errorf("load: %d questions are not 0 to %d", l.Count, maxCount)
	case l.Sockets < 0 || l.Sockets > maxSockets:
		return fmt.Errorf("load: %d sockets are not 1 to %d", l.Sockets, maxSockets)
	case l.Rate == 0 && (l.Window < 1 || l.Window > maxWindow):
		return fmt.Errorf("load: %d questions in flight are not 1 to %d", l.Window, maxWindow)
	case !l.Server.IsValid() || !(l.Server.Addr().IsPrivate() || l.Server.Addr().IsLinkLocalUnicast() || l.Server.Addr().IsLoopback()):
		return fmt.Errorf("load: %s is not an address of a bench's own namespaces", l.Server)
	case l.Duration == 0 && l.Count == 0 && !l.Each:
		return errors.New("load: neither duration nor count")
	case l.Patience < 0 || l.Patience > 10*time.Second:
		return fmt.Errorf("load: a patience of %v is not 0 to 10 s", l.Patience)
	case l.Rate > 0 && float64(l.Rate)*l.patience().Seconds() > float64(sockets*slots/2):
		return fmt.Errorf("load: %d questions a second with a patience of %v need more than %d sockets", l.Rate, l.patience(), sockets)
	}
	return nil
}

func (l Load) patience() time.Duration {
	if l.Patience == 0 {
		return defPatience
	}
	return l.Patience
}

// Main is the generator's whole process: a Load on standard input, its Result on standard output.
func Main(in io.Reader, out io.Writer) error {
	var l Load
	if err := json.NewDecoder(in).Decode(&l); err != nil {
		return fmt.Errorf("read the load: %w", err)
	}
	r, err := l.Run()
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(r)
}

// Run sends the queries. It holds one thread to itself, and returns when each query is answered or lost.
func (l Load) Run() (*Result, error) {
	w := workload.Memory(l.Names)
	if l.Workload != w.Name {
		var err error
		if w, err = workload.New(l.Workload, l.Seed, l.Small); err != nil {
			return nil, err
		}
	}
	if l.Sockets == 0 {
		l.Sockets = w.Sockets
	}
	if l.Each {
		l.Count = len(w.Questions)
		w.Order = nil
		for i := range w.Questions {
			w.Order = append(w.Order, int32(i))
		}
	}
	if err := l.check(); err != nil {
		return nil, err
	}
	return newGenerator(l, w).run()
}
