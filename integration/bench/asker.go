package main

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

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
