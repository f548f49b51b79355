package steer

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Hold makes c a suspect: the host's rules bypass it for the time Hold(step). It sends a control packet, like a lease renewal,
// and so costs no nftables transaction. ErrNoSwitch means that no rule of the host took the packet.
func (l *Lease) Hold(c Client, step int) error {
	return l.sendAs(c, PortHold+min(max(step, 0), HoldSteps-1))
}

// Release ends the bypass of a suspect for one query, its trial: the host's rules deliver the query and bypass the client again at
// once. If the query passes the host's filters, the client is no longer a suspect.
func (l *Lease) Release(c Client) error { return l.sendAs(c, PortRelease) }

// sendAs sends a control packet with the client's source address and protocol. A rule in this host's output hook drops the
// packet.
func (l *Lease) sendAs(c Client, port int) error {
	packet, err := controlPacket(c, port, l.secret)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errors.New("lease is closed")
	}
	if c.Source.Is4() {
		if err = l.raw4.err; err == nil {
			err = unix.Sendto(l.raw4.fd, packet, 0, &unix.SockaddrInet4{Addr: c.Address.As4()})
		}
	} else {
		if err = l.raw6.err; err == nil {
			err = unix.Sendto(l.raw6.fd, packet, 0, &unix.SockaddrInet6{Addr: c.Address.As16()})
		}
	}
	return swallowed(c.String(), err)
}

// rawSocket sends packets whose IP header the sender writes. err is why it could not be opened.
type rawSocket struct {
	fd  int
	err error
}

// openRaw opens a socket whose packets contain their IP header (IPPROTO_RAW, raw(7)). It needs CAP_NET_RAW.
func openRaw(domain int) rawSocket {
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if err != nil {
		return rawSocket{fd: -1, err: fmt.Errorf("open socket for packets with a client's address (needs CAP_NET_RAW): %w", notSwallowed(err))}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, Mark); err != nil {
		_ = unix.Close(fd)
		return rawSocket{fd: -1, err: fmt.Errorf("mark lease socket: %w", notSwallowed(err))}
	}
	return rawSocket{fd: fd}
}

// notSwallowed removes the errno from an error of opening a socket. When a packet is sent, EPERM means success, because the
// host's rule dropped the packet; an EPERM from here must not be taken for that.
func notSwallowed(err error) error { return errors.New(err.Error()) }

// controlPacket makes an IP header and the smallest transport header that the rules and the kernel read. It leaves the
// checksums zero: the kernel fills in IPv4's header checksum, and the others are never read. For UDP the secret is the payload;
// for TCP it is in the sequence and acknowledgement numbers, which needs no options and no payload.
func controlPacket(c Client, port int, secret Secret) ([]byte, error) {
	transport := 8 + 8 // UDP's header and the secret
	if c.Protocol == TCP {
		transport = 20
	}
	switch {
	case c.Protocol != UDP && c.Protocol != TCP:
		return nil, fmt.Errorf("%s: protocol is not steered", c)
	case !c.Source.IsValid(), !c.Address.IsValid(), c.Source.Is4() != c.Address.Is4(), c.Source.Is4In6():
		return nil, fmt.Errorf("%s: want two plain addresses of one family", c)
	}
	header := 40
	if c.Source.Is4() {
		header = 20
	}
	b := make([]byte, header+transport)
	if c.Source.Is4() {
		b[0] = 0x45 // IP version 4, header of five 32-bit words
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		b[8], b[9] = 1, byte(c.Protocol) // time to live, protocol
		copy(b[12:], c.Source.AsSlice())
		copy(b[16:], c.Address.AsSlice())
	} else {
		b[0] = 0x60 // IP version 6
		binary.BigEndian.PutUint16(b[4:], uint16(transport))
		b[6], b[7] = byte(c.Protocol), 1 // next header, hop limit
		copy(b[8:], c.Source.AsSlice())
		copy(b[24:], c.Address.AsSlice())
	}
	binary.BigEndian.PutUint16(b[header+2:], uint16(port)) //nolint:gosec // a few hundred
	if c.Protocol == UDP {
		binary.BigEndian.PutUint16(b[header+4:], uint16(transport))
		copy(b[header+8:], secret.Bytes())
	} else {
		copy(b[header+4:], secret.Bytes())
		b[header+12] = 5 << 4 // data offset: a header of five 32-bit words
	}
	return b, nil
}
