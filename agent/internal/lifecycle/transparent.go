package lifecycle

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/internal/offload/backends"
	"github.com/neardns/neardns/internal/offload/bpf"
	"github.com/neardns/neardns/internal/offload/mirror"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/tick"
)

// transparentNote is the note that `neardns-agent pods` shows for each pod of a node with arrangement: transparent that has not opted out.
const transparentNote = "arrangement: transparent: no rules are written into pods, and the kernel answers hits at their links"

// backendsPoll is the interval at which kube-dns's backends are looked up.
const backendsPoll = time.Second

// transparent is the arrangement in which the kernel program answers cache hits, and all other queries reach kube-dns as they would
// without neardns (arrangement: transparent, D-073). No query depends on the agent, so no query is lost if the agent fails.
type transparent struct {
	log       *slog.Logger
	instance  string
	started   time.Time
	server    *server.Server
	upstreams *forward.Servers
	mirror    *mirror.Listener
	kernel    *kernel
	registry  *pods.Pods
	taken     chan struct{}    // gets a value when a successor has taken over; buffered, so that the send never blocks
	handover  *node.Handover   // the handover in which this agent became active; nil if there was none
	reloaded  func(taken bool) // counts a reload in the metrics; taken: the new configuration is in effect
	// clusterDNS returns the configured cluster DNS addresses.
	clusterDNS func() []netip.Addr

	mu       sync.Mutex // guards the fields below
	plan     plan.Plan
	fault    string           // why the newest plan is not served; "" if the server serves that plan
	backends []netip.AddrPort // backends of the cluster DNS addresses
	unknown  string           // why not all backends were found; "" if all were
}

// agentClient is the client of queries that the agent makes because the kernel program mirrored a pod's query. Their answers may be
// offloaded.
type agentClient struct{}

// MayOffload implements cache.OffloadClient.
func (agentClient) MayOffload() bool { return true }

// prepareTransparent opens the registry of pods and prepares kernel hits, before the agent becomes the active one. The function that it
// returns starts the server afterwards.
func (a *agent) prepareTransparent(o *opened) func(context.Context, *opened, *ownership) (arrangement, error) {
	t := &transparent{log: a.log, instance: a.instance, started: time.Now(), server: o.server, upstreams: o.upstreams,
		plan: o.plan, taken: make(chan struct{}, 1),
		reloaded: o.metrics.Reload, clusterDNS: func() []netip.Addr { return a.config().ClusterDNS() }}
	t.mirror = mirror.New(func(message []byte) error {
		_, err := o.server.Fetch(message, agentClient{})
		return err
	})
	a.openPods(o, t.served)
	a.kernel.transparent, t.kernel, t.registry = t, a.kernel, o.registry
	return func(ctx context.Context, o *opened, s *ownership) (arrangement, error) {
		t.handover = s.from
		if len(o.server.Addresses()) == 0 {
			if err := o.server.Start(ctx, o.plan.Server); err != nil {
				return nil, err
			}
		}
		a.collect(o)
		return t, nil
	}
}

func (*transparent) bypassed() map[netip.Addr]struct{} { return nil }

// run looks up kube-dns's backends until ctx ends or a successor has taken over. kernel.run, which runs concurrently, does the rest.
func (t *transparent) run(ctx, own context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	own, stop := context.WithCancel(own)
	defer stop()
	if changes, err := t.registry.Watch(own); err != nil {
		t.log.Warn("cannot watch the pod files for changes; from now on they are read at each use", "err", err)
	} else {
		wg.Go(func() { tick.Drain(changes) }) // kernel.run polls the registry, so the events are not needed
	}
	wg.Go(func() { t.followBackends(own) })
	select {
	case <-ctx.Done():
	case <-t.taken:
	}
	t.log.Info("agent stops; entries that are still in the kernel program answer until they expire")
	return nil
}

// close stops the server, after the queries for mirrored queries have ended.
func (t *transparent) close() error {
	t.mirror.Wait()
	return t.server.Stop()
}

// AcceptSuccessor implements yielder. There are no probes, so it does nothing.
func (*transparent) AcceptSuccessor(string) (func(), error) { return func() {}, nil }

