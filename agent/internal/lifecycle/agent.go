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

// arrangement is how an active agent answers pods: steered by the node's loop, or transparent, by hits in the kernel alone.
type arrangement interface {
	reporter
	yielder
	set(next plan.Plan, changed bool)
	bypassed() map[netip.Addr]struct{} // sources that the switch bypasses
	// run serves until ctx ends or a successor has the node. own outlives ctx until the agent has handed over or stopped.
	run(ctx, own context.Context) error
	// close ends what is left after run, once nothing else of the agent runs.
	close() error
}

// reporter is what status, readiness and liveness show.
type reporter interface {
	Alive() (bool, string)
	Ready() (bool, string)
	Status() node.Status
}

// run opens the parts, takes the node, and serves until ctx ends or a successor has the node.
func (a *agent) run(ctx context.Context) error {
	var o opened
	defer o.close()
	if err := a.open(ctx, &o); err != nil {
		return err
	}
	begin := a.beginSteered
	if o.plan.KernelAlone() {
		begin = a.prepareTransparent(&o)
	}
	s, err := a.takeNode(ctx, &o)
	if err != nil {
		return err
	}
	defer s.lock.Close() //nolint:errcheck // at exit
	if !s.warm {
		a.answers.Load()
	}
	how, err := begin(ctx, &o, s)
	if err != nil {
		return err
	}
	return a.keep(ctx, &o, s, how)
}

// keep runs the arrangement, and next to it the endpoints, the cache's snapshots, pods' runtimes, and the socket for a successor.
func (a *agent) keep(ctx context.Context, o *opened, s *tenure, how arrangement) error {
	var wg sync.WaitGroup
	shared, closing := context.WithCancel(ctx) // a successor listens there
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	ctx, ending := context.WithCancel(ctx)
	a.serve(shared, own, &wg, o.metrics, how)
	wg.Go(func() { a.answers.Run(own) })
	a.kernel.bypassed = how.bypassed
	wg.Go(func() { a.kernel.run(own) })
	wg.Go(func() { settle(own, a.log, how.Ready) })
	a.keepPods(own, o, &wg)
	hangups := a.env.Hangups(own)
	wg.Go(func() { a.follow(shared, hangups, s.waited, how.set, o.metrics.Read) }) // from here on a.conf is its own
	if queries, err := handover.Listen(filepath.Join(o.plan.Folders.State, nodestate.HandoverName)); err != nil {
		// Not worth failing for: a successor then waits for this agent's end.
		a.log.Warn("no hand-over can be requested", "err", err)
	} else {
		active := &activeAgent{agent: a, node: how, server: o.server, metrics: o.metrics, lock: s.lock, closing: closing, ending: ending}
		wg.Go(func() { handover.Give(own, a.log, queries, active) })
	}
	err := how.run(ctx, own)
	err = a.ended(o.plan, err)
	if !a.given.Load() {
		a.answers.Save()
	}
	ending()
	stop()
	closing()
	wg.Wait()
	return errors.Join(err, how.close())
}

// keepPods adopts running pods and writes their resolv.conf, where the configuration says so.
func (a *agent) keepPods(own context.Context, o *opened, wg *sync.WaitGroup) {
	adoption := a.adoption()
	if c := a.conf.ResolvConf; !a.conf.KernelAlone() && c.Mode != conflist.ResolvConfOff && c.NRI != "" {
		overlays := nri.New(nri.Config{Log: a.log, StateDir: o.plan.Folders.State, Paths: c.Paths, Socket: c.NRI})
		adoption.Runtime = overlays.Pods
		wg.Go(func() { overlays.Run(own) })
	}
	if a.conf.Adopts() || a.conf.KernelAlone() {
		wg.Go(func() { o.registry.Adopt(own, adoption) })
	}
}

// steered is the arrangement in which pods' packets are rewritten to the agent while it holds a lease.
type steered struct{ *node.Node }

func (s steered) set(next plan.Plan, changed bool)  { s.Set(next, changed) }
func (s steered) bypassed() map[netip.Addr]struct{} { return bypassedSources(s.Evidence) }
func (s steered) run(ctx, _ context.Context) error  { return s.Run(ctx) }
func (steered) close() error                        { return nil } // Run has ended all

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
func (a *agent) serve(shared, own context.Context, wg *sync.WaitGroup, m *telemetry.Metrics, n reporter) {
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
