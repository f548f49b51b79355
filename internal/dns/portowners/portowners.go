// Package portowners finds the processes that listen on an address, from /proc.
//
// It sees the network namespace of the calling thread and the processes of this PID namespace, and changes nothing. Find and Owners may
// read every descriptor of every process, so call them only after a failure, or when a person wants to know.
//
// On failure At returns what it has found, and the error; Find returns only the error.
package portowners

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Sockets are the sockets that may prevent another one from binding to an address, by inode. Exact are bound to the same address, Wildcard
// to the wildcard address.
type Sockets struct{ Exact, Wildcard []string }

const proc = "/proc"

// At returns the sockets in the network namespace of the calling thread that may conflict with ap. It does not read /proc/net or
// /proc/self/net, because they belong to the process's first thread, which may be in a pod's namespace. After an error the result may be
// incomplete.
func At(protocol string, ap netip.AddrPort) (Sockets, error) {
	var s Sockets
	for _, file := range []string{protocol, protocol + "6"} {
		f, err := os.Open(filepath.Join(proc, "thread-self/net", file))
		if errors.Is(err, os.ErrNotExist) && file != protocol {
			continue // no IPv6 on this host
		}
		if err != nil {
			return s, err
		}
		scan := bufio.NewScanner(f)
		scan.Scan() // skip the heading
		for scan.Scan() {
			inode, local, ok := parseConflict(scan.Text(), protocol, ap)
			switch {
			case !ok:
			case local == ap.Addr():
				s.Exact = append(s.Exact, inode)
			default:
				s.Wildcard = append(s.Wildcard, inode)
			}
		}
		if err := errors.Join(scan.Err(), f.Close()); err != nil {
			return s, err
		}
	}
	return s, nil
}

// Find returns the processes with a socket bound to ap, and those with one bound to the wildcard address. If a socket's process is not
// visible, its name is "".
func Find(protocol string, ap netip.AddrPort) (exact, wildcard []string, err error) {
	s, err := At(protocol, ap)
	if err != nil {
		return nil, nil, err
	}
	who := owners(append(slices.Clone(s.Exact), s.Wildcard...))
	name := func(inodes []string) (out []string) {
		for _, inode := range inodes {
			if len(who[inode]) == 0 {
				out = append(out, "")
			}
			out = append(out, who[inode]...)
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	return name(s.Exact), name(s.Wildcard), nil
}

// Owners returns the processes that have the sockets, as "name (pid 7)". It leaves out processes that it cannot read.
func (s Sockets) Owners() (out []string) {
	for _, who := range owners(append(slices.Clone(s.Exact), s.Wildcard...)) {
		out = append(out, who...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// owners returns the processes that have each of the sockets.
func owners(inodes []string) map[string][]string {
	out := map[string][]string{}
	if len(inodes) == 0 {
		return out
	}
	links, _ := filepath.Glob(filepath.Join(proc, "[0-9]*/fd/*"))
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil {
			continue
		}
		inode, ok := strings.CutPrefix(target, "socket:[")
		inode = strings.TrimSuffix(inode, "]")
		if !ok || !slices.Contains(inodes, inode) {
			continue
		}
		dir := filepath.Dir(filepath.Dir(link))
		name, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue
		}
		out[inode] = append(out[inode], fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), filepath.Base(dir)))
	}
	return out
}

// parseConflict parses one line of /proc/net/udp, tcp or their IPv6 forms. It returns the socket's inode and address if the socket
// may conflict with ap: it has the same port, on the same address or on the wildcard, and if it is TCP it listens. The wildcard of IPv6
// also stands for IPv4, but not the other way round.
func parseConflict(line, protocol string, ap netip.AddrPort) (inode string, local netip.Addr, ok bool) {
	const listening = "0A"
	f := strings.Fields(line)
	if len(f) < 10 || protocol == "tcp" && f[3] != listening {
		return "", local, false
	}
	at, ok := ParseAddr(f[1])
	wildcard := at.Addr().IsUnspecified() && (at.Addr().Is6() || ap.Addr().Is4())
	if !ok || at.Port() != ap.Port() || at.Addr() != ap.Addr() && !wildcard {
		return "", local, false
	}
	return f[9], at.Addr(), true
}

// ParseAddr parses an address of /proc/net/udp or tcp, for example "0100007F:0035": 32-bit words in the host's byte order, which is little
// endian on amd64 and arm64.
func ParseAddr(s string) (netip.AddrPort, bool) {
	address, port, _ := strings.Cut(s, ":")
	raw, err := hex.DecodeString(address)
	if err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for word := range slices.Chunk(raw, 4) {
		slices.Reverse(word)
	}
	a, ok := netip.AddrFromSlice(raw)
	p, err := strconv.ParseUint(port, 16, 16)
	return netip.AddrPortFrom(a.Unmap(), uint16(p)), ok && err == nil
}
