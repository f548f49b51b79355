// Package podindex finds a pod by the address of its query: its search list for search completion, whether the kernel program answers its
// hits, and the counts of its queries, hits and failures, which are also summed by namespace.
//
// A lookup costs one map access per query, and the number of namespaces with series of their own is bounded.
//
// On failure: queries from an address that belongs to no known pod are neither counted nor completed.
package podindex

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/pods/podstate"
	"github.com/neardns/neardns/internal/dns/queryinfo"
	"github.com/neardns/neardns/internal/dns/searchpath"
	"github.com/neardns/neardns/internal/telemetry"
	"github.com/neardns/neardns/pkg/podfile"
)

// Clients has the pods of one node. Its methods are safe for concurrent use once Follow has returned.
type Clients struct {
	// Memory and Metrics belong to search completion.
	Memory  *searchpath.Memory
	Metrics searchpath.Metrics

	pods  *pods.Pods
	index *pods.Index[client]
	conf  atomic.Pointer[config.Node]

	kernelHits atomic.Uint64

	mu         sync.Mutex // guards the field below; the counts are atomic
	namespaces map[string]*tally
}

// client is one attachment of a pod.
type client struct {
	of        *Clients
	file      podfile.File
	search    *searchpath.Search // nil: its queries are not completed
	inKernel  bool               // the kernel program answers its hits
	tally     *tally
	namespace *tally // outlives the pod
}

// tally counts queries by result.
type tally struct{ queries, hits, kernel, failures atomic.Uint64 }

// maxNamespaces bounds the namespaces that have series of their own; the pods of all others share one. The kubelet's default limit is 110
// pods on a node.
const maxNamespaces = 100

// otherNamespaces cannot be a namespace's name: RFC 1123 allows no underscore.
const otherNamespaces = "_other"

// New returns an index for a node with this configuration. It knows no pod until Follow.
func New(conf *config.Node) *Clients {
	c := &Clients{Memory: searchpath.NewMemory(), namespaces: map[string]*tally{}}
	c.conf.Store(conf)
	return c
}

// Follow sets the registry of pods. It is called once, before the first query.
func (c *Clients) Follow(registry *pods.Pods) {
	c.pods, c.index = registry, pods.NewIndex(registry, c.clientFor)
}

// Configure applies another configuration, to running pods too.
func (c *Clients) Configure(conf *config.Node) {
	c.conf.Store(conf)
	c.pods.Outdate()
}

// Counts has a pod's queries that the agent or the kernel program answered since the agent or the pod started, whichever is later. Queries
// that kube-dns answered are not counted.
type Counts struct {
	Queries  uint64 `json:"queries"`
	Hits     uint64 `json:"hits"`     // of these, from the cache
	Kernel   uint64 `json:"kernel"`   // of these, by the kernel program
	Failures uint64 `json:"failures"` // of these, with a response code other than NOERROR and NXDOMAIN
}

// Pod is one network interface of a pod.
type Pod struct {
	File      podfile.File
	Completed bool // the agent applies its search path (search completion)
	Counts    Counts
}

// Pods lists the known pods, in no order.
func (c *Clients) Pods() []Pod {
	var out []Pod
	conf := c.conf.Load()
	for _, p := range c.index.All() {
		out = append(out, Pod{File: p.file, Completed: Completes(p.file, conf),
			Counts: Counts{Queries: p.tally.queries.Load(), Hits: p.tally.hits.Load(), Kernel: p.tally.kernel.Load(),
				Failures: p.tally.failures.Load()}})
	}
	return out
}

