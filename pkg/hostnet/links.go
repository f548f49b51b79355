package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// links reads routes, links, addresses and neighbours of one netns by netlink. If possible, it requests a single entry instead of a list,
// because a node has hundreds of links, and this runs at each pod's start.
type links struct{ conn *netlink.Conn }

func openLinks(nsFD int) (links, error) {
	conn, err := Dial(unix.NETLINK_ROUTE, nsFD)
	return links{conn}, err
}

func (l links) close() { _ = l.conn.Close() }

// familyNumber returns an address's family as netlink encodes it (AF_INET or AF_INET6).
func familyNumber(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// request sends a netlink message, which is a fixed header and attributes, and returns the payloads of the answers. It tries an
// interrupted dump again.
func (l links) request(kind uint16, flags netlink.HeaderFlags, header []byte, attributes ...netlink.Attribute) ([][]byte, error) {
	attrs, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		return nil, err
	}
	m := netlink.Message{Data: append(header, attrs...)}
	m.Header.Type, m.Header.Flags = netlink.HeaderType(kind), netlink.Request|flags
	for range attempts {
		replies, err := l.conn.Execute(m)
		out := make([][]byte, 0, len(replies))
		for _, r := range replies {
			if r.Header.Flags&unix.NLM_F_DUMP_INTR != 0 {
				err = ErrInterrupted
			}
			out = append(out, r.Data)
		}
		if !errors.Is(err, ErrInterrupted) { // if only the end of the dump has the flag, Execute returns this error
			return out, err
		}
	}
	return nil, ErrInterrupted
}

// attempts is how often request tries a dump in total, because a change of the listed objects interrupts a dump (EINTR).
const attempts = 8

// Each calls f with each attribute of a netlink message. header is the size of the fixed header before the attributes, in bytes.
func Each(data []byte, header int, f func(*netlink.AttributeDecoder)) error {
	if len(data) < header {
		return errors.New("short netlink message")
	}
	dec, err := netlink.NewAttributeDecoder(data[header:])
	if err != nil {
		return err
	}
	for dec.Next() {
		f(dec)
	}
	return dec.Err()
}

// route is the kernel's answer to a route lookup for one address.
type route struct {
	kind    uint8      // RTN_UNICAST and so on
	link    int        // index of the interface by which packets leave
	gateway netip.Addr // invalid if the address is on the link
}

func (l links) route(to netip.Addr) (route, error) {
	header := make([]byte, unix.SizeofRtMsg)
	header[0], header[1] = familyNumber(to), uint8(to.BitLen())
	replies, err := l.request(unix.RTM_GETROUTE, 0, header, netlink.Attribute{Type: unix.RTA_DST, Data: to.AsSlice()})
	if err != nil {
		return route{}, err
	}
	if len(replies) == 0 {
		return route{}, errors.New("no answer")
	}
	return readRoute(replies[0])
}

func readRoute(data []byte) (r route, err error) {
	err = Each(data, unix.SizeofRtMsg, func(dec *netlink.AttributeDecoder) {
		switch dec.Type() {
		case unix.RTA_OIF:
			r.link = int(dec.Uint32())
		case unix.RTA_GATEWAY:
			r.gateway, _ = netip.AddrFromSlice(dec.Bytes())
		case unix.RTA_VIA: // a gateway of the other IP family: struct rtvia is two bytes of family and the address
			if b := dec.Bytes(); len(b) > 2 && !r.gateway.IsValid() {
				r.gateway, _ = netip.AddrFromSlice(b[2:])
			}
		}
	})
	if err == nil {
		r.kind = data[7]
	}
	return r, err
}

// link is one interface.
type link struct {
	index        int
	name, kind   string // kind is "" for a hardware link, because its driver reports none
	peer, master int    // interface indexes: of a veth's other end, and of the bridge, VRF or other link that has this as a port; 0: none
	nsid         int    // the ID that this netns has for the netns of the peer; -1: the peer is in this netns
	mac          string // the hardware address as raw bytes
}

// errNoLink means that the netns has no link with this index.
var errNoLink = errors.New("no such link")

func (l links) link(index int) (link, error) {
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(header[4:], uint32(index))
	replies, err := l.request(unix.RTM_GETLINK, 0, header)
	if errors.Is(err, unix.ENODEV) || err == nil && len(replies) == 0 {
		return link{}, fmt.Errorf("link %d: %w", index, errNoLink)
	} else if err != nil {
		return link{}, fmt.Errorf("look up link %d: %w", index, err)
	}
	out, err := readLink(replies[0])
	if err != nil {
		return link{}, fmt.Errorf("look up link %d: %w", index, err)
	}
	out.index = index
	return out, nil
}

