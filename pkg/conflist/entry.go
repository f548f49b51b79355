// Package conflist renders the neardns entry of a CNI network configuration list, adds it to a list and removes it.
//
// It never changes another plugin's entry. It imports neither YAML nor the agent, since the installer, which runs before the agent, links
// it.
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

// Type is the entry's "type": the file name of the plugin binary, by which neardns's entry is recognized.
const Type = "neardns"

// Values that the plugin takes for its key "steer".
const (
	SteerProven = "proven" // only once the fallback is verified on this node
	SteerAlways = "always" // without verification, for tests
	SteerOff    = "off"    // never
)

// Values that the plugin takes for its key "resolvConf".
const (
	ResolvConfAuto = "auto" // pods' DNS settings are changed if that is wanted and the runtime allows it
	ResolvConfOff  = "off"  // never
)

// HostResolvConf is the node's own file, unless its kubelet is configured with another.
const HostResolvConf = "/etc/resolv.conf"

// Settings are the values of one entry. The zero value of a field leaves its key out, which gives the plugin's default.
type Settings struct {
	Redirects      []steer.Redirect // at least one, each with its steering address
	ClusterDomain  string
	LocalAddresses []netip.Addr
	Backend        string // nftables, iptables; "" or auto: the plugin decides
	Steer          string // one of the Steer constants
	StateDir       string
	PersistDir     string

	DNS             overlay.Rules // what is wanted of pods' DNS settings; of it, what is laid at ADD
	ResolvConf      string        // one of the ResolvConf constants
	ResolvConfPaths []string      // as sandbox.Patterns has them; nil for these
	HostResolvConf  string        // the node's own file, as its kubelet uses it
}

// entry is the JSON of an entry; the order of its fields is the order of the keys.
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

// capabilities has the runtime pass what the plugin can use: the pod's DNS settings, and its annotations for the pods that
// opt out. A runtime that supports neither ignores the request.
type capabilities struct {
	DNS         bool `json:"dns"`
	Annotations bool `json:"io.kubernetes.cri.pod-annotations"`
}

// Entry renders the entry, indented, without a final newline. Equal settings give equal bytes, so that an installer can
// compare them to see whether a list needs a change. Steering addresses are always written, so that plugin and agent agree on them whatever
// their defaults are.
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

		DNS:            s.DNS.Laid(),
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

// unless leaves out a value that is the default anyway.
func unless(value, byDefault string) string {
	if value == byDefault {
		return ""
	}
	return value
}
