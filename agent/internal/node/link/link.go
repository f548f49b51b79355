// Package link owns the agent's link in the host's netns (a dummy, or a bridge without ports where the kernel has no
// dummy driver) and the addresses on it: the local and the steering addresses.
//
// It must never touch another program's link, address or route, and never let one of our addresses become the node's
// source address towards pods or the world. The link stays when the agent stops: the switch needs nothing from it, and
// what it would save is a repair; only `cleanup` removes it.
//
// Failure policy: Ensure does all that it can and joins the rest into one error, so that one address that belongs to
// somebody else does not cost the others. It never retries; the caller does, and tells conflicts by *ConflictError.
package link

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
)

// Config describes the link.
type Config struct {
	Name      string
	Addresses []netip.Addr // local, steering and, where the operator wants it, cluster DNS addresses; order has no meaning
	NetNS     int          // fd of the netns to work in; 0: the calling thread's
}

// Kinds of links that serve. Both deliver to local sockets alike; the dummy is the one that people expect to see.
const (
	kindDummy  = "dummy"
	kindBridge = "bridge"
)

// Changes says what Ensure had to do. Its zero value but for Kind means that all was well.
type Changes struct {
	Kind     string         // "dummy" or "bridge"; empty if the link could not be had
	Created  bool           // the link was not there
	Repaired []string       // properties of the link that were set right, for the log
	Added    []netip.Addr   // ours, missing or with wrong properties before
	Removed  []netip.Prefix // addresses on our link that are not ours
}

// Any reports whether anything was changed.
func (c Changes) Any() bool {
	return c.Created || len(c.Repaired)+len(c.Added)+len(c.Removed) > 0
}

// ConflictError says that an address is somebody else's. The operator has to act: no retry helps.
type ConflictError struct {
	Address netip.Addr
	Link    string // the other link that has the address, or
	Route   string // the route that leads to it elsewhere
}

func (e *ConflictError) Error() string {
	if e.Link != "" {
		return fmt.Sprintf("address %s already stands on link %s: choose another address, or remove it there (another node-local DNS cache?)", e.Address, e.Link)
	}
	return fmt.Sprintf("address %s is already routed elsewhere (%s): choose another address", e.Address, e.Route)
}

// Ensure makes the link and its addresses as cfg says. It is idempotent and changes nothing when all is well. Foreign
// addresses on our own link are removed: whoever takes an address out of the configuration wants it gone, and anything
// else there would become reachable from pods unguarded by the switch.
func Ensure(cfg Config) (Changes, error) {
	var done Changes
	k, err := openKernel(cfg.NetNS)
	if err != nil {
		return done, err
	}
	defer k.Close()
	l, created, err := k.have(cfg.Name)
	if err != nil {
		return done, fmt.Errorf("link %s: %w", cfg.Name, err)
	}
	done.Kind, done.Created = l.Type(), created
	var errs []error
	if done.Repaired, err = k.repair(l, cfg); err != nil {
		errs = append(errs, fmt.Errorf("link %s: %w", cfg.Name, err))
	}
	if err := k.addresses(l, cfg.Addresses, &done); err != nil {
		errs = append(errs, err)
	}
	return done, errors.Join(errs...)
}

// Remove deletes the link and with it the addresses. It succeeds when there is none, and refuses a link of that name that
// Ensure would not have made.
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
		err = k.ours(l)
	}
	if err == nil {
		err = k.LinkDel(l)
	}
	if err != nil && !hostnet.IsNoLink(err) {
		return fmt.Errorf("remove link %s: %w", cfg.Name, err)
	}
	return nil
}

// kernel is one netlink socket in the netns at hand.
type kernel struct{ hostnet.Handle }

func openKernel(netNS int) (kernel, error) {
	h, err := hostnet.OpenHandle(netNS)
	return kernel{h}, err
}

