package listener

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernelAddress is an address as the kernel writes it behind a datagram.
func kernelAddress(ap netip.AddrPort) (a address) {
	if ap.Addr().Is4() {
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(&a))
		four.Family, four.Addr = unix.AF_INET, ap.Addr().As4()
	} else {
		a.Family, a.Addr = unix.AF_INET6, ap.Addr().As16()
		if zone := ap.Addr().Zone(); zone != "" {
			n, _ := strconv.Atoi(zone)
			a.Scope_id = uint32(n)
		}
	}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&a.Port))[:], ap.Port())
	return a
}

func sizeOf(a address) uint32 {
	if a.Family == unix.AF_INET {
		return unix.SizeofSockaddrInet4
	}
	return unix.SizeofSockaddrInet6
}
