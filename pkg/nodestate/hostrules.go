package nodestate

import (
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/neardns/neardns/pkg/steer"
)

// HostRules records the host's packet rules: their back end (nftables or iptables), the addresses that they cover, and their settings. The
// program that makes the rules writes this record. Therefore plugin and agent use the same back end, an ADD need not run iptables to read
// the rules, and a program that finds rules missing can restore them.
type HostRules struct {
	Backend   string       `json:"backend"` // "" if there are no rules
	Addresses []netip.Addr `json:"addresses"`
	Switch    *Switch      `json:"switch,omitempty"` // nil if only the agent can restore the rules, or an older agent wrote the file
}

// Switch has those settings of the host's rules that the fallback needs, and the lifetime of a lease. Other settings that matter only under
// a lease are left out, for example pods that opted out and the lease secret. Every process on the node may read the file, so it must have
// no secret.
type Switch struct {
	Redirects     []steer.Redirect `json:"redirects,omitempty"`
	FallbackOnly  []steer.Redirect `json:"fallbackOnly,omitempty"`
	Locals        []steer.Local    `json:"locals,omitempty"`
	Uplinks       []string         `json:"uplinks,omitempty"`
	InterceptNode bool             `json:"interceptNode,omitempty"`
	Lifetime      time.Duration    `json:"lifetime,omitempty"` // of a lease, in nanoseconds
}

// SwitchOf returns the settings to store. It returns nil for rules with OwnLocals or Ceded: they also decide about queries of the
// node's own processes and queries to other programs' sockets, so only their own agent may restore them.
func SwitchOf(h steer.Host) *Switch {
	if h.OwnLocals || len(h.Ceded) > 0 {
		return nil
	}
	return &Switch{h.Redirects, h.FallbackOnly, h.Locals, h.Uplinks, h.InterceptNode, h.Lifetime}
}

// Host returns the description of the host's rules that have these settings.
func (s Switch) Host() steer.Host {
	return steer.Host{Redirects: s.Redirects, FallbackOnly: s.FallbackOnly, Locals: s.Locals, Uplinks: s.Uplinks,
		InterceptNode: s.InterceptNode, Lifetime: s.Lifetime}
}

// With returns own, the rules of the plugin's configuration, with these settings of the record added: redirects that own lacks (as
// FallbackOnly), local addresses that own lacks, InterceptNode, and Lifetime if own has none. Pods may still use an address that is no
// longer in the configuration.
func (h HostRules) With(own steer.Host) steer.Host {
	if h.Switch == nil {
		return own
	}
	for _, r := range slices.Concat(h.Switch.Redirects, h.Switch.FallbackOnly) {
		same := func(o steer.Redirect) bool { return o.Steering == r.Steering }
		if !slices.ContainsFunc(own.Redirects, same) && !slices.ContainsFunc(own.FallbackOnly, same) {
			own.FallbackOnly = append(slices.Clip(own.FallbackOnly), r)
		}
	}
	for _, l := range h.Switch.Locals {
		if !slices.ContainsFunc(own.Locals, func(o steer.Local) bool { return o.Address == l.Address }) {
			own.Locals = append(slices.Clip(own.Locals), l)
		}
	}
	own.InterceptNode = own.InterceptNode || h.Switch.InterceptNode
	if own.Lifetime == 0 {
		own.Lifetime = h.Switch.Lifetime
	}
	return own
}

// Cover reports whether the recorded rules cover all of these addresses.
func (h HostRules) Cover(addrs ...netip.Addr) bool {
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !slices.Contains(h.Addresses, a) })
}

// HostRulesFile returns the record of the host's rules in a state folder. Like the rules, the file is gone after a reboot. A missing file
// reads as the zero value.
func HostRulesFile(stateDir string) Record[HostRules] {
	return Record[HostRules]{Path: filepath.Join(stateDir, "host-rules"), what: "what the host's rules are"}
}
