package pods

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
)

// askMost is how many pods are asked from at a time: one may have a policy of its own, or be about to end.
const askMost = 3

// Ask asks clusterDNS over UDP for name's address from the netns, and so from the address and by the route, of pods that are
// steered. It returns nil once one of them is answered; false, where there is none that can be entered. The question takes the way of
// every other one of that pod's, so a lease would bring it to the agent.
func (p *Pods) Ask(ctx context.Context, clusterDNS netip.Addr, name string) (asked bool, err error) {
	conns := p.conns(clusterDNS)
	if len(conns) == 0 {
		return false, nil
	}
	answers := make(chan error, len(conns))
	for _, c := range conns {
		go func() { answers <- askOver(ctx, c, name) }() // ends with its answer or ctx
	}
	var errs []error
	for range conns {
		if err := <-answers; err != nil {
			errs = append(errs, err)
		} else {
			asked = true
		}
	}
	if asked {
		return true, nil
	}
	return true, errors.Join(errs...)
}

// conns opens sockets in steered pods, the newest first.
func (p *Pods) conns(clusterDNS netip.Addr) []net.Conn {
	files, _ := p.read() // what cannot be read is said by Tend
	slices.Reverse(files)
	var out []net.Conn
	for _, f := range files {
		if len(out) == askMost {
			break
		}
		if !slices.ContainsFunc(f.In(podfile.Steered), func(r steer.Redirect) bool { return r.ClusterDNS == clusterDNS }) {
			continue
		}
		ns, err := enter(f)
		if err != nil {
			continue
		}
		if conn, err := dialIn(ns, netip.AddrPortFrom(clusterDNS, 53)); err == nil {
			out = append(out, conn)
		}
		ns.Close()
	}
	return out
}

// dialIn connects a datagram socket in a netns. It never waits.
func dialIn(ns *os.File, to netip.AddrPort) (conn net.Conn, err error) {
	done := make(chan struct{})
	go func() { // of its own: the thread ends with it where it cannot come back
		defer close(done)
		runtime.LockOSThread()
		home, openErr := os.Open("/proc/thread-self/ns/net")
		if openErr != nil {
			err = openErr
			return
		}
		defer home.Close()
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return
		}
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	<-done
	return conn, err
}

// askOver asks through the standard library's resolver over one socket, which it closes. That a name is not there is an answer.
func askOver(ctx context.Context, conn net.Conn, name string) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	first := true
	r := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		if !first {
			return nil, errors.New("asked already")
		}
		first = false
		if udp, ok := conn.(*net.UDPConn); ok {
			return pastKernel{udp}, nil
		}
		return conn, nil
	}}
	family := "ip4"
	if to, ok := conn.RemoteAddr().(*net.UDPAddr); ok && to.IP.To4() == nil {
		family = "ip6"
	}
	_, err := r.LookupNetIP(ctx, family, name)
	var dnsErr *net.DNSError
	if err == nil || errors.As(err, &dnsErr) && dnsErr.IsNotFound {
		return nil
	}
	return fmt.Errorf("asked from a pod: %w", err)
}

// pastKernel asks with CD (RFC 4035, section 3.2.2), which the program at a pod's link leaves to others, and servers that do not validate
// pass over: the answer is to say what becomes of a question that leaves the pod.
type pastKernel struct{ *net.UDPConn }

func (c pastKernel) Write(b []byte) (int, error) {
	const header, cd = 12, 1 << 4 // of the fourth byte
	if len(b) < header {
		return c.UDPConn.Write(b)
	}
	b = slices.Clone(b)
	b[3] |= cd
	return c.UDPConn.Write(b)
}