// whole repeats a dump that a change elsewhere interrupted until it is whole: one that is not could lack what did not change, and here a
// repair would be made of it.
func whole[T any](dump func() ([]T, error)) ([]T, error) {
	const attempts = 8
	var out []T
	var err error
	for range attempts {
		if out, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

// present is what the netns has of the addresses that are wanted on a link.
type present struct {
	all  []netlink.Addr // of all links
	good map[netip.Addr]bool
	bad  []netlink.Addr // on the link: with other properties than they should have, or nobody's wish
}

func (k kernel) present(l netlink.Link, want []netip.Addr) (p present, err error) {
	if p.all, err = whole(func() ([]netlink.Addr, error) { return k.AddrList(nil, netlink.FAMILY_ALL) }); err != nil {
		return p, fmt.Errorf("list addresses: %w", err)
	}
	p.good = map[netip.Addr]bool{}
	for _, a := range p.all {
		switch addr := prefixOf(a).Addr(); {
		case a.LinkIndex != l.Attrs().Index:
		case slices.Contains(want, addr) && asWanted(a):
			p.good[addr] = true
		default:
			p.bad = append(p.bad, a)
		}
	}
	return p, nil
}

// have returns the link, made new where there is none.
func (k kernel) have(name string) (netlink.Link, bool, error) {
	l, err := k.LinkByName(name)
	if err == nil {
		return l, false, k.ours(l)
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
	// Another process may have made it meanwhile (an agent that is being replaced); then it is as good as ours.
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, false, fmt.Errorf("add: %w", err)
	}
	if l, err = k.LinkByName(name); err != nil {
		return nil, false, fmt.Errorf("look it up: %w", err)
	}
	return l, true, k.ours(l)
}

// ours refuses a link of our name that cannot be of our making: nothing on it may be changed then.
func (k kernel) ours(l netlink.Link) error {
	switch l.Type() {
	case kindDummy:
		return nil
	case kindBridge:
		links, err := whole(k.Handle.Handle.Handle.LinkList) // the others hide that it is not whole
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

// repair sets the link's own properties right and names what was not.
func (k kernel) repair(l netlink.Link, cfg Config) ([]string, error) {
	e := k.EndOf(l)
	e.NoMulticast()
	if slices.ContainsFunc(cfg.Addresses, netip.Addr.Is6) {
		e.IPv6()
	}
	e.Up()
	return e.Done()
}

// addresses adds what is missing, replaces what has wrong properties and removes what is not ours.
func (k kernel) addresses(l netlink.Link, want []netip.Addr, done *Changes) error {
	have, err := k.present(l, want)
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range have.bad {
		prefix := prefixOf(a)
		if err := k.AddrDel(l, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("remove address %s from link %s: %w", prefix, l.Attrs().Name, err))
		} else if !slices.Contains(want, prefix.Addr()) {
			done.Removed = append(done.Removed, prefix)
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
		if err := k.AddrAdd(l, addrOf(addr)); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("add address %s to link %s: %w", addr, l.Attrs().Name, err))
			continue
		}
		done.Added = append(done.Added, addr)
	}
	return errors.Join(errs...)
}

// addrOf gives an address the properties that keep it from ever becoming a source of the node's own packets: IPv4 of
// scope link is chosen for no route that leaves by another link, and IPv6 with a preferred lifetime of 0 is deprecated
// from the start (RFC 6724, rule 3). Pod routes that lead to veths without addresses would else pick ours.
func addrOf(a netip.Addr) *netlink.Addr {
	if a.Is4() {
		return &netlink.Addr{IPNet: hostnet.HostNet(a), Scope: unix.RT_SCOPE_LINK}
	}
	// The library sends lifetimes only if one is above 0, hence "forever" as the valid one. nodad: nobody else is on the
	// link, and a tentative address cannot be bound. noprefixroute: the local table's route is enough.
	forever := int64(^uint32(0))
	return &netlink.Addr{IPNet: hostnet.HostNet(a), Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE, ValidLft: int(forever), PreferedLft: 0}
}

// asWanted reports whether an address has the properties that addrOf gives.
func asWanted(a netlink.Addr) bool {
	if !prefixOf(a).IsSingleIP() {
		return false
	}
	if a.IP.To4() != nil {
		return a.Scope == unix.RT_SCOPE_LINK
	}
	const needed, bad = unix.IFA_F_DEPRECATED | unix.IFA_F_NOPREFIXROUTE, unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	return a.Flags&needed == needed && a.Flags&bad == 0
}

func prefixOf(a netlink.Addr) netip.Prefix {
	addr, _ := netip.AddrFromSlice(a.IP)
	ones, _ := a.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones)
}

// String lists the changes for a log line.
func (c Changes) String() string {
	var parts []string
	if c.Created {
		parts = append(parts, "created "+c.Kind)
	}
	parts = append(parts, c.Repaired...)
	for _, a := range c.Added {
		parts = append(parts, "added "+a.String())
	}
	for _, p := range c.Removed {
		parts = append(parts, "removed "+p.String())
	}
	return strings.Join(parts, ", ")
}
