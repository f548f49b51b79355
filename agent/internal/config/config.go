// Package config reads NodeConfig, the agent's configuration file: it reads the YAML, takes what the file leaves out from the environment,
// the kubelet's configuration and defaults, and checks the result.
//
// It never changes anything on the node, opens a socket or reads from the kernel, so that any user may run `config check` anywhere. It
// reads only through Env.
//
// Failure policy: Load returns a complete, checked Node, or an error that lists every fault with file, line, field and remedy. There is
// no partly valid configuration, with one exception: an unknown key has no effect and is reported (Unknown), so that a release that is
// rolled back starts with the file of the newer one.
package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/internal/configfile"
	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/platform"
	"github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/strict"
)

// The first two lines of a NodeConfig file.
const (
	APIVersion = "neardns.io/v1alpha1"
	Kind       = "NodeConfig"
)

// Env is where the configuration reads beyond its file.
type Env struct {
	LookupEnv func(name string) (string, bool)       // as os.LookupEnv
	ReadFile  func(path string) ([]byte, error)      // as os.ReadFile; must report an absent file as fs.ErrNotExist
	Glob      func(pattern string) ([]string, error) // as filepath.Glob, for drop-ins of the kubelet's configuration; nil: none
}

// Node is a complete NodeConfig. Comments name the key if it differs from the field.
type Node struct {
	Steering
	Folders
	CorefileKeys
	ClusterDomain    string // lower case, without the final dot
	Upstreams        Upstreams
	StubDomains      map[string][]nameserver.Address // by domain, lower case, without the final dot
	KubeDNSConfigMap string                          // folder of a mounted kube-dns ConfigMap; it may not exist
	Cache            Cache
	FastPath         string // on: hits are answered before CoreDNS
	KernelHits       KernelHits
	Limits           Limits
	Lease            Lease
	Link             Link
	Listen           Listen
	Log              Log
	PodDNS           overlay.Rules // wanted changes of pods' own DNS settings
	ResolvConf       ResolvConf
	Hosts            Hosts

	origins
}

// Steering has the keys about how pods' queries reach the agent.
type Steering struct {
	Arrangement    string           // one of the Arrangement constants
	Redirects      []steer.Redirect // complete: each has its steering address
	LocalAddresses []netip.Addr
	InterceptNode  bool
	Backend        string // one of the Backend constants
	KubeProxyMode  string // one of the KubeProxy constants
	Steer          Steer
	AdoptPods      bool // pods that ran before neardns are steered, too
}

// Folders has the keys of the folders on the node.
type Folders struct {
	StateDir   string
	PersistDir string
}

// CorefileKeys has the keys about the text of the Corefile.
type CorefileKeys struct {
	Corefile     string            // path of a file that replaces the rendered Corefile; "" for none
	CorefileText string            // its text
	Snippets     map[string]string // lines added to the server block of a zone, by zone ("." is the root)
}

// origins is where the values come from.
type origins struct {
	at      map[string]strict.Place // where each field was written
	origin  map[string]string       // where the value of a field that was not written comes from
	podDNS  strict.Value            // as it was written
	unknown []*strict.Fault         // unknown keys, which are ignored
	remarks map[string]string       // more text for Show's comments

	platform platform.Platform // whose kubelet's configuration was found; zero if none was
}

// Unknown lists the keys of the file that this release does not know, each with its place and the key that was probably meant. They
// have no effect. If the file has other faults, it is empty: they are among the faults.
func (n *Node) Unknown() []string {
	var out []string
	for _, err := range n.unknown {
		out = append(out, err.Error())
	}
	return out
}

// Upstreams are the servers that get misses.
type Upstreams struct {
	Cluster  []nameserver.Address // for the cluster domain and the reverse zones, without TLS
	External []nameserver.Source  // for all other names; none: the cluster's get those, too
	Auto     bool                 // external: auto: instead of External the node's resolvers, if kube-dns uses them, too
	Corefile string               // kubeDNSCorefile: the mounted Corefile of kube-dns; it may not exist
	NodeFile string               // nodeResolvConf: names the node's resolvers
}

