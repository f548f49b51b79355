package link

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

// mendIPv6 keeps the kernel from giving the link addresses of its own (it would be one more that is reachable unguarded)
// and makes sure that ours can be added also where new links start with IPv6 off.
func (k kernel) mendIPv6(l netlink.Link, cfg Config, step func(bool, string, func() error) error) error {
	if !slices.ContainsFunc(cfg.Addresses, netip.Addr.Is6) {
		return nil
	}
	name := l.Attrs().Name
	return k.inside(func() error {
		disabled := sysctl{name, "disable_ipv6"}
		off, err := disabled.reads("1")
		if err != nil {
			return err
		}
		if err := step(off, "set "+disabled.key()+" = 0", func() error { return disabled.write("0") }); err != nil {
			return err
		}
		// Read from /proc: the library can set the mode but not tell it. 1 is "none": no link-local address.
		mode := sysctl{name, "addr_gen_mode"}
		none, err := mode.reads("1")
		if err != nil {
			return err
		}
		return step(!none, "set addrgenmode none", func() error { return k.LinkSetIP6AddrGenMode(l, linkAddrGenModeNone) })
	})
}

const linkAddrGenModeNone = 1 // IN6_ADDR_GEN_MODE_NONE, linux/if_link.h

// inside runs f on a thread in the kernel's netns: /proc/sys/net shows the reader's.
func (k kernel) inside(f func() error) error {
	if k.netNS <= 0 {
		return f()
	}
	there, err := ns.GetNS(fmt.Sprintf("/proc/self/fd/%d", k.netNS))
	if err != nil {
		return fmt.Errorf("open netns: %w", err)
	}
	defer there.Close()
	return there.Do(func(ns.NetNS) error { return f() })
}

// sysctl is one IPv6 setting of one link.
type sysctl struct{ link, setting string }

func (s sysctl) path() string { return "/proc/sys/net/ipv6/conf/" + s.link + "/" + s.setting }
func (s sysctl) key() string  { return "net.ipv6.conf." + s.link + "." + s.setting }

func (s sysctl) reads(value string) (bool, error) {
	got, err := os.ReadFile(s.path())
	if os.IsNotExist(err) {
		return false, fmt.Errorf("%s is not there: this kernel runs without IPv6; take the IPv6 addresses out of the configuration", s.key())
	} else if err != nil {
		return false, fmt.Errorf("read sysctl: %w", err)
	}
	return string(bytes.TrimSpace(got)) == value, nil
}

func (s sysctl) write(value string) error {
	if err := os.WriteFile(s.path(), []byte(value), 0); err != nil {
		return fmt.Errorf("write sysctl %s (is /proc/sys mounted read-only?): %w", s.key(), err)
	}
	return nil
}
