package lifecycle

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/neardns/neardns/agent/internal/lifecycle/handover"
	"github.com/neardns/neardns/agent/internal/node"
	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/internal/offload/backends"
	"github.com/neardns/neardns/internal/offload/bpf"
	"github.com/neardns/neardns/internal/offload/mirror"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/tick"
)

// leftAlone is said of each pod of a node on which the kernel's hits are all that there is.
const leftAlone = "arrangement: transparent: nothing is laid in pods, and the kernel answers hits at their links"

// serversLook is from one look at kube-dns's servers to the next.
const serversLook = time.Second

// alone is the loop of a node on which the kernel's program answers hits and nobody else has a part in pods' questions (arrangement:
// transparent, D-073). It keeps nothing that a pod's question passes, so nothing of it can be lost with the agent.
type alone struct {
	log       *slog.Logger
	instance  string
	started   time.Time
	server    *server.Server
	upstreams *forward.Servers
	heard     *mirror.Listener
	kernel    *kernel
	given     *node.Handover   // how the node came from another agent; nil: it was free
	reloaded  func(taken bool) // counts a reload

	mu      sync.Mutex // guards the fields below
	plan    plan.Plan
	fault   string           // why another plan is not served
	servers []netip.AddrPort // behind the cluster DNS addresses
	blind   string           // why they are not known
}

// asIfAsked is whom the agent asks for in a pod's stead: an answer to it may be lent.
type asIfAsked struct{}

// Borrows implements cache.Borrowing.
func (asIfAsked) Borrows() bool { return true }

// runAlone takes the node and answers hits in the kernel until ctx ends or a successor has the node.
func (a *agent) runAlone(ctx context.Context, o *opened) error {
	l := &alone{log: a.log, instance: a.instance, started: time.Now(), server: o.server, upstreams: o.upstreams, plan: o.plan,
		reloaded: o.metrics.Reload}
	l.heard = mirror.New(func(message []byte) error {
		_, err := o.server.Fetch(message, asIfAsked{})
		return err
	})
	a.openPods(o, func() []netip.AddrPort { return l.served(a.config().ClusterDNS()) })
	a.kernel.alone, l.kernel = l, a.kernel
	s, err := a.takeNode(ctx, o)
	if err != nil {
		return err
	}
	defer s.lock.Close() //nolint:errcheck // at exit
	if l.given = s.from; !s.warm {
		a.answers.Load()
	}
	if len(o.server.Addresses()) == 0 {
		if err := o.server.Start(ctx, o.plan.Server); err != nil {
			return err
		}
	}
	a.collect(o)
	return a.keepAlone(ctx, o, s, l)
}

// keepAlone runs what keeps the kernel's hits until ctx ends, and who tells of it.
func (a *agent) keepAlone(ctx context.Context, o *opened, s *tenure, l *alone) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	shared, closing := context.WithCancel(ctx) // a successor listens there
	defer closing()
	own, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ctx, ending := context.WithCancel(ctx)
	defer ending()
	a.serve(shared, own, &wg, o.metrics, l)
	wg.Go(func() { a.answers.Run(own) })
	a.kernel.bypassed = func() map[netip.Addr]struct{} { return nil }
	if changes, err := o.registry.Watch(own); err != nil {
		a.log.Warn("pod files are only polled", "err", err)
	} else {
		wg.Go(func() { tick.Drain(changes) }) // the kernel's loop looks by itself
	}
	wg.Go(func() { l.follow(own, func() []netip.Addr { return a.config().ClusterDNS() }) })
	var reading sync.WaitGroup
	reading.Go(func() { a.kernel.run(own) })
	wg.Go(func() { settle(own, a.log, l.Ready) })
	adoption := a.adoption()
	wg.Go(func() { o.registry.Adopt(own, adoption) })
	hangups := a.env.Hangups(own)
	wg.Go(func() { a.follow(shared, hangups, s.waited, l.set, o.metrics.Read) }) // from here on a.conf is its own
	if asked, err := handover.Listen(filepath.Join(o.plan.Folders.State, nodestate.HandoverName)); err != nil {
		a.log.Warn("no hand-over can be asked for", "err", err)
	} else {
		h := &holder{agent: a, node: leaver{ending}, server: o.server, metrics: o.metrics, lock: s.lock, closing: closing, ending: ending}
		wg.Go(func() { handover.Give(own, a.log, asked, h) })
	}
	<-ctx.Done()
	a.log.Info("stopping; what the kernel has it answers until it ends by itself")
	if !a.given.Load() {
		a.answers.Save()
	}
	stop()
	reading.Wait() // from here on nothing is heard
	l.heard.Wait()
	return o.server.Stop()
}

