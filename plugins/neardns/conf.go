package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/rules"
	"github.com/neardns/neardns/pkg/strict"
)

// Keys and values in the configuration, written by runtimes or operators.
const (
	keyAnnotations   = "io.kubernetes.cri.pod-annotations"
	keyValid         = "cni.dev/valid-attachments"
	keyValidOldTypo  = "cni.dev/attachments" // an earlier name (containernetworking/cni#1101); libcni sends the list under both names
	noLogFile        = "none"
	domainDefault    = "cluster.local"
	backendAuto      = "auto" // the agent chooses
	unsupportedAllow = "allow"
	unsupportedFail  = "fail"
)

// ownKeys are the top-level keys of neardns. A misspelt key would silently get its default on every node, so `neardns
// validate`, and the installer before it uses a hand-written entry, refuse unknown keys. A CNI call only logs them (D-052).
var ownKeys = []string{
	"redirects", "clusterDomain", "localAddresses", "backend", "steer", "stateDir", "persistDir", "onUnsupported",
	"logFile", "logLevel", keyDNS, keyResolvConf, keyResolvConfPaths, keyHostResolvConf,
}

// foreignKeys are keys of CNI, of runtimes and of other plugins that may be in a plugin's configuration. Keys with a slash count as
// foreign, too.
var foreignKeys = []string{
	"name", "type", "cniVersion", "cniVersions", "capabilities", "args", "runtimeConfig", "prevResult", "ipam", "ipMasq",
	"disableCheck", "disableGC", "loadOnlyInlinedPlugins",
	"deviceID", "pciBusID", // Multus writes these two into each plugin of a network that has a device
	"nerdctlID",
}

// Conf is the configuration of one CNI call, with defaults filled in.
type Conf struct {
	Name, CNIVersion string

	Redirects     []steer.Redirect
	Locals        []steer.Local
	ClusterDomain string
	Steer         string
	Backend       string
	OnUnsupported string
	StateDir      string
	PersistDir    string
	LogFile       string // "" for none
	LogLevel      slog.Level

	Rules           overlay.Rules // pods' wanted DNS settings
	ResolvConf      string        // whether resolv.conf files may be changed
	ResolvConfPaths []string      // paths at which runtimes keep a sandbox's resolv.conf, with {id} for its ID
	HostResolvConf  string        // the node's own resolv.conf, from which its kubelet makes pods' settings

	RuntimeInput

	// Notes describe parts of the runtime's input that cannot be read. They never fail a call, because the pod's owner cannot
	// correct them.
	Notes []string
	// Unknown are top-level keys that belong neither to neardns nor to a known runtime. They never fail a call.
	Unknown []*strict.Fault
}

// RuntimeInput is what the runtime adds to the conflist's entry for one call.
type RuntimeInput struct {
	PrevResult  json.RawMessage      // nil if there is none
	DNS         *podDNS              // nil if the runtime passed none that can be read
	Annotations map[string]string    // the pod's, if the runtime passed them
	Valid       []types.GCAttachment // GC: the containers' network interfaces that still exist
	ValidKnown  bool                 // GC: the runtime passed a list, even if it is empty
}

// podDNS is the value of CNI's dns capability. containerd writes its keys with a capital letter, the CNI convention in lower
// case; encoding/json accepts both.
type podDNS struct {
	Servers  []string `json:"servers"`
	Searches []string `json:"searches"`
	Options  []string `json:"options"`
}

// confError has all faults found in a configuration, so that the operator can correct them together: each attempt costs a rollout
// to all nodes.
type confError struct {
	Code   uint
	Faults []*strict.Fault
}

func (e *confError) Error() string {
	var parts []string
	for _, f := range e.Faults {
		parts = append(parts, f.Error())
	}
	return strings.Join(parts, "; ")
}

// parseConf reads the JSON that a call gets on stdin. It returns a configuration even with an error, so that DEL can still clean
// up: a string key of the wrong type, or a path that is not absolute, has its default. Other keys may be empty or have a value that
// is not allowed.
func parseConf(stdin []byte) (*Conf, error) {
	c := &Conf{
		ClusterDomain: domainDefault, Steer: conflist.SteerProven, Backend: backendAuto, OnUnsupported: unsupportedAllow,
		StateDir: nodestate.DefaultStateDir, PersistDir: nodestate.DefaultPersistDir,
		LogFile:    filepath.Join(nodestate.DefaultStateDir, nodestate.PluginLogName),
		ResolvConf: conflist.ResolvConfAuto, ResolvConfPaths: sandbox.Patterns(), HostResolvConf: conflist.HostResolvConf,
	}
	top, err := strict.JSON("", "", stdin)
	if err == nil && top.Kind != strict.Object {
		err = fmt.Errorf("it is %s", top.Kind)
	}
	if err != nil {
		c.LogFile = "" // the path of the log file is unknown, so log to stderr only
		message := fmt.Sprintf("the configuration is not a JSON object (%v): write it as the CNI specification has it", err)
		return c, &confError{types.ErrDecodingFailure, []*strict.Fault{{Message: message}}}
	}
	r := &confReader{top: top.Map()}
	r.keys(c)
	r.own(c)
	r.runtime(c)
	if faults := r.Faults(); len(faults) > 0 {
		// List the unknown keys as well: a misspelt key explains why a required one is missing.
		return c, &confError{types.ErrInvalidNetworkConfig, append(c.Unknown, faults...)}
	}
	return c, nil
}

// keys collects unknown top-level keys.
func (r *confReader) keys(c *Conf) {
	for _, k := range slices.Sorted(maps.Keys(r.top)) {
		if slices.Contains(ownKeys, k) || slices.Contains(foreignKeys, k) || strings.Contains(k, "/") {
			continue
		}
		var one strict.Reader
		one.Unknown(strict.Member{Key: k, Value: r.top[k]}, ownKeys...)
		c.Unknown = append(c.Unknown, one.Faults()...)
	}
}

// own reads neardns's keys.
func (r *confReader) own(c *Conf) {
	r.redirects(c)
	r.text("clusterDomain", &c.ClusterDomain)
	c.ClusterDomain = strings.TrimSuffix(c.ClusterDomain, ".")
	if !strict.IsDomain(c.ClusterDomain) {
		r.fault("clusterDomain", "%q is not a domain name: write it like %s", c.ClusterDomain, domainDefault)
	}
	r.oneOf("backend", &c.Backend, backendAuto, rules.Nftables, rules.Iptables, rules.IptablesNFT, rules.IptablesLegacy)
	r.oneOf("steer", &c.Steer, conflist.SteerProven, conflist.SteerAlways, conflist.SteerOff)
	r.oneOf("onUnsupported", &c.OnUnsupported, unsupportedAllow, unsupportedFail)
	r.path("stateDir", &c.StateDir)
	r.path("persistDir", &c.PersistDir)
	r.logging(c)
	r.podDNSKeys(c)
}
