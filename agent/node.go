package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

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
	"github.com/neardns/neardns/agent/internal/handover"
	"github.com/neardns/neardns/agent/internal/inspect"
	"github.com/neardns/neardns/agent/internal/link"
	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/nri"
	"github.com/neardns/neardns/agent/internal/plan"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/agent/internal/prober"
	"github.com/neardns/neardns/agent/internal/server"
	"github.com/neardns/neardns/agent/internal/telemetry"
	"github.com/neardns/neardns/agent/internal/upstream"
	"github.com/neardns/neardns/agent/internal/wire"
	"github.com/neardns/neardns/pkg/conflist"
	"github.com/neardns/neardns/pkg/podfile"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/steer/backend"
	"github.com/neardns/neardns/pkg/steer/iptables"
	"github.com/neardns/neardns/pkg/steer/translate"
)

func discardLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

const rcodeServerFailure = 2 // RFC 1035, section 4.1.1

// parts is what the server's own plugins share over all configurations.
type parts struct {
	gate      *admit.Gate
	upstreams *ask.Servers
	answers   *wire.Store
	clients   *clients.Clients // nil: none is known, none is counted
}

func newServer(log *slog.Logger, p parts) *server.Server {
	kept := cache.NewMetrics(p.answers, nil)
	completion := complete.Setup(complete.NewMemory(), new(complete.Metrics), func(netip.Addr, bool) *complete.Search { return nil })
	answered := func(_ context.Context, _ net.Addr, rcode int) {
		if rcode == rcodeServerFailure { // also where an operator's Corefile asks, of which upstreams knows nothing
			p.upstreams.NoteTrouble()
		}
	}
	if c := p.clients; c != nil {
		failed := answered
		kept.Hit, answered = c.Hit, func(ctx context.Context, client net.Addr, rcode int) {
			failed(ctx, client, rcode)
			c.Answered(ctx, client, rcode)
		}
		completion = complete.Setup(c.Memory, &c.Metrics, c.Search)
	}
	return server.New(log, chain.Plugin{Name: "probe", Setup: probe.Setup(probeSources()...)}, chain.Plugin{Name: "metrics", Setup: metrics.Setup(answered)},
		chain.Plugin{Name: "complete", Setup: completion}, chain.Plugin{Name: "admit", Setup: admit.Setup(p.gate)},
		chain.Plugin{Name: "ask", Setup: ask.Setup(p.upstreams)}, chain.Plugin{Name: "cache", Setup: cache.Setup(p.answers, kept)})
}

// runNode is the role `node`: it puts the parts together and keeps them until ctx ends.
func runNode(ctx context.Context, e env, args []string) error {
	fs := flags(e, "node")
	path := configFlag(fs)
	takeOver := fs.Bool("take-over", false, "take over from the agent that runs on this node, whichever is newer")
	podDir := fs.String("pod-dir", "", "`FOLDER` that lives as long as this agent's pod and is its own: it takes over from the agent of an older pod, and its status socket is there")
	if err := parse(fs, args); err != nil {
		return err
	}
	conf, err := loadConfig(e, *path)
	if err != nil {
		return err
	}
	level := new(slog.LevelVar)
	level.Set(conf.Log.Level)
	log := telemetry.NewLogger(e.stderr, level, conf.Log.Format == config.LogJSON)
	for _, d := range conf.Detected() {
		log.Info("detected", "field", d.Field, "value", d.Value, "source", d.Source)
	}
	sayUnknown(log, conf)
	limitMemory(log, e.lookupEnv, memlimit.FromCgroup, setMemoryLimit, setGCPercent)
	a := &agent{env: e, path: *path, log: log, level: level, conf: conf, instance: newInstance(), podDir: *podDir}
	a.role = role{
		read: func() (*config.Node, error) { return loadConfig(e, *path) },
		derive: func(n *config.Node) (plan.Plan, upstream.Upstreams, error) {
			return plan.Read(n, e.readFile, a.instance)
		},
	}
	born, err := handover.Birth(*podDir)
	if err != nil {
		// Where nothing tells whether its pod is older, it must not take the node from one that may be newer.
		log.Warn("this agent takes over from none", "err", err)
	}
	a.mayTake = *takeOver || *podDir != "" && err == nil
	pod, _ := e.lookupEnv("POD_NAME") // only to name it
	a.claim = handover.Claim{Instance: a.instance, PID: os.Getpid(), Pod: pod, Version: e.version, Since: time.Now(), Born: born, Told: *takeOver}
	kernel := steer.Kernel()
	log.Info("starting", "version", e.version, "instance", a.instance, "kernel", kernel)
	if steer.OlderThanTried(kernel) {
		log.Warn("this kernel is older than any that neardns is tried on; whether it has what the rules need is looked at next", "kernel", kernel, "tried_from", steer.LeastKernel)
	}
	for _, what := range without(iptables.MissingPrograms()) {
		log.Info("not possible here", "what", what)
	}
	if err = a.run(ctx); errors.Is(err, prober.ErrHeld) {
		return &exitError{code: exitDegraded, err: err}
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil // told to end before it had the node
	}
	return err
}

