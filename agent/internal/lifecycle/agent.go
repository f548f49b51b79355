package lifecycle

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/neardns/neardns/agent/internal/config"
	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/agent/internal/lifecycle/handover"
	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/node/evidence"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/overview"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/pods/nri"
	"github.com/neardns/neardns/agent/internal/pods/podindex"
	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/forward/upstream"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/offload"
	"github.com/neardns/neardns/internal/telemetry"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/rules"
)

// role has the functions in which the roles `node` and `nodecache` differ. serve and cleanUp may be nil.
type role struct {
	read    func() (*config.Node, error) // reads the configuration for a reload
	derive  func(*config.Node) (plan.Plan, upstream.Upstreams, error)
	checked func(part string, err error) // node.Parts.PartChecked
	serve   func(ctx context.Context, wg *sync.WaitGroup, m *telemetry.Metrics, metrics http.Handler, h telemetry.Health)
	cleanUp func(plan.Plan) error // called with the plan of the start when an agent that served ends, unless a successor has taken over
}

// agent is the process's agent, in the role `node` or `nodecache`.
type agent struct {
	env        Env
	role       role
	path       string // path of the NodeConfig file; "" if there is none
	log        *slog.Logger
	level      *slog.LevelVar
	instance   string
	claim      handover.Claim
	mayTake    bool   // may take the node over from an active agent
	podDir     string // Options.PodDir
	cache      string // root of libcni's cache
	answers    *answers.Keeper
	backend    rules.Kind
	clients    *podindex.Clients // identifies clients as pods and counts their queries
	hits       *offload.Hits     // kernel hits
	waited     bool              // the start waited for another agent or iptables' lock, so files may have changed since the plan was made
	handedOver atomic.Bool       // set once a successor has taken over; that agent saves the cache from then on

	mu    sync.Mutex // guards the fields below, which a reload replaces
	conf  *config.Node
	files []string // the files of the last valid plan, and of plans refused since, except path; a change of one triggers a reload
	// outside is the last logged list of upstreams for names outside of the cluster, so that it is logged only when it changes.
	outside string
}

// runUntilEnd runs the agent until it ends. A start that ctx cancels is no error.
func (a *agent) runUntilEnd(ctx context.Context) error {
	err := a.run(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // the signal came before this agent was active
	}
	return err
}

// arrangement is how an active agent answers pods: steered (pods' queries reach the agent, also in node-cache mode) or transparent (the
// kernel program answers cache hits, and no query reaches the agent's sockets).
type arrangement interface {
	reporter
	yielder
	// set replaces the plan, at once or, if pods are steered, in the node's loop. When the new plan is served, take is called, which
	// applies the rest of the new configuration.
	set(next plan.Plan, take func() (changed bool))
	bypassed() []evidence.Bypassed // the clients that the switch bypasses
	// run serves until ctx ends or a successor has taken over. own ends only after run has returned.
	run(ctx, own context.Context) error
	// close frees the resources that run left open. It is called once the agent's other goroutines have ended.
	close() error
}

// reporter provides what `status` and the readiness and liveness endpoints show.
type reporter interface {
	Alive() (bool, string)
	Ready() (bool, string)
	Status() node.Status
}

// run opens the agent's parts, becomes the active agent, and serves until ctx ends or a successor has taken over.
func (a *agent) run(ctx context.Context) error {
	var o opened
	defer o.close()
	if err := a.open(ctx, &o); err != nil {
		return err
	}
	begin := a.beginSteered
	if o.plan.KernelOnly() {
		begin = a.prepareTransparent(&o)
	}
	s, err := a.takeNode(ctx, &o)
	if err != nil {
		return err
	}
	defer s.lock.Close() //nolint:errcheck // at exit
	if s.served == nil { // otherwise Serve has loaded it
		a.answers.Load()
	}
	how, err := begin(ctx, &o, s)
	if err != nil {
		return err
	}
	return a.serveUntilEnd(ctx, &o, s, how)
}

// serveUntilEnd runs the arrangement together with the HTTP endpoints, the periodic snapshots of the cache, kernel hits, the management of
// pods, reloads, and the handover socket.
func (a *agent) serveUntilEnd(ctx context.Context, o *opened, s *ownership, how arrangement) error {
	var wg sync.WaitGroup
	shared, closing := context.WithCancel(ctx) // context of reloads, and of the listeners whose addresses a successor needs
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	ctx, ending := context.WithCancel(ctx)
	a.serve(shared, own, &wg, o.metrics, how)
	wg.Go(func() { a.answers.Run(own) })
	wg.Go(func() {
		a.hits.Run(own, func() []offload.Pod { return podsInKernel(o.registry.List(), a.config(), how.bypassed()) })
	})
	wg.Go(func() { releaseStartMemory(own, a.log, how.Ready) })
	a.managePods(own, o, &wg)
	hangups := a.env.Hangups(own)
	wg.Go(func() { a.follow(shared, hangups, a.waited, how.set, o.metrics.Read) }) // from here on a reload may replace a.conf
	if queries, err := handover.Listen(filepath.Join(o.plan.Folders.State, nodestate.HandoverName)); err != nil {
		// Not fatal: without the socket, a successor can take over only after this agent has ended.
		a.log.Warn("handover socket unavailable; a successor cannot take over before this agent ends", "err", err)
	} else {
		active := &activeAgent{agent: a, node: how, server: o.server, metrics: o.metrics, lock: s.lock, closing: closing, ending: ending}
		wg.Go(func() { handover.Give(own, a.log, queries, active) })
	}
	err := how.run(ctx, own)
	if !a.handedOver.Load() {
		if a.role.cleanUp != nil {
			err = errors.Join(err, a.role.cleanUp(o.plan))
		}
		a.answers.Save()
	}
	ending()
	stop()
	closing()
	wg.Wait()
	return errors.Join(err, how.close())
}

