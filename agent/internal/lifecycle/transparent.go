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

// transparentNote is the note on each pod of a node with arrangement: transparent.
const transparentNote = "arrangement: transparent: nothing is laid in pods, and the kernel answers hits at their links"

// backendsPoll is the interval between two looks at kube-dns's backends.
const backendsPoll = time.Second

// transparent is the arrangement in which the kernel program answers hits, and all other queries reach kube-dns as they would without
// neardns (arrangement: transparent, D-073). No query depends on the agent, so none is lost if the agent fails.
type transparent struct {
	log       *slog.Logger
	instance  string
	started   time.Time
	server    *server.Server
	upstreams *forward.Servers
	mirror    *mirror.Listener
	kernel    *kernel
	registry  *pods.Pods
	taken     chan struct{}    // a successor has the node; buffered, so that Yield never blocks
	handover  *node.Handover   // how this agent got the node from another; nil: it was free
	reloaded  func(taken bool) // counts a reload
	// clusterDNS are the configured addresses.
	clusterDNS func() []netip.Addr

	mu       sync.Mutex // guards the fields below
	plan     plan.Plan
	fault    string           // why the new plan is not served
	backends []netip.AddrPort // the backends of the cluster DNS addresses
	unknown  string           // why the backends are not known
}

// agentClient marks the agent's own queries in a pod's stead: their answers may be offloaded.
type agentClient struct{}

// MayOffload implements cache.OffloadClient.
func (agentClient) MayOffload() bool { return true }

// prepareTransparent opens the registry of pods and kernel hits before the agent takes the node. The returned function starts the server.
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

// run looks up kube-dns's backends until ctx ends or a successor has the node. The loop of kernel does the rest.
func (t *transparent) run(ctx, own context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	own, stop := context.WithCancel(own)
	defer stop()
	if changes, err := t.registry.Watch(own); err != nil {
		t.log.Warn("pod files cannot be watched; polling", "err", err)
	} else {
		wg.Go(func() { tick.Drain(changes) }) // the loop of kernel polls the pods
	}
	wg.Go(func() { t.followBackends(own) })
	select {
	case <-ctx.Done():
	case <-t.taken:
	}
	t.log.Info("stopping; the kernel serves its entries until they expire")
	return nil
}

// close stops the server, once no mirrored query is read any more.
func (t *transparent) close() error {
	t.mirror.Wait()
	return t.server.Stop()
}

// AcceptSuccessor lets a successor serve at the same time.
func (*transparent) AcceptSuccessor(string) (func(), error) { return func() {}, nil }

// Yield hands the node over at once, because no pod's query depends on the agent's answers.
func (t *transparent) Yield(context.Context, string, []netip.Addr) (func(bool), error) {
	return func(taken bool) {
		if taken {
			t.taken <- struct{}{}
		}
	}, nil
}

// set implements arrangement.
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

// listen reads the mirrored queries until the returned function is called.
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

// followBackends looks up kube-dns's backends at intervals until ctx ends.
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
			t.log.Info("backends of the cluster DNS addresses", "servers", found)
		}
		if why != "" && why != t.unknown {
			t.log.Warn("backends of the cluster DNS addresses unknown; the kernel answers only queries to the addresses themselves", "err", err)
		}
		t.backends, t.unknown = found, why
		t.mu.Unlock()
	}
}

// served are the addresses at which the kernel answers: the cluster DNS addresses, and their backends, which a datapath that translates at
// sockets puts into the packets.
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

// Alive implements reporter. No pod depends on the agent, so a restart never helps.
func (t *transparent) Alive() (bool, string) { return true, "" }

// Ready implements reporter: kernel hits work, or are not required.
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
