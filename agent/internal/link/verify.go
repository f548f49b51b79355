package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/neardns/neardns/pkg/hostnet"
)

// Verify says in words what Ensure would have to mend, and changes nothing. No words mean that all is well.
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
	if err := k.ours(l); err != nil {
		return []string{err.Error()}, nil
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		drift = append(drift, "it is down")
	}
	all, err := k.allAddresses()
	if err != nil {
		return drift, err
	}
	want := map[netip.Addr]string{}
	for _, a := range cfg.Addresses {
		want[a] = "is missing"
	}
	for _, a := range all {
		prefix := prefixOf(a)
		if a.LinkIndex != l.Attrs().Index {
			continue
		}
		switch _, ours := want[prefix.Addr()]; {
		case !ours:
			drift = append(drift, fmt.Sprintf("%s on it is not ours", prefix))
		case asWanted(a):
			want[prefix.Addr()] = ""
		default:
			want[prefix.Addr()] = "has other properties than it should"
		}
	}
	for _, a := range cfg.Addresses {
		var conflict *ConflictError
		if err := k.conflict(l, a, want[a] == "", all); errors.As(err, &conflict) {
			drift = append(drift, conflict.Error())
		} else if err != nil {
			return drift, err
		} else if want[a] != "" {
			drift = append(drift, "address "+a.String()+" "+want[a])
		}
	}
	return drift, nil
}
