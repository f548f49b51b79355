package hostnet

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Handle is a netlink socket for the links of one netns, with the descriptor of that netns for settings that only /proc has. It reads a
// list again if a change interrupted the dump, except lists of addresses and neighbours (see Whole). The zero Handle may only be closed.
type Handle struct {
	netlinksafe.Handle
	nsFD int
}

// OpenHandle opens a Handle for the netns behind nsFD; 0 means the calling thread's netns. The caller owns nsFD and must keep it open
// until it closes the Handle.
func OpenHandle(nsFD int) (Handle, error) {
	h := Handle{nsFD: nsFD}
	err := h.Do(func() (err error) {
		h.Handle, err = netlinksafe.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return Handle{}, fmt.Errorf("open netlink socket: %w", err)
	}
	return h, nil
}

// Do runs f on a thread in the handle's netns.
func (h Handle) Do(f func() error) error {
	if h.nsFD <= 0 {
		return f()
	}
	return InNetNS(h.nsFD, f)
}

// AddVeth makes a veth pair: the end called name in the handle's netns, the end called peer in the netns behind peerNS (0: the handle's
// netns, too). If mac and peerMAC are given, udev does not replace them.
func (h Handle) AddVeth(name string, mac net.HardwareAddr, peer string, peerMAC net.HardwareAddr, peerNS int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = name, mac
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: peer, PeerHardwareAddr: peerMAC}
	if peerNS > 0 {
		pair.PeerNamespace = netlink.NsFd(peerNS)
	}
	if err := h.LinkAdd(pair); err != nil {
		return fmt.Errorf("add veths %s and %s: %w", name, peer, err)
	}
	return nil
}

// RemoveVeth removes a veth and with it its peer. It succeeds if there is no such link, and leaves a link of another kind as it is.
func (h Handle) RemoveVeth(name string) error {
	l, err := h.LinkByName(name)
	if err == nil && l.Type() == "veth" {
		err = h.LinkDel(l)
	}
	if err != nil && !IsNoLink(err) {
		return fmt.Errorf("remove veth %s: %w", name, err)
	}
	return nil
}

// IsNoLink reports whether err means that the link does not exist.
func IsNoLink(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENODEV)
}

// HostNet returns the network that contains only this address (/32 or /128).
func HostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// NonSourceAddr returns the netlink address for a, with properties that keep it from becoming a source of the node's own packets: routes to
// pods lead to veths without addresses, for which the kernel picks a source from another link. The kernel does not pick an IPv4 address of
// scope link for a route through another link, and picks a deprecated IPv6 address (preferred lifetime 0) only if there is no other
// (RFC 6724, rule 3).
func NonSourceAddr(a netip.Addr) *netlink.Addr {
	if a.Is4() {
		return &netlink.Addr{IPNet: HostNet(a), Scope: unix.RT_SCOPE_LINK}
	}
	// The netlink library sends the lifetimes only if one of them is above 0, so the valid lifetime is "forever". nodad: no other host is on
	// the link, and a tentative address cannot be bound. noprefixroute: the kernel's local route is enough.
	return &netlink.Addr{IPNet: HostNet(a), Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE, ValidLft: math.MaxUint32}
}

// End is a link that its caller owns, for example one end of a veth pair. Each method except Done and IsUp sets the link property that it
// is named after, unless the link has the property already. Done returns what was changed. An End is for one goroutine.
type End struct {
	Link     netlink.Link
	h        Handle
	repaired []string
	errs     []error
}

// End returns an End for the link with this name, or an error if there is no such link.
func (h Handle) End(name string) (*End, error) {
	l, err := h.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", name, err)
	}
	return h.EndOf(l), nil
}

// EndOf returns an End for a link that the caller has already looked up.
func (h Handle) EndOf(l netlink.Link) *End { return &End{Link: l, h: h} }

// Done returns descriptions of the changes that were made since the last call of Done, and the errors of those that failed.
func (e *End) Done() (repaired []string, err error) {
	repaired, err = e.repaired, errors.Join(e.errs...)
	e.repaired, e.errs = nil, nil
	return repaired, err
}

func (e *End) step(wrong bool, what string, set func() error) {
	if !wrong {
		return
	}
	if err := set(); err != nil {
		e.errs = append(e.errs, fmt.Errorf("%s: %w", what, err))
		return
	}
	e.repaired = append(e.repaired, what)
}

