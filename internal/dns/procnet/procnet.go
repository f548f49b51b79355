// Package procnet reads the kernel's lists of UDP and TCP sockets, from /proc.
//
// It sees the network namespace of the calling thread, and changes nothing.
//
// On failure Bound returns what it has found, and the error.
package procnet

import (
	"bufio"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Bound reports whether a socket in the network namespace of the calling thread may conflict with ap: exact, one that is bound to the same
// address; wildcard, one that is bound to the wildcard address. It does not read /proc/net or /proc/self/net, because they belong to the
// process's first thread, which may be in a pod's namespace. After an error the result may be incomplete.
func Bound(protocol string, ap netip.AddrPort) (exact, wildcard bool, err error) {
	for _, file := range []string{protocol, protocol + "6"} {
		f, err := os.Open("/proc/thread-self/net/" + file)
		if errors.Is(err, os.ErrNotExist) && file != protocol {
			continue // no IPv6 on this host
		}
		if err != nil {
			return exact, wildcard, err
		}
		scan := bufio.NewScanner(f)
		scan.Scan() // skip the heading
		for scan.Scan() {
			local, ok := parseConflict(scan.Text(), protocol, ap)
			exact = exact || ok && local == ap.Addr()
			wildcard = wildcard || ok && local != ap.Addr()
		}
		if err := errors.Join(scan.Err(), f.Close()); err != nil {
			return exact, wildcard, err
		}
	}
	return exact, wildcard, nil
}

// parseConflict parses one line of /proc/net/udp, tcp or their IPv6 forms. It returns the socket's address if the socket may conflict with
// ap: it has the same port, on the same address or on the wildcard, and if it is TCP it listens. The wildcard of IPv6 also stands for
// IPv4, but not the other way round.
func parseConflict(line, protocol string, ap netip.AddrPort) (local netip.Addr, ok bool) {
	const listening = "0A"
	f := strings.Fields(line)
	if len(f) < 10 || protocol == "tcp" && f[3] != listening {
		return local, false
	}
	at, ok := ParseAddr(f[1])
	wildcard := at.Addr().IsUnspecified() && (at.Addr().Is6() || ap.Addr().Is4())
	if !ok || at.Port() != ap.Port() || at.Addr() != ap.Addr() && !wildcard {
		return local, false
	}
	return at.Addr(), true
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
