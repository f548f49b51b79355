package lifecycle

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/dns/server"
)

// highDescriptor is the lowest descriptor number of the DNS sockets.
const highDescriptor = 256

// reserveLow occupies the low descriptor numbers until release, so that the DNS sockets get high ones. The kernel closes a killed process's
// descriptors from the highest number down (task_work_run takes the last first), and needs 10 ms and more for some, such as an inotify
// (Linux 6.18). A dead agent's sockets would accept queries until those are closed. If the process may not open so many descriptors, only a
// kill costs more.
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

// highServer is a server whose sockets have high descriptor numbers.
type highServer struct{ *server.Server }

func (s highServer) Start(ctx context.Context, cfg server.Config) error {
	defer reserveLow()()
	return s.Server.Start(ctx, cfg)
}

func (s highServer) Restart(ctx context.Context, cfg server.Config) error {
	defer reserveLow()()
	return s.Server.Restart(ctx, cfg)
}
