// Package config reads NodeConfig, the agent's configuration file. It parses the YAML, takes values that the file leaves out from the
// environment, the kubelet's configuration or defaults, and validates the result.
//
// It changes nothing on the node and opens no socket. It reads files and the environment only through Env.
//
// Failure policy: Load returns a complete, valid Node, or an error that lists the faults. An unknown key alone is no fault: it has no
// effect and is reported by Unknown, so that a release to which a node is rolled back starts with the file of the newer release.
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

// The values of apiVersion and kind in a NodeConfig file.
const (
	APIVersion = "neardns.io/v1alpha1"
	Kind       = "NodeConfig"
)

// Env has the functions through which Load reads the environment and files.
type Env struct {
	LookupEnv func(name string) (string, bool)       // as os.LookupEnv
	ReadFile  func(path string) ([]byte, error)      // like os.ReadFile; if the file is absent, errors.Is(err, fs.ErrNotExist)
	Glob      func(pattern string) ([]string, error) // like filepath.Glob, for the kubelet's drop-in files; nil: there are none
}

// Node is a complete NodeConfig. A comment names the key of a field if the two differ.
type Node struct {
	Steering
	Folders
	CorefileKeys
	ClusterDomain    string // lower case, without the final dot
	Upstreams        Upstreams
	StubDomains      map[string][]nameserver.Address // by domain, lower case, without the final dot
	KubeDNSConfigMap string                          // folder where the kube-dns ConfigMap is mounted; it may be absent
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

// Steering has the keys that decide how pods' queries reach the agent.
type Steering struct {
	Arrangement    string           // one of the Arrangement constants
	Redirects      []steer.Redirect // complete: each has its steering address
	LocalAddresses []netip.Addr
	InterceptNode  bool
	Backend        string // one of the Backend constants
	KubeProxyMode  string // one of the KubeProxy constants
	Steer          Steer
	AdoptPods      bool // also steer pods that ran before neardns was installed
}

// Folders has the keys that name folders on the node.
type Folders struct {
	StateDir   string
	PersistDir string
}

// CorefileKeys has the keys that replace or extend the Corefile.
type CorefileKeys struct {
	Corefile     string            // path of a file to use instead of the rendered Corefile; "" for none
	CorefileText string            // content of that file
	Snippets     map[string]string // directives that replace those of the same names in a zone's server block, by zone ("." is the root)
}

// origins records where the values of a Node come from.
type origins struct {
	at      map[string]strict.Place // position in the file, by field
	origin  map[string]string       // source of each value that was detected or has a ${NAME}, by field
	podDNS  strict.Value            // the value of podDNS in the file, with each ${NAME} replaced
	unknown []*strict.Fault         // faults about unknown keys, which have no effect
	remarks map[string]string       // additional text for Show's comments, by field

	platform   platform.Platform
	platformBy string // what it was found by; "": nothing was found, and platform is the default
}

// Unknown lists the keys of the file that this release does not know, each with its position and the known key that was probably meant, or
// all known keys. They have no effect. If the file has other faults, Load returns an error that includes these.
func (n *Node) Unknown() []string {
	var out []string
	for _, err := range n.unknown {
		out = append(out, err.Error())
	}
	return out
}

// Upstreams has the keys about the servers to which cache misses are forwarded.
type Upstreams struct {
	Cluster  []nameserver.Address // for names of the cluster domain and the reverse zones; without TLS
	External []nameserver.Source  // for names outside of the cluster; if empty, the Cluster servers get those too
	Auto     bool                 // external: auto: use the node's resolvers instead of External, if kube-dns forwards to them
	Corefile string               // kubeDNSCorefile: path of the mounted Corefile of kube-dns; it may be absent
	NodeFile string               // nodeResolvConf: path of the resolv.conf file that names the node's resolvers
}

// Cache has the keys about the cache.
type Cache struct {
	Entries     int
	NegativeTTL time.Duration // maximum TTL of a negative answer
	ServeStale  time.Duration // how long expired entries are served while upstreams fail; for the cluster's names at most 1m; 0: never
	MemoryMiB   int           // maximum size of all entries of all zones together
	Prefetch    bool          // refresh entries that are in use before they expire
	HoldDenials time.Duration // a name that existed must be denied for this long before the denial is believed; 0: at once
}

// Limits has limits that protect the agent from a flood of queries or a slow upstream.
type Limits struct {
	Misses         int // maximum number of misses that wait for upstreams
	TCPConnections int // maximum number of clients' open TCP connections
}

// Lease has the times of the probes and of the leases that probes renew.
type Lease struct {
	Renew    time.Duration // interval between two probes
	Lifetime time.Duration // time from the last answered probe to the end of a lease
}

// Link has the keys about the network interface that has the agent's addresses.
type Link struct {
	Name             string
	ClusterDNSOnLink bool
}

// Hosts has the keys of the role `hosts`.
type Hosts struct {
	Services []string // Services (namespace/name) whose names are kept in the node's hosts file
}

// Values of arrangement.
const (
	ArrangementSteered = "steered" // pods' queries reach the agent by rules in pods, or because link.clusterDNSOnLink is set
	// ArrangementTransparent means that the kernel program answers cache hits, and all other queries take the same way as without
	// neardns. There are no rules in pods, on links or in netfilter.
	ArrangementTransparent = "transparent"
)

// Values of backend.
const (
	BackendAuto     = "auto"
	BackendNftables = "nftables"
	BackendIptables = "iptables" // iptables-nft or iptables-legacy, whichever the node uses

	BackendIptablesNFT    = "iptables-nft"
	BackendIptablesLegacy = "iptables-legacy"
)

// Values of kubeProxyMode.
const (
	KubeProxyAuto     = "auto"
	KubeProxyIptables = "iptables"
	KubeProxyIPVS     = "ipvs"
	KubeProxyNftables = "nftables"
	KubeProxyNone     = "none" // no netfilter rules translate the cluster DNS address, so no pod may be steered
)

// Listen has the addresses of the HTTP endpoints. A zero address disables an endpoint.
type Listen struct {
	Metrics    netip.AddrPort
	Health     netip.AddrPort
	Namespaces bool // metrics by namespace; every client of Metrics, also a pod, then sees the node's namespaces
}

// Values of fastPath.
const (
	FastPathOn  = "on"
	FastPathOff = "off"
)

// KernelHits selects the pods whose cache hits the kernel program answers. Except with KernelHitsOff, a pod's annotation
// neardns.io/kernel-hits decides for it, unless podDNS ignores annotations.
type KernelHits struct {
	Mode       string   // one of the KernelHits constants
	Namespaces []string // for KernelHitsNamespaces
}

// Values of kernelHits.mode.
const (
	KernelHitsOff        = "off"
	KernelHitsNamespaces = "namespaces" // for pods in the listed namespaces
	KernelHitsOn         = "on"         // for all pods
	KernelHitsAuto       = "auto"       // like on, if the node allows it; if not, that is no fault (D-083)
)

// Steer selects the pods that are steered. Pods with the annotation neardns.io/steer: "false" never are, unless podDNS ignores annotations.
type Steer struct {
	Mode       string   // one of the Steer constants
	Namespaces []string // for SteerNamespaces
}

// Values of steer.mode.
const (
	SteerAll        = "all"
	SteerNamespaces = "namespaces" // pods in the listed namespaces, and pods with the annotation "true"
	SteerAnnotated  = "annotated"  // pods with the annotation "true"
	SteerNone       = "none"       // no pod; the agent runs and is probed, but kube-dns answers
)

// Excludes returns why steer.mode does not select a pod; "" if it does. optIn means that the pod has the annotation neardns.io/steer:
// "true".
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
	QueriesErrors = "errors" // only queries that ended with an error
	QueriesAll    = "all"
)

