// Package link manages the agent's network interface in the host's netns, and the local and steering addresses on it. The link is a
// dummy, or a bridge without ports if the kernel has no dummy driver.
//
// It changes only the link with the configured name, and only if neardns can have made it. The kernel chooses none of its addresses as the
// source of the node's packets to other hosts while there is another address to choose. The link stays when the agent stops, so that the
// next agent need not create it again; `cleanup` removes it, and in node-cache mode an orderly stop may do so too (plan.Link.Temporary).
//
// On failure: Ensure does all that it can and joins the errors, so that an address that another program uses does not affect the others.
// It does not retry; the caller does. An address that is already in use is reported as a *ConflictError.
package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
)

// Config describes the link as it should be.
type Config struct {
	Name      string
	Addresses []netip.Addr // local, steering and, if so configured, cluster DNS addresses, in any order
	NetNS     int          // fd of the netns to work in; 0: the calling thread's
}

// The kinds of links that Ensure creates. Both deliver packets to local sockets in the same way; a dummy is what operators expect to see.
const (
	kindDummy  = "dummy"
	kindBridge = "bridge"
)

// ConflictError means that another link or a route already uses an address. Retrying does not help; the operator has to act.
type ConflictError struct {
	Address netip.Addr
	Link    string // name of the other link that has the address; "" if the conflict is with a route
	Route   string // the route that leads to the address elsewhere; set if Link is ""
}

func (e *ConflictError) Error() string {
	if e.Link != "" {
		return fmt.Sprintf("address %s is already on link %s: choose another address, or remove it there (another node-local DNS cache?)",
			e.Address, e.Link)
	}
	return fmt.Sprintf("address %s is already routed elsewhere (%s): choose another address", e.Address, e.Route)
}

// Ensure gives the link the properties and addresses of cfg, and returns a description of what it changed; "" for nothing. It is
// idempotent. It removes all other addresses from the link, because the configuration no longer has them, and pods could reach them without
// the switch's protection.
func Ensure(cfg Config) (changed string, err error) {
	k, err := openKernel(cfg.NetNS)
	if err != nil {
		return "", err
	}
	defer k.Close()
	l, created, err := k.ensureLink(cfg.Name)
	if err != nil {
		return "", fmt.Errorf("link %s: %w", cfg.Name, err)
	}
	var done []string
	if created {
		done = append(done, "created "+l.Type())
	}
	repaired, err := k.repair(l, cfg)
	if err != nil {
		err = fmt.Errorf("link %s: %w", cfg.Name, err)
	}
	moved, addressErr := k.ensureAddresses(l, cfg.Addresses)
	return strings.Join(slices.Concat(done, repaired, moved), ", "), errors.Join(err, addressErr)
}

// Remove deletes the link with its addresses. It succeeds if there is no such link, and returns an error for a link of that name that
// Ensure cannot have made.
func Remove(cfg Config) error {
	k, err := openKernel(cfg.NetNS)
	if err != nil {
		return err
	}
	defer k.Close()
	l, err := k.LinkByName(cfg.Name)
	if hostnet.IsNoLink(err) {
		return nil
	}
	if err == nil {
		err = k.checkOwner(l)
	}
	if err == nil {
		err = k.LinkDel(l)
	}
	if err != nil && !hostnet.IsNoLink(err) {
		return fmt.Errorf("remove link %s: %w", cfg.Name, err)
	}
	return nil
}

// kernel is a netlink socket in the netns of the link.
type kernel struct{ hostnet.Handle }

func openKernel(netNS int) (kernel, error) {
	h, err := hostnet.OpenHandle(netNS)
	return kernel{h}, err
}

// addresses are the addresses of a netns, with those on the agent's link sorted into good and bad ones.
type addresses struct {
	all  []netlink.Addr      // addresses of all links in the netns
	good map[netip.Addr]bool // wanted addresses that the agent's link has, with the right properties
	bad  []netlink.Addr      // addresses that the agent's link has, but which are unwanted or have wrong properties
}

