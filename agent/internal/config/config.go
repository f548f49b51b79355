// Package config owns NodeConfig, the one file that says what the agent does on a node: it reads the YAML, fills in from
// the environment, from the kubelet's configuration and from defaults what the file leaves out, and checks the whole.
//
// It must never change anything on the node, open a socket or look at the kernel, so that `config check` may be run
// anywhere and by anyone. All that it reads comes through Env.
//
// Failure policy: Load returns a complete, checked Node or an error that lists every fault, each with file, line, field
// and remedy. There is no partly valid configuration, with one exception: a key that is not known has no effect and is said
// (Unknown), so that a release that is rolled back starts with the file of the newer one.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/internal/dns/forward/nameserver"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/overlay"
	"github.com/neardns/neardns/pkg/sandbox"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/strict"
)

// What the first two lines of a NodeConfig file must say.
const (
	APIVersion = "neardns.io/v1alpha1"
	Kind       = "NodeConfig"
)

// Env is what the configuration takes from outside its file.
type Env struct {
	LookupEnv func(name string) (string, bool)  // as os.LookupEnv
	ReadFile  func(path string) ([]byte, error) // as os.ReadFile; must report an absent file as fs.ErrNotExist
}

// Node is a NodeConfig with nothing left open. The comments name the key where it differs from the field.
type Node struct {
	Arrangement      string           // one of the Arrangement constants
	ClusterDomain    string           // lower case, without the final dot
	Redirects        []steer.Redirect // complete: each has its steering address
	LocalAddresses   []netip.Addr
	InterceptNode    bool
	Upstreams        Upstreams
	StubDomains      map[string][]nameserver.Address // by domain, lower case, without the final dot
	KubeDNSConfigMap string                          // folder of a mounted kube-dns ConfigMap; it need not exist
	Cache            Cache
	FastPath         string // on: hits are answered before CoreDNS
	KernelHits       KernelHits
	Limits           Limits
	Lease            Lease
	Link             Link
	Backend          string // one of the Backend constants
	KubeProxyMode    string // one of the KubeProxy constants
	Listen           Listen
	Log              Log
	PodDNS           overlay.Rules // what is wanted of pods' own DNS settings
	ResolvConf       ResolvConf
	AdoptPods        bool // pods that ran before neardns came are steered, too
	Hosts            Hosts
	StateDir         string
	PersistDir       string
	Corefile         string            // path of a file that replaces the rendered Corefile; "" for none
	CorefileText     string            // what stands in it
	Snippets         map[string]string // lines added to the server block of a zone, by zone ("." is the root)

	at     map[string]strict.Place // where each field was written
	origin map[string]string       // where the value of a field that was not written comes from

	podDNS  strict.Value      // as it was written
	unknown []*strict.Fault   // keys that are passed over
	remarks map[string]string // what Show says of a field besides
}

// Unknown lists the keys of the file that this release does not know, each with its place and what was probably meant. They have
// no effect. There are none where anything else is wrong: then they are among the faults.
func (n *Node) Unknown() []string {
	var out []string
	for _, err := range n.unknown {
		out = append(out, err.Error())
	}
	return out
}

// Upstreams says whom the agent asks on a miss.
type Upstreams struct {
	Cluster  []nameserver.Address // for the cluster domain and the reverse zones, without TLS
	External []nameserver.Source  // for everything else; none: the cluster's are asked for that too
	Auto     bool                 // external: auto: in External's place the node's resolvers, where kube-dns would ask them too
	Corefile string               // kubeDNSCorefile: where kube-dns's own is mounted; it need not exist
	NodeFile string               // nodeResolvConf: names the node's resolvers
}

// Cache bounds what is remembered.
type Cache struct {
	Entries     int
	NegativeTTL time.Duration // longest time that a denial is kept
	ServeStale  time.Duration // how long an expired answer may serve while the upstream fails; 0: not at all
	MemoryMiB   int           // of all entries of all zones together
	Prefetch    bool          // fetch what is in use before it ends
	HoldDenials time.Duration // how long a denial of what was there must last to be believed; 0: no time
}

