// Package backends learns which servers a datapath sends to in a Service's place, where it translates at sockets: packets then never name the
// Service. It asks nobody. It connects sockets as any process does, and reads where the kernel says that they lead.
//
// It owns what is known of servers. It must never name one that a socket did not lead to a moment ago: an address may be another pod's by
// the next one.
//
// Failure policy: where sockets cannot be looked at, no server is known, and those that were are forgotten in time.
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
	// hold is for how long a server is one after a socket last led to it: some looks, since a datapath chooses by chance.
	hold = 5 * time.Second
	// Sockets of one look at one Service: so many for each server that is known, that within hold a server is hardly ever missed.
	socketsEach = 4
	socketsLow  = 8
	socketsMost = 128
)

// Memory is what is known of servers. It is used by one goroutine.
type Memory struct {
	seen map[netip.AddrPort]time.Time
}

// Look looks where sockets to the Services lead now, and returns all servers that are known, in order. With an error they are those of the
// looks before. It must be called in the host's netns, and by a process that the datapath treats like pods.
func (m *Memory) Look(services []netip.AddrPort, now time.Time) ([]netip.AddrPort, error) {
	found, err := lead(services, min(max(socketsLow, socketsEach*len(m.seen)), socketsMost))
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

// lead connects so many sockets to each Service and returns where they lead. It sends nothing.
func lead(services []netip.AddrPort, count int) ([]netip.AddrPort, error) {
	var errs []error
	ours := map[uint64]bool{}
	for _, s := range services {
		for range count {
			c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(s))
			if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
				break // nobody translates it at sockets, and the host has no way there
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
			errs = append(errs, fmt.Errorf("look where sockets lead: %w", err))
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

// inodeOf is a socket's number.
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
