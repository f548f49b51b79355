// Package backends finds the servers behind a Service if the cluster's datapath translates addresses at sockets (Cilium's socket load
// balancer), so that no packet carries the Service's address. It connects UDP sockets to the Service, as any process does, and reads
// their remote addresses from /proc.
//
// It sends no packet. It returns only servers that one of its sockets was connected to within the last 5 s, because an address may soon
// belong to another pod.
//
// On failure: if sockets cannot be read, no new server is found, and the known ones expire.
package backends

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/tick"
)

// poll is the interval at which the servers are looked up.
const poll = time.Second

const (
	// hold is how long a server stays known after a socket was last connected to it. It spans several rounds of Run, because the datapath
	// chooses the server of each socket at random, and one round may miss some.
	hold = 5 * time.Second
	// How many sockets a round connects to one Service: several for each known server, so that the rounds within hold rarely miss a server.
	socketsPerServer = 4
	minSockets       = 8
	maxSockets       = 128
)

// Follower looks up the servers behind Services every second. One goroutine calls Run; any goroutine may call Known.
type Follower struct {
	Log      *slog.Logger
	Services func() []netip.AddrPort
	Max      int // how many Services and servers there may be together

	seen map[netip.AddrPort]time.Time // when a socket was last connected to each server; only Run uses it

	mu      sync.Mutex // guards the fields below
	known   []netip.AddrPort
	unknown string
}

// Run keeps the servers up to date until ctx ends. Call it in the host's netns, from a process whose sockets the datapath translates as it
// does a pod's.
func (f *Follower) Run(ctx context.Context) {
	for ok := true; ok; ok = tick.Grid(ctx, poll) {
		services, why := f.Services(), ""
		found, err := remotes(services, min(max(minSockets, socketsPerServer*len(f.seen)), maxSockets))
		known := f.note(services, found, time.Now())
		if err != nil {
			why = err.Error()
		}
		known = known[:min(len(known), f.Max-len(services))]
		f.mu.Lock()
		if !slices.Equal(known, f.known) {
			f.Log.Info("backends of the cluster DNS addresses changed", "servers", known)
		}
		if why != "" && why != f.unknown {
			f.Log.Warn("cannot look up all backends of the cluster DNS addresses; queries sent to unknown ones get no kernel hits",
				"err", err)
		}
		f.known, f.unknown = known, why
		f.mu.Unlock()
	}
}

// Known returns the known servers, sorted, and why there may be more; "" if there are no more.
func (f *Follower) Known() (servers []netip.AddrPort, unknown string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known, f.unknown
}

// note adds found servers to the seen ones, and returns those that were seen within hold.
func (f *Follower) note(services, found []netip.AddrPort, now time.Time) []netip.AddrPort {
	if f.seen == nil {
		f.seen = map[netip.AddrPort]time.Time{}
	}
	for _, s := range found {
		if a := s.Addr(); !slices.Contains(services, s) && a.IsGlobalUnicast() && s.Port() != 0 {
			f.seen[s] = now
		}
	}
	var out []netip.AddrPort
	for s, at := range f.seen {
		if now.Sub(at) > hold {
			delete(f.seen, s)
			continue
		}
		out = append(out, s)
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

// remotes connects count UDP sockets to each Service and returns their remote addresses as /proc shows them, also from sockets that
// connected before an error.
func remotes(services []netip.AddrPort, count int) ([]netip.AddrPort, error) {
	var errs []error
	ours := map[uint64]bool{}
	for _, s := range services {
		for range count {
			c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(s))
			if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
				break // no datapath translates this Service's address at sockets, and the host has no route to it
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("connect a socket to %s: %w", s, err))
				break
			}
			defer c.Close() //nolint:errcheck // nothing was sent
			inode, err := inodeOf(c)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			ours[inode] = true
		}
	}
	var out []netip.AddrPort
	for _, name := range []string{"udp", "udp6"} {
		text, err := os.ReadFile("/proc/thread-self/net/" + name)
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without IPv6
		} else if err != nil {
			errs = append(errs, fmt.Errorf("read the list of UDP sockets: %w", err))
			continue
		}
		for _, s := range sockets(string(text)) {
			if ours[s.inode] {
				out = append(out, s.remote)
			}
		}
	}
	return out, errors.Join(errs...)
}

// inodeOf returns a socket's inode number, which identifies it in /proc/net/udp.
func inodeOf(c *net.UDPConn) (uint64, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var st unix.Stat_t
	var statErr error
	if err := raw.Control(func(fd uintptr) { statErr = unix.Fstat(int(fd), &st) }); err != nil { //nolint:gosec // a descriptor
		return 0, err
	}
	return st.Ino, statErr
}
