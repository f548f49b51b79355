// Package podindex owns what the agent knows of each pod of its node on the way of that pod's questions: the search list by which
// they are completed, whether the kernel answers its hits, and the counts of questions, hits and failures, by pod and by namespace.
//
// It must never cost a question more than a look into an index, and never hold more series than it bounds.
//
// Failure policy: an address that is no known pod's is counted by nobody, and its questions are not completed.
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

// Clients are the pods of one node. Methods may be called at the same time, Follow before all others.
type Clients struct {
	// Memory and Metrics are of search completion.
	Memory  *searchpath.Memory
	Metrics searchpath.Metrics

	pods  *pods.Pods
	index *pods.Index[client]
	conf  atomic.Pointer[config.Node]

	mu         sync.Mutex // guards the field below; the counts are read without it
	namespaces map[string]*tally
}

// client is one attachment of a pod.
type client struct {
	of        *Clients
	file      podfile.File
	search    *searchpath.Search // nil: its questions are not completed
	borrows   bool               // the kernel answers its hits
	tally     *tally
	namespace *tally // goes on when the pod is gone
}

// tally counts a client's questions.
type tally struct{ queries, hits, kernel, failures atomic.Uint64 }

// namespacesMost bounds the namespaces that have series of their own; the pods of more of them are counted together. A node has
// 110 pods unless somebody changed that.
const namespacesMost = 100

// otherNamespaces is no namespace's name (RFC 1123 has no underscore).
const otherNamespaces = "_other"

// New returns the clients of a node with this configuration. None is known until Follow.
func New(conf *config.Node) *Clients {
	c := &Clients{Memory: searchpath.NewMemory(), namespaces: map[string]*tally{}}
	c.conf.Store(conf)
	return c
}

// Follow tells which pods there are. It is called once, before the first question.
func (c *Clients) Follow(registry *pods.Pods) {
	c.pods, c.index = registry, pods.NewIndex(registry, c.keep)
}

// Configure takes another configuration over, for the pods that run too.
func (c *Clients) Configure(conf *config.Node) {
	c.conf.Store(conf)
	c.pods.Outdate()
}

// Counts are a pod's questions that the agent answered, since the agent's start, or since the pod's. Those that kube-dns answered
// are not among them.
type Counts struct {
	Queries  uint64 `json:"queries"`
	Hits     uint64 `json:"hits"`     // of these, from the cache
	Kernel   uint64 `json:"kernel"`   // of these, in the kernel
	Failures uint64 `json:"failures"` // of these, with neither an answer nor that there is no such name
}

// Pod is one attachment of a pod.
type Pod struct {
	File      podfile.File
	Completed bool // its questions are
	Counts    Counts
}

// Pods lists those that are known, in no order.
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

func (c *Clients) keep(f podfile.File, old *client) *client {
	conf := c.conf.Load()
	next := &client{of: c, file: f, search: searchOf(f, conf), tally: new(tally), namespace: c.namespace(f.PodNamespace)}
	wanted, why := InKernel(f, conf)
	next.borrows = wanted && why == ""
	if old != nil {
		next.tally = old.tally
		if next.search.Same(old.search) {
			next.search = old.search // by which its decisions are remembered
		}
	}
	return next
}

func (c *Clients) namespace(name string) *tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.namespaces[name] == nil && len(c.namespaces) >= namespacesMost {
		name = otherNamespaces
	}
	if c.namespaces[name] == nil {
		c.namespaces[name] = new(tally)
	}
	return c.namespaces[name]
}

// completes tells whether a pod's questions are to be completed: its annotation says so, else the node's settings for its namespace
// or for all pods. The settings are those of now, not of when the pod was made: an operator can switch it off at once.
func completes(f podfile.File, conf *config.Node) bool {
	if f.SearchCompletion != nil {
		return *f.SearchCompletion
	}
	return conf.PodDNS.Completion(f.PodNamespace)
}

