package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// load is what the load generator is told. It asks A questions over UDP for names under Zone: Names of them in turn, or
// with Unique each name once.
type load struct {
	Server   netip.AddrPort
	Zone     string // such as "hit.svc.cluster.local"
	Names    int
	Unique   int // number of the first name that was never asked; 0: the same names again and again
	Sockets  int
	Window   int           // questions in flight per socket, at full speed
	Rate     int           // questions a second in all; 0: as fast as answers come
	Duration time.Duration // or
	Count    int           // how many questions
}

// result is what came of it.
type result struct {
	Answered, Lost, Wrong int
	Took, CPU             time.Duration
	P50, P99              time.Duration // from when a question was due
}

// add sums up; the times become sums as well.
func (a *result) add(b result) {
	a.Answered, a.Lost, a.Wrong = a.Answered+b.Answered, a.Lost+b.Lost, a.Wrong+b.Wrong
	a.Took, a.CPU, a.P50, a.P99 = a.Took+b.Took, a.CPU+b.CPU, a.P50+b.P50, a.P99+b.P99
}

// The generator refuses more than this, so that a slip in a number cannot make it a flood.
const (
	maxDuration = time.Minute
	maxRate     = 100_000
	maxSockets  = 64
)

func (l load) check() error {
	switch {
	case l.Duration < 0 || l.Duration > maxDuration:
		return fmt.Errorf("load: %v is not a duration up to %v", l.Duration, maxDuration)
	case l.Rate < 0 || l.Rate > maxRate:
		return fmt.Errorf("load: %d questions a second are not 0 to %d", l.Rate, maxRate)
	case l.Sockets < 1 || l.Sockets > maxSockets || l.Window < 0 || l.Window > 256:
		return errors.New("load: too many or too few sockets, or questions in flight")
	case !l.Server.IsValid() || !(l.Server.Addr().IsPrivate() || l.Server.Addr().IsLinkLocalUnicast() || l.Server.Addr().IsLoopback()):
		return fmt.Errorf("load: %s is not an address of a bench's own namespaces", l.Server)
	case l.Duration == 0 && l.Count == 0:
		return errors.New("load: neither duration nor count")
	}
	return nil
}

// generate is the load generator's whole process: load on standard input, result on standard output.
func generate(in io.Reader, out io.Writer) error {
	var l load
	if err := json.NewDecoder(in).Decode(&l); err != nil {
		return fmt.Errorf("read the load: %w", err)
	}
	if err := l.check(); err != nil {
		return err
	}
	r, err := l.run()
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(r)
}

func (l load) run() (result, error) {
	var (
		mu    sync.Mutex // guards the three below
		total result
		times []time.Duration
		errs  []error
		wg    sync.WaitGroup
	)
	begun, before := time.Now(), ownCPU()
	for i := range l.Sockets {
		wg.Go(func() {
			a := asker{load: l, index: i, begun: begun}
			err := a.run()
			mu.Lock()
			defer mu.Unlock()
			total.add(a.result)
			times = append(times, a.times...)
			errs = append(errs, err)
		})
	}
	wg.Wait()
	total.Took, total.CPU = time.Since(begun), ownCPU()-before
	if n := len(times); n > 0 {
		slices.Sort(times)
		total.P50, total.P99 = times[n/2], times[n*99/100]
	}
	return total, errors.Join(errs...)
}

func ownCPU() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
