package main

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/neardns/neardns/integration/bench/procstat"
	"github.com/neardns/neardns/pkg/testutil"
)

// quietShare is how much of all CPUs others may use where a run counts as undisturbed.
const quietShare = 0.04

// quiet waits until the machine has nothing else to do, as long as the run has patience for that.
func (b *bench) quiet(stands []*stand) {
	look := b.long(time.Second, 200*time.Millisecond)
	for b.Noise.Waited < b.patience {
		begun := time.Now()
		if b.others(stands, look) < quietShare {
			return // the time of such a look is no wait: there is one for each figure
		}
		b.Noise.Waited += time.Since(begun)
	}
	b.Noise.Unquiet++
}

// others is the share of all CPUs that others than the servers use, while no client queries.
func (b *bench) others(stands []*stand, d time.Duration) float64 {
	ran := func() (own time.Duration) {
		for _, s := range stands {
			own += s.cpu()
		}
		d, err := procstat.CPU(os.Getpid())
		b.must(err)
		return own + d
	}
	before, err := procstat.Now()
	b.must(err)
	own, begun := ran(), time.Now()
	b.rest(d)
	after, err := procstat.Now()
	b.must(err)
	m, all := after.Sub(before), time.Since(begun)*time.Duration(runtime.NumCPU())
	return max(0, float64(all-m.Idle-(ran()-own))/float64(all))
}

// rest waits until so much time has gone by, in which no client queries anything.
func (b *bench) rest(d time.Duration) {
	until := time.Now().Add(d)
	testutil.Within(b.t, d+time.Minute, func() error {
		if time.Now().Before(until) {
			return fmt.Errorf("still resting")
		}
		return nil
	})
}

// idle is what the servers run while no client queries, in percent of one CPU.
func (b *bench) idle(stands []*stand) {
	before := map[*stand]time.Duration{}
	for _, s := range stands {
		before[s] = s.cpu()
	}
	begun := time.Now()
	b.rest(b.long(2*time.Second, 500*time.Millisecond))
	for _, s := range stands {
		b.add(cellKey{idleLoad, "idle", "cpu"}, s.name, 100*float64(s.cpu()-before[s])/float64(time.Since(begun)))
	}
}

// watched are the processes whose CPU time a run takes: the server, what else of the node works for its queries (the upstream,
// which is this process, and the kernel's threads; b.node of them in all), and the other servers, which are no noise.
func (b *bench) watched(s *stand) []int {
	pids := append([]int{s.server.PID(), os.Getpid()}, b.softIRQ...)
	b.node = len(pids)
	for _, o := range b.stands {
		if o != s {
			pids = append(pids, o.server.PID())
		}
	}
	return pids
}

func sum(all []time.Duration) (d time.Duration) {
	for _, one := range all {
		d += one
	}
	return d
}
