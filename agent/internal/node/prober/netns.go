package prober

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
)

// netns is the netns that the prober queries from, usually its own. The prober's own netns has no name; a descriptor and a thread that
// never leaves it keep it alive. A socket belongs to the netns of the thread that creates it, so sockets are created on that thread; any
// goroutine may then use them. A permanent thread is cheaper than one that enters and leaves the netns for each TCP probe.
type netns struct {
	ns   *os.File
	work chan func()   // functions that the thread is to run
	gone chan struct{} // closed when the thread has ended

	mu     sync.Mutex           // guards the fields below
	spare  map[socketKind][]int // descriptors of sockets that were created in advance
	closed bool
}

// socketKind has the arguments that socket(2) needs. Every other option can be set later on any thread.
type socketKind struct{ family, kind int }

// spareSockets is how many TCP sockets are created at a time. Each TCP probe needs one, and waking the thread costs more than all else in
// a probe.
const spareSockets = 16

func startNetNS(enter func() error) (*netns, error) {
	r := &netns{spare: map[socketKind][]int{}, work: make(chan func()), gone: make(chan struct{})}
	ready := make(chan error)
	go r.run(enter, ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return r, nil
}

// newNetNS moves the calling thread to a new netns.
func newNetNS() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a netns: %w", err)
	}
	return nil
}

// joinNetNS moves the calling thread to the netns of the descriptor fd. It does nothing if fd is 0 or the thread is there already, because
// even entering one's own netns needs CAP_SYS_ADMIN.
func joinNetNS(fd int) error {
	if fd <= 0 || hostnet.IsHere(fd) {
		return nil
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the host's netns: %w", err)
	}
	return nil
}

// run is the thread's loop. It ends while the goroutine is still locked to the thread, so the runtime ends the thread and does not reuse
// it in another netns.
func (r *netns) run(enter func() error, ready chan<- error) {
	runtime.LockOSThread()
	defer close(r.gone)
	err := enter()
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

// do runs f on the thread in the netns. It must not be called after close. f must return soon, because meanwhile no other socket
// can be created.
func (r *netns) do(f func()) {
	done := make(chan struct{})
	r.work <- func() { f(); close(done) }
	<-done
}

// socket returns a non-blocking socket of the netns: a spare one, or else a new one.
func (r *netns) socket(k socketKind) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return -1, errClosed
	}
	if len(r.spare[k]) == 0 {
		n := 1
		if k.kind == unix.SOCK_STREAM {
			n = spareSockets
		}
		var err error
		r.do(func() {
			for range n {
				var fd int
				if fd, err = unix.Socket(k.family, k.kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
					return
				}
				r.spare[k] = append(r.spare[k], fd)
			}
		})
		if len(r.spare[k]) == 0 {
			return -1, fmt.Errorf("open socket: %w", err)
		}
	}
	last := len(r.spare[k]) - 1
	fd := r.spare[k][last]
	r.spare[k] = r.spare[k][:last]
	return fd, nil
}

func (r *netns) fd() int { return int(r.ns.Fd()) }

// close ends the thread and releases the netns. The kernel deletes the netns once the last socket in it is closed too. Call it once.
func (r *netns) close() {
	r.mu.Lock()
	r.closed = true
	for _, fds := range r.spare {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	r.spare = nil
	r.mu.Unlock()
	close(r.work)
	<-r.gone
	r.ns.Close()
}