func (k kernel) listAddresses(l netlink.Link, want []netip.Addr) (p addresses, err error) {
	if p.all, err = hostnet.Whole(func() ([]netlink.Addr, error) { return k.AddrList(nil, netlink.FAMILY_ALL) }); err != nil {
		return p, fmt.Errorf("list addresses: %w", err)
	}
	p.good = map[netip.Addr]bool{}
	for _, a := range p.all {
		switch addr := prefixOf(a.IPNet).Addr(); {
		case a.LinkIndex != l.Attrs().Index:
		case slices.Contains(want, addr) && hasProperties(a):
			p.good[addr] = true
		default:
			p.bad = append(p.bad, a)
		}
	}
	return p, nil
}

// ensureLink returns the link of that name, and reports whether it was missing. It returns an error for a link that neardns cannot have
// made.
func (k kernel) ensureLink(name string) (netlink.Link, bool, error) {
	l, err := k.LinkByName(name)
	if err == nil {
		return l, false, k.checkOwner(l)
	}
	if !hostnet.IsNoLink(err) {
		return nil, false, fmt.Errorf("look it up: %w", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err = k.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	if errors.Is(err, unix.EOPNOTSUPP) {
		off := false
		err = k.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &off})
	}
	// Another process (an agent that is being replaced) may have created the link meanwhile.
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, false, fmt.Errorf("add: %w", err)
	}
	if l, err = k.LinkByName(name); err != nil {
		return nil, false, fmt.Errorf("look it up: %w", err)
	}
	return l, true, k.checkOwner(l)
}

// checkOwner returns an error for a link that neardns cannot have made. Nothing on such a link may be changed.
func (k kernel) checkOwner(l netlink.Link) error {
	switch l.Type() {
	case kindDummy:
		return nil
	case kindBridge:
		links, err := hostnet.Whole(k.Handle.Handle.Handle.LinkList) // netlinksafe's LinkList hides an interruption
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		for _, other := range links {
			if other.Attrs().MasterIndex == l.Attrs().Index {
				return fmt.Errorf("is a bridge with a port (%s), so it is another program's: choose another link.name", other.Attrs().Name)
			}
		}
		return nil
	}
	return fmt.Errorf("is a %s, so it is another program's: choose another link.name or delete it", l.Type())
}

// repair corrects the link's properties, except its addresses, and returns descriptions of what it changed.
func (k kernel) repair(l netlink.Link, cfg Config) ([]string, error) {
	e := k.EndOf(l)
	e.NoMulticast()
	if slices.ContainsFunc(cfg.Addresses, netip.Addr.Is6) {
		e.IPv6()
	}
	e.Up()
	return e.Done()
}

// ensureAddresses adds missing addresses, replaces those with wrong properties and removes those that are not wanted. It returns
// descriptions of what it changed.
func (k kernel) ensureAddresses(l netlink.Link, want []netip.Addr) ([]string, error) {
	have, err := k.listAddresses(l, want)
	if err != nil {
		return nil, err
	}
	var added, removed []string
	var errs []error
	for _, a := range have.bad {
		prefix := prefixOf(a.IPNet)
		if err := k.AddrDel(l, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("remove address %s from link %s: %w", prefix, l.Attrs().Name, err))
		} else if !slices.Contains(want, prefix.Addr()) {
			removed = append(removed, "removed "+prefix.String())
		}
	}
	for _, addr := range want {
		if err := k.conflict(l, addr, have.good[addr], have.all); err != nil {
			errs = append(errs, err)
			continue
		}
		if have.good[addr] {
			continue
		}
		if err := k.AddrAdd(l, hostnet.NonSourceAddr(addr)); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("add address %s to link %s: %w", addr, l.Attrs().Name, err))
			continue
		}
		added = append(added, "added "+addr.String())
	}
	return append(added, removed...), errors.Join(errs...)
}

// hasProperties reports whether an address is a /32 or /128 and has the scope (IPv4) or the flags (IPv6) that result from
// hostnet.NonSourceAddr.
func hasProperties(a netlink.Addr) bool {
	if !prefixOf(a.IPNet).IsSingleIP() {
		return false
	}
	if a.IP.To4() != nil {
		return a.Scope == unix.RT_SCOPE_LINK
	}
	const needed, bad = unix.IFA_F_DEPRECATED | unix.IFA_F_NOPREFIXROUTE, unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	return a.Flags&needed == needed && a.Flags&bad == 0
}

// prefixOf returns a network as a netip.Prefix; the zero Prefix for none.
func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones)
}
