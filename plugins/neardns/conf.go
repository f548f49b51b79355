package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/backend"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/strict"
)

// Names that runtimes and people write.
const (
	keyAnnotations   = "io.kubernetes.cri.pod-annotations"
	keyValid         = "cni.dev/valid-attachments"
	keyValidOldTypo  = "cni.dev/attachments" // an early draft of CNI 1.1; libcni sends both
	noLogFile        = "none"
	domainDefault    = "cluster.local"
	steerProven      = "proven"
	steerAlways      = "always"
	steerOff         = "off"
	backendAuto      = "auto"     // as the agent has chosen
	backendIptables  = "iptables" // whichever of the two the agent has chosen
	unsupportedAllow = "allow"
	unsupportedFail  = "fail"
)

// ownKeys are ours. A misspelt one would silently be a default, on every node: so validate, and the installer before it writes
// an entry, refuse keys that are nobody's. A call does not (D-052).
var ownKeys = []string{
	"redirects", "clusterDomain", "localAddresses", "backend", "steer", "stateDir", "persistDir", "onUnsupported",
	"logFile", "logLevel", keyDNS, keyResolvConf, keyResolvConfPaths, keyHostResolvConf,
}

// foreignKeys are the runtime's and libcni's. Besides these every key with a slash in it is somebody's namespace.
var foreignKeys = []string{
	"name", "type", "cniVersion", "cniVersions", "capabilities", "args", "runtimeConfig", "prevResult", "ipam", "ipMasq",
	"disableCheck", "disableGC", "loadOnlyInlinedPlugins",
	"deviceID", "pciBusID", // Multus writes them into each plugin of a network with a device
	"nerdctlID",
}

// Conf is one call's configuration, defaults filled in.
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

	Rules           overlay.Rules // what is wanted of pods' DNS settings
	ResolvConf      string        // whether they may be changed
	ResolvConfPaths []string      // where a runtime may keep a sandbox's resolv.conf
	HostResolvConf  string        // the node's own, as its kubelet uses it

	PrevResult  json.RawMessage      // nil when there is none
	DNS         *podDNS              // nil when the runtime gave none
	Annotations map[string]string    // the pod's, where the runtime gave them
	Valid       []types.GCAttachment // GC: what is still there
	ValidKnown  bool                 // GC: the runtime gave a list, maybe an empty one

	// Notes are oddities in what the runtime sent. They never fail a call: nobody could mend them.
	Notes []string
	// Unknown are top-level keys that are neither ours nor known to be the runtime's. They fail no call.
	Unknown []*strict.Fault
}

// podDNS is the dns capability. containerd writes the keys with capitals, the convention has small letters; encoding/json
// takes both.
type podDNS struct {
	Servers  []string `json:"servers"`
	Searches []string `json:"searches"`
	Options  []string `json:"options"`
}

// confError holds all faults of a configuration at once, since each try of a person costs a round over all nodes.
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

// confReader reads one call's configuration.
type confReader struct {
	strict.Reader
	top map[string]strict.Value
}

func (r *confReader) fault(field, format string, args ...any) {
	r.Fault(strict.Value{Field: field}, format, args...)
}

// wrong shows what stands where a string is wanted: often it lacks only the quotes.
func wrong(v strict.Value, want, remedy string) string {
	switch want {
	case "a string":
		shown := v.Text
		if shown == "" {
			shown = string(v.Kind)
		}
		return fmt.Sprintf("%s is not a string: %s", shown, remedy)
	case steer.WantRedirect:
		return "neither an address nor an object: " + remedy
	}
	return fmt.Sprintf("not %s: %s", want, remedy)
}