// Limits bound what a flood or a slow upstream can take.
type Limits struct {
	Misses         int // questions that are being asked of upstreams at one time
	TCPConnections int // of clients, open at one time
}

// Lease is the rhythm of the proof that the agent answers.
type Lease struct {
	Renew    time.Duration // from one probe to the next
	Lifetime time.Duration // how long a lease outlives the last proven answer
}

// Link is the interface that holds our addresses.
type Link struct {
	Name             string
	ClusterDNSOnLink bool
}

// Hosts says what the role `hosts` keeps.
type Hosts struct {
	Services []string // namespace/name, whose names are kept in the node's hosts file
}

// Values of arrangement.
const (
	ArrangementSteered = "steered" // by pods' own tables, or as link.clusterDNSOnLink has it
	// ArrangementTransparent: hits are answered in the kernel, and all else goes where it goes without us. Nothing is laid in pods,
	// on links or in netfilter.
	ArrangementTransparent = "transparent"
)

// Values of backend.
const (
	BackendAuto     = "auto"
	BackendNftables = "nftables"
	BackendIptables = "iptables" // whichever of the two the node has and uses

	BackendIptablesNFT    = "iptables-nft"
	BackendIptablesLegacy = "iptables-legacy"
)

// Values of kubeProxyMode.
const (
	KubeProxyAuto     = "auto"
	KubeProxyIptables = "iptables"
	KubeProxyIPVS     = "ipvs"
	KubeProxyNftables = "nftables"
	KubeProxyNone     = "none" // nothing on the node translates the cluster DNS address, so nothing may be steered
)

// Listen holds the addresses of the HTTP endpoints; the zero value of one turns it off.
type Listen struct {
	Metrics    netip.AddrPort
	Health     netip.AddrPort
	Namespaces bool // metrics by namespace, which tell whoever reaches Metrics, pods among them, who else is here
}

// Values of fastPath.
const (
	FastPathOn  = "on"
	FastPathOff = "off"
)

// KernelHits says of which pods the kernel answers hits, at their links.
type KernelHits struct {
	Mode       string   // one of the KernelHits constants
	Namespaces []string // for KernelHitsNamespaces
}

// Values of kernelHits.mode.
const (
	KernelHitsOff        = "off"
	KernelHitsNamespaces = "namespaces" // of pods of the namespaces that are listed, and of those whose annotation says so
	KernelHitsOn         = "on"         // of all pods but those whose annotation says no
)

// Values of log.format and log.queries.
const (
	LogText       = "text"
	LogJSON       = "json"
	QueriesOff    = "off"
	QueriesErrors = "errors" // only those that ended in an error
	QueriesAll    = "all"
)

// Log says what is logged, and how.
type Log struct {
	Level   slog.Level
	Format  string
	Queries string
}

// Default returns what holds where neither the file nor the node says otherwise. It is not valid as it is: a node has
// no default cluster DNS address.
func Default() Node {
	return Node{
		Arrangement:      ArrangementSteered,
		ClusterDomain:    "cluster.local",
		Upstreams:        Upstreams{Auto: true, Corefile: "/etc/kube-dns-corefile/Corefile", NodeFile: "/etc/resolv.conf"},
		KubeDNSConfigMap: "/etc/kube-dns",
		Cache:            Cache{Entries: 10000, NegativeTTL: 5 * time.Second, ServeStale: time.Hour, MemoryMiB: 32, Prefetch: true},
		FastPath:         FastPathOn,
		KernelHits:       KernelHits{Mode: KernelHitsOff},
		Limits:           Limits{Misses: 1024, TCPConnections: 1024},
		Lease:            Lease{Renew: 250 * time.Millisecond, Lifetime: steer.DefaultLifetime},
		Link:             Link{Name: "neardns0"},
		Backend:          BackendAuto,
		KubeProxyMode:    KubeProxyAuto,
		Listen:           Listen{Health: netip.MustParseAddrPort("127.0.0.1:9254")},
		Log:              Log{Level: slog.LevelInfo, Format: LogText, Queries: QueriesOff},
		ResolvConf:       ResolvConf{Mode: conflist.ResolvConfAuto, Paths: sandbox.Patterns(), Host: conflist.HostResolvConf, NRI: "/var/run/nri/nri.sock"},
		StateDir:         nodestate.DefaultStateDir,
		PersistDir:       nodestate.DefaultPersistDir,
	}
}