// Log has the keys about the log.
type Log struct {
	Level   slog.Level
	Format  string
	Queries string
}

// Default returns the values of keys that are neither in the file nor detected. The result is not valid by itself, because there is no
// default cluster DNS address.
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

// Load reads the configuration file at path, adds detected and default values, and validates the result. If path is empty, it reads no
// configuration file.
func Load(path string, env Env) (*Node, error) {
	n, err := Read(path, env)
	if n == nil {
		return nil, err
	}
	if err == nil {
		err = n.detect(env)
	}
	if err == nil && n.Corefile != "" {
		err = n.readCorefile(env)
	}
	if err == nil {
		err = n.Validate()
	} else { // the configuration is incomplete: the other checks of Validate would also report missing values
		err = errors.Join(append(n.checkBounds(), err)...)
	}
	if err != nil {
		for _, f := range n.unknown { // a misspelled key may have caused err
			err = errors.Join(err, f)
		}
		return nil, strict.Sorted(err)
	}
	return n, nil
}

// Read returns what the file at path sets, and defaults for the rest, without values that are detected on the node and without checks
// between fields. It returns nil only if the file cannot be read. Cleanup needs no more, and works on a node that has left its cluster.
func Read(path string, env Env) (*Node, error) {
	n := Default()
	n.at, n.origin = map[string]strict.Place{}, map[string]string{}
	if path == "" {
		return &n, nil
	}
	data, err := env.ReadFile(path)
	if err != nil {
		return nil, configfile.Unreadable(err)
	}
	return &n, n.decode(path, data, env.LookupEnv)
}

// StateDir returns the state folder, also from a faulty file, so that a command finds the agent that still runs. If the file cannot be read
// or names no valid one, it returns the default.
func StateDir(path string, env Env) string {
	if n, _ := Read(path, env); n != nil {
		return n.StateDir
	}
	return nodestate.DefaultStateDir
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

// Steers reports whether kubeProxyMode allows pods to be steered on this node.
func (n *Node) Steers() bool { return n.KubeProxyMode != KubeProxyNone }

// Adopts reports whether pods that ran before neardns was installed are steered too. That needs new pods to be steered.
func (n *Node) Adopts() bool { return n.AdoptPods && n.steering() != conflist.SteerOff }

// KernelAlone reports whether the kernel program is the only part of neardns that answers pods (arrangement: transparent).
func (n *Node) KernelAlone() bool { return n.Arrangement == ArrangementTransparent }

// ClusterDNS lists the cluster DNS addresses.
func (n *Node) ClusterDNS() []netip.Addr { return steer.ClusterDNS(n.Redirects) }

// steering returns the value of "steer" in the plugin's conflist entry; "" for its default.
func (n *Node) steering() string {
	if !n.Steers() || n.KernelAlone() || n.Link.ClusterDNSOnLink { // with clusterDNSOnLink, queries reach the agent without rules in pods
		return conflist.SteerOff
	}
	return ""
}

// Own returns the agent's addresses. None of them may be an upstream, because the agent would query itself. With
// link.clusterDNSOnLink or interceptNode, the cluster DNS addresses are among them: the link has them, or the host's rules steer the
// agent's own queries back to it.
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

// ConflistEntry returns the plugin's conflist entry for this node, as JSON.
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

// fault returns an error with the position of the field in the file, or of the nearest enclosing field that is in the file.
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

// parent returns the name of the enclosing field: a[0].b → a[0] → a.
func parent(name string) string {
	for i := len(name) - 1; i > 0; i-- {
		if name[i] == '.' || name[i] == '[' {
			return name[:i]
		}
	}
	return ""
}