// leaver gives the node to a successor at once: there is nothing to prove.
type leaver struct{ leave func() }

func (leaver) Beside(string) (func(), error) { return func() {}, nil }

func (l leaver) Yield(context.Context, string, []netip.Addr) (func(bool), error) {
	return func(taken bool) {
		if taken {
			l.leave()
		}
	}, nil
}

// set serves another plan. changed tells that the configuration differs, be it only in what no plan has.
func (l *alone) set(p plan.Plan, changed bool) {
	err := l.server.Restart(context.Background(), p.Server)
	l.mu.Lock()
	defer l.mu.Unlock()
	changed = changed || !reflect.DeepEqual(p.Server, l.plan.Server)
	if l.fault = ""; err != nil {
		l.fault = err.Error()
		l.reloaded(false)
		l.log.Error("new configuration not served, the old one keeps serving", "err", err)
		return
	}
	l.plan = p
	if changed {
		l.reloaded(true)
		l.log.Info("configuration reloaded")
	}
}

// listen reads the questions that the level copies, until the returned function is called.
func (l *alone) listen(level *bpf.Level) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		err := level.Copied(ctx, func(ifindex int, message []byte) { l.heard.Hear(ifindex, message, time.Now()) })
		if err != nil {
			l.kernel.report(err)
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

// follow keeps what is known of kube-dns's servers until ctx ends.
func (l *alone) follow(ctx context.Context, clusterDNS func() []netip.Addr) {
	var m backends.Memory
	for ok := true; ok; ok = tick.Grid(ctx, serversLook) {
		found, err := m.Look(at53(clusterDNS()), time.Now())
		why := ""
		if err != nil {
			why = err.Error()
		}
		found = found[:min(len(found), bpf.ServedMost-len(clusterDNS()))]
		l.mu.Lock()
		if !slices.Equal(found, l.servers) {
			l.log.Info("sockets lead to", "servers", found)
		}
		if why != "" && why != l.blind {
			l.log.Warn("it is not known whom sockets lead to: only what is for the cluster DNS addresses is answered", "err", err)
		}
		l.servers, l.blind = found, why
		l.mu.Unlock()
	}
}

// served are the addresses at which the kernel answers: those that pods name, and those that sockets lead to in their place.
func (l *alone) served(clusterDNS []netip.Addr) []netip.AddrPort {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append(at53(clusterDNS), l.servers...)
}

func at53(addresses []netip.Addr) (out []netip.AddrPort) {
	for _, a := range addresses {
		out = append(out, netip.AddrPortFrom(a, dnsPort))
	}
	return out
}

// Alive implements told. Nothing that pods need can stand still.
func (l *alone) Alive() (bool, string) { return true, "" }

// Ready implements told: hits are answered, or are not to be.
func (l *alone) Ready() (bool, string) {
	s := l.Status()
	why := s.Faults["server"]
	if s.KernelHits != nil {
		why = cmp.Or(why, s.KernelHits.Fault)
	}
	return s.Ready, why
}

// Status implements told.
func (l *alone) Status() node.Status {
	k := l.kernel.status()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := node.Status{Instance: l.instance, Arranged: l.plan.Name(), Started: l.started, Serving: true, Faults: map[string]string{},
		Repairs: map[string]int{}, Upstreams: l.upstreams.Status(), External: l.plan.External, Handover: l.given, Redirects: []steer.Redirect{}}
	for part, why := range map[string]string{
		"server": l.fault, "endpoints": l.blind,
		"upstreams": strings.Join(slices.Concat(l.plan.Warnings, l.upstreams.Faults()), "; "),
	} {
		if why != "" {
			s.Faults[part] = why
		}
	}
	s.Ready = (k == nil || k.Fault == "") && l.fault == ""
	s.KernelHits = k
	return s
}
