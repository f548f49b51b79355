package main

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/coredns/complete"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/telemetry"
	"github.com/neardns/neardns/pkg/podfile"
)

// clients is what the agent keeps of each pod of this node on the way of its questions: the list by which they are completed, and
// how many there were. All methods may be called at the same time.
type clients struct {
	pods    *pods.Pods
	index   *pods.Index[client]
	memory  *complete.Memory
	metrics complete.Metrics
	conf    atomic.Pointer[config.Node]

	mu         sync.Mutex // guards the field below; the counts are read without it
	namespaces map[string]*tally
}

// client is one attachment of a pod.
type client struct {
	file      podfile.File
	search    *complete.Search // nil: its questions are not completed
	tally     *tally
	namespace *tally // goes on when the pod is gone
}

// tally counts a client's questions.
type tally struct{ queries, hits, failures atomic.Uint64 }

// namespacesMost bounds the namespaces that have series of their own; the pods of more of them are counted together. A node has
// 110 pods unless somebody changed that.
const namespacesMost = 100

// otherNamespaces is no namespace's name (RFC 1123 has no underscore).
const otherNamespaces = "_other"

func newClients(conf *config.Node) *clients {
	c := &clients{memory: complete.NewMemory(), namespaces: map[string]*tally{}}
	c.conf.Store(conf)
	return c
}

// follow says which pods there are. It is called once, before the first question.
func (c *clients) follow(registry *pods.Pods) {
	c.pods, c.index = registry, pods.NewIndex(registry, c.keep)
}

// configure takes another configuration over, for the pods that run too.
func (c *clients) configure(conf *config.Node) {
	c.conf.Store(conf)
	c.pods.Outdate()
}

func (c *clients) keep(f podfile.File, old *client) *client {
	next := &client{file: f, search: searchOf(f, c.conf.Load()), tally: new(tally), namespace: c.namespace(f.PodNamespace)}
	if old != nil {
		next.tally = old.tally
		if next.search.Same(old.search) {
			next.search = old.search // by which its decisions are remembered
		}
	}
	return next
}

func (c *clients) namespace(name string) *tally {
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

// searchOf returns the list by which a pod's questions are completed; nil where they are not.
func searchOf(f podfile.File, conf *config.Node) *complete.Search {
	if !completes(f, conf) {
		return nil
	}
	s, known := f.Resolver()
	if !known {
		// A walk ends by what the whole list says. The kubelet's own part of it could be guessed, what the node's resolv.conf or the
		// pod's dnsConfig adds could not, and a name found there is another host than the one behind the end of a shorter list.
		return nil
	}
	return complete.NewSearch(s.Searches, s.Ndots(), slices.Contains(s.Options, "no-tld-query"), conf.ClusterDomain)
}

// search implements complete.Find.
func (c *clients) search(addr netip.Addr, now bool) *complete.Search {
	if now {
		c.pods.LookAgain()
	}
	if p := c.index.Find(addr); p != nil {
		return p.search
	}
	return nil
}

// The response codes that are answers (RFC 1035, section 4.1.1).
const (
	rcodeSuccess   = 0
	rcodeNameError = 3

	rcodeServerFailure = 2 // which is none
)

// answered counts a client's question. What the server asks itself on a client's behalf is part of that question.
func (c *clients) answered(ctx context.Context, from net.Addr, rcode int) {
	if complete.Inner(ctx) {
		return
	}
	if p := c.index.Find(complete.Address(from)); p != nil {
		failed := rcode != rcodeSuccess && rcode != rcodeNameError
		for _, t := range []*tally{p.tally, p.namespace} {
			t.queries.Add(1)
			if failed {
				t.failures.Add(1)
			}
		}
	}
}

// hit counts an answer out of the cache. The questions of a walk are no client's; its end is.
func (c *clients) hit(ctx context.Context, from net.Addr) {
	if complete.Walking(ctx) {
		return
	}
	if p := c.index.Find(complete.Address(from)); p != nil {
		p.tally.hits.Add(1)
		p.namespace.hits.Add(1)
	}
}

// counts are the namespaces' for /metrics. Once all places are taken, namespaces without pods on this node give theirs back, as
// soon as their last counts are told.
func (c *clients) counts() []telemetry.Namespace {
	alive := map[string]bool{otherNamespaces: true}
	for _, p := range c.index.All() {
		alive[p.file.PodNamespace] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	full, freed := len(c.namespaces) >= namespacesMost, false
	var out []telemetry.Namespace
	for name, t := range c.namespaces {
		out = append(out, telemetry.Namespace{Name: name, Queries: t.queries.Load(), Hits: t.hits.Load(), Failures: t.failures.Load()})
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