// newInstance names this process to its own prober, so that nobody else's answer is taken for it.
func newInstance() string { return strings.ToLower(rand.Text()[:13]) }

// role is what tells `node` and `nodecache` apart beside their plans. The first two are needed.
type role struct {
	read   func() (*config.Node, error) // the configuration as it is now
	derive func(*config.Node) (plan.Plan, upstream.Upstreams, error)
	parts  func(*node.Parts)
	serve  func(ctx context.Context, wg *sync.WaitGroup, m *telemetry.Metrics, h telemetry.Health)
	ended  func() error // after an orderly end, unless a successor has the node
}

// agent is what a running role holds.
type agent struct {
	env      env
	role     role
	path     string
	log      *slog.Logger
	level    *slog.LevelVar
	instance string
	claim    handover.Claim
	mayTake  bool   // may ask a running agent for the node
	podDir   string // "" where there is none
	answers  *wire.Keeper
	backend  backend.Kind
	clients  *clients.Clients
	given    atomic.Bool // the node, to a successor: the cache is its own to save now

	mu    sync.Mutex // guards the fields below, which a reload replaces
	conf  *config.Node
	files []string // that the upstreams were read from
	// outside is who answers for names outside of the cluster, as it was said last.
	outside string
}

func (a *agent) run(ctx context.Context) error {
	first, err := a.plan(a.conf)
	if err != nil {
		return badConfig(err)
	}
	gate := admit.New(admit.DefaultLimit)
	upstreams := ask.NewServers(a.log)
	a.answers = newAnswers(a.log, a.conf)
	a.clients = clients.New(a.conf)
	server := newServer(a.log, parts{gate: gate, upstreams: upstreams, answers: a.answers.Store, clients: a.clients})
	if first.Arrangement != plan.NodeCache { // whose switch is all that pods have where nothing can be served
		if err := checkDNS(server, first.Server, a.path); err != nil {
			return badConfig(err)
		}
	}
	stats := new(iptables.Stats)
	if a.backend, err = a.chooseBackend(ctx, stats, first.Addresses()...); err != nil {
		return err
	}
	if first, err = first.On(a.backend); err != nil {
		return badConfig(err)
	}
	a.log.Info("packet rules", "backend", a.backend.String())
	registry := pods.Open(a.conf.StateDir, a.backend, a.log)
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
	rules := &hostRules{Host: host, kind: a.backend, stateDir: a.conf.StateDir, secret: lease.Secret()}
	m := telemetry.New(a.env.version)
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
	if a.backend.IsIptables() {
		m.CollectPrograms(programRuns(stats))
	}
	m.CollectSnapshot(a.answers.Fresh)
	m.CollectWatch(watchIn(a.conf.StateDir))
	m.Collect(upstreams.Collector())
	m.Collect(gate.Collector())
	m.Collect(server.Collector())
	m.Collect(a.clients.Metrics.Collector())
	if a.conf.Listen.Namespaces {
		m.CollectNamespaces(a.clients.Namespaces)
	}
	err = patiently(ctx, a.log, "the rules of another back end", func() error { return a.replaceRules(ctx, a.backend, rules, first, registry) })
	if err != nil {
		return err
	}
	var found node.Evidence // only nftables' sets hold it
	if !a.backend.IsIptables() {
		notes, err := steer.OpenNftables(-1) // of its own: it is read beside the loop
		if err != nil {
			return err
		}
		defer notes.Close() //nolint:errcheck // at exit
		seen := evidence.New(a.log, notes, lease, registry.PodOf)
		m.Collect(seen.Collector())
		found = seen
	}
	parts := node.Parts{
		Log: a.log, Load: a.load, Changed: a.changed(ctx), Server: highServer{server}, Link: nodeLink{}, Rules: rules, Firewall: firewall{}, Lease: lease,
		Prober: probes, Pods: registry, Proofs: &proofs{dir: a.conf.PersistDir, backend: a.backend}, World: world{intercepted: first.Catches()}, Uplinks: steer.Uplinks, Upstreams: upstreams, Asker: asker{upstreams, server}, Evidence: found, Recorder: recorder{m},
	}
	if a.role.parts != nil {
		a.role.parts(&parts)
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
		overlays := nri.New(nri.Config{Log: a.log, StateDir: a.conf.StateDir, Paths: c.Paths, Socket: c.NRI})
		wg.Go(func() { overlays.Run(own) })
	}
	defer func() {
		if !a.given.Load() {
			a.answers.Save()
		}
	}()
	asked, err := handover.Listen(filepath.Join(a.conf.StateDir, podfile.HandoverName))
	if err != nil {
		// Not worth failing for: a successor then waits for this agent's end.
		a.log.Warn("no hand-over can be asked for", "err", err)
		return a.ended(n.Run(ctx))
	}
	ctx, ending := context.WithCancel(ctx)
	defer ending()
	wg.Go(func() {
		handover.Give(own, a.log, asked, &holder{agent: a, node: n, server: server, metrics: m, lock: seat.lock, closing: closing, ending: ending})
	})
	return a.ended(n.Run(ctx))
}