// managePods starts the adoption of running pods and the NRI plugin that writes pods' resolv.conf, if the configuration enables them. With
// arrangement: transparent, adoption always runs, because it makes the pods' files, which kernel hits need.
func (a *agent) managePods(own context.Context, o *opened, wg *sync.WaitGroup) {
	if c := a.conf.ResolvConf; !a.conf.KernelAlone() && c.Mode != conflist.ResolvConfOff && c.NRI != "" {
		overlays := nri.New(nri.Config{Log: a.log, StateDir: o.plan.Folders.State, Paths: c.Paths, Socket: c.NRI})
		wg.Go(func() { overlays.Run(own) })
	}
	if a.conf.Adopts() || a.conf.KernelAlone() {
		wg.Go(func() { o.registry.Adopt(own, a.adoption()) })
	}
}

// steered is the arrangement in which pods' queries reach the agent: the switch delivers them while the agent has a lease.
type steered struct{ *node.Node }

func (s steered) set(next plan.Plan, take func() bool) { s.Set(next, take) }
func (s steered) run(ctx, _ context.Context) error     { return s.Run(ctx) }
func (steered) close() error                           { return nil } // Node.Run itself stops the server and the prober

func (s steered) bypassed() []evidence.Bypassed {
	if s.Evidence == nil {
		return nil // this back end records no evidence, so it bypasses no single client
	}
	return s.Evidence.Bypassed()
}

// adoption returns the parameters for adopting running pods. Its Wanted reads the configuration in effect.
func (a *agent) adoption() pods.Adoption {
	return pods.Adoption{Root: a.cache, Paths: a.conf.ResolvConf.Paths, Wanted: func() pods.Wanted {
		conf := a.config()
		locals, _ := steer.Locals(conf.LocalAddresses, conf.Redirects) // cannot fail: the configuration was validated
		w := pods.Wanted{Redirects: conf.Redirects, Locals: locals, Rules: conf.PodDNS}
		if conf.KernelAlone() {
			w.Alone = transparentNote
		}
		return w
	}}
}

// entry is an HTTP handler that looks up one cache entry. The request has the name, type and class as a question section in wire format,
// in hexadecimal.
func (a *agent) entry(w http.ResponseWriter, r *http.Request) {
	question, err := hex.DecodeString(r.FormValue("question"))
	if err != nil || len(question) < msg.MinQuestion || len(question) > msg.MaxQuestion {
		http.Error(w, "no question", http.StatusBadRequest)
		return
	}
	var k msg.Key
	k.Set(question, false, false)
	left, found := a.answers.Store.Find(&k)
	_ = json.NewEncoder(w).Encode(inspect.CacheEntry{Found: found, Left: left})
}

// serve starts the endpoints for metrics, health and status. Those at the node's addresses and in the state folder run until shared ends;
// the status socket in the pod's folder runs until own ends.
func (a *agent) serve(shared, own context.Context, wg *sync.WaitGroup, m *telemetry.Metrics, n reporter) {
	conf := a.conf // the configuration of the start; a reload does not change the fields used here
	status := func() node.Status {
		s := n.Status()
		now := a.config()
		s.PID, s.Version, s.Without, s.Unknown = os.Getpid(), a.env.Version, missingFeatures(iptables.MissingPrograms()), now.Unknown()
		totals := m.Totals("coredns_cache_hits_total", "coredns_cache_misses_total")
		s.Cache = &node.CacheStatus{Hits: int64(totals[0]), Misses: int64(totals[1])}
		s.Cache.Bytes, s.Cache.Limit = a.answers.Store.Bytes()
		s.KernelHits = a.hits.State()
		if now.Steer.Mode != config.SteerAll {
			s.SteerMode = now.Steer.Mode
		}
		return s
	}
	views := func() []inspect.PodView {
		a.hits.Count()
		return inspect.PodViews(a.clients.Pods())
	}
	health := telemetry.Health{Alive: n.Alive, Ready: n.Ready, Status: func() any { return status() }, Pods: func() any { return views() },
		Config: func() string { return a.config().Show() }, Entry: a.entry}
	metrics := m.MetricsHandler(map[string]func() any{overview.Path: func() any {
		now := views() // first, because views counts the kernel's hits, which KernelHits then returns
		return inspect.Overview(status(), now, a.clients.KernelHits(), conf.Listen.Namespaces, time.Now())
	}})
	if a.role.serve != nil {
		a.role.serve(shared, wg, m, metrics, health)
	}
	wg.Go(func() { telemetry.ServeTCP(shared, a.log, "metrics", conf.Listen.Metrics, metrics) })
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
