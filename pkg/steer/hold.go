package steer

import (
	"encoding/binary"
	"fmt"
)

// Hold makes c a suspect: the host's rules bypass it for the time Hold(step). It sends a control packet, like a lease renewal,
// and so costs no nftables transaction. ErrNoSwitch means that no rule of the host took the packet.
func (l *Lease) Hold(c Client, step int) error {
	return l.send(c, PortHold+min(max(step, 0), HoldSteps-1))
}

// Release ends the bypass of a suspect for one query, its trial: the host's rules deliver the query and bypass the client again at
// once. If the query passes the host's filters, the client is no longer a suspect.
func (l *Lease) Release(c Client) error { return l.send(c, PortRelease) }

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