// MAC gives the link a hardware address.
func (e *End) MAC(mac net.HardwareAddr) {
	wrong := !bytes.Equal(e.Link.Attrs().HardwareAddr, mac)
	e.step(wrong, "set hardware address", func() error { return e.h.LinkSetHardwareAddr(e.Link, mac) })
}

// NoMulticast turns multicast off on the link. Otherwise the kernel reports the multicast groups of the link's addresses (IGMP, MLD), with
// such an address as source.
func (e *End) NoMulticast() {
	e.step(e.Link.Attrs().RawFlags&unix.IFF_MULTICAST != 0, "set multicast off", func() error { return e.h.LinkSetMulticastOff(e.Link) })
}

// NoARP turns address resolution off on the link. The kernel then sends all packets to the link's own hardware address.
func (e *End) NoARP() {
	e.step(e.Link.Attrs().RawFlags&unix.IFF_NOARP == 0, "set address resolution off", func() error { return e.h.LinkSetARPOff(e.Link) })
}

// Up sets the link up.
func (e *End) Up() {
	e.step(!e.IsUp(), "set up", func() error { return e.h.LinkSetUp(e.Link) })
}

// IsUp reports whether the link was up when the End was made.
func (e *End) IsUp() bool { return e.Link.Attrs().Flags&net.FlagUp != 0 }

// IPv6 makes sure that the link can have IPv6 addresses, even if new links have IPv6 disabled, and that the kernel generates none for it.
func (e *End) IPv6() {
	e.in6(func(conf string) error {
		off, err := reads(conf+"disable_ipv6", "1")
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s is not there: this kernel runs without IPv6; take the IPv6 addresses out of the configuration", conf)
		} else if err != nil {
			return err
		}
		e.step(off, "set net.ipv6.conf."+e.Link.Attrs().Name+".disable_ipv6 = 0", func() error {
			if err := os.WriteFile(conf+"disable_ipv6", []byte("0"), 0); err != nil {
				return fmt.Errorf("%w (is /proc/sys mounted read-only?)", err)
			}
			return nil
		})
		return e.noGenerated(conf)
	})
}

// NoGenerated keeps the kernel from generating a link-local address for the link. It does nothing if the link has no IPv6. A link that is
// already up may have such an address.
func (e *End) NoGenerated() { e.in6(e.noGenerated) }

func (e *End) noGenerated(conf string) error {
	// Read the mode from /proc, because the netlink library can set it but not read it.
	const none = 1 // IN6_ADDR_GEN_MODE_NONE, linux/if_link.h
	is, err := reads(conf+"addr_gen_mode", "1")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	e.step(!is, "set addrgenmode none", func() error { return e.h.LinkSetIP6AddrGenMode(e.Link, none) })
	return nil
}

// in6 calls f with the path of the link's IPv6 settings in /proc/sys/net. It does so on a thread in the link's netns, because that path
// shows the netns of the thread that reads it.
func (e *End) in6(f func(conf string) error) {
	if err := e.h.Do(func() error { return f("/proc/sys/net/ipv6/conf/" + e.Link.Attrs().Name + "/") }); err != nil {
		e.errs = append(e.errs, err)
	}
}

func reads(file, value string) (bool, error) {
	got, err := os.ReadFile(file)
	if err != nil {
		return false, fmt.Errorf("read setting: %w", err)
	}
	return string(bytes.TrimSpace(got)) == value, nil
}

// Address adds an address to the link if it is missing.
func (e *End) Address(a *netlink.Addr) {
	family := netlink.FAMILY_V6
	if a.IP.To4() != nil {
		family = netlink.FAMILY_V4
	}
	have, err := Whole(func() ([]netlink.Addr, error) { return e.h.AddrList(e.Link, family) })
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // EEXIST is no error below
		e.errs = append(e.errs, fmt.Errorf("list addresses: %w", err))
		return
	}
	missing := !slices.ContainsFunc(have, func(h netlink.Addr) bool { return h.IPNet.String() == a.IPNet.String() })
	e.step(missing, "add address "+a.IPNet.String(), func() error {
		if err := e.h.AddrAdd(e.Link, a); !errors.Is(err, unix.EEXIST) {
			return err
		}
		return nil
	})
}
