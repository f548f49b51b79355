// Package podindex finds the pod that sent a query by the query's source address. For each pod it has whether the kernel program may
// answer the pod's hits, and counts of the pod's queries and their results, which are also summed by namespace.
//
// A lookup costs one map access per query, and the number of namespaces with metrics of their own is bounded.
//
// On failure: queries from an address that belongs to no known pod are not counted.
package podindex

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/overview"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/pkg/podfile"
)

// Clients is the index of one node's pods. Its methods are safe for concurrent use once Follow has returned.
type Clients struct {
	pods  *pods.Pods
	index *pods.Index[client]
	conf  atomic.Pointer[config.Node]

	kernelHits atomic.Uint64

	mu         sync.Mutex        // guards the field below; the counts are atomic
	namespaces map[string]*tally // by namespace; otherNamespaces has the rest
}

// client is one attachment of a pod.
type client struct {
	file      podfile.File
	inKernel  bool // the kernel program may answer the pod's hits
	tally     *tally
	namespace *tally // counts of the pod's namespace, which outlive the pod
}

// tally counts queries by result.
type tally struct{ queries, hits, kernel, nxdomain, failures atomic.Uint64 }

func (t *tally) counts() Counts {
	return Counts{Queries: t.queries.Load(), Hits: t.hits.Load(), Kernel: t.kernel.Load(), NXDomain: t.nxdomain.Load(),
		Failures: t.failures.Load()}
}

// maxNamespaces is the maximum number of namespaces with metrics of their own; the pods of all other namespaces share one series. The
// kubelet's default limit is 110 pods on a node.
const maxNamespaces = 100

// otherNamespaces is the label for all other namespaces. No namespace can have this name, because RFC 1123 allows no underscore.
const otherNamespaces = "_other"

// New returns an index for a node with this configuration. It knows no pod until Follow is called.
func New(conf *config.Node) *Clients {
	c := &Clients{namespaces: map[string]*tally{}}
	c.conf.Store(conf)
	return c
}

// Follow sets the registry of pods. Call it once, before the first query.
func (c *Clients) Follow(registry *pods.Pods) {
	c.pods, c.index = registry, pods.NewIndex(registry, c.clientFor)
}

// Configure applies a new configuration, also to running pods. Call it after Follow.
func (c *Clients) Configure(conf *config.Node) {
	c.conf.Store(conf)
	c.pods.Outdate()
}

// Counts are a pod's queries that the agent or the kernel program answered since the agent or the pod started, whichever is later.
// Queries that kube-dns answered are not counted.
type Counts = overview.Counts

// Pod is what the index knows of one network interface of a pod.
type Pod struct {
	File   podfile.File
	Counts Counts
}

// Pods lists the known pods, in no order.
func (c *Clients) Pods() []Pod {
	var out []Pod
	for _, p := range c.index.All() {
		out = append(out, Pod{File: p.file, Counts: p.tally.counts()})
	}
	return out
}

// clientFor returns the data for a pod file. It takes the counts over from old, the previous data for the same network interface.
func (c *Clients) clientFor(f podfile.File, old *client) *client {
	next := &client{file: f, tally: new(tally), namespace: c.namespace(f.PodNamespace)}
	wanted, why := InKernel(f, c.conf.Load())
	next.inKernel = wanted && why == ""
	if old != nil {
		next.tally = old.tally
	}
	return next
}

func (c *Clients) namespace(name string) *tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.namespaces[name] == nil && len(c.namespaces) >= maxNamespaces {
		name = otherNamespaces
	}
	if c.namespaces[name] == nil {
		c.namespaces[name] = new(tally)
	}
	return c.namespaces[name]
}