// Cache has the limits of the cache.
type Cache struct {
	Entries     int
	NegativeTTL time.Duration // longest TTL of a denial
	ServeStale  time.Duration // how long expired entries are served while upstreams fail; 0: never
	MemoryMiB   int           // of all entries of all zones together
	Prefetch    bool          // refresh entries in use before they expire
	HoldDenials time.Duration // how long a denial of an existing name must last to count; 0: it counts at once
}

// Limits bound what a flood or a slow upstream can use.
type Limits struct {
	Misses         int // queries to upstreams at the same time
	TCPConnections int // of clients, open at the same time
}

// Lease has the times of the probes and of the leases that they renew.
type Lease struct {
	Renew    time.Duration // from one probe to the next
	Lifetime time.Duration // of a lease after the last answered probe
}

// Link is the interface with our addresses.
type Link struct {
	Name             string
	ClusterDNSOnLink bool
}

// Hosts is for the role `hosts`.
type Hosts struct {
	Services []string // namespace/name; their names are kept in the node's hosts file
}

// Values of arrangement.
const (
	ArrangementSteered = "steered" // by pods' own tables, or as link.clusterDNSOnLink has it
	// ArrangementTransparent: the kernel serves hits, and all other queries go where they go without us. There are no rules in pods, on
	// links or in netfilter.
	ArrangementTransparent = "transparent"
)

// Values of backend.
const (
	BackendAuto     = "auto"
	BackendNftables = "nftables"
	BackendIptables = "iptables" // nft or legacy, whichever the node uses

	BackendIptablesNFT    = "iptables-nft"
	BackendIptablesLegacy = "iptables-legacy"
)

// Values of kubeProxyMode.
const (
	KubeProxyAuto     = "auto"
	KubeProxyIptables = "iptables"
	KubeProxyIPVS     = "ipvs"
	KubeProxyNftables = "nftables"
	KubeProxyNone     = "none" // nothing on the node translates the cluster DNS address, so no pod may be steered
)

// Listen holds the addresses of the HTTP endpoints; the zero value of one turns it off.
type Listen struct {
	Metrics    netip.AddrPort
	Health     netip.AddrPort
	Namespaces bool // metrics by namespace: any client of Metrics, also a pod, then sees the namespaces on the node
}

// Values of fastPath.
const (
	FastPathOn  = "on"
	FastPathOff = "off"
)

// KernelHits selects the pods whose hits the kernel serves, at their links.
type KernelHits struct {
	Mode       string   // one of the KernelHits constants
	Namespaces []string // for KernelHitsNamespaces
}

// Values of kernelHits.mode.
const (
	KernelHitsOff        = "off"
	KernelHitsNamespaces = "namespaces" // of pods in the listed namespaces, and of pods with the annotation "true"
	KernelHitsOn         = "on"         // of all pods but those with the annotation "false"
	KernelHitsAuto       = "auto"       // as on, where the node allows it: nothing that prevents them is a fault (D-083)
)

// Steer selects the pods that are steered. A pod with the annotation neardns.io/steer: "false" never is.
type Steer struct {
	Mode       string   // one of the Steer constants
	Namespaces []string // for SteerNamespaces
}

// Values of steer.mode.
const (
	SteerAll        = "all"
	SteerNamespaces = "namespaces" // pods in the listed namespaces, and pods with the annotation "true"
	SteerAnnotated  = "annotated"  // pods with the annotation "true"
	SteerNone       = "none"       // the agent runs and is probed, and kube-dns answers
)

