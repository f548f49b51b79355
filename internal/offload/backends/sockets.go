package backends

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strconv"
	"strings"
)

// socket is one line of the kernel's list of UDP sockets.
type socket struct {
	remote netip.AddrPort
	inode  uint64
}

// sockets parses /proc/net/udp or udp6 (net/ipv4/udp.c, udp4_format_sock). In each line, the third field is the remote address, as 32-bit
// words of the machine's byte order in hexadecimal, and the tenth is the inode. It skips lines that do not parse, the heading too.
func sockets(text string) []socket {
	var out []socket
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 10 {
			continue
		}
		remote, ok := remoteOf(f[2])
		inode, err := strconv.ParseUint(f[9], 10, 64)
		if ok && err == nil {
			out = append(out, socket{remote, inode})
		}
	}
	return out
}

func remoteOf(s string) (netip.AddrPort, bool) {
	address, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(address)
	if err != nil || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	n, err := strconv.ParseUint(port, 16, 16)
	a, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(n)), ok && err == nil //nolint:gosec // of 16 bits
}