func readLink(data []byte) (link, error) {
	out := link{nsid: -1}
	err := Each(data, unix.SizeofIfInfomsg, func(dec *netlink.AttributeDecoder) {
		switch dec.Type() {
		case unix.IFLA_IFNAME:
			out.name = dec.String()
		case unix.IFLA_LINK:
			out.peer = int(dec.Uint32())
		case unix.IFLA_MASTER:
			out.master = int(dec.Uint32())
		case unix.IFLA_LINK_NETNSID:
			out.nsid = int(int32(dec.Uint32())) //nolint:gosec // signed in the kernel
		case unix.IFLA_ADDRESS:
			out.mac = string(dec.Bytes())
		case unix.IFLA_LINKINFO:
			dec.Nested(func(info *netlink.AttributeDecoder) error {
				for info.Next() {
					if info.Type() == unix.IFLA_INFO_KIND {
						out.kind = info.String()
					}
				}
				return nil
			})
		}
	})
	return out, err
}

// hasAddress reports whether the netns has address a. An IPv6 link-local address counts only if it is on the link with index on.
func (l links) hasAddress(a netip.Addr, on int) (bool, error) {
	header := make([]byte, unix.SizeofIfAddrmsg)
	header[0] = familyNumber(a)
	replies, err := l.request(unix.RTM_GETADDR, netlink.Dump, header)
	if err != nil {
		return false, fmt.Errorf("list the host's addresses: %w", err)
	}
	for _, r := range replies {
		var local, address []byte
		if err := Each(r, unix.SizeofIfAddrmsg, func(dec *netlink.AttributeDecoder) {
			switch dec.Type() {
			case unix.IFA_LOCAL:
				local = dec.Bytes()
			case unix.IFA_ADDRESS:
				address = dec.Bytes()
			}
		}); err != nil {
			return false, fmt.Errorf("list the host's addresses: %w", err)
		}
		if local == nil { // an IPv6 address without a peer has only IFA_ADDRESS; next to IFA_LOCAL, that may be the peer's
			local = address
		}
		got, ok := netip.AddrFromSlice(local)
		if !ok || got != a || r[0] != familyNumber(a) {
			continue
		}
		if index := int(binary.NativeEndian.Uint32(r[4:])); index == on || !a.Is6() || !a.IsLinkLocalUnicast() {
			return true, nil
		}
	}
	return false, nil
}

// permanent returns the hardware address in the permanent neighbour entry for a on the link with index on; "" if there is none.
func (l links) permanent(a netip.Addr, on int) (string, error) {
	const header = unix.SizeofNdMsg
	message := make([]byte, header)
	message[0] = familyNumber(a)
	replies, err := l.request(unix.RTM_GETNEIGH, netlink.Dump, message)
	if err != nil {
		return "", fmt.Errorf("list neighbours: %w", err)
	}
	for _, r := range replies {
		var dst, mac []byte
		if err := Each(r, header, func(dec *netlink.AttributeDecoder) {
			switch dec.Type() {
			case unix.NDA_DST:
				dst = dec.Bytes()
			case unix.NDA_LLADDR:
				mac = dec.Bytes()
			}
		}); err != nil {
			return "", fmt.Errorf("list neighbours: %w", err)
		}
		got, ok := netip.AddrFromSlice(dst)
		index, state := int(binary.NativeEndian.Uint32(r[4:])), binary.NativeEndian.Uint16(r[8:])
		if ok && got == a && index == on && state&unix.NUD_PERMANENT != 0 {
			return string(mac), nil
		}
	}
	return "", nil
}

// nsidOf returns the ID (nsid) that this netns has for the netns behind nsFD; -1 if it has none.
func (l links) nsidOf(nsFD int) (int, error) {
	// struct rtgenmsg has one byte, the family; netlink pads it to four bytes.
	const header = 4
	fd := netlink.Attribute{Type: unix.NETNSA_FD, Data: binary.NativeEndian.AppendUint32(nil, uint32(nsFD))}
	replies, err := l.request(unix.RTM_GETNSID, 0, make([]byte, header), fd)
	if err != nil {
		return 0, fmt.Errorf("look up netns id: %w", err)
	}
	if len(replies) == 0 {
		return 0, errors.New("look up netns id: no answer")
	}
	id := -1
	err = Each(replies[0], header, func(dec *netlink.AttributeDecoder) {
		if dec.Type() == unix.NETNSA_NSID {
			id = int(int32(dec.Uint32())) //nolint:gosec // signed in the kernel
		}
	})
	return id, err
}
