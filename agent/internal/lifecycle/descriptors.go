package lifecycle

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/internal/dns/server"
)

// highDescriptor is the least number of the DNS sockets' descriptors.
const highDescriptor = 256

// high has whoever opens descriptors until release get high numbers: the DNS sockets. The kernel closes a killed process's
// descriptors from the highest number down (task_work_run takes the last first), and takes 10 ms and more over some, such as
// an inotify (Linux 6.18): behind those, a dead agent's sockets would go on taking questions for that long. Where there are
// not so many descriptors, a kill costs more, and no less is served.
func high() (release func()) {
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

// highServer is a server whose sockets have high descriptors.
type highServer struct{ *server.Server }

func (s highServer) Start(ctx context.Context, cfg server.Config) error {
	defer high()()
	return s.Server.Start(ctx, cfg)
}

func (s highServer) Restart(ctx context.Context, cfg server.Config) error {
	defer high()()
	return s.Server.Restart(ctx, cfg)
}
