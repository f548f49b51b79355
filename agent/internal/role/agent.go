package role

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/neardns/neardns/agent/internal/chain"
	"github.com/neardns/neardns/agent/internal/clients"
	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/coredns/admit"
	"github.com/neardns/neardns/agent/internal/coredns/ask"
	"github.com/neardns/neardns/agent/internal/coredns/cache"
	"github.com/neardns/neardns/agent/internal/coredns/complete"
	"github.com/neardns/neardns/agent/internal/coredns/metrics"
	"github.com/neardns/neardns/agent/internal/coredns/probe"
	"github.com/neardns/neardns/agent/internal/evidence"
	"github.com/neardns/neardns/agent/internal/front"
	"github.com/neardns/neardns/agent/internal/handover"
	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/nri"
	"github.com/neardns/neardns/agent/internal/plan"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/prober"
	"github.com/neardns/neardns/agent/internal/query"
	"github.com/neardns/neardns/agent/internal/server"
	"github.com/neardns/neardns/agent/internal/telemetry"
	"github.com/neardns/neardns/agent/internal/upstream"
	"github.com/neardns/neardns/agent/internal/wire"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
)

const rcodeServerFailure = 2 // RFC 1035, section 4.1.1

// parts is what the server's own plugins share over all configurations.
type parts struct {
	gate      *admit.Gate
	upstreams *ask.Servers
	answers   *wire.Store
	clients   *clients.Clients // nil: none is known, none is counted
}

func newServer(log *slog.Logger, p parts) *server.Server {
	var watch front.Observer
	memory, completions := complete.NewMemory(), new(complete.Metrics)
	if c := p.clients; c != nil {
		watch, memory, completions = observer{c, p.upstreams}, c.Memory, &c.Metrics
	}
	return server.New(log, watch,
		chain.Plugin{Name: "probe", Setup: probe.Setup(probeSources()...)},
		chain.Plugin{Name: "metrics", Setup: metrics.Setup},
		chain.Plugin{Name: "complete", Setup: complete.Setup(memory, completions)},
		chain.Plugin{Name: "admit", Setup: admit.Setup(p.gate)},
		chain.Plugin{Name: "ask", Setup: ask.Setup(p.upstreams)},
		chain.Plugin{Name: "cache", Setup: cache.Setup(p.answers, cache.NewMetrics(p.answers, nil))})
}

// observer is told of each question that the server has dealt with.
type observer struct {
	*clients.Clients
	upstreams *ask.Servers
}

// Answered implements front.Observer.
func (o observer) Answered(a query.Answer) {
	if a.Rcode == rcodeServerFailure { // also where an operator's Corefile asks, of which upstreams knows nothing
		o.upstreams.NoteTrouble()
	}
	o.Clients.Answered(a)
}

// role is what tells `node` and `nodecache` apart beside their plans. The first two are needed.
type role struct {
	read   func() (*config.Node, error) // the configuration as it is now
	derive func(*config.Node) (plan.Plan, upstream.Upstreams, error)
	// recorder adds to what the loop records; nil: nothing.
	recorder func(node.Recorder) node.Recorder
	serve    func(ctx context.Context, wg *sync.WaitGroup, m *telemetry.Metrics, h telemetry.Health)
	ended    func(plan.Plan) error // after an orderly end, unless a successor has the node; the plan is that of the start
}

// agent is what a running role holds.
type agent struct {
	env      Env
	role     role
	path     string
	log      *slog.Logger
	level    *slog.LevelVar
	instance string
	claim    handover.Claim
	mayTake  bool   // may ask a running agent for the node
	podDir   string // "" where there is none
	answers  *wire.Keeper
	backend  rules.Kind
	clients  *clients.Clients
	given    atomic.Bool // the node, to a successor: the cache is its own to save now

	mu    sync.Mutex // guards the fields below, which a reload replaces
	conf  *config.Node
	files []string // that the upstreams were read from
	// outside is who answers for names outside of the cluster, as it was said last.
	outside string
}