// InKernel reports whether the kernel program is wanted to answer the hits of the pod with this pod file. The pod's annotation decides,
// else kernelHits. The program is never wanted with kernelHits.mode off; in arrangement transparent, for a pod that opted out; in every
// other arrangement, for a pod without a steered or pending path. If it is wanted, why is what prevents it at present, for example a
// bypass; "" if nothing does.
func InKernel(f podfile.File, conf *config.Node) (wanted bool, why string) {
	k := conf.KernelHits
	switch {
	case k.Mode == config.KernelHitsOff:
		return false, ""
	case f.KernelHits != nil:
		wanted = *f.KernelHits
	default:
		wanted = k.Mode != config.KernelHitsNamespaces || slices.Contains(k.Namespaces, f.PodNamespace)
	}
	switch {
	case !wanted:
		return false, ""
	case conf.KernelAlone():
		return !f.OptOut, "" // the kernel program answers only queries to addresses of kube-dns, so the pod may have any nameservers
	case len(f.In(podfile.Steered))+len(f.In(podfile.Pending)) == 0:
		return false, "" // no path of the pod may be steered, for example because steer.mode does not select the pod
	case slices.ContainsFunc(f.Decisions, func(d podfile.Decision) bool { return pods.StateOf(d) == podstate.Bypassed }):
		return true, "it is bypassed, kube-dns answers it"
	case len(f.In(podfile.Steered)) == 0:
		return true, "it is not steered yet"
	}
	return true, ""
}

// MayOffload implements cache.OffloadClient.
func (c *client) MayOffload() bool { return c.inKernel }

// AnsweredInKernel counts queries that the kernel program answered for the pod interface of f, and how many of them with NXDOMAIN. All of
// them are hits, and none is a failure. If the pod is gone, they still count for its namespace.
func (c *Clients) AnsweredInKernel(f podfile.File, queries, nxdomain uint64) {
	c.kernelHits.Add(queries)
	n := c.namespace(f.PodNamespace)
	tallies := []*tally{n}
	if p := c.index.All()[[2]string{f.ContainerID, f.IfName}]; p != nil {
		tallies = []*tally{p.tally, p.namespace}
	}
	for _, t := range tallies {
		t.queries.Add(queries)
		t.hits.Add(queries)
		t.kernel.Add(queries)
		t.nxdomain.Add(nxdomain)
	}
}

// KernelHits returns how many queries the kernel program answered since the agent started, including those of pods that are gone.
func (c *Clients) KernelHits() uint64 { return c.kernelHits.Load() }

// Identify returns the data of the pod that has an address, which the server attaches to the pod's query; nil if no known pod has the
// address.
func (c *Clients) Identify(addr netip.Addr) any {
	if p := c.index.Find(addr); p != nil {
		return p
	}
	return nil
}

// Response codes that do not count as failures (RFC 1035, section 4.1.1).
const (
	rcodeSuccess   = 0
	rcodeNameError = 3
)

// Record counts a pod's query by its answer. Queries that the server sends to itself for the pod do not count separately.
func (c *Clients) Record(a queryinfo.Answer) {
	p, ok := a.Identity.(*client)
	if !ok {
		return
	}
	for _, t := range [...]*tally{p.tally, p.namespace} {
		t.queries.Add(1)
		if a.Level != queryinfo.Miss {
			t.hits.Add(1)
		}
		switch a.Rcode {
		case rcodeSuccess:
		case rcodeNameError:
			t.nxdomain.Add(1)
		default:
			t.failures.Add(1)
		}
	}
}

// namespaceCounts returns the counts of each namespace. If there are maxNamespaces namespaces, it returns the counts of those without pods
// on this node a last time, and forgets them.
func (c *Clients) namespaceCounts() map[string]Counts {
	alive := map[string]bool{otherNamespaces: true}
	for _, p := range c.index.All() {
		alive[p.file.PodNamespace] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	full, freed := len(c.namespaces) >= maxNamespaces, false
	out := map[string]Counts{}
	for name, t := range c.namespaces {
		out[name] = t.counts()
		if full && !alive[name] {
			delete(c.namespaces, name)
			freed = true
		}
	}
	if freed {
		c.pods.Outdate() // so that pods counted under otherNamespaces can get series of their own
	}
	return out
}
