package nodestate

import (
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/neardns/neardns/pkg/steer"
)

// HostRules describes the host's rules: their back end, the addresses that they cover, and the settings that they were made from. The
// program that made the rules writes it. So plugin and agent use the same back end, an ADD need not run iptables, and a program that
// finds the rules missing can restore them.
type HostRules struct {
	Backend   string       `json:"backend"` // "" if there are no rules
	Addresses []netip.Addr `json:"addresses"`
	Switch    *Switch      `json:"switch,omitempty"` // nil if there is nothing to restore: an older agent, or one in node-cache's place
}

// Switch has the settings of the host's rules that the fallback needs. Without a lease no query is delivered to the agent, so pods that
// opted out and the keys of leases are left out. It contains no secret: every process on the node may read it.
type Switch struct {
	Redirects     []steer.Redirect `json:"redirects,omitempty"`
	FallbackOnly  []steer.Redirect `json:"fallbackOnly,omitempty"`
	Locals        []steer.Local    `json:"locals,omitempty"`
	Uplinks       []string         `json:"uplinks,omitempty"`
	InterceptNode bool             `json:"interceptNode,omitempty"`
	Lifetime      time.Duration    `json:"lifetime,omitempty"` // in nanoseconds
}

// SwitchOf returns the settings to store; nil for rules that only their own agent may restore, since they deliver packets to other
// programs' sockets or to the node's own processes.
func SwitchOf(rs steer.Ruleset) *Switch {
	h, ok := rs.(steer.Host)
	if !ok || h.OwnLocals || len(h.Ceded) > 0 {
		return nil
	}
	return &Switch{h.Redirects, h.FallbackOnly, h.Locals, h.Uplinks, h.InterceptNode, h.Lifetime}
}

// Host returns the rules that the settings describe.
func (s Switch) Host() steer.Host {
	return steer.Host{Redirects: s.Redirects, FallbackOnly: s.FallbackOnly, Locals: s.Locals, Uplinks: s.Uplinks,
		InterceptNode: s.InterceptNode, Lifetime: s.Lifetime}
}

// With adds to the plugin's own rules what only the file has: addresses that pods still name although the configuration does not.
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

// Cover reports whether the rules cover all of the addresses.
func (h HostRules) Cover(addrs ...netip.Addr) bool {
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !slices.Contains(h.Addresses, a) })
}

// HostRulesFile is the record in a state folder. Like the rules that it describes, it is gone after a reboot. A missing file is the zero
// value.
func HostRulesFile(stateDir string) Record[HostRules] {
	return Record[HostRules]{Path: filepath.Join(stateDir, "host-rules"), what: "what the host's rules are"}
}
