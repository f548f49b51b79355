package iptables

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
	"github.com/neardns/neardns/pkg/steer"
)

// Hairpin makes the hairpin in the host's netns: a veth pair with both ends there. Packets that are to go to kube-dns leave by
// one end and come in by the other. So they pass the nat table a second time, where kube-proxy's rules translate their cluster
// DNS address. kube-dns's answers come back through the hairpin. Other packets do not use it: the routes to cluster DNS addresses
// are in a table of their own, which routing rules select only for packets that kube-proxy has not translated. It is for one
// goroutine.
//
// Ensure stops at the first failure and names it; the caller calls it again later. Remove removes whatever exists.
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

// mac returns the hardware address of both ends. The ends do not resolve addresses (NOARP), so the kernel uses the sender's own
// hardware address as destination.
func mac() net.HardwareAddr { return net.HardwareAddr{0x02, 'n', 'd', 'n', 's', 0x03} }

// Ensure makes the hairpin route packets for these cluster DNS addresses and no others, and describes what it repaired. With
// own, it also routes packets of the node itself that have the mark steer.OwnMark.
func (t *Hairpin) Ensure(clusterDNS []netip.Addr, own bool) (repaired []string, err error) {
	type step struct {
		what string
		do   func() (done bool, err error)
	}
	steps := []step{{"link " + steer.HairpinOut, t.links}}
	for _, is4 := range []bool{true, false} {
		wanted := steer.OfFamily(clusterDNS, is4)
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

// links makes the veth pair and sets both ends up. If one of the names belongs to a link that is no veth, that link is another
// program's, and links returns an error.
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

// address adds the address of the second end (see steer.HairpinAddress).
func (t *Hairpin) address() (added bool, err error) {
	return t.configure(steer.HairpinIn, func(e *hostnet.End) {
		e.Address(hostnet.NonSourceAddr(steer.HairpinAddress()))
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

// settings corrects the settings of both ends that new links may have wrong by default. It does not write a correct value,
// because a container may not be permitted to.
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

// looseFilter sets rp_filter to loose (2) if it is strict (1), because the kernel would then drop packets that come in by an
// end: their sources, pods and cluster DNS addresses, are not routed by that link. The kernel uses the higher of the values of
// "all" and of the link (ip-sysctl.rst).
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
	// Set rp_filter by netlink, which needs only CAP_NET_ADMIN: /proc/sys is usually read-only in a container.
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

// Remove removes the hairpin's veth pair, routes and routing rules. If there are none, it succeeds.
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
	errs = append(errs, t.nl.RemoveVeth(steer.HairpinOut)) // the kernel then removes its routes and its other end
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

// Detours lists links by which a route to a pod may lead although the pod's packets arrive by another link; see
// hostnet.Detours.
func (t *Hairpin) Detours() ([]string, error) { return hostnet.Detours(t.nsFD, steer.OwnLinks()...) }