// parseConf reads a call's stdin. The configuration is usable even beside an error: what is wrong has its default, so that
// DEL can go on.
func parseConf(stdin []byte) (*Conf, error) {
	c := &Conf{
		ClusterDomain: domainDefault, Steer: steerProven, Backend: backendAuto, OnUnsupported: unsupportedAllow,
		StateDir: podfile.DefaultStateDir, PersistDir: podfile.DefaultPersistDir, LogFile: filepath.Join(podfile.DefaultStateDir, podfile.PluginLogName),
		ResolvConf: resolvConfAuto, ResolvConfPaths: sandbox.Patterns(), HostResolvConf: hostResolvConf,
	}
	top, err := strict.JSON("", stdin)
	if err == nil && top.Kind != strict.Object {
		err = fmt.Errorf("it is %s", top.Kind)
	}
	if err != nil {
		c.LogFile = "" // where the log is wanted is not known; stderr serves
		message := fmt.Sprintf("the configuration is not a JSON object (%v): write it as the CNI specification has it", err)
		return c, &confError{types.ErrDecodingFailure, []*strict.Fault{{Message: message}}}
	}
	r := &confReader{top: top.Map()}
	r.Wrong = wrong
	r.keys(c)
	r.own(c)
	r.runtime(c)
	if faults := r.Faults(); len(faults) > 0 {
		// Where something is missing, a misspelt key tells why.
		return c, &confError{types.ErrInvalidNetworkConfig, append(c.Unknown, faults...)}
	}
	return c, nil
}

// keys notes top-level keys that are nobody's.
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

// own reads our keys.
func (r *confReader) own(c *Conf) {
	r.redirects(c)
	r.text("clusterDomain", &c.ClusterDomain)
	c.ClusterDomain = strings.TrimSuffix(c.ClusterDomain, ".")
	if !strict.IsDomain(c.ClusterDomain) {
		r.fault("clusterDomain", "%q is not a domain name: write it like %s", c.ClusterDomain, domainDefault)
	}
	r.text("backend", &c.Backend)
	r.oneOf("backend", c.Backend, backendAuto, backend.Nftables, backendIptables, string(iptables.NFT), string(iptables.Legacy))
	r.text("steer", &c.Steer)
	r.oneOf("steer", c.Steer, steerProven, steerAlways, steerOff)
	r.text("onUnsupported", &c.OnUnsupported)
	r.oneOf("onUnsupported", c.OnUnsupported, unsupportedAllow, unsupportedFail)
	r.path("stateDir", &c.StateDir)
	r.path("persistDir", &c.PersistDir)
	r.logging(c)
	r.podDNSKeys(c)
}

func (r *confReader) logging(c *Conf) {
	c.LogFile = filepath.Join(c.StateDir, podfile.PluginLogName)
	var name string
	if r.text("logFile", &name); name == noLogFile {
		c.LogFile = ""
	} else {
		r.path("logFile", &c.LogFile)
	}
	level := "info"
	r.text("logLevel", &level)
	r.oneOf("logLevel", level, "debug", "info", "warn", "error")
	if c.LogLevel.UnmarshalText([]byte(level)) != nil {
		c.LogLevel = slog.LevelInfo // named as a fault already
	}
}

// redirects reads redirects and localAddresses, which are checked against each other.
func (r *confReader) redirects(c *Conf) {
	before := len(r.Faults())
	items := r.top["redirects"].Items()
	if len(items) == 0 {
		r.fault("redirects", `missing, empty or not a list: name the cluster DNS address of each family, like ["10.96.0.10"]`)
	}
	var redirects []steer.Redirect
	for _, v := range items {
		redirects = append(redirects, steer.ReadRedirect(&r.Reader, v, r.addr))
	}
	var locals []netip.Addr
	if v, ok := r.top["localAddresses"]; ok && v.Kind != strict.Null {
		for _, item := range r.ItemsOf(v, "a list", `write it like ["169.254.20.10"]`) {
			locals = append(locals, r.addr(item))
		}
	}
	if len(r.Faults()) > before {
		return
	}
	complete, err := steer.Complete(redirects)
	if err == nil {
		c.Redirects = complete
		c.Locals, err = steer.Locals(locals, complete)
	}
	if err != nil {
		// The message begins with its field.
		field, msg, _ := strings.Cut(err.Error(), ": ")
		r.fault(field, "%s", msg)
	}
}