// Excludes returns why steer.mode does not select a pod; "" if it does. optIn: the pod has the annotation neardns.io/steer: "true".
func (s Steer) Excludes(namespace string, optIn bool) string {
	switch {
	case s.Mode == SteerNone:
		return "steer.mode is none"
	case s.Mode == SteerAll || optIn || s.Mode == SteerNamespaces && slices.Contains(s.Namespaces, namespace):
		return ""
	case s.Mode == SteerNamespaces:
		return "steer.mode is namespaces, and the pod's is not listed"
	}
	return `steer.mode is annotated, and the pod has no annotation neardns.io/steer: "true"`
}

// Values of log.format and log.queries.
const (
	LogText       = "text"
	LogJSON       = "json"
	QueriesOff    = "off"
	QueriesErrors = "errors" // only those with an error
	QueriesAll    = "all"
)

// Log is what is logged, and how.
type Log struct {
	Level   slog.Level
	Format  string
	Queries string
}

// Default returns the values of keys that are neither in the file nor detected. It is not valid: there is no default cluster DNS address.
func Default() Node {
	return Node{
		Steering: Steering{Arrangement: ArrangementSteered, Backend: BackendAuto, KubeProxyMode: KubeProxyAuto,
			Steer: Steer{Mode: SteerAll}},
		Folders:          Folders{StateDir: nodestate.DefaultStateDir, PersistDir: nodestate.DefaultPersistDir},
		ClusterDomain:    "cluster.local",
		Upstreams:        Upstreams{Auto: true, Corefile: "/etc/kube-dns-corefile/Corefile", NodeFile: "/etc/resolv.conf"},
		KubeDNSConfigMap: "/etc/kube-dns",
		Cache:            Cache{Entries: 10000, NegativeTTL: 5 * time.Second, ServeStale: time.Hour, MemoryMiB: 32, Prefetch: true},
		FastPath:         FastPathOn,
		KernelHits:       KernelHits{Mode: KernelHitsOff},
		Limits:           Limits{Misses: 1024, TCPConnections: 1024},
		Lease:            Lease{Renew: 250 * time.Millisecond, Lifetime: steer.DefaultLifetime},
		Link:             Link{Name: "neardns0"},
		Listen:           Listen{Health: netip.MustParseAddrPort("127.0.0.1:9254")},
		Log:              Log{Level: slog.LevelInfo, Format: LogText, Queries: QueriesOff},
		ResolvConf: ResolvConf{Mode: conflist.ResolvConfAuto, Paths: sandbox.Patterns(), Host: conflist.HostResolvConf,
			NRI: "/var/run/nri/nri.sock"},
	}
}

// Load reads the file at path, completes it and checks it. An empty path stands for an empty file.
func Load(path string, env Env) (*Node, error) {
	n := Default()
	n.at, n.origin = map[string]strict.Place{}, map[string]string{}
	if path != "" {
		data, err := env.ReadFile(path)
		if err != nil {
			return nil, configfile.Unreadable(err)
		}
		if err := n.decode(path, data, env.LookupEnv); err != nil {
			return nil, n.withBounds(err)
		}
	}
	err := n.detect(env)
	if err == nil && n.Corefile != "" {
		err = n.readCorefile(env)
	}
	if err == nil {
		err = n.Validate()
	} else {
		err = n.withBounds(err)
	}
	if err != nil { // which an unknown key may have caused
		var all []error
		for _, f := range n.unknown {
			all = append(all, f)
		}
		return nil, errors.Join(append(all, err)...)
	}
	return &n, nil
}

// withBounds adds the numbers that are out of range to the reason why there is no complete configuration. The other checks would judge
// missing values.
func (n *Node) withBounds(err error) error {
	return errors.Join(append([]error{err}, n.checkBounds()...)...)
}

