package prober

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// sockets creates sockets in the netns that the prober queries from. A socket belongs to the netns of the thread that creates it; any
// goroutine may then use it.
type sockets struct {
	do func(func() error) error // runs a function in that netns

	mu     sync.Mutex           // guards the fields below
	spare  map[socketKind][]int // descriptors of sockets that were created in advance
	closed bool
}

// socketKind has the arguments that socket(2) needs. Every other option can be set later on any thread.
type socketKind struct{ family, kind int }

// spareSockets is how many TCP sockets are created at a time. Each TCP probe needs one, and entering the netns for each would cost CPU
// time.
const spareSockets = 16

// newNetNS makes a netns without a name. The kernel removes it once the returned file and the sockets in it are closed.
func newNetNS() (ns *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // without an unlock, so that the runtime ends the thread and does not reuse it in another netns
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("make a netns: %w", err)
			return
		}
		ns, err = os.Open("/proc/thread-self/ns/net")
	}()
	<-done
	return ns, err
}

// get returns a non-blocking socket of the netns: a spare one, or else a new one.
func (s *sockets) get(k socketKind) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return -1, errClosed
	}
	if len(s.spare[k]) == 0 {
		n := 1
		if k.kind == unix.SOCK_STREAM {
			n = spareSockets
		}
		err := s.do(func() error {
			for range n {
				fd, err := unix.Socket(k.family, k.kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				s.spare[k] = append(s.spare[k], fd)
			}
			return nil
		})
		if len(s.spare[k]) == 0 {
			return -1, fmt.Errorf("open socket: %w", err)
		}
	}
	last := len(s.spare[k]) - 1
	fd := s.spare[k][last]
	s.spare[k] = s.spare[k][:last]
	return fd, nil
}

// close closes the spare sockets. No socket can be created afterwards.
func (s *sockets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, fds := range s.spare {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	s.spare = nil
}
