package dns

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// holders names the processes that hold a port, as "name (pid 7)". It sees this netns's sockets and the processes of this
// pid namespace; what it cannot read it leaves out. Only a failed start pays for it.
func holders(proc, protocol string, ap netip.AddrPort) []string {
	inodes := map[string]bool{}
	for _, file := range []string{protocol, protocol + "6"} {
		f, err := os.Open(filepath.Join(proc, "self/net", file))
		if err != nil {
			continue // no IPv6 on this host
		}
		scan := bufio.NewScanner(f)
		scan.Scan() // the heading
		for scan.Scan() {
			if inode, ok := conflicting(scan.Text(), protocol, ap); ok {
				inodes["socket:["+inode+"]"] = true
			}
		}
		f.Close()
	}
	if len(inodes) == 0 {
		return nil
	}
	var out []string
	links, _ := filepath.Glob(filepath.Join(proc, "[0-9]*/fd/*"))
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || !inodes[target] {
			continue
		}
		dir := filepath.Dir(filepath.Dir(link))
		name, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue
		}
		who := fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), filepath.Base(dir))
		if !slices.Contains(out, who) {
			out = append(out, who)
		}
	}
	return out
}

// conflicting reads one line of /proc/net/udp, tcp or their IPv6 forms and returns the socket's inode if it stands in the
// way of ap: the same port on the same address or on the wildcard, listening if it is TCP.
func conflicting(line, protocol string, ap netip.AddrPort) (inode string, ok bool) {
	const listening = "0A"
	f := strings.Fields(line)
	if len(f) < 10 || protocol == "tcp" && f[3] != listening {
		return "", false
	}
	local, ok := parseProcAddr(f[1])
	if !ok || local.Port() != ap.Port() {
		return "", false
	}
	if local.Addr() != ap.Addr() && !local.Addr().IsUnspecified() {
		return "", false
	}
	return f[9], true
}

// parseProcAddr reads "0100007F:0035": 32-bit words in the host's byte order. Both architectures that are built for are
// little endian.
func parseProcAddr(s string) (netip.AddrPort, bool) {
	addr, port, ok := strings.Cut(s, ":")
	if !ok {
		return netip.AddrPort{}, false
	}
	raw, err := hex.DecodeString(addr)
	if err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for word := range slices.Chunk(raw, 4) {
		slices.Reverse(word)
	}
	a, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}, false
	}
	p, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(a.Unmap(), uint16(p)), true
}
