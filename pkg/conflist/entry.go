// Package conflist renders the neardns entry of a CNI configuration list (conflist), adds it to a list and removes it. It also converts a
// single plugin's configuration to a list and back.
//
// It never changes another plugin's entry. It imports neither a YAML library nor the agent, because the installer links it and runs
// before the agent.
//
// On failure: an invalid list is an error and stays unchanged, byte for byte.
package conflist

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/steer"
)

// Type is the value of the entry's key "type": the file name of the plugin's binary. neardns's entry is recognized by it.
const Type = "neardns"

// Values of the entry's key "steer".
const (
	SteerProven = "proven" // steer pods only after the fallback is verified on this node
	SteerAlways = "always" // steer pods even if the fallback is not verified, for tests
	SteerOff    = "off"    // never steer pods
)

// Values of the entry's key "resolvConf".
const (
	ResolvConfAuto = "auto" // change a pod's DNS settings if the rules or its annotation want it and the runtime allows it
	ResolvConfOff  = "off"  // never change a pod's DNS settings
)

// HostResolvConf is the resolv.conf that a kubelet uses unless its configuration names another file.
const HostResolvConf = "/etc/resolv.conf"

// Settings are the values of one neardns entry. If a field has its zero value, or (except ClusterDomain) the plugin's default, the entry
// omits the key, and the plugin uses its default.
type Settings struct {
	Redirects      []steer.Redirect // at least one; Entry adds missing steering addresses
	ClusterDomain  string
	LocalAddresses []netip.Addr
	Backend        string // nftables, iptables or one of iptables' variants; "" or auto lets the plugin choose
	Steer          string // one of the Steer constants
	StateDir       string
	PersistDir     string

	DNS             overlay.Rules // the operator's rules for pods' DNS settings; the entry has only the part for ADD (ForPlugin)
	ResolvConf      string        // one of the ResolvConf constants
	ResolvConfPaths []string      // where pods' resolv.conf files are, in the form of sandbox.Patterns; nil: the paths of sandbox.Patterns
	HostResolvConf  string        // path of the resolv.conf that the node's kubelet uses
}

// entry is the JSON form of a neardns entry. The order of its fields is the order of the keys in the file.
type entry struct {
	Type           string           `json:"type"`
	Redirects      []steer.Redirect `json:"redirects"`
	ClusterDomain  string           `json:"clusterDomain,omitempty"`
	LocalAddresses []netip.Addr     `json:"localAddresses,omitempty"`
	Backend        string           `json:"backend,omitempty"`
	Steer          string           `json:"steer,omitempty"`
	StateDir       string           `json:"stateDir,omitempty"`
	PersistDir     string           `json:"persistDir,omitempty"`

	DNS             overlay.Rules `json:"dns,omitzero"`
	ResolvConf      string        `json:"resolvConf,omitempty"`
	ResolvConfPaths []string      `json:"resolvConfPaths,omitempty"`
	HostResolvConf  string        `json:"hostResolvConf,omitempty"`

	Capabilities capabilities `json:"capabilities"`
}

// capabilities are the CNI capabilities of the entry. They make the runtime pass the pod's DNS settings, and the pod's annotations,
// by which a pod can opt out. A runtime ignores a capability that it does not support.
type capabilities struct {
	DNS         bool `json:"dns"`
	Annotations bool `json:"io.kubernetes.cri.pod-annotations"`
}

// Entry renders the neardns entry as indented JSON without a final newline. Equal settings give equal bytes, so an installer can
// compare entries to see whether a list needs a change. The entry always has the steering addresses, so that plugin and agent use
// the same ones even if their defaults differ.
func Entry(s Settings) ([]byte, error) {
	redirects, err := steer.Complete(s.Redirects)
	if err != nil {
		return nil, fmt.Errorf("render conflist entry: %w", err)
	}
	if len(redirects) == 0 {
		return nil, fmt.Errorf("render conflist entry: no redirects: name at least one cluster DNS address")
	}
	e := entry{
		Type: Type, Redirects: redirects, ClusterDomain: s.ClusterDomain, LocalAddresses: s.LocalAddresses,
		Backend:    unless(s.Backend, "auto"),
		Steer:      unless(s.Steer, SteerProven),
		StateDir:   unless(s.StateDir, nodestate.DefaultStateDir),
		PersistDir: unless(s.PersistDir, nodestate.DefaultPersistDir),

		DNS:            s.DNS.ForPlugin(),
		ResolvConf:     unless(s.ResolvConf, ResolvConfAuto),
		HostResolvConf: unless(s.HostResolvConf, HostResolvConf),
		Capabilities: capabilities{
			DNS: true, Annotations: true,
		},
	}
	if !slices.Equal(s.ResolvConfPaths, sandbox.Patterns()) {
		e.ResolvConfPaths = s.ResolvConfPaths
	}
	out, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("render conflist entry: %w", err)
	}
	return out, nil
}

// unless returns "" for a value that equals its default, so that the entry omits the key.
func unless(value, byDefault string) string {
	if value == byDefault {
		return ""
	}
	return value
}
