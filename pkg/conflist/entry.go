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

// Settings are the values of one neardns entry; their order is that of the keys in the file. If a field has its zero value, or (except
// ClusterDomain) the plugin's default, the entry omits the key, and the plugin uses its default.
type Settings struct {
	Redirects      []steer.Redirect `json:"redirects"` // at least one; Entry adds missing steering addresses
	ClusterDomain  string           `json:"clusterDomain,omitempty"`
	LocalAddresses []netip.Addr     `json:"localAddresses,omitempty"`
	Backend        string           `json:"backend,omitempty"` // nftables, iptables or a variant of it; "" or auto lets the plugin choose
	Steer          string           `json:"steer,omitempty"`   // one of the Steer constants
	StateDir       string           `json:"stateDir,omitempty"`
	PersistDir     string           `json:"persistDir,omitempty"`

	DNS        overlay.Rules `json:"dns,omitzero"`         // the operator's rules for pods' DNS settings
	ResolvConf string        `json:"resolvConf,omitempty"` // one of the ResolvConf constants
	// ResolvConfPaths are where pods' resolv.conf files are, in the form of sandbox.Patterns; nil means the paths of sandbox.Patterns.
	ResolvConfPaths []string `json:"resolvConfPaths,omitempty"`
	HostResolvConf  string   `json:"hostResolvConf,omitempty"` // path of the resolv.conf that the node's kubelet uses
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
	var err error
	if s.Redirects, err = steer.Complete(s.Redirects); err != nil {
		return nil, fmt.Errorf("render conflist entry: %w", err)
	}
	if len(s.Redirects) == 0 {
		return nil, fmt.Errorf("render conflist entry: no redirects: name at least one cluster DNS address")
	}
	s.Backend = unless(s.Backend, "auto")
	s.Steer = unless(s.Steer, SteerProven)
	s.StateDir = unless(s.StateDir, nodestate.DefaultStateDir)
	s.PersistDir = unless(s.PersistDir, nodestate.DefaultPersistDir)
	s.ResolvConf = unless(s.ResolvConf, ResolvConfAuto)
	s.HostResolvConf = unless(s.HostResolvConf, HostResolvConf)
	if slices.Equal(s.ResolvConfPaths, sandbox.Patterns()) {
		s.ResolvConfPaths = nil
	}
	out, err := json.MarshalIndent(struct {
		Type string `json:"type"`
		Settings
		Capabilities capabilities `json:"capabilities"`
	}{Type, s, capabilities{DNS: true, Annotations: true}}, "", "  ")
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