// Load reads the file at path, completes it and checks it. An empty path stands for a file that leaves everything out.
func Load(path string, env Env) (*Node, error) {
	n := Default()
	n.at, n.origin = map[string]strict.Place{}, map[string]string{}
	if path != "" {
		data, err := env.ReadFile(path)
		if err != nil {
			return nil, unreadable(err)
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
	if err != nil { // which may come of a key that is not known
		var all []error
		for _, f := range n.unknown {
			all = append(all, f)
		}
		return nil, errors.Join(append(all, err)...)
	}
	return &n, nil
}

// withBounds tells, beside why there is no whole configuration, which numbers are out of range: the rest of the checks would judge what
// is not there.
func (n *Node) withBounds(err error) error {
	return errors.Join(append([]error{err}, n.checkBounds()...)...)
}

// unreadable is the error of a configuration file that cannot be read.
func unreadable(err error) error {
	remedy := "name another file with --config"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		remedy = "create the file or name another with --config"
	case errors.Is(err, fs.ErrPermission):
		remedy = "run the command as root, or let this user read the file"
	}
	return fmt.Errorf("read configuration: %w: %s", err, remedy)
}

// StateDir reads nothing but the state folder out of a file that may be faulty, for who looks for the agent that serves
// meanwhile. It is the default where the file cannot be read or names none.
func StateDir(path string, env Env) string {
	dir := nodestate.DefaultStateDir
	data, err := env.ReadFile(path)
	if path == "" || err != nil {
		return dir
	}
	body, err := parse(path, data)
	if err != nil || body.Kind == "" {
		return dir
	}
	n := Node{at: map[string]strict.Place{}, origin: map[string]string{}}
	d := n.decoder(env.LookupEnv)
	for _, p := range d.pairs(body) {
		if s, ok := d.text(p.Value, ""); p.Key == "stateDir" && ok {
			if clean, err := parsePath(s); err == nil {
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

// Steers reports whether packets may be steered on this node at all.
func (n *Node) Steers() bool { return n.KubeProxyMode != KubeProxyNone }

// Adopts tells whether pods that ran before neardns came are steered: where new ones are, too.
func (n *Node) Adopts() bool { return n.AdoptPods && n.steering() != conflist.SteerOff }

// KernelAlone reports whether the kernel's hits are all that there is of the cache on this node (arrangement: transparent).
func (n *Node) KernelAlone() bool { return n.Arrangement == ArrangementTransparent }

// ClusterDNS lists the cluster DNS addresses.
func (n *Node) ClusterDNS() []netip.Addr {
	var out []netip.Addr
	for _, r := range n.Redirects {
		out = append(out, r.ClusterDNS)
	}
	return out
}

// steering is what the plugin's entry says of it; "" for its default.
func (n *Node) steering() string {
	if !n.Steers() || n.KernelAlone() || n.Link.ClusterDNSOnLink { // on the link they come by themselves
		return conflist.SteerOff
	}
	return ""
}

// Own returns every address at which the agent answers. A server at one of them must never become an upstream: the
// agent would ask itself. With link.clusterDNSOnLink and with interceptNode that goes for the cluster DNS addresses too: they
// are on the agent's link, or the agent's own questions to them would be caught like any host process's.
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

// fault places a message at the field it is about, or else at the nearest field around it that was written.
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

// parent cuts the last step off a field's name: a[0].b → a[0] → a.
func parent(name string) string {
	for i := len(name) - 1; i > 0; i-- {
		if name[i] == '.' || name[i] == '[' {
			return name[:i]
		}
	}
	return ""
}
