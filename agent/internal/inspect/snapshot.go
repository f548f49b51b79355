package inspect

import (
	"net/netip"
	"time"

	"github.com/neardns/neardns/agent/internal/node"
)

// Snapshot is what the inspector found on a node. A field named Err is why the fields next to it could not be read.
type Snapshot struct {
	StateDir string
	// KernelAlone: only the kernel serves hits on this node (arrangement: transparent), so most checks have nothing to check.
	// KernelHitsOff: kernel hits are off.
	KernelAlone, KernelHitsOff bool

	Link       string       // its name
	Targets    []Target     // for which the configuration wants leases
	ClusterDNS []netip.Addr // of the redirects

	Agent       Agent
	LinkDrift   []string // how the link and its addresses differ from what is wanted
	LinkErr     string
	Sockets     []Socket // of other processes on port 53 of our addresses
	Table       Table
	Firewall    Firewall
	Leases      []Target     // that stand in the kernel
	Verified    []netip.Addr // cluster DNS addresses with a recorded fallback check
	VerifiedErr string
	Fallbacks   []QueryResult // of the cluster DNS addresses, queried from the host
	Proxy       Proxy
	Upstreams   []QueryResult
	Compared    []Comparison // the agent's answers and kube-dns's
	Config      []string     // faults in the configuration
	Unknown     []string     // unknown keys of it, with their places
	Slow        []string     // zones whose hits go through CoreDNS although the fast path is on, and why
	External    string       // which servers answer for names outside of the cluster, and why
	Resolv      []ResolvConf
	Network     Network
	Watch       Watch
	Hosts       Hosts
	Pods        []Pod
	PodErrs     []string
	Kernel      Kernel
	Folders     []Folder
	Others      []string // programs on the node that may interfere, see checkNeighbours
}

// Target is one address and protocol.
type Target struct {
	Address  netip.Addr
	Protocol string
}

func (t Target) String() string { return t.Address.String() + "/" + t.Protocol }

// Agent is the status of the running agent, if there is one.
type Agent struct {
	Err       string // why there is no status; "" if there is
	Unseen    bool   // Err is that this user has no access to the socket
	Holder    int    // the process that holds the state folder's lock, 0 if none is known
	Instance  string
	Since     time.Time
	Serving   bool
	Faults    map[string]string
	Without   []string          // what it cannot do on this node, in words
	Reasons   map[Target]string // of the leases that are not held
	Upstreams []string          // those that fail or loop, in words
	CannotAsk string            // why no upstream of the cluster can be queried; "" if one can
	Bypassed  []string          // pods that kube-dns serves because their queries do not reach the agent
	// InKernel is nil if kernel hits are off.
	InKernel *node.KernelHits
}

// Socket is one of another process.
type Socket struct {
	Target
	Wildcard bool
	Holder   string // "" if unknown
}

// Table is the host table.
type Table struct {
	Present bool
	Drift   []string
	Err     string
}

// Firewall is which other rules may drop packets.
type Firewall struct {
	Policies []string // of iptables' filter table that drop packets to our addresses: our rules are missing there
	Kept     []string // the same where our rules are present
	Chains   []string // foreign nftables chains at input that may drop
	Err      string
}

// QueryResult is the outcome of one real query.
type QueryResult struct {
	Server string
	Role   string // cluster, external, a stub domain, fallback
	Took   time.Duration
	Err    string // "": the server answered
	Own    bool   // it is an address of the agent itself
}

// Proxy is kube-proxy, judged by its rules.
type Proxy struct {
	Mode       string // iptables, nftables, ipvs, none
	Configured string
	Err        string
}

// ResolvConf is one file that names upstreams.
type ResolvConf struct {
	Path    string
	Servers []netip.Addr
	Err     string
}

// Network is the runtime's CNI configuration.
type Network struct {
	Folder    string
	Effective string   // the file that the runtime takes: the first one
	Entry     bool     // it has our entry
	Elsewhere []string // other files that have
	Missing   []string // cluster DNS addresses that the entry does not redirect
	Plugin    string   // path of the binary
	PluginErr string   // why it cannot be run
	Err       string
}

// Watch is the last state of `neardns-install watch`, which keeps our entry in that configuration.
type Watch struct {
	Present  bool          // one runs, or ran
	Age      time.Duration // of the state
	Network  string        // that it keeps
	Fault    string        // why plugin and entry are not in place
	Fighting bool          // another program keeps taking the entry out
	Repairs  int
}

// Pod is one steered attachment.
type Pod struct {
	Name  string
	State string   // steered, pending, left-alone, gone
	Drift []string // of its table
	Mesh  bool     // a service mesh captures DNS in the pod
	Lost  string   // why the pod is bypassed: its queries had no answer; "" if it is not
	DNS   PodDNS
	Err   string
}

// Kernel has the settings that decide where packets go.
type Kernel struct {
	NoForward   []string // sysctls that are off and keep pods from kube-dns
	BridgePods  bool     // steered pods are connected to a bridge
	BridgeNF    string   // bridge-nf-call-iptables: "1", "0", "" where the kernel has none
	Conntracked int
	ConntrackOf int // 0: no limit known
}

// Folder is the state folder or the persistent one.
type Folder struct {
	Path string
	Err  string // why it cannot be written
}

func (snap Snapshot) heldLeases() int {
	n := 0
	for _, t := range snap.Targets {
		if snap.holds(t) {
			n++
		}
	}
	return n
}

func (snap Snapshot) holds(t Target) bool {
	for _, l := range snap.Leases {
		if l == t {
			return true
		}
	}
	return false
}
