package main

import (
	"bytes"
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
	Unknown []fault
}

// podDNS is the dns capability. containerd writes the keys with capitals, the convention has small letters; encoding/json
// takes both.
type podDNS struct {
	Servers  []string `json:"servers"`
	Searches []string `json:"searches"`
	Options  []string `json:"options"`
}

// fault is one thing wrong in a configuration: where, what, and what to do.
type fault struct{ Field, Msg string }

func (f fault) String() string {
	if f.Field == "" {
		return f.Msg
	}
	return f.Field + ": " + f.Msg
}

// confError holds all faults of a configuration at once, since each try of a person costs a round over all nodes.
type confError struct {
	Code   uint
	Faults []fault
}

func (e *confError) Error() string {
	var parts []string
	for _, f := range e.Faults {
		parts = append(parts, f.String())
	}
	return strings.Join(parts, "; ")
}

// confReader collects what was found and what was wrong.
type confReader struct {
	raw    map[string]json.RawMessage
	faults []fault
}

func (r *confReader) fault(field, format string, args ...any) {
	r.faults = append(r.faults, fault{field, fmt.Sprintf(format, args...)})
}

// parseConf reads a call's stdin. The configuration is usable even beside an error: what is wrong has its default, so that
// DEL can go on.
func parseConf(stdin []byte) (*Conf, error) {
	c := &Conf{
		ClusterDomain: domainDefault, Steer: steerProven, Backend: backendAuto, OnUnsupported: unsupportedAllow,
		StateDir: podfile.DefaultStateDir, PersistDir: podfile.DefaultPersistDir, LogFile: filepath.Join(podfile.DefaultStateDir, podfile.PluginLogName),
		ResolvConf: resolvConfAuto, ResolvConfPaths: sandbox.Patterns(), HostResolvConf: hostResolvConf,
	}
	r := &confReader{}
	if err := json.Unmarshal(stdin, &r.raw); err != nil || r.raw == nil {
		c.LogFile = "" // where the log is wanted is not known; stderr serves
		return c, &confError{types.ErrDecodingFailure, []fault{{"", fmt.Sprintf("the configuration is not a JSON object (%v): write it as the CNI specification has it", err)}}}
	}
	r.keys(c)
	r.own(c)
	r.runtime(c)
	if len(r.faults) > 0 {
		// Where something is missing, a misspelt key tells why.
		return c, &confError{types.ErrInvalidNetworkConfig, append(c.Unknown, r.faults...)}
	}
	return c, nil
}

// keys notes top-level keys that are nobody's.
func (r *confReader) keys(c *Conf) {
	for _, k := range slices.Sorted(maps.Keys(r.raw)) {
		if slices.Contains(ownKeys, k) || slices.Contains(foreignKeys, k) || strings.Contains(k, "/") {
			continue
		}
		c.Unknown = append(c.Unknown, fault{k, "unknown key: " + suggest(k, ownKeys)})
	}
}

// suggest names the key that was probably meant.
func suggest(k string, known []string) string {
	plain := func(s string) string {
		return strings.TrimSuffix(strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(s)), "s")
	}
	for _, o := range known {
		if plain(k) == plain(o) {
			return fmt.Sprintf("write %q", o)
		}
	}
	return "take it out, or use one of " + strings.Join(known, ", ")
}

// own reads our keys.
func (r *confReader) own(c *Conf) {
	r.redirects(c)
	r.text("clusterDomain", &c.ClusterDomain)
	c.ClusterDomain = strings.TrimSuffix(c.ClusterDomain, ".")
	if !isDomain(c.ClusterDomain) {
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
	before := len(r.faults)
	var items []json.RawMessage
	if raw, ok := r.raw["redirects"]; !ok || json.Unmarshal(raw, &items) != nil || len(items) == 0 {
		r.fault("redirects", `missing, empty or not a list: name the cluster DNS address of each family, like ["10.96.0.10"]`)
	}
	var redirects []steer.Redirect
	for i, raw := range items {
		redirects = append(redirects, r.redirect(fmt.Sprintf("redirects[%d]", i), raw))
	}
	var locals []netip.Addr
	items = nil
	if raw, ok := r.raw["localAddresses"]; ok && json.Unmarshal(raw, &items) != nil {
		r.fault("localAddresses", `not a list: write it like ["169.254.20.10"]`)
	}
	for i, raw := range items {
		locals = append(locals, r.addr(fmt.Sprintf("localAddresses[%d]", i), raw))
	}
	if len(r.faults) > before {
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

// redirect reads an address, or an object of two.
func (r *confReader) redirect(field string, raw json.RawMessage) steer.Redirect {
	if bytes.HasPrefix(raw, []byte(`"`)) {
		return steer.Redirect{ClusterDNS: r.addr(field, raw)}
	}
	var parts map[string]json.RawMessage
	if json.Unmarshal(raw, &parts) != nil || parts == nil {
		r.fault(field, `neither an address nor an object: write "10.96.0.10" or {"clusterDNS": "10.96.0.10", "steering": "169.254.20.11"}`)
		return steer.Redirect{}
	}
	var out steer.Redirect
	for _, k := range slices.Sorted(maps.Keys(parts)) {
		switch k {
		case "clusterDNS":
			out.ClusterDNS = r.addr(field+"."+k, parts[k])
		case "steering":
			out.Steering = r.addr(field+"."+k, parts[k])
		default:
			r.fault(field+"."+k, "unknown key: %s", suggest(k, []string{"clusterDNS", "steering"}))
		}
	}
	if _, ok := parts["clusterDNS"]; !ok {
		r.fault(field+".clusterDNS", "missing: name the address that pods have as nameserver")
	}
	return out
}

func (r *confReader) addr(field string, raw json.RawMessage) netip.Addr {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		r.fault(field, "%s is not a string: write an IP address in quotes", raw)
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		r.fault(field, "%q is not an IP address: write it without port, prefix or name, like 10.96.0.10 or fd00:10:96::a", text)
	}
	return a
}

// text reads a string key that may be absent.
func (r *confReader) text(key string, into *string) {
	raw, ok := r.raw[key]
	if !ok {
		return
	}
	var s *string
	if json.Unmarshal(raw, &s) != nil || s == nil {
		r.fault(key, "%s is not a string: put it in quotes", raw)
		return
	}
	*into = *s
}

func (r *confReader) oneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		r.fault(key, "%q is not known: write one of %s", value, strings.Join(allowed, ", "))
	}
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
	_ = json.Unmarshal(r.raw["name"], &c.Name)
	_ = json.Unmarshal(r.raw["cniVersion"], &c.CNIVersion)
	if raw := r.raw["prevResult"]; len(raw) > 0 && !bytes.Equal(raw, []byte("null")) {
		c.PrevResult = raw
	}
	var given map[string]json.RawMessage
	if raw, ok := r.raw["runtimeConfig"]; ok {
		if err := json.Unmarshal(raw, &given); err != nil {
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
		raw, ok := r.raw[key]
		if !ok || bytes.Equal(raw, []byte("null")) {
			continue
		}
		var list []types.GCAttachment
		if err := json.Unmarshal(raw, &list); err != nil {
			r.fault(key, "not a list of attachments (%v): nothing is removed", err)
			continue
		}
		c.Valid, c.ValidKnown = append(c.Valid, list...), true
	}
}

// isDomain checks the shape only: labels of letters, digits, dashes and underscores.
func isDomain(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, ch := range []byte(label) {
			if !('a' <= ch && ch <= 'z' || 'A' <= ch && ch <= 'Z' || '0' <= ch && ch <= '9' || ch == '-' || ch == '_') {
				return false
			}
		}
	}
	return true
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