// ended does what the role has to do after an orderly end.
func (a *agent) ended(err error) error {
	if a.role.ended == nil || a.given.Load() {
		return err
	}
	return errors.Join(err, a.role.ended())
}

// serve answers whoever looks at the agent: at addresses that the node has once until shared ends, and in the pod's folder
// until own does.
func (a *agent) serve(shared, own context.Context, wg *sync.WaitGroup, m *telemetry.Metrics, n *node.Node) {
	health := telemetry.Health{Alive: n.Alive, Ready: n.Ready, Status: func() any {
		s := n.Status()
		s.PID, s.Version, s.Without, s.Unknown = os.Getpid(), a.env.version, without(iptables.MissingPrograms()), a.unknown()
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
		telemetry.ServeSocket(shared, a.log, filepath.Join(a.conf.StateDir, podfile.AgentSocketName), health.SocketHandler())
	})
	if a.podDir != "" {
		wg.Go(func() {
			telemetry.ServeSocket(own, a.log, filepath.Join(a.podDir, podfile.AgentSocketName), health.SocketHandler())
		})
	}
}

// nodeLink puts the link package behind the loop's interface.
type nodeLink struct{}

func (nodeLink) Ensure(name string, addresses []netip.Addr) (string, error) {
	done, err := link.Ensure(link.Config{Name: name, Addresses: addresses})
	if !done.Any() {
		return "", err
	}
	return done.String(), err
}

func (nodeLink) Watch(ctx context.Context) (<-chan struct{}, error) {
	return link.Watch(ctx, link.Config{})
}

// firewall puts the rules in iptables' filter table behind the loop's interface.
type firewall struct{}

func (firewall) Ensure(addresses []netip.Addr, legacy bool) (string, error) {
	return iptables.EnsureAccepts(addresses, legacy)
}

// without says what an agent cannot do that lacks programs of iptables: the slim image has none of them.
func without(missing []string) []string {
	if len(missing) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: no rules can be kept where the policy of its filter table is DROP (kube-dns answers there unless you accept udp and tcp port 53 for our addresses), and backend: iptables cannot run", strings.Join(missing, ", "))}
}

// proofs keeps the record of the fallback's proof in the folder that survives a reboot. Only the loop's proving goroutine uses it.
type proofs struct {
	dir     string
	backend backend.Kind // what is proven by one back end's rules says nothing of another's
	// over is what translated the addresses of the record when it was written, or first read: rules may be many.
	over, of string
}

func (p *proofs) Read() ([]netip.Addr, error) {
	proof, err := podfile.ReadProof(p.dir)
	if err != nil || proof.Backend != p.name() || proof.Outlived() || len(proof.ClusterDNS) == 0 {
		return nil, err
	}
	if p.translation(proof.ClusterDNS) != proof.Over {
		return nil, nil
	}
	return proof.ClusterDNS, nil
}