// Yield implements yielder. It checks nothing, because no pod's query depends on the agent's answers.
func (t *transparent) Yield(context.Context, string, []netip.Addr) (func(bool), error) {
	return func(taken bool) {
		if taken {
			t.taken <- struct{}{}
		}
	}, nil
}

// set implements arrangement. If the new plan cannot be served, the old one stays.
func (t *transparent) set(p plan.Plan, take func() (changed bool)) {
	err := t.server.Restart(context.Background(), p.Server)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fault = ""; err != nil {
		t.fault = err.Error()
		t.reloaded(false)
		t.log.Error("new configuration not applied; the old one keeps serving", "err", err)
		return
	}
	changed := !reflect.DeepEqual(p.Server, t.plan.Server)
	t.plan = p
	if take() || changed {
		t.reloaded(true)
		t.log.Info("configuration reloaded")
	}
}

// listen starts to read mirrored queries from the kernel program, until the returned function is called.
func (t *transparent) listen(level *bpf.Level) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		err := level.Copied(ctx, func(ifindex int, message []byte) { t.mirror.Hear(ifindex, message, time.Now()) })
		if err != nil {
			t.kernel.reportBroken(err)
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

// followBackends keeps t.backends up to date until ctx ends.
func (t *transparent) followBackends(ctx context.Context) {
	var m backends.Memory
	for ok := true; ok; ok = tick.Grid(ctx, backendsPoll) {
		found, err := m.Look(withDNSPort(t.clusterDNS()), time.Now())
		why := ""
		if err != nil {
			why = err.Error()
		}
		found = found[:min(len(found), bpf.ServedMost-len(t.clusterDNS()))]
		t.mu.Lock()
		if !slices.Equal(found, t.backends) {
			t.log.Info("backends of the cluster DNS addresses changed", "servers", found)
		}
		if why != "" && why != t.unknown {
			t.log.Warn("cannot look up all backends of the cluster DNS addresses; queries sent to unknown ones get no kernel hits",
				"err", err)
		}
		t.backends, t.unknown = found, why
		t.mu.Unlock()
	}
}

// served returns the addresses whose queries the kernel program answers: the cluster DNS addresses, and their backends. A datapath
// that translates Service addresses at the socket puts a backend's address into the packets.
func (t *transparent) served() []netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append(withDNSPort(t.clusterDNS()), t.backends...)
}

func withDNSPort(addresses []netip.Addr) (out []netip.AddrPort) {
	for _, a := range addresses {
		out = append(out, netip.AddrPortFrom(a, dnsPort))
	}
	return out
}

// Alive implements reporter. It is always true: no pod depends on the agent, so a restart by the kubelet would not help.
func (t *transparent) Alive() (bool, string) { return true, "" }

// Ready implements reporter. The agent is ready if its newest plan is served, and kernel hits work, are optional or are off.
func (t *transparent) Ready() (bool, string) {
	s := t.Status()
	why := s.Faults["server"]
	if s.KernelHits != nil && !s.KernelHits.Auto {
		why = cmp.Or(why, s.KernelHits.Fault)
	}
	return s.Ready, why
}

// Status implements reporter.
func (t *transparent) Status() node.Status {
	k := t.kernel.status()
	t.mu.Lock()
	defer t.mu.Unlock()
	s := node.Status{Instance: t.instance, Process: node.Process{Arranged: t.plan.Name()}, Started: t.started, Serving: true,
		Faults:  map[string]string{},
		Repairs: map[string]int{}, Upstreams: t.upstreams.Status(), External: t.plan.External, Handover: t.handover,
		Redirects: []steer.Redirect{}}
	for part, why := range map[string]string{
		"server": t.fault, "endpoints": t.unknown,
		"upstreams": strings.Join(slices.Concat(t.plan.Warnings, t.upstreams.Faults()), "; "),
	} {
		if why != "" {
			s.Faults[part] = why
		}
	}
	s.Ready = (k == nil || k.Auto || k.Fault == "") && t.fault == ""
	s.KernelHits = k
	return s
}