// StateDir reads only the state folder, also from a faulty file, so that a command finds the agent that still serves. It is the default
// if the file cannot be read or has none.
func StateDir(path string, env Env) string {
	dir := nodestate.DefaultStateDir
	data, err := env.ReadFile(path)
	if path == "" || err != nil {
		return dir
	}
	body, err := configfile.Parse(path, data)
	if err != nil || body.Kind == "" {
		return dir
	}
	n := Node{origins: origins{at: map[string]strict.Place{}, origin: map[string]string{}}}
	d := n.decoder(env.LookupEnv)
	for _, p := range d.pairs(body) {
		if s, ok := d.text(p.Value, ""); p.Key == "stateDir" && ok {
			if clean, err := configfile.ParsePath(s); err == nil {
				dir = clean
			}
		}
	}
	return dir
}

func (n *Node) readCorefile(env Env) error {
	data, err := env.ReadFile(n.Corefile)
	if err != nil {
		return n.fault("corefile", fmt.Sprintf("%v: create the file or take the key out", err))
	}
	if len(data) == 0 {
		return n.fault("corefile", fmt.Sprintf("%s is empty: write a Corefile or take the key out", n.Corefile))
	}
	n.CorefileText = string(data)
	return nil
}

// Steers reports whether pods may be steered on this node.
func (n *Node) Steers() bool { return n.KubeProxyMode != KubeProxyNone }

// Adopts reports whether pods that ran before neardns are steered: only if new ones are, too.
func (n *Node) Adopts() bool { return n.AdoptPods && n.steering() != conflist.SteerOff }

// KernelAlone reports whether only the kernel serves hits on this node (arrangement: transparent).
func (n *Node) KernelAlone() bool { return n.Arrangement == ArrangementTransparent }

// ClusterDNS lists the cluster DNS addresses.
func (n *Node) ClusterDNS() []netip.Addr {
	var out []netip.Addr
	for _, r := range n.Redirects {
		out = append(out, r.ClusterDNS)
	}
	return out
}

// steering is the value for the plugin's entry; "" for its default.
func (n *Node) steering() string {
	if !n.Steers() || n.KernelAlone() || n.Link.ClusterDNSOnLink { // on the link, queries come without rules
		return conflist.SteerOff
	}
	return ""
}

// Own returns every address at which the agent answers. None of them may be an upstream: the agent would query itself. With
// link.clusterDNSOnLink and with interceptNode the cluster DNS addresses are among them: they are on the agent's link, or the host's rules
// lead the agent's own queries back to it.
func (n *Node) Own() []netip.Addr {
	own := slices.Clone(n.LocalAddresses)
	for _, r := range n.Redirects {
		own = append(own, r.Steering)
		if n.InterceptNode || n.Link.ClusterDNSOnLink {
			own = append(own, r.ClusterDNS)
		}
	}
	return own
}

// ConflistEntry renders the plugin's entry for this node, as JSON.
func (n *Node) ConflistEntry() ([]byte, error) {
	return conflist.Entry(conflist.Settings{
		Redirects:      n.Redirects,
		ClusterDomain:  n.ClusterDomain,
		LocalAddresses: n.LocalAddresses,
		Backend:        n.Backend,
		Steer:          n.steering(),
		StateDir:       n.StateDir,
		PersistDir:     n.PersistDir,

		DNS: n.PodDNS, ResolvConf: n.ResolvConf.Mode, ResolvConfPaths: n.ResolvConf.Paths, HostResolvConf: n.ResolvConf.Host,
	})
}

// fault places a message at its field, or else at the nearest field around it that is in the file.
func (n *Node) fault(field, message string) error {
	f := &strict.Fault{Field: field, Message: message}
	for name := field; name != ""; name = parent(name) {
		if at, ok := n.at[name]; ok {
			f.Place = at
			return f
		}
	}
	f.File = n.at[""].File
	for name := field; name != ""; name = parent(name) {
		if from := n.origin[name]; from != "" {
			f.Message += " (detected: " + from + ")"
			break
		}
	}
	return f
}

// parent removes the last step of a field's name: a[0].b → a[0] → a.
func parent(name string) string {
	for i := len(name) - 1; i > 0; i-- {
		if name[i] == '.' || name[i] == '[' {
			return name[:i]
		}
	}
	return ""
}
