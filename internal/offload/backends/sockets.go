package backends

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/neardns/neardns/internal/dns/procnet"
)

// socket is one line of the kernel's list of UDP sockets.
type socket struct {
	remote netip.AddrPort
	inode  uint64
}

// sockets parses /proc/net/udp or udp6 (net/ipv4/udp.c, udp4_format_sock). In each line, the third field is the remote address, and the
// tenth is the inode. It skips lines that do not parse, the heading too.
func sockets(text string) []socket {
	var out []socket
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 10 {
			continue
		}
		remote, ok := procnet.ParseAddr(f[2])
		inode, err := strconv.ParseUint(f[9], 10, 64)
		if ok && err == nil {
			out = append(out, socket{remote, inode})
		}
	}
	return out
}
