package prober

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// room is the prober's netns: nameless, held by a descriptor and by one thread that never leaves it. A socket belongs to
// the netns of the thread that makes it, so sockets are made on that thread; afterwards they serve any goroutine. A thread
// that stays is cheaper than one that enters and leaves for each TCP probe.
type room struct {
	ns   *os.File
	work chan func()
	gone chan struct{} // closed when the thread has ended
	once sync.Once
}

func newRoom() (*room, error) {
	r := &room{work: make(chan func()), gone: make(chan struct{})}
	ready := make(chan error)
	go r.run(ready)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("make a netns: %w", err)
	}
	return r, nil
}

// run is the thread's life. The goroutine ends locked, so that the runtime ends the thread instead of using it again.
func (r *room) run(ready chan<- error) {
	runtime.LockOSThread()
	defer close(r.gone)
	err := unix.Unshare(unix.CLONE_NEWNET)
	if err == nil {
		r.ns, err = os.Open("/proc/thread-self/ns/net")
	}
	ready <- err
	if err != nil {
		return
	}
	for f := range r.work {
		f()
	}
}

// do runs f on the room's thread. It must not be called after close, nor for what may take long.
func (r *room) do(f func()) {
	done := make(chan struct{})
	select {
	case r.work <- func() { f(); close(done) }:
		<-done
	case <-r.gone:
	}
}

func (r *room) fd() int { return int(r.ns.Fd()) }

// close lets the netns go. It vanishes once the last socket in it is closed, too.
func (r *room) close() {
	r.once.Do(func() {
		close(r.work)
		<-r.gone
		r.ns.Close()
	})
}