// translation says what translates addresses on this host, as far as it can be told.
func (p *proofs) translation(addrs []netip.Addr) string {
	if of := fmt.Sprint(addrs); of != p.of {
		p.of, p.over = of, overWhat(translate.Look(addrs...))
	}
	return p.over
}

func overWhat(found []translate.Finding) string {
	var out []string
	for _, f := range found {
		if f.State == translate.Translated {
			out = append(out, f.Address.String()+": "+f.Why)
		}
	}
	return strings.Join(out, "; ")
}

// world tells kinds of trouble apart by this host's rules and by asking kube-dns as the host's own processes do.
type world struct {
	// intercepted: what the host's processes ask may be answered by the agent itself, so it tells nothing of kube-dns.
	intercepted bool
}

func (w world) Lost(ctx context.Context, clusterDNS netip.Addr, name string) string {
	if f := translate.Look(clusterDNS)[0]; f.State == translate.None {
		return fmt.Sprintf("nothing on this host translates %s any more (%s)", clusterDNS, f.Why)
	}
	if w.intercepted {
		return ""
	}
	if err := inspect.Answers(ctx, clusterDNS, name); err == nil {
		return fmt.Sprintf("%s answers this host, but not what is given back to it", clusterDNS)
	}
	return "" // kube-dns may be away
}

// name is the back end as proofs have it.
func (p *proofs) name() string {
	if p.backend.IsIptables() {
		return p.backend.String()
	}
	return ""
}

func (p *proofs) Write(proven []netip.Addr) error {
	if len(proven) == 0 {
		return podfile.RemoveProof(p.dir)
	}
	return podfile.WriteProof(p.dir, podfile.Proof{ClusterDNS: proven, Time: time.Now(), Backend: p.name(), Boot: podfile.ThisBoot(), Over: p.translation(proven)})
}

// recorder puts the metrics behind the loop's interface.
type recorder struct{ *telemetry.Metrics }

func (r recorder) Lease(addr netip.Addr, p steer.Protocol, held bool) {
	r.Metrics.Lease(addr, p.String(), held)
}
func (r recorder) Probe(f prober.Failure) { r.Metrics.Probe(string(f)) }
func (r recorder) Lost(f prober.Failure)  { r.Metrics.Lost(string(f)) }

// watchIn reads what the watch beside this agent saw. A file that cannot be read is none: the watch writes the next one soon.
func watchIn(stateDir string) func() (telemetry.Watch, bool) {
	return func() (telemetry.Watch, bool) {
		w, ok, err := podfile.ReadWatch(stateDir)
		return telemetry.Watch{OK: w.OK, Fighting: w.Fighting, Repairs: w.Repairs, Restored: w.Restored, Looked: w.Looked}, ok && err == nil
	}
}

// switchCounters reads the host table's counters on a thread and socket of its own: a scrape may come at any time.
func switchCounters(k backend.Kind) func() ([]telemetry.Switch, error) {
	return func() ([]telemetry.Switch, error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		rules, err := k.Open(-1)
		if err != nil {
			return nil, err
		}
		defer rules.Close() //nolint:errcheck // only read
		return switchOf(rules)
	}
}

func switchOf(rules steer.Table) ([]telemetry.Switch, error) {
	counters, err := rules.Counters()
	if err != nil {
		return nil, err
	}
	var out []telemetry.Switch
	for _, c := range []struct{ name, way, protocol string }{
		{steer.CounterDeliveredUDP, "delivered", "udp"}, {steer.CounterDeliveredTCP, "delivered", "tcp"},
		{steer.CounterHeardUDP, "heard", "udp"}, {steer.CounterHeardTCP, "heard", "tcp"},
		{steer.CounterFallbackUDP, "fallback", "udp"}, {steer.CounterFallbackTCP, "fallback", "tcp"},
		{steer.CounterHostUDP, "host", "udp"}, {steer.CounterHostTCP, "host", "tcp"},
		{steer.CounterUplink, "uplink", "any"}, {steer.CounterStranger, "stranger", "any"},
		{steer.CounterProbe, "probe", "any"},
	} {
		if v, ok := counters[c.name]; ok {
			out = append(out, telemetry.Switch{Way: c.way, Protocol: c.protocol, Packets: float64(v.Packets)})
		}
	}
	return out, nil
}

// probeSources are whom the probe plugin answers.
func probeSources() []netip.Addr { return []netip.Addr{steer.ProbeSource4, steer.ProbeSource6} }
