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
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// hold is how long a server stays known after Look last had a socket connected to it. It spans several calls of Look, because the
	// datapath chooses the server of each socket at random, and one call may miss some.
	hold = 5 * time.Second
	// How many sockets Look connects to one Service: several for each known server, so that the calls of Look within hold rarely miss a
	// server.
	socketsPerServer = 4
	minSockets       = 8
	maxSockets       = 128
)

// Memory holds the known servers. Only one goroutine may use it at a time.
type Memory struct {
	seen map[netip.AddrPort]time.Time
}

// Look connects sockets to the Services and returns all known servers, sorted. On an error, it returns the servers that it knows together
// with the error. Call it in the host's netns, from a process whose sockets the datapath translates as it does a pod's.
func (m *Memory) Look(services []netip.AddrPort, now time.Time) ([]netip.AddrPort, error) {
	found, err := remotes(services, min(max(minSockets, socketsPerServer*len(m.seen)), maxSockets))
	return m.note(services, found, now), err
}

func (m *Memory) note(services, found []netip.AddrPort, now time.Time) []netip.AddrPort {
	if m.seen == nil {
		m.seen = map[netip.AddrPort]time.Time{}
	}
	for _, f := range found {
		if a := f.Addr(); !slices.Contains(services, f) && a.IsGlobalUnicast() && f.Port() != 0 {
			m.seen[f] = now
		}
	}
	var out []netip.AddrPort
	for s, at := range m.seen {
		if now.Sub(at) > hold {
			delete(m.seen, s)
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
