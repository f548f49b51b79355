package lifecycle

import (
	"context"
	"io"
	"slices"

	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/node/evidence"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/pods/podindex"
	"github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/internal/dns/limit"
	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/internal/offload"
	"github.com/neardns/neardns/internal/telemetry"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// opened has what an agent opens before it becomes the active one. close closes closers when the agent ends.
type opened struct {
	plan      plan.Plan // the plan of the start
	gate      *limit.Gate
	upstreams *forward.Servers
	server    *server.Server
	programs  *iptables.Stats // counts the runs of the iptables programs
	registry  *pods.Pods
	rules     *hostRules
	lease     *steer.Lease
	metrics   *telemetry.Metrics
	closers   []io.Closer
}

func (o *opened) close() {
	for _, c := range slices.Backward(o.closers) {
		_ = c.Close() // at exit
	}
}

// open makes the plan, and opens the parts that the plan needs. It changes neither links nor packet rules, except that the test of a back
// end of iptables makes chains to which no rule jumps, and deletes them.
func (a *agent) open(ctx context.Context, o *opened) (err error) {
	if err := a.openCache(o); err != nil || o.plan.KernelOnly() {
		return err
	}
	if a.backend, err = a.chooseBackend(ctx, o.programs, o.plan); err != nil {
		return err
	}
	if o.plan, err = o.plan.ForBackend(a.backend); err != nil {
		return &ConfigError{err}
	}
	a.log.Info("back end of the packet rules chosen", "backend", a.backend.String())
	a.openPods(o)
	host, err := a.backend.OpenHost(-1)
	if err != nil {
		return err
	}
	o.closers = append(o.closers, host)
	if o.lease, err = steer.OpenLease(steer.DrawSecret()); err != nil {
		return err
	}
	o.closers = append(o.closers, o.lease)
	o.rules = &hostRules{Rules: host, kind: a.backend, stateDir: o.plan.Folders.State, secret: o.lease.Secret()}
	return nil
}

const dnsPort = 53 // RFC 1035, section 4.2.1

// openPods opens the registry of pods.
func (a *agent) openPods(o *opened) {
	o.registry = pods.Open(o.plan.Folders.State, a.backend, a.log)
	o.registry.Excludes = func(f podfile.File) string {
		if !a.config().Adopts() && pods.WaitsForAdoption(f) {
			return "adoptPods is false"
		}
		return a.config().Steer.Excludes(f.PodNamespace, f.OptIn)
	}
	a.clients.Follow(o.registry)
}

// openCache makes the plan, the cache, kernel hits, which do not run yet, and the DNS server, which does not listen yet.
func (a *agent) openCache(o *opened) (err error) {
	if o.plan, err = a.plan(a.conf); err != nil {
		return &ConfigError{err}
	}
	o.gate, o.upstreams = limit.New(limit.DefaultLimit), forward.NewServers(a.log)
	o.programs, o.metrics = new(iptables.Stats), telemetry.New(a.env.Version)
	a.answers = newAnswers(a.log, a.conf)
	a.clients = podindex.New(a.conf)
	a.hits = offload.New(a.hitsOptions(o))
	o.server = newServer(a.log, o.gate, o.upstreams, a.answers.Store, a.clients, a.hits.Entries)
	if !o.plan.StartsUnserved() {
		if err := checkDNS(o.server, o.plan.Server, a.path); err != nil {
			return &ConfigError{err}
		}
	}
	return nil
}

// beginSteered makes the node's loop after this agent has become the active one. First it opens the prober and replaces another back
// end's rules. After a handover, the loop begins with the leases and sockets of the predecessor.
func (a *agent) beginSteered(ctx context.Context, o *opened, s *ownership) (arrangement, error) {
	var probes *prober.Prober
	err := a.retryWhileBusy(ctx, "write the prober's pod table", func() (err error) {
		probes, err = s.proberFor(ctx, prober.Config{Redirects: o.plan.Redirects, Locals: o.plan.LocalAddresses(), Rules: a.backend, Log: a.log})
		return err
	})
	if err != nil {
		return nil, err
	}
	a.collect(o)
	err = a.retryWhileBusy(ctx, "replace the packet rules of another back end", func() error {
		return a.replaceRules(a.backend, o.rules, o.plan, o.registry)
	})
	if err != nil {
		return nil, err
	}
	parts := node.Parts{
		Log: a.log, Server: highServer{o.server}, Link: nodeLink{}, Rules: o.rules, Firewall: iptables.EnsureAccepts,
		Lease: o.lease, Prober: probes, Pods: o.registry, Verified: &verifiedFallbacks{dir: o.plan.Folders.Persist, backend: a.backend},
		FallbackLost: fallbackLost, Uplinks: rules.Uplinks,
		Upstreams: upstreamChecker{o.upstreams, o.server},
		Recorder:  o.metrics, PartChecked: a.role.checked,
	}
	if a.backend.Caps().Evidence {
		notes, err := a.backend.OpenEvidence() // a netlink socket of its own, because evidence is read concurrently with the loop
		if err != nil {
			return nil, err
		}
		o.closers = append(o.closers, notes)
		o.registry.Release = o.lease.Release
		seen := evidence.New(a.log, notes, o.lease, o.registry)
		o.metrics.Collect(seen.Collectors()...)
		parts.Evidence = seen
	}
	n := node.New(a.instance, o.plan, parts)
	if s.from != nil {
		n.Inherit(*s.from, s.served)
		a.log.Info("took the node over from another agent", "from", s.from.From, "took", s.from.Took, "addr", s.served)
	}
	return steered{n}, nil
}

// collect registers the metrics of the parts, except those of package evidence, which beginSteered registers.
func (a *agent) collect(o *opened) {
	m := o.metrics
	if !o.plan.KernelOnly() { // with arrangement: transparent there is no switch
		m.CollectSwitch(switchCounters(a.backend))
	}
	if a.backend.Caps().Programs {
		m.Collect(programRuns(o.programs))
	}
	m.CollectSnapshot(a.answers.Fresh)
	m.CollectWatch(nodestate.WatchFile(o.plan.Folders.State).Read)
	m.Collect(o.upstreams.Collector())
	m.Collect(o.gate.Collector())
	m.Collect(o.server.Collector())
	m.CollectKernelHits(a.hits.Series)
	if a.conf.Listen.Namespaces {
		m.Collect(a.clients.NamespaceCollector(a.hits.Count))
	}
}
