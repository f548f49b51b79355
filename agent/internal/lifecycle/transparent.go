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
	"github.com/neardns/neardns/agent/internal/node/evidence"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/internal/offload"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/tick"
)

// transparentNote is the note that `neardns-agent pods` shows for each pod of a node with arrangement: transparent that has not opted out.
const transparentNote = "arrangement: transparent: no rules are written into pods, and the kernel answers hits at their links"

// transparent is the arrangement in which the kernel program answers cache hits, and all other queries reach kube-dns as they would
// without neardns (arrangement: transparent, D-073). No query depends on the agent, so no query is lost if the agent fails.
type transparent struct {
	log       *slog.Logger
	instance  string
	started   time.Time
	server    *server.Server
	upstreams *forward.Servers
	hits      *offload.Hits
	registry  *pods.Pods
	taken     chan struct{}    // gets a value when a successor has taken over; buffered, so that the send never blocks
	handover  *node.Handover   // the handover in which this agent became active; nil if there was none
	reloaded  func(taken bool) // counts a reload in the metrics; taken: the new configuration is in effect

	mu    sync.Mutex // guards the fields below
	plan  plan.Plan
	fault string // why the newest plan is not served; "" if the server serves that plan
}

// agentClient is the client of queries that the agent makes because the kernel program mirrored a pod's query. Their answers may be
// offloaded.
type agentClient struct{}

// MayOffload implements cache.OffloadClient.
func (agentClient) MayOffload() bool { return true }

// prepareTransparent opens the registry of pods before the agent becomes the active one. The function that it returns starts the server
// afterwards.
func (a *agent) prepareTransparent(o *opened) func(context.Context, *opened, *ownership) (arrangement, error) {
	a.openPods(o)
	t := &transparent{log: a.log, instance: a.instance, started: time.Now(), server: o.server, upstreams: o.upstreams, hits: a.hits,
		registry: o.registry, plan: o.plan, taken: make(chan struct{}, 1), reloaded: o.metrics.Reload}
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

func (*transparent) bypassed() []evidence.Bypassed { return nil }

// run returns when ctx ends or a successor has taken over. Hits.Run, which runs concurrently, serves the pods.
func (t *transparent) run(ctx, own context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	own, stop := context.WithCancel(own)
	defer stop()
	changes := t.registry.Watch(own)
	wg.Go(func() { tick.Drain(changes) }) // Hits.Run polls the registry, so the events are not needed
	select {
	case <-ctx.Done():
	case <-t.taken:
	}
	t.log.Info("agent stops; entries that are still in the kernel program answer until they expire")
	return nil
}

// close stops the server, after the queries for mirrored queries have ended, which Hits.Run waits for.
func (t *transparent) close() error { return t.server.Stop() }

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
	k := t.hits.State()
	t.mu.Lock()
	defer t.mu.Unlock()
	s := node.Status{Instance: t.instance, Process: node.Process{Arranged: t.plan.Name()}, Started: t.started, Serving: true,
		Faults:  map[string]string{},
		Repairs: map[string]int{}, Upstreams: t.upstreams.Status(), External: t.plan.External, Handover: t.handover,
		Redirects: []steer.Redirect{}}
	for part, why := range map[string]string{
		"server": t.fault, "endpoints": t.hits.Unknown(),
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
