package generator

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/integration/bench/procstat"
	"github.com/neardns/neardns/integration/bench/workload"
)

// generator is one run.
type generator struct {
	Load
	w       *workload.Workload
	sockets []*socket
	fds     []unix.PollFd
	out, in *messages
	pending int // messages in out
	begun   time.Time
	result  Result
	expired time.Duration // when queries were last looked through
}

func newGenerator(l Load, w *workload.Workload) *generator {
	return &generator{Load: l, w: w, out: newMessages(), in: newMessages()}
}

func (a *generator) run() (*Result, error) {
	runtime.LockOSThread() // never unlocked: the thread's affinity and timer slack are its own, and it ends with the goroutine's process
	if err := a.settle(); err != nil {
		return nil, err
	}
	for i := range a.Sockets {
		if err := a.enter(i); err != nil {
			return nil, err
		}
		s, err := dial(a.Server)
		if err != nil {
			return nil, err
		}
		defer func() { _ = unix.Close(s.fd) }()
		a.sockets = append(a.sockets, s)
		a.fds = append(a.fds, unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN})
	}
	before, err := a.look()
	if err != nil {
		return nil, err
	}
	own, err := ownCPU()
	if err != nil {
		return nil, err
	}
	a.begun = time.Now()
	if a.Rate == 0 {
		err = a.fullSpeed()
	} else {
		err = a.paced()
	}
	if err != nil {
		return nil, err
	}
	a.result.Took = time.Since(a.begun)
	ownAfter, err := ownCPU()
	if err != nil {
		return nil, err
	}
	after, err := a.look()
	if err != nil {
		return nil, err
	}
	a.result.CPU, a.result.Machine = ownAfter-own, after.machine.Sub(before.machine)
	for i := range a.Watch {
		a.result.Ran = append(a.result.Ran, max(0, after.watched[i]-before.watched[i]))
	}
	return &a.result, nil
}

// enter brings the thread to the pod of the ith socket.
func (a *generator) enter(i int) error {
	if len(a.Pods) == 0 {
		return nil
	}
	path := a.Pods[i%len(a.Pods)]
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("load: enter %s: %w", path, err)
	}
	return nil
}

// used is what others have run until now.
type used struct {
	watched []time.Duration
	machine procstat.Machine
}

func (a *generator) look() (u used, err error) {
	for _, pid := range a.Watch {
		d, err := procstat.CPU(pid)
		if err != nil {
			d = 0 // it ended: what it ran is unknown
		}
		u.watched = append(u.watched, d)
	}
	if len(a.Watch) > 0 {
		u.machine, err = procstat.Now()
	}
	return u, err
}

// settle has the thread run on its CPU and wake up when it wants to, not up to 50 µs later (timer slack, prctl(2)).
func (a *generator) settle() error {
	debug.SetGCPercent(-1) // a run allocates next to nothing
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("load: set the timer slack: %w", err)
	}
	if a.CPU == 0 {
		return nil
	}
	var set unix.CPUSet
	set.Set(a.CPU - 1)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("load: run on CPU %d: %w", a.CPU-1, err)
	}
	return nil
}

// ownCPU is how long this process's threads have run, by the scheduler's own sum.
func ownCPU() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		return 0, fmt.Errorf("load: read the CPU time: %w", err)
	}
	return time.Duration(t.Nano()), nil
}

func (a *generator) since() time.Duration { return time.Since(a.begun) }

// finished reports whether nothing more is to be queried.
func (a *generator) finished(now time.Duration) bool {
	if a.Count > 0 && a.result.Asked >= a.Count {
		return true
	}
	return a.Duration > 0 && now >= a.Duration
}

// fullSpeed keeps a window of queries in flight on each socket.
func (a *generator) fullSpeed() error {
	for {
		now := a.since()
		inFlight := 0
		for _, s := range a.sockets {
			for s.flying < a.Window && !a.finished(now) {
				if err := a.ask(s, now, now); err != nil {
					return err
				}
			}
			if err := a.flush(s); err != nil {
				return err
			}
			inFlight += s.flying
		}
		if inFlight == 0 {
			return nil
		}
		if err := a.take(a.patience() / 8); err != nil {
			return err
		}
	}
}

