package link

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/neardns/neardns/pkg/hostnet"
)

// Verify describes how the link differs from cfg, and changes nothing: the link is missing, down or another program's, multicast is on,
// or its addresses are wrong or in use elsewhere. It does not read the IPv6 settings: a wrong one shows by a missing or foreign address.
func Verify(cfg Config) (drift []string, err error) {
	k, err := openKernel(cfg.NetNS)
	if err != nil {
		return nil, err
	}
	defer k.Close()
	l, err := k.LinkByName(cfg.Name)
	if hostnet.IsNoLink(err) {
		return []string{"there is no such link"}, nil
	} else if err != nil {
		return nil, fmt.Errorf("look up link %s: %w", cfg.Name, err)
	}
	if err := k.checkOwner(l); err != nil {
		return []string{err.Error()}, nil
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		drift = append(drift, "it is down")
	}
	if l.Attrs().RawFlags&unix.IFF_MULTICAST != 0 {
		drift = append(drift, "multicast is on")
	}
	have, err := k.listAddresses(l, cfg.Addresses)
	if err != nil {
		return drift, err
	}
	state := map[netip.Addr]string{}
	for _, a := range have.bad {
		prefix := prefixOf(a.IPNet)
		if !slices.Contains(cfg.Addresses, prefix.Addr()) {
			drift = append(drift, fmt.Sprintf("it has the address %s, which the configuration does not have", prefix))
		}
		state[prefix.Addr()] = "has other properties than it should"
	}
	for _, a := range cfg.Addresses {
		var conflict *ConflictError
		if err := k.conflict(l, a, have.good[a], have.all); errors.As(err, &conflict) {
			drift = append(drift, conflict.Error())
		} else if err != nil {
			return drift, err
		} else if state[a] != "" || !have.good[a] {
			drift = append(drift, "address "+a.String()+" "+cmp.Or(state[a], "is missing"))
		}
	}
	return drift, nil
}
