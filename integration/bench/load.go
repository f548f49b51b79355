package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
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

// asker asks on one connected socket, with plain blocking calls on a thread of its own: the runtime's poller would cost the
// client more than the kernel does.
type asker struct {
	load
	index  int
	begun  time.Time
	fd     int
	sent   int
	wire   []byte
	result result
	due    [1 << 16]time.Time // by question id; zero: not in flight
	times  []time.Duration
}

// patience is how long a question may stay without an answer before it counts as lost.
const patience = time.Second

func (a *asker) run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(a.Server))
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	defer conn.Close()
	file, err := conn.File() // a descriptor that blocks
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	defer file.Close()
	a.fd = int(file.Fd())
	if err := unix.SetNonblock(a.fd, false); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	timeout := unix.NsecToTimeval(int64(patience))
	if err := unix.SetsockoptTimeval(a.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if a.Rate == 0 {
		return a.fullSpeed()
	}
	if a.Count == 0 { // all that is due is asked, also by a client that the machine held up
		a.Count = int(a.Duration.Seconds() * float64(a.Rate))
	}
	return a.paced()
}

func (a *asker) over() bool {
	if a.Count > 0 {
		return a.sent >= a.Count/a.Sockets
	}
	return time.Since(a.begun) >= a.Duration
}

// fullSpeed keeps a window of questions in flight.
func (a *asker) fullSpeed() error {
	flying := 0
	for {
		for flying < a.Window && !a.over() {
			if err := a.ask(time.Now()); err != nil {
				return err
			}
			flying++
		}
		if flying == 0 {
			return nil
		}
		ok, err := a.take()
		if err != nil {
			return err
		}
		if !ok { // nothing for a second: all that is in flight is lost
			a.result.Lost += flying
			flying = 0
			clear(a.due[:])
			continue
		}
		flying--
	}
}

// paced asks at a fixed rate whatever the answers do; times count from when a question was due, so that a server that
// stalls is not spared the questions of that while.
func (a *asker) paced() error {
	var wg sync.WaitGroup
	var mu sync.Mutex // guards due, sent and result against the reader
	var readErr error
	done := make(chan struct{})
	wg.Go(func() {
		runtime.LockOSThread()
		var buf [1500]byte
		for {
			n, err := unix.Read(a.fd, buf[:])
			mu.Lock()
			switch {
			case err == nil:
				a.note(buf[:n])
			case !retry(err):
				readErr = err
			}
			finished := readErr != nil || a.result.Answered+a.result.Wrong >= a.sent || retry(err)
			mu.Unlock()
			select {
			case <-done:
				if finished {
					return
				}
			default:
				if readErr != nil {
					return
				}
			}
		}
	})
	gap := time.Duration(int(time.Second) * a.Sockets / a.Rate)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var err error
	for next := a.begun.Add(gap * time.Duration(a.index) / time.Duration(a.Sockets)); !a.over() && err == nil; next = next.Add(gap) {
		if wait := time.Until(next); wait > 0 {
			timer.Reset(wait)
			<-timer.C
		}
		mu.Lock()
		err = a.ask(next)
		mu.Unlock()
	}
	close(done)
	wg.Wait()
	a.result.Lost = a.sent - a.result.Answered - a.result.Wrong
	return errors.Join(err, readErr)
}

func retry(err error) bool { return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR) }

func (a *asker) ask(due time.Time) error {
	n := a.sent % max(a.Names, 1)
	if a.Unique > 0 {
		n = a.Unique + a.sent*a.Sockets + a.index
	}
	id := uint16(a.sent)
	a.wire = question(a.wire[:0], id, n, a.Zone)
	a.due[id] = due
	a.sent++
	_, err := unix.Write(a.fd, a.wire)
	if err != nil {
		return fmt.Errorf("load: send: %w", err)
	}
	return nil
}

// take reads one answer; false when none came for a second.
func (a *asker) take() (bool, error) {
	var buf [1500]byte
	for {
		n, err := unix.Read(a.fd, buf[:])
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("load: receive: %w", err)
		}
		if a.note(buf[:n]) {
			return true, nil
		}
	}
}

// note takes an answer in; false for one that nobody waits for.
func (a *asker) note(answer []byte) bool {
	if len(answer) < 12 {
		return false
	}
	id := binary.BigEndian.Uint16(answer)
	if a.due[id].IsZero() {
		return false
	}
	a.times = append(a.times, time.Since(a.due[id]))
	a.due[id] = time.Time{}
	// An answer, its code NOERROR, with at least one record.
	if answer[2]&0x80 == 0 || answer[3]&0x0f != 0 || binary.BigEndian.Uint16(answer[6:]) == 0 {
		a.result.Wrong++
		return true
	}
	a.result.Answered++
	return true
}

// question writes an A question for n<number>.<zone>.
func question(b []byte, id uint16, n int, zone string) []byte {
	b = binary.BigEndian.AppendUint16(b, id)
	b = append(b, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0) // recursion desired; one question
	label := fmt.Appendf(make([]byte, 0, 16), "n%07d", n)
	b = append(append(b, byte(len(label))), label...)
	for part := range strings.SplitSeq(zone, ".") {
		b = append(append(b, byte(len(part))), part...)
	}
	return append(b, 0, 0, 1, 0, 1)
}
