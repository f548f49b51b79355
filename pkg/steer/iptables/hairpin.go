package iptables

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
)

// Hairpin makes the hairpin of one netns, the host's: a veth pair with both ends there, by which packets that fall back pass
// the nat table a second time, and there meet kube-proxy's rules. No other packets use it: its route is in a table of its own,
// which is looked up for the cluster DNS addresses alone, and only if kube-proxy has not translated them before. It is for one
// goroutine.
//
// Ensure stops at the first failure and names it; the caller calls it again. Remove removes what it finds.
type Hairpin struct {
	nl   hostnet.Handle
	nsFD int
}

// OpenHairpin opens the netns behind nsFD; -1 means the calling thread's. The descriptor may be closed afterwards.
func OpenHairpin(nsFD int) (*Hairpin, error) {
	nsFD, err := hostnet.HoldNetNS(nsFD)
	if err != nil {
		return nil, err
	}
	nl, err := hostnet.OpenHandle(nsFD)
	if err != nil {
		return nil, errors.Join(err, unix.Close(nsFD))
	}
	return &Hairpin{nl: nl, nsFD: nsFD}, nil
}

// Close closes the sockets; the hairpin stays.
func (t *Hairpin) Close() error {
	t.nl.Close()
	return unix.Close(t.nsFD)
}

// mac is the hardware address of both ends. Neither resolves addresses (NOARP); the kernel then sends to the sender's own
// hardware address.
func mac() net.HardwareAddr { return net.HardwareAddr{0x02, 'n', 'd', 'n', 's', 0x03} }

// Ensure makes the hairpin carry packets for these cluster DNS addresses, and no others, and describes what it had to add. With
// own it also carries the node's own packets that are marked (steer.OwnMark).
func (t *Hairpin) Ensure(clusterDNS []netip.Addr, own bool) (repaired []string, err error) {
	type step struct {
		what string
		do   func() (done bool, err error)
	}
	steps := []step{{"link " + steer.HairpinOut, t.links}}
	for _, is4 := range []bool{true, false} {
		wanted := ofFamily(clusterDNS, is4)
		if len(wanted) > 0 && is4 {
			steps = append(steps, step{"address of " + steer.HairpinIn, t.address})
		}
		if len(wanted) > 0 {
			steps = append(steps, step{"settings of " + steer.HairpinOut, func() (bool, error) { return t.settings(is4) }},
				step{"routes of " + steer.HairpinOut, func() (bool, error) { return t.routes(is4, wanted) }})
		}
		steps = append(steps, step{"routing rules of " + steer.HairpinOut, func() (bool, error) { return t.rules(is4, wanted, own) }})
	}
	for _, s := range steps {
		done, err := s.do()
		if done {
			repaired = append(repaired, s.what)
		}
		if err != nil {
			return repaired, fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return repaired, nil
}

func ends() []string { return []string{steer.HairpinOut, steer.HairpinIn} }

// links makes the pair and sets it up. A link of the same name that is no veth is another program's.
func (t *Hairpin) links() (made bool, err error) {
	if _, err = t.nl.LinkByName(steer.HairpinOut); hostnet.IsNoLink(err) {
		if err := t.nl.AddVeth(steer.HairpinOut, mac(), steer.HairpinIn, mac(), 0); err != nil {
			return false, err
		}
		made = true
	}
	for _, name := range ends() {
		e, err := t.nl.End(name)
		if err != nil {
			return made, err
		}
		if kind := e.Link.Type(); kind != "veth" {
			return made, fmt.Errorf("%s is a %s of another program: remove or rename it", name, kind)
		}
		e.MAC(mac())
		e.NoARP()
		e.NoMulticast()
		if !e.IsUp() {
			e.NoGenerated()
		}
		e.Up()
		repaired, err := e.Done()
		made = made || len(repaired) > 0
		if err != nil {
			return made, fmt.Errorf("%s: %w", name, err)
		}
	}
	return made, nil
}

// address gives the second end its address, see steer.HairpinAddress. Having scope link, it is never chosen as a source.
func (t *Hairpin) address() (added bool, err error) {
	return t.configure(steer.HairpinIn, func(e *hostnet.End) {
		e.Address(&netlink.Addr{IPNet: hostnet.HostNet(steer.HairpinAddress()), Scope: unix.RT_SCOPE_LINK})
	})
}

func (t *Hairpin) configure(name string, set func(*hostnet.End)) (changed bool, err error) {
	e, err := t.nl.End(name)
	if err != nil {
		return false, err
	}
	set(e)
	repaired, err := e.Done()
	return len(repaired) > 0, err
}

// settings sets the values that new links may have wrong by default. A correct value is not written, since a container may not
// be allowed to.
func (t *Hairpin) settings(is4 bool) (changed bool, err error) {
	for _, name := range ends() {
		var done bool
		if is4 {
			err = t.nl.Do(func() (err error) {
				done, err = looseFilter(name)
				return err
			})
		} else {
			done, err = t.configure(name, (*hostnet.End).IPv6)
		}
		if changed = changed || done; err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// looseFilter prevents a strict reverse path filter (1; the kernel takes the higher of the values of "all" and this link,
// ip-sysctl.rst) from dropping packets that come in by an end. Their source is a pod or a cluster DNS address, to which other
// packets have no route by that link.
func looseFilter(name string) (changed bool, err error) {
	file := "/proc/sys/net/ipv4/conf/" + name + "/rp_filter"
	all, err := number("/proc/sys/net/ipv4/conf/all/rp_filter")
	if err != nil {
		return false, err
	}
	own, err := number(file)
	if err != nil || max(all, own) != 1 {
		return false, err
	}
	l, err := net.InterfaceByName(name)
	if err != nil {
		return false, err
	}
	// By netlink, which needs only NET_ADMIN, because /proc/sys is usually read-only in a container.
	const inetConf, rpFilter, loose = 1, 8, 2 // IFLA_INET_CONF, IPV4_DEVCONF_RP_FILTER
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(l.Index) //nolint:gosec // the kernel's own number
	req.AddData(msg)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil).AddRtAttr(rpFilter, nl.Uint32Attr(loose))
	req.AddData(spec)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return false, fmt.Errorf("set rp_filter of %s to %d: %w", name, loose, err)
	}
	return true, nil
}

func number(file string) (int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

func family(is4 bool) int {
	if is4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// Remove removes the hairpin. It succeeds if there is none.
func (t *Hairpin) Remove() error {
	var errs []error
	for _, is4 := range []bool{true, false} {
		have, err := t.listRules(family(is4))
		errs = append(errs, err)
		for _, r := range have {
			if r.isOurs() {
				errs = append(errs, t.deleteRule(r))
			}
		}
	}
	errs = append(errs, t.nl.RemoveVeth(steer.HairpinOut)) // its routes and its other end go with it
	return errors.Join(errs...)
}

// Bridges lists the names of the host's bridges.
func (t *Hairpin) Bridges() ([]string, error) {
	all, err := t.nl.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var out []string
	for _, l := range all {
		if l.Type() == "bridge" {
			out = append(out, l.Attrs().Name)
		}
	}
	return out, nil
}

// Detours lists the links by which the route to a pod may lead although its packets arrive by another.
func (t *Hairpin) Detours() ([]string, error) { return hostnet.Detours(t.nsFD, steer.OwnLinks()...) }
