package main

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/backend"
	"github.com/neardns/neardns/pkg/steer/iptables"
)

// chooseKernel takes the back end that the host's rules stand in; where there are none, that of the configuration, or, if it
// names none, the one by whose rules the fallback was proven on this node.
func (v *verb) chooseKernel() {
	stand, err := podfile.ReadHostRules(v.conf.StateDir)
	if err != nil {
		v.log.Warn("the host's back end is not known", "verb", v.name, "err", err)
	}
	name := stand.Backend
	if name == "" {
		name, err = v.wanted()
		if err != nil {
			v.log.Warn("which back end to use is not known", "verb", v.name, "err", err)
		}
	}
	v.stand, v.kernel = stand, v.kernelOf(name, stand)
}

// wanted is the back end for a host that has no rules yet.
func (v *verb) wanted() (string, error) {
	switch v.conf.Backend {
	case backend.Nftables, string(iptables.NFT), string(iptables.Legacy):
		return v.conf.Backend, nil
	case backendIptables:
		found, err := iptables.Find(-1)
		if err != nil {
			return string(iptables.NFT), err // whose absence every pod's file will say
		}
		return string(found[0]), nil
	}
	proof, err := podfile.ReadProof(v.conf.PersistDir)
	return proof.Backend, err
}

// kernelOf is the kernel with the rules of a back end; one of a name that is not known is nftables.
func (v *verb) kernelOf(name string, stand podfile.HostRules) kernel {
	k, err := backend.Named(name)
	if err != nil {
		v.log.Warn("unknown back end", "verb", v.name, "err", err)
	}
	if !k.IsIptables() {
		return v.env.kernel
	}
	return iptablesKernel{kernel: v.env.kernel, kind: k, stand: stand}
}

// iptablesKernel has iptables' rules, and everything else from the kernel that it is put around.
type iptablesKernel struct {
	kernel
	kind  backend.Kind
	stand podfile.HostRules // what the host has
}

func (k iptablesKernel) Backend() string { return k.kind.String() }

func (k iptablesKernel) Open(nsFD int) (rules, error) {
	if nsFD >= 0 {
		return k.kind.Open(nsFD)
	}
	host, err := k.kind.OpenHost(nsFD)
	if err != nil {
		return nil, err
	}
	return iptablesHost{Host: host, kernel: k}, nil
}

// Lacks is an address that the host's rules do not know. Chains are made whole, so this plugin would take away what only the
// agent knows of; the agent adds it, since it reads the pod's file.
func (k iptablesKernel) Lacks(addrs ...netip.Addr) error {
	if k.stand.Backend == "" || k.stand.Cover(addrs...) {
		return nil
	}
	return fmt.Errorf("the host's %s rules do not have all of %s yet: the agent adds them", k.kind, joined(addrs))
}

func joined(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}

// iptablesHost is the host's side. It goes by the file of those who made the rules, and by whether packets still come into them:
// asking iptables for more takes longer than the rest of an ADD.
type iptablesHost struct {
	backend.Host
	kernel iptablesKernel
}

func (h iptablesHost) stands() bool { return h.kernel.stand.Backend != "" }

// entered tells whether the rules that the file tells of are there for the families of rs.
func (h iptablesHost) entered(rs steer.Ruleset) (bool, error) {
	if !h.stands() {
		return false, nil
	}
	families := map[bool]bool{}
	for _, a := range backend.Addresses(rs) {
		families[a.Is4()] = true
	}
	for is4 := range families {
		if in, err := h.Entered(is4); err != nil || !in {
			return false, err
		}
	}
	return true, nil
}

func (h iptablesHost) Whole(rs steer.Ruleset) (bool, error) { return h.entered(rs) }

func (h iptablesHost) Present() (bool, error) {
	if h.kernel.stand.Switch == nil {
		return h.stands(), nil
	}
	return h.entered(h.kernel.stand.Switch.Host())
}

// IsUplink is false: pods' links are none, and the agent, which alone might know better, looks again.
func (iptablesHost) IsUplink(string) (bool, error) { return false, nil }

// Ensure makes the rules where nobody has since the node started, or somebody has taken them away.
func (h iptablesHost) Ensure(rs steer.Ruleset) error {
	if in, err := h.entered(rs); err != nil || in {
		return err
	}
	return h.Host.Ensure(rs)
}

// hostRulesName is what an operator looks for on the host, tableName in a pod's netns.
func hostRulesName(k kernel) string {
	if k.Backend() == "" {
		return "table " + tableName(k)
	}
	return tableName(k)
}

func tableName(k kernel) string {
	if name := k.Backend(); name != "" {
		return "NEARDNS chains of " + name
	}
	return "inet " + steer.TableName
}