// paced sends queries at the rate, whatever the answers do.
func (a *generator) paced() error {
	total := a.Count
	if total == 0 {
		total = int(a.Duration.Seconds() * float64(a.Rate))
	}
	due := func(i int) time.Duration { return time.Duration(int64(i) * int64(time.Second) / int64(a.Rate)) }
	for {
		now := a.since()
		// All that is due, socket by socket, so that what has piled up goes in few calls.
		ready := a.result.Asked
		for ready < total && due(ready) <= now {
			ready++
		}
		first := a.result.Asked
		for k := range min(len(a.sockets), ready-first) {
			s := a.sockets[(first+k)%len(a.sockets)]
			for i := first + k; i < ready; i += len(a.sockets) {
				if err := a.ask(s, due(i), now); err != nil {
					return err
				}
			}
			if err := a.flush(s); err != nil {
				return err
			}
		}
		wait := a.patience() / 8
		if a.result.Asked < total {
			wait = due(a.result.Asked) - a.since()
		} else if a.inFlight() == 0 {
			return nil
		}
		if err := a.take(wait); err != nil {
			return err
		}
	}
}

func (a *generator) inFlight() int {
	n := 0
	for _, s := range a.sockets {
		n += s.flying
	}
	return n
}

// ask writes the next query into the batch of a socket.
func (a *generator) ask(s *socket, due, now time.Duration) error {
	if a.pending == batch {
		if err := a.flush(s); err != nil {
			return err
		}
	}
	i := a.w.Order[a.result.Asked%len(a.w.Order)]
	q := &a.w.Questions[i]
	id := s.next
	s.next++
	a.lose(s, id-slots) // what had the slot before
	slot := s.at(id)
	*slot = inFlightSince(due, i, a.result.Numbered)
	s.flying++
	b := a.out.buffers[a.pending][:]
	binary.BigEndian.PutUint16(b, id)
	n := 2 + copy(b[2:], q.Wire)
	if q.Digits > 0 {
		q.Number(b[2:n], a.Unique+a.result.Numbered)
		a.result.Numbered++
	}
	a.out.vectors[a.pending].SetLen(n)
	a.pending++
	a.result.Asked++
	a.result.Lag.Note(now - due)
	return nil
}

func inFlightSince(due time.Duration, question int32, number int) slot {
	return slot{due: due, question: question, number: int32(number), state: flying}
}

func (a *generator) flush(s *socket) error {
	n := a.pending
	a.pending = 0
	return a.out.send(s, n)
}

// longest is how long one run may take, whatever its load and whatever comes back.
const longest = 2 * maxDuration

// take waits so long for answers and takes in what is there.
func (a *generator) take(wait time.Duration) error {
	if a.since() > longest {
		return fmt.Errorf("load: not over after %v: %d asked, %d answered, %d lost", longest, a.result.Asked, a.result.Answered, a.result.Lost)
	}
	if _, err := poll(a.fds, wait); err != nil {
		return err
	}
	for i := range a.fds {
		if a.fds[i].Revents == 0 {
			continue
		}
		a.fds[i].Revents = 0
		n, err := a.in.receive(a.sockets[i])
		if err != nil {
			return err
		}
		now := a.since()
		for k := range n {
			a.note(a.sockets[i], a.in.received(k), now)
		}
	}
	now := a.since()
	if now-a.expired < a.patience()/64 {
		return nil
	}
	a.expired = now
	for _, s := range a.sockets {
		for s.oldest != s.next {
			slot := s.at(s.oldest)
			if slot.state == flying && now-slot.due <= a.patience() {
				break
			}
			a.lose(s, s.oldest)
			s.oldest++
		}
	}
	return nil
}

// lose gives a query up, if it is in flight.
func (a *generator) lose(s *socket, id uint16) {
	slot := s.at(id)
	if slot.state != flying {
		return
	}
	slot.state = lost
	s.flying--
	a.result.Lost++
}

// note takes an answer in.
func (a *generator) note(s *socket, answer []byte, now time.Duration) {
	if len(answer) < 12 {
		a.result.Unasked++
		return
	}
	id := binary.BigEndian.Uint16(answer)
	slot := s.at(id)
	if age := s.next - 1 - id; slot.state == over || age >= slots {
		a.result.Unasked++
		return
	}
	took := now - slot.due
	if slot.state == flying && took > a.patience() {
		a.lose(s, id)
	}
	if slot.state == lost {
		slot.state = over
		a.result.Late++
		return
	}
	slot.state = over
	s.flying--
	a.result.Times.Note(took)
	q := &a.w.Questions[slot.question]
	if rcode := answer[3] & 0x0f; rcode == servFail || rcode == refused {
		a.result.Failed++
		return
	}
	if wrong := check(answer, q, a.Unique+int(slot.number)); wrong != "" {
		a.result.Wrong++
		if a.result.FirstWrong == "" {
			a.result.FirstWrong = fmt.Sprintf("%s, type %d: %s", q.Name, q.Type, wrong)
		}
		return
	}
	a.result.Answered++
}