// Check looks whether a plan can be served, without serving it. path is where its configuration is from; CoreDNS itself knows only the
// text that it is given.
func Check(p plan.Plan, path string) error {
	none := slog.New(slog.DiscardHandler)
	return checkDNS(newServer(none, parts{gate: admit.New(admit.DefaultLimit), upstreams: ask.NewServers(none), answers: wire.NewStore(0)}), p.Server, path)
}

func checkDNS(server *server.Server, conf server.Config, path string) error {
	err := server.Check(conf)
	if err != nil && path != "" {
		return fmt.Errorf("%s: %w", path, err)
	}
	return err
}

// begin runs the agent until it ends.
func (a *agent) begin(ctx context.Context) error {
	err := a.run(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // told to end before it had the node
	}
	return err
}

func (a *agent) run(ctx context.Context) error {
	first, err := a.plan(a.conf)
	if err != nil {
		return &ConfigError{err}
	}
	gate := admit.New(admit.DefaultLimit)
	upstreams := ask.NewServers(a.log)
	a.answers = newAnswers(a.log, a.conf)
	a.clients = clients.New(a.conf)
	server := newServer(a.log, parts{gate: gate, upstreams: upstreams, answers: a.answers.Store, clients: a.clients})
	if !first.StartsUnserved() {
		if err := checkDNS(server, first.Server, a.path); err != nil {
			return &ConfigError{err}
		}
	}
	stats := new(iptables.Stats)
	if a.backend, err = chooseBackend(ctx, a.log, stats, first); err != nil {
		return err
	}
	if first, err = first.On(a.backend); err != nil {
		return &ConfigError{err}
	}
	a.log.Info("packet rules", "backend", a.backend.String())
	registry := pods.Open(first.Folders.State, a.backend, a.log)
	a.clients.Follow(registry)
	host, err := a.backend.OpenHost(-1)
	if err != nil {
		return err
	}
	defer host.Close() //nolint:errcheck // at exit
	lease, err := steer.OpenLease()
	if err != nil {
		return err
	}
	defer lease.Close() //nolint:errcheck // at exit
	kept := &hostRules{Rules: host, kind: a.backend, stateDir: first.Folders.State, secret: lease.Secret()}
	m := telemetry.New(a.env.Version)
	seat, err := a.takeSeat(ctx, server, first, m)
	if err != nil {
		return err
	}
	defer seat.lock.Close() //nolint:errcheck // at exit
	if !seat.warm {
		a.answers.Load()
	}
	var probes *prober.Prober
	err = patiently(ctx, a.log, "the prober's pod table", func() (err error) {
		probes, err = seat.proberFor(ctx, prober.Config{Redirects: first.Redirects, Locals: first.LocalAddresses(), Rules: a.backend, Log: a.log})
		return err
	})
	if err != nil {
		return err
	}
	m.CollectSwitch(switchCounters(a.backend))
	if a.backend.Caps().Programs {
		m.CollectPrograms(programRuns(stats))
	}
	m.CollectSnapshot(a.answers.Fresh)
	m.CollectWatch(watchIn(first.Folders.State))
	m.Collect(upstreams.Collector())
	m.Collect(gate.Collector())
	m.Collect(server.Collector())
	m.Collect(a.clients.Metrics.Collector())
	if a.conf.Listen.Namespaces {
		m.CollectNamespaces(a.clients.Namespaces)
	}
	err = patiently(ctx, a.log, "the rules of another back end", func() error { return a.replaceRules(ctx, a.backend, kept, first, registry) })
	if err != nil {
		return err
	}
	var found node.Evidence // nil where the back end takes none
	if a.backend.Caps().Evidence {
		notes, err := a.backend.OpenEvidence() // of its own: it is read beside the loop
		if err != nil {
			return err
		}
		defer notes.Close() //nolint:errcheck // at exit
		seen := evidence.New(a.log, notes, lease, registry.PodOf)
		m.Collect(seen.Collector())
		found = seen
	}
	parts := node.Parts{
		Log: a.log, Load: a.load, Changed: a.changed(ctx), Server: highServer{server}, Link: nodeLink{}, Rules: kept, Firewall: firewall{}, Lease: lease,
		Prober: probes, Pods: registry, Proofs: &proofs{dir: first.Folders.Persist, backend: a.backend}, World: world{intercepted: first.Catches()}, Uplinks: rules.Uplinks, Upstreams: upstreams, Asker: asker{upstreams, server}, Evidence: found, Recorder: recorder{m},
	}
	if a.role.recorder != nil {
		parts.Recorder = a.role.recorder(parts.Recorder)
	}
	n := node.New(a.instance, first, parts)
	if seat.from != nil {
		n.Inherit(*seat.from, seat.served)
		a.log.Info("taken over", "from", seat.from.From, "after", seat.from.Took, "addr", seat.served)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	shared, closing := context.WithCancel(ctx) // a successor listens there
	defer closing()
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	a.serve(shared, own, &wg, m, n)
	wg.Go(func() { a.answers.Run(own) })
	if c := a.conf.ResolvConf; c.Mode != conflist.ResolvConfOff && c.NRI != "" {
		overlays := nri.New(nri.Config{Log: a.log, StateDir: first.Folders.State, Paths: c.Paths, Socket: c.NRI})
		wg.Go(func() { overlays.Run(own) })
	}
	defer func() {
		if !a.given.Load() {
			a.answers.Save()
		}
	}()
	asked, err := handover.Listen(filepath.Join(first.Folders.State, nodestate.HandoverName))
	if err != nil {
		// Not worth failing for: a successor then waits for this agent's end.
		a.log.Warn("no hand-over can be asked for", "err", err)
		return a.ended(first, n.Run(ctx))
	}
	ctx, ending := context.WithCancel(ctx)
	defer ending()
	wg.Go(func() {
		handover.Give(own, a.log, asked, &holder{agent: a, node: n, server: server, metrics: m, lock: seat.lock, closing: closing, ending: ending})
	})
	return a.ended(first, n.Run(ctx))
}

// ended does what the role has to do after an orderly end.
func (a *agent) ended(first plan.Plan, err error) error {
	if a.role.ended == nil || a.given.Load() {
		return err
	}
	return errors.Join(err, a.role.ended(first))
}

// serve answers whoever looks at the agent: at addresses that the node has once until shared ends, and in the pod's folder
// until own does.
func (a *agent) serve(shared, own context.Context, wg *sync.WaitGroup, m *telemetry.Metrics, n *node.Node) {
	health := telemetry.Health{Alive: n.Alive, Ready: n.Ready, Status: func() any {
		s := n.Status()
		s.PID, s.Version, s.Without, s.Unknown = os.Getpid(), a.env.Version, without(iptables.MissingPrograms()), a.unknown()
		totals := m.Totals("coredns_cache_hits_total", "coredns_cache_misses_total")
		s.Cache = &node.CacheStatus{Hits: int64(totals[0]), Misses: int64(totals[1])}
		s.Cache.Bytes, s.Cache.Limit = a.answers.Store.Bytes()
		return s
	}, Pods: func() any { return inspect.PodViews(a.clients.Pods()) }, Config: a.shown}
	if a.role.serve != nil {
		a.role.serve(shared, wg, m, health)
	}
	wg.Go(func() { telemetry.ServeTCP(shared, a.log, "metrics", a.conf.Listen.Metrics, m.MetricsHandler()) })
	wg.Go(func() { telemetry.ServeTCP(shared, a.log, "health", a.conf.Listen.Health, health.Handler()) })
	wg.Go(func() {
		telemetry.ServeSocket(shared, a.log, filepath.Join(a.conf.StateDir, nodestate.AgentSocketName), health.SocketHandler())
	})
	if a.podDir != "" {
		wg.Go(func() {
			telemetry.ServeSocket(own, a.log, filepath.Join(a.podDir, nodestate.AgentSocketName), health.SocketHandler())
		})
	}
}

// probeSources are whom the probe plugin answers.
func probeSources() []netip.Addr { return []netip.Addr{steer.ProbeSource4, steer.ProbeSource6} }
