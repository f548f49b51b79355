package lifecycle

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/dns/server"
)

// DNS sockets get descriptor numbers above highDescriptor, if the process's limit allows it (see reserveLow).
const highDescriptor = 256

// reserveLow occupies the descriptor numbers up to highDescriptor until release is called, so that the DNS sockets opened meanwhile get
// higher numbers. The kernel closes a killed process's descriptors from the highest number down (task_work_run runs the last added
// first), and needs 10 ms or more for some, such as an inotify (Linux 6.18). With low numbers, a killed agent's DNS sockets would still
// accept queries during that time, and these would be lost. If the descriptor limit is too low, reserveLow occupies fewer.
func reserveLow() (release func()) {
	var held []int
	null, err := os.Open(os.DevNull)
	if err != nil {
		return func() {}
	}
	for n := 0; n < highDescriptor; {
		if n, err = unix.FcntlInt(null.Fd(), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			break
		}
		held = append(held, n)
	}
	return func() {
		_ = null.Close()
		for _, n := range held {
			_ = unix.Close(n)
		}
	}
}

// highServer is a server that opens its sockets with high descriptor numbers (see reserveLow).
type highServer struct{ *server.Server }

func (s highServer) Start(ctx context.Context, cfg server.Config) error {
	defer reserveLow()()
	return s.Server.Start(ctx, cfg)
}

func (s highServer) Restart(ctx context.Context, cfg server.Config) error {
	defer reserveLow()()
	return s.Server.Restart(ctx, cfg)
}