// Completes tells whether the questions of the pod with this file are completed, by this configuration.
func Completes(f podfile.File, conf *config.Node) bool { return searchOf(f, conf) != nil }

// searchOf returns the list by which a pod's questions are completed; nil where they are not.
func searchOf(f podfile.File, conf *config.Node) *searchpath.Search {
	if !completes(f, conf) {
		return nil
	}
	s, known := f.Resolver()
	if !known {
		// A walk ends by what the whole list says. The kubelet's own part of it could be guessed, what the node's resolv.conf or the
		// pod's dnsConfig adds could not, and a name found there is another host than the one behind the end of a shorter list.
		return nil
	}
	return searchpath.NewSearch(s.Searches, s.Ndots(), slices.Contains(s.Options, "no-tld-query"), conf.ClusterDomain)
}

// InKernel tells whether the hits of the pod with this file are to be answered in the kernel, by this configuration, and why they are not
// all the same ("": they are).
func InKernel(f podfile.File, conf *config.Node) (wanted bool, why string) {
	k := conf.KernelHits
	switch {
	case k.Mode == config.KernelHitsOff:
		return false, ""
	case f.KernelHits != nil:
		wanted = *f.KernelHits
	default:
		wanted = k.Mode == config.KernelHitsOn || slices.Contains(k.Namespaces, f.PodNamespace)
	}
	switch {
	case !wanted:
		return false, ""
	case conf.KernelAlone():
		return !f.OptOut, "" // whomever it asks, the program knows whose answers these are
	case len(f.In(podfile.Steered))+len(f.In(podfile.Pending)) == 0:
		return false, "" // left alone: it asks nobody whom the kernel could stand in for
	case slices.ContainsFunc(f.Decisions, func(d podfile.Decision) bool { return pods.StateOf(d) == podstate.Bypassed }):
		return true, "it is bypassed, kube-dns answers it"
	case len(f.In(podfile.Steered)) == 0:
		return true, "it is not steered yet"
	case Completes(f, conf):
		return true, "its search list is walked for it (searchCompletion), which the kernel cannot do: switch one of the two off for it"
	}
	return true, ""
}

// Borrows implements cache.Borrowing.
func (c *client) Borrows() bool { return c.borrows }

// AnsweredInKernel counts questions of an attachment that the kernel answered: all are hits, and none is a failure. The pod may be gone: its
// namespace has them all the same.
func (c *Clients) AnsweredInKernel(f podfile.File, queries uint64) {
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

// Heard is how many questions of an attachment the agent itself answered.
func (c *Clients) Heard(f podfile.File) uint64 {
	if p := c.index.All()[[2]string{f.ContainerID, f.IfName}]; p != nil {
		return p.tally.queries.Load() - p.tally.kernel.Load()
	}
	return 0
}

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

// Identify returns what is known of a client, to go with its query; nil if it is no pod of this node.
func (c *Clients) Identify(addr netip.Addr) any {
	if p := c.index.Find(addr); p != nil {
		return p
	}
	return nil
}

// The response codes that are answers (RFC 1035, section 4.1.1).
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
		if a.Level.Kept() {
			t.hits.Add(1)
		}
		if failed {
			t.failures.Add(1)
		}
	}
}

// Namespaces are their counts, for /metrics. Once all places are taken, namespaces without pods on this node give theirs back, as
// soon as their last counts are told.
func (c *Clients) Namespaces() []telemetry.Namespace {
	alive := map[string]bool{otherNamespaces: true}
	for _, p := range c.index.All() {
		alive[p.file.PodNamespace] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	full, freed := len(c.namespaces) >= namespacesMost, false
	var out []telemetry.Namespace
	for name, t := range c.namespaces {
		out = append(out, telemetry.Namespace{Name: name, Queries: t.queries.Load(), Hits: t.hits.Load(), Kernel: t.kernel.Load(), Failures: t.failures.Load()})
		if full && !alive[name] {
			delete(c.namespaces, name)
			freed = true
		}
	}
	if freed {
		c.pods.Outdate() // those who had no place take one
	}
	return out
}