// clientFor makes the data of an attachment and takes over the counts of the data before.
func (c *Clients) clientFor(f podfile.File, old *client) *client {
	conf := c.conf.Load()
	next := &client{of: c, file: f, search: searchOf(f, conf), tally: new(tally), namespace: c.namespace(f.PodNamespace)}
	wanted, why := InKernel(f, conf)
	next.inKernel = wanted && why == ""
	if old != nil {
		next.tally = old.tally
		if next.search.Same(old.search) {
			next.search = old.search // searchpath.Memory keys its decisions by this pointer
		}
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

// wantsCompletion reports whether search completion is on for a pod: by its annotation, else by the node's setting for its namespace or for
// all pods. The current settings count, not those at the pod's start, so that an operator can switch it off at once.
func wantsCompletion(f podfile.File, conf *config.Node) bool {
	if f.SearchCompletion != nil {
		return *f.SearchCompletion
	}
	return conf.PodDNS.Completion(f.PodNamespace)
}

// Completes reports whether the queries of the pod with this file are completed under this configuration.
func Completes(f podfile.File, conf *config.Node) bool { return searchOf(f, conf) != nil }

// searchOf returns the search list for a pod's queries; nil if they are not completed.
func searchOf(f podfile.File, conf *config.Node) *searchpath.Search {
	if !wantsCompletion(f, conf) {
		return nil
	}
	s, known := f.Resolver()
	if !known {
		// The result of a search depends on the whole list. The kubelet's part could be guessed, but not what the node's resolv.conf or the
		// pod's dnsConfig adds, and with a shorter list a name may lead to another host.
		return nil
	}
	return searchpath.NewSearch(s.Searches, s.Ndots(), slices.Contains(s.Options, "no-tld-query"), conf.ClusterDomain)
}

// InKernel reports whether the configuration wants the kernel program to answer the hits of the pod with this file. why is the reason if it
// cannot; else "".
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
		return !f.OptOut, "" // the kernel program knows the server of each entry, so any server that the pod queries is fine
	case len(f.In(podfile.Steered))+len(f.In(podfile.Pending)) == 0:
		return false, "" // it queries no server whose entries the kernel program has
	case slices.ContainsFunc(f.Decisions, func(d podfile.Decision) bool { return pods.StateOf(d) == podstate.Bypassed }):
		return true, "it is bypassed, kube-dns answers it"
	case len(f.In(podfile.Steered)) == 0:
		return true, "it is not steered yet"
	case Completes(f, conf):
		return true, "the agent walks its search list (searchCompletion), which the kernel program cannot do: " +
			"switch off one of the two for this pod"
	}
	return true, ""
}

// MayOffload implements cache.OffloadClient.
func (c *client) MayOffload() bool { return c.inKernel }

// AnsweredInKernel counts queries of an attachment that the kernel program answered: all are hits, and none is a failure. If the pod is
// gone, they still count for its namespace.
func (c *Clients) AnsweredInKernel(f podfile.File, queries uint64) {
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
	}
}

// KernelHits returns how many queries the kernel program answered since the agent started, also of pods that are gone.
func (c *Clients) KernelHits() uint64 { return c.kernelHits.Load() }

// Search implements searchpath.Client.
func (c *client) Search() *searchpath.Search { return c.search }

// SearchNow implements searchpath.Client.
func (c *client) SearchNow(addr netip.Addr) *searchpath.Search {
	c.of.pods.LookAgain()
	if p := c.of.index.Find(addr); p != nil {
		return p.search
	}
	return nil
}

// Identify returns the data of the pod that has an address, to be attached to its query; nil if no pod of this node has it.
func (c *Clients) Identify(addr netip.Addr) any {
	if p := c.index.Find(addr); p != nil {
		return p
	}
	return nil
}

// The response codes that are no failures (RFC 1035, section 4.1.1).
const (
	rcodeSuccess   = 0
	rcodeNameError = 3
)

// Record counts a pod's query. Queries that the server sends to itself on the pod's behalf are part of it.
func (c *Clients) Record(a queryinfo.Answer) {
	p, ok := a.Identity.(*client)
	if !ok {
		return
	}
	failed := a.Rcode != rcodeSuccess && a.Rcode != rcodeNameError
	for _, t := range [...]*tally{p.tally, p.namespace} {
		t.queries.Add(1)
		if a.Level.FromCache() {
			t.hits.Add(1)
		}
		if failed {
			t.failures.Add(1)
		}
	}
}

// Namespaces returns the counts by namespace, for /metrics. If maxNamespaces is reached, a namespace without pods on this node is dropped
// after its last counts were returned.
func (c *Clients) Namespaces() []telemetry.Namespace {
	alive := map[string]bool{otherNamespaces: true}
	for _, p := range c.index.All() {
		alive[p.file.PodNamespace] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	full, freed := len(c.namespaces) >= maxNamespaces, false
	var out []telemetry.Namespace
	for name, t := range c.namespaces {
		out = append(out, telemetry.Namespace{
			Name: name, Queries: t.queries.Load(), Hits: t.hits.Load(), Kernel: t.kernel.Load(), Failures: t.failures.Load(),
		})
		if full && !alive[name] {
			delete(c.namespaces, name)
			freed = true
		}
	}
	if freed {
		c.pods.Outdate() // pods that were counted under otherNamespaces get series of their own
	}
	return out
}
