package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/agent/internal/lifecycle/handover"
	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/pods/nri"
	"github.com/neardns/neardns/agent/internal/pods/podindex"
	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/forward/upstream"
	"github.com/neardns/neardns/internal/telemetry"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
)

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
	cache    string // libcni's
	answers  *answers.Keeper
	backend  rules.Kind
	clients  *podindex.Clients
	kernel   *kernel
	given    atomic.Bool // the node, to a successor: the cache is its own to save now

	mu    sync.Mutex // guards the fields below, which a reload replaces
	conf  *config.Node
	files []string // that the upstreams were read from
	// outside is who answers for names outside of the cluster, as it was said last.
	outside string
}

// begin runs the agent until it ends.
func (a *agent) begin(ctx context.Context) error {
	err := a.run(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // told to end before it had the node
	}
	return err
}

// run opens the parts, takes the node, and serves until ctx ends or a successor has the node.
func (a *agent) run(ctx context.Context) error {
	var o opened
	defer o.close()
	if err := a.open(ctx, &o); err != nil {
		return err
	}
	if o.plan.KernelAlone() {
		return a.runAlone(ctx, &o)
	}
	s, err := a.takeNode(ctx, &o)
	if err != nil {
		return err
	}
	defer s.lock.Close() //nolint:errcheck // at exit
	n, err := a.loop(ctx, &o, s)
	if err != nil {
		return err
	}
	return a.keep(ctx, &o, s, n)
}

// keep runs the loop, and beside it those who answer for it: people's endpoints, the cache's snapshots, runtimes and successors.
func (a *agent) keep(ctx context.Context, o *opened, s *tenure, n *node.Node) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	shared, closing := context.WithCancel(ctx) // a successor listens there
	defer closing()
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	a.serve(shared, own, &wg, o.metrics, n)
	wg.Go(func() { a.answers.Run(own) })
	a.kernel.bypassed = func() map[netip.Addr]struct{} { return bypassedSources(n.Evidence) }
	wg.Go(func() { a.kernel.run(own) })
	wg.Go(func() { settle(own, a.log, n.Ready) })
	adoption := a.adoption()
	if c := a.conf.ResolvConf; c.Mode != conflist.ResolvConfOff && c.NRI != "" {
		overlays := nri.New(nri.Config{Log: a.log, StateDir: o.plan.Folders.State, Paths: c.Paths, Socket: c.NRI})
		adoption.Runtime = overlays.Pods
		wg.Go(func() { overlays.Run(own) })
	}
	if a.conf.Adopts() {
		wg.Go(func() { o.registry.Adopt(own, adoption) })
	}
	hangups := a.env.Hangups(own)
	wg.Go(func() { a.follow(shared, hangups, s.waited, n.Set, o.metrics.Read) }) // from here on a.conf is its own
	defer func() {
		if !a.given.Load() {
			a.answers.Save()
		}
	}()
	asked, err := handover.Listen(filepath.Join(o.plan.Folders.State, nodestate.HandoverName))
	if err != nil {
		// Not worth failing for: a successor then waits for this agent's end.
		a.log.Warn("no hand-over can be asked for", "err", err)
		return a.ended(o.plan, n.Run(ctx))
	}
	ctx, ending := context.WithCancel(ctx)
	defer ending()
	wg.Go(func() {
		handover.Give(own, a.log, asked, &holder{agent: a, node: n, server: o.server, metrics: o.metrics, lock: s.lock, closing: closing, ending: ending})
	})
	return a.ended(o.plan, n.Run(ctx))
}

// told is what is told of a node to whoever looks at the agent.
type told interface {
	Alive() (bool, string)
	Ready() (bool, string)
	Status() node.Status
}

// adoption is what running pods are adopted by.
func (a *agent) adoption() pods.Adoption {
	return pods.Adoption{Root: a.cache, Paths: a.conf.ResolvConf.Paths, Wanted: func() pods.Wanted {
		a.mu.Lock()
		defer a.mu.Unlock()
		locals, _ := steer.Locals(a.conf.LocalAddresses, a.conf.Redirects) // the configuration was checked
		w := pods.Wanted{Redirects: a.conf.Redirects, Locals: locals, Rules: a.conf.PodDNS}
		if a.conf.KernelAlone() {
			w.Alone = leftAlone
		}
		return w
	}}
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
func (a *agent) serve(shared, own context.Context, wg *sync.WaitGroup, m *telemetry.Metrics, n told) {
	health := telemetry.Health{Alive: n.Alive, Ready: n.Ready, Status: func() any {
		s := n.Status()
		s.PID, s.Version, s.Without, s.Unknown = os.Getpid(), a.env.Version, without(iptables.MissingPrograms()), a.unknown()
		totals := m.Totals("coredns_cache_hits_total", "coredns_cache_misses_total")
		s.Cache = &node.CacheStatus{Hits: int64(totals[0]), Misses: int64(totals[1])}
		s.Cache.Bytes, s.Cache.Limit = a.answers.Store.Bytes()
		s.KernelHits = a.kernel.status()
		return s
	}, Pods: func() any {
		a.kernel.count()
		return inspect.PodViews(a.clients.Pods())
	}, Config: a.shown}
	if a.role.serve != nil {
		a.role.serve(shared, wg, m, health)
	}
	conf := a.conf // of the start; only a start reads what is needed here
	wg.Go(func() { telemetry.ServeTCP(shared, a.log, "metrics", conf.Listen.Metrics, m.MetricsHandler()) })
	wg.Go(func() { telemetry.ServeTCP(shared, a.log, "health", conf.Listen.Health, health.Handler()) })
	wg.Go(func() {
		telemetry.ServeSocket(shared, a.log, filepath.Join(conf.StateDir, nodestate.AgentSocketName), health.SocketHandler())
	})
	if a.podDir != "" {
		wg.Go(func() {
			telemetry.ServeSocket(own, a.log, filepath.Join(a.podDir, nodestate.AgentSocketName), health.SocketHandler())
		})
	}
}
