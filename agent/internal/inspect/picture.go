package inspect

import (
	"net/netip"
	"slices"
	"time"

	"github.com/neardns/neardns/agent/internal/node"
)

// Picture is a node at one moment. A field named Err says that the thing beside it could not be looked at.
type Picture struct {
	StateDir string
	// KernelAlone: the kernel's hits are all that the node has of the cache, so of it and the agent alone there is something to look at.
	// KernelHitsOff: they are switched off.
	KernelAlone, KernelHitsOff bool

	Link       string       // its name
	Targets    []Target     // what the configuration wants leased
	ClusterDNS []netip.Addr // of the redirects

	Agent     Agent
	LinkDrift []string // what is not as it should be with the link and its addresses
	LinkErr   string
	Sockets   []Socket // on port 53 of our addresses, other processes' only
	Table     Table
	Firewall  Firewall
	Leases    []Target     // that stand in the kernel
	Proven    []netip.Addr // as the record says
	ProvenErr string
	Fallbacks []Answer // the cluster DNS addresses, asked from the host
	Proxy     Proxy
	Upstreams []Answer
	Both      []Both   // names that were asked of the agent and of kube-dns
	Config    []string // faults in the configuration
	Unknown   []string // keys of it that are not known, with their places
	Slow      []string // zones of which hits go through CoreDNS although the fast path is on, and why
	External  string   // who answers for names outside of the cluster, and why
	Resolv    []ResolvConf
	Network   Network
	Watch     Watch
	Hosts     Hosts
	Pods      []Pod
	PodErrs   []string
	Kernel    Kernel
	Folders   []Folder
	Others    []string // names of programs seen that are known to interfere, see the check neighbours
}

// Target is one address and protocol.
type Target struct {
	Address  netip.Addr
	Protocol string
}

func (t Target) String() string { return t.Address.String() + "/" + t.Protocol }

// Agent is what the running agent says, if one does.
type Agent struct {
	Err       string // why it said nothing; "" if it did
	Unseen    bool   // Err is that this user may not ask it
	Holder    int    // the process that holds the state folder's lock, 0 if none is known
	Instance  string
	Since     time.Time
	Serving   bool
	Faults    map[string]string
	Without   []string          // what it cannot do where it runs, in words
	Reasons   map[Target]string // of the leases that are not held
	Upstreams []string          // those that fail or loop, in words
	CannotAsk string            // why what pods need asked cannot be asked; "" if it can
	Bypassed  []string          // pods that kube-dns serves because the agent does not hear them
	// InKernel is what it says of hits that the kernel answers; nil: none are to be.
	InKernel *node.KernelHits
}

// Socket is another process's.
type Socket struct {
	Target
	Wildcard bool
	Holder   string // "" if it cannot be seen
}

// Table is the host table.
type Table struct {
	Present bool
	Drift   []string
	Err     string
}

// Firewall is what else may drop.
type Firewall struct {
	Policies []string // of iptables' filter table that drop our addresses: rules of ours are missing in it
	Kept     []string // the same with our rules
	Chains   []string // foreign nftables chains at input that may drop
	Err      string
}

// Answer is what came of one real question.
type Answer struct {
	Server string
	Role   string // cluster, external, a stub domain, fallback
	Took   time.Duration
	Err    string // "": it answered
	Own    bool   // it is an address of the agent itself
}

// Both is a question that was asked both ways.
type Both struct {
	Name           string // and type
	Agent, KubeDNS Said
	KubeDNSAt      netip.Addr // the cluster DNS address
}

// Said is what a server answered.
type Said struct {
	Code    string   // NOERROR, NXDOMAIN, ...
	Records []string // without TTLs, in order
	Err     string   // why there is no answer
}

func (s Said) String() string {
	switch {
	case s.Err != "":
		return s.Err
	case len(s.Records) > 0:
		return some(s.Records)
	case s.Code == "NOERROR":
		return "no such record"
	}
	return s.Code
}

// failed tells that nothing was learnt. Who fails how, and after how long, is no difference.
func (s Said) failed() bool { return s.Err != "" || s.Code == "SERVFAIL" || s.Code == "REFUSED" }

// differs tells whether clients are told different things. Of a name with many addresses servers give some, in turns: two answers
// that share one are the same.
func (b Both) differs() bool {
	switch {
	case b.Agent.failed() && b.KubeDNS.failed():
		return false
	case b.Agent.failed() != b.KubeDNS.failed(), b.Agent.Code != b.KubeDNS.Code, (len(b.Agent.Records) == 0) != (len(b.KubeDNS.Records) == 0):
		return true
	case len(b.Agent.Records) == 0:
		return false
	}
	return !slices.ContainsFunc(b.Agent.Records, func(r string) bool { return slices.Contains(b.KubeDNS.Records, r) })
}

// Proxy is kube-proxy as far as its rules show.
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

// Network is what the runtime's CNI configuration says.
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

// Watch is what `neardns-install watch` said when it last looked at that configuration.
type Watch struct {
	Present  bool          // there is one, or was
	Age      time.Duration // since it looked
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
	Mesh  bool     // a service mesh captures in it
	Lost  string   // why it was given back, since its questions were not answered; "" where it was not
	DNS   PodDNS
	Err   string
}

// Kernel is the settings that matter to the ways of packets.
type Kernel struct {
	NoForward   []string // sysctls that are off and keep pods from kube-dns
	BridgePods  bool     // steered pods hang on a bridge
	BridgeNF    string   // bridge-nf-call-iptables: "1", "0", "" where the kernel has none
	Conntracked int
	ConntrackOf int // 0: no limit known
}

// Folder is the state folder or the persistent one.
type Folder struct {
	Path string
	Err  string // why nothing can be written there
}

func (p Picture) heldLeases() int {
	n := 0
	for _, t := range p.Targets {
		if p.holds(t) {
			n++
		}
	}
	return n
}

func (p Picture) holds(t Target) bool {
	for _, l := range p.Leases {
		if l == t {
			return true
		}
	}
	return false
}
