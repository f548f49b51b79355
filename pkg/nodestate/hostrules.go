package nodestate

import (
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/neardns/neardns/pkg/steer"
)

// hostRulesName is the file in stateDir. Like the rules it tells of, it is gone after a reboot.
const hostRulesName = "host-rules"

// HostRules says in which back end the host's rules stand, for which of our addresses, and what they were made from. Whoever made
// them writes it: plugin and agent work by the same, an ADD need not ask iptables, and who finds the rules gone can put them back.
type HostRules struct {
	Backend   string       `json:"backend"` // "" where nobody has made any
	Addresses []netip.Addr `json:"addresses"`
	Switch    *Switch      `json:"switch,omitempty"` // nil where there is nothing to put back: an older agent, node-cache's place
}

// Switch is what the host's rules were made from, as far as the fallback needs it: without a lease nobody is delivered, so pods
// that opted out and whatever proves a lease are left out. It holds no secret: everybody on the node may read it.
type Switch struct {
	Redirects     []steer.Redirect `json:"redirects,omitempty"`
	FallbackOnly  []steer.Redirect `json:"fallbackOnly,omitempty"`
	Locals        []steer.Local    `json:"locals,omitempty"`
	Uplinks       []string         `json:"uplinks,omitempty"`
	InterceptNode bool             `json:"interceptNode,omitempty"`
	Lifetime      time.Duration    `json:"lifetime,omitempty"` // in nanoseconds
}

// SwitchOf is a description's part that is kept; nil for rules that only their own agent may put back, since they hand packets to
// other programs' sockets or the node's own processes.
func SwitchOf(rs steer.Ruleset) *Switch {
	h, ok := rs.(steer.Host)
	if !ok || h.OwnLocals || len(h.Ceded) > 0 {
		return nil
	}
	return &Switch{h.Redirects, h.FallbackOnly, h.Locals, h.Uplinks, h.InterceptNode, h.Lifetime}
}

// Host is the description again.
func (s Switch) Host() steer.Host {
	return steer.Host{Redirects: s.Redirects, FallbackOnly: s.FallbackOnly, Locals: s.Locals, Uplinks: s.Uplinks,
		InterceptNode: s.InterceptNode, Lifetime: s.Lifetime}
}

// With is a plugin's own description, and behind it what the file knows beside that: addresses that pods still name although the
// configuration does not.
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

// Cover tells whether the rules know all of the addresses.
func (h HostRules) Cover(addrs ...netip.Addr) bool {
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !slices.Contains(h.Addresses, a) })
}

func hostRulesRecord() record[HostRules] { return record[HostRules]{what: "what the host's rules are"} }

// HostRulesPath names the file.
func HostRulesPath(stateDir string) string { return filepath.Join(stateDir, hostRulesName) }

// ReadHostRules reads the file. None is the zero value and no error.
func ReadHostRules(stateDir string) (HostRules, error) {
	v, _, err := hostRulesRecord().read(HostRulesPath(stateDir))
	return v, err
}

// WriteHostRules stores the file.
func WriteHostRules(stateDir string, h HostRules) error {
	return hostRulesRecord().write(HostRulesPath(stateDir), h)
}

// RemoveHostRules removes the file. It succeeds when there is none.
func RemoveHostRules(stateDir string) error {
	return hostRulesRecord().remove(HostRulesPath(stateDir))
}
