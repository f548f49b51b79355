package nodelocal_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/testutil"
)

// socket binds an abstract name in a netns, with the mark of CAP_NET_ADMIN or without.
func socket(t *testing.T, ns *testutil.NetNS, name string, privileged bool) (closes func()) {
	t.Helper()
	fd := -1
	var err error
	ns.Do(func() {
		fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil && privileged {
			err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, math.MaxInt32/2),
				unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, math.MaxInt32/2))
		}
		if err == nil {
			err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: "\x00" + name}), unix.Listen(fd, 1))
		}
	})
	testutil.Must(t, err)
	return func() { _ = unix.Close(fd) }
}

// A process without privilege that takes abstract names before the agent starts keeps it from nothing. Where a privileged one has
// the node, switch and link are there before the agent waits for it, so pods are answered by kube-dns meanwhile.
func TestSquattedNames(t *testing.T) {
	n := cell{testutil.IPv4, testutil.NFTables, ""}.node(t)
	pod := n.pod()
	for _, name := range []string{"neardns-nodecache", "neardns-prober"} {
		defer socket(t, n.Host, name, false)()
		for i := range 20 {
			defer socket(t, n.Host, fmt.Sprintf("%s.1.%d", name, i), false)()
		}
	}
	end := socket(t, n.Host, "neardns-nodecache.1.HOLDER", true)
	agent := n.agent()
	n.awaitLog(agent, 0, "standing by")
	testutil.Eventually(t, func() error { return n.all(pod.NetNS, direct, n.locals()[0]) })
	end()
	n.awaitLeases(agent, n.served()...)
	n.each(pod.NetNS, "beside squatters", cached, n.served()...)
}