func (r *confReader) addr(v strict.Value) netip.Addr {
	text, ok := r.TextOf(v, "a string", "write an IP address in quotes")
	if !ok {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		r.Fault(v, "%q is not an IP address: write it without port, prefix or name, like 10.96.0.10 or fd00:10:96::a", text)
	}
	return a
}

// text reads a string key that may be absent.
func (r *confReader) text(key string, into *string) {
	if v, ok := r.top[key]; ok {
		if s, ok := r.Text(v); ok {
			*into = s
		}
	}
}

func (r *confReader) oneOf(key, value string, allowed ...string) {
	r.OneOf(strict.Value{Field: key}, value, allowed...)
}

// path reads an absolute path; a wrong one leaves the default.
func (r *confReader) path(key string, into *string) {
	p := *into
	r.text(key, &p)
	if !filepath.IsAbs(p) || strings.ContainsRune(p, 0) {
		r.fault(key, "%q is not an absolute path: write it from the root, like %s", p, *into)
		return
	}
	*into = filepath.Clean(p)
}

// runtime reads what the runtime adds. Nothing in it is a fault: a pod must not fail for what its owner cannot change.
func (r *confReader) runtime(c *Conf) {
	note := func(what string, err error) {
		c.Notes = append(c.Notes, fmt.Sprintf("%s cannot be read: %v", what, err))
	}
	for key, into := range map[string]*string{"name": &c.Name, "cniVersion": &c.CNIVersion} {
		if v := r.top[key]; v.Kind == strict.String {
			*into = v.Text
		}
	}
	if v, ok := r.top["prevResult"]; ok && !v.IsNull() {
		c.PrevResult = v.Raw()
	}
	var given map[string]json.RawMessage
	if v, ok := r.top["runtimeConfig"]; ok {
		if err := json.Unmarshal(v.Raw(), &given); err != nil {
			note("runtimeConfig", err)
		}
	}
	if raw, ok := given["dns"]; ok {
		if err := json.Unmarshal(raw, &c.DNS); err != nil {
			c.DNS = nil
			note("runtimeConfig.dns", err)
		}
	}
	if raw, ok := given[keyAnnotations]; ok {
		if err := json.Unmarshal(raw, &c.Annotations); err != nil {
			note("the pod's annotations", err)
		}
	}
	for _, key := range []string{keyValid, keyValidOldTypo} {
		v, ok := r.top[key]
		if !ok || v.IsNull() {
			continue
		}
		var list []types.GCAttachment
		if err := json.Unmarshal(v.Raw(), &list); err != nil {
			r.fault(key, "not a list of attachments (%v): nothing is removed", err)
			continue
		}
		c.Valid, c.ValidKnown = append(c.Valid, list...), true
	}
}

// podArgs are the CNI_ARGS that we use.
type podArgs struct{ Name, Namespace, UID string }

// parseArgs reads CNI_ARGS. types.LoadArgs fails on unknown keys and on values with "=" in them (Nomad sends JSON); we need
// three keys at most and none of them badly, so whatever else is there is passed over.
func parseArgs(s string) podArgs {
	var p podArgs
	for pair := range strings.SplitSeq(s, ";") {
		key, value, _ := strings.Cut(pair, "=")
		switch key {
		case "K8S_POD_NAME":
			p.Name = value
		case "K8S_POD_NAMESPACE":
			p.Namespace = value
		case "K8S_POD_UID":
			p.UID = value
		}
	}
	return p
}

// String names the pod for people.
func (p podArgs) String() string {
	if p.Namespace == "" {
		return p.Name
	}
	return p.Namespace + "/" + p.Name
}
