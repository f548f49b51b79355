package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/neardns/neardns/agent/internal/node/plan"
	"github.com/neardns/neardns/agent/internal/node/prober"
	"github.com/neardns/neardns/agent/internal/pods"
	"github.com/neardns/neardns/internal/dns/forward"
	"github.com/neardns/neardns/internal/dns/server"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

const self = "this-agent"

// journal has the calls of a node's parts, in order.
type journal struct {
	mu    sync.Mutex
	log   []string
	fails map[string]error // by the call's first word
}

// recorded is what a node's parts were last given.
type recorded struct {
	kept    []netip.Addr     // addresses of the link
	host    steer.Host       // host table
	gone    []string         // leases and fallbacks that were reported as no longer wanted
	checked map[string]error // each part's check
}

// world stands in for every part of a node: it records the loop's calls in order, and returns what the test sets.
type world struct {
	journal
	recorded
	answer  func(target netip.Addr, p steer.Protocol) prober.Result
	prove   func() error
	lost    string // why a fallback that fails is lost for good
	drift   []string
	moves   bool // drift has the host table's changes by a reload
	proofs  []netip.Addr
	ticks   chan struct{}
	watches atomic.Int32 // that go on
	done    chan struct{}
	end     func()
	ending  time.Duration // what the server's stop takes
	tending time.Duration // what a repair of the pods' tables takes
	asked   func() error  // the result of a query to the upstreams; nil: leases do not depend on it
	// fromPod is kube-dns's answer to a pod; nil: there is no pod.
	fromPod  func() error
	trouble  chan struct{}
	heard    time.Time
	optedOut []netip.Addr
}

// die ends the server under the node.
func (w *world) die() {
	w.set(func() {
		if w.done != nil {
			close(w.done)
			w.done = nil
		}
	})
}

func newWorld() *world {
	return &world{journal: journal{fails: map[string]error{}}, recorded: recorded{checked: map[string]error{}},
		ticks: make(chan struct{}, 1), trouble: make(chan struct{}, 1),
		answer: func(netip.Addr, steer.Protocol) prober.Result { return prober.Result{Instance: self} },
		prove:  func() error { return nil }}
}

func (w *world) call(format string, args ...any) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	w.log = append(w.log, text)
	return w.fails[strings.Fields(text)[0]]
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) record() []netip.Addr {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.proofs)
}

// calls returns the recorded calls, in order.
func (w *world) calls() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.log)
}

func (w *world) forget() { w.set(func() { w.log = nil }) }

func (w *world) count(prefix string) int {
	n := 0
	for _, c := range w.calls() {
		if strings.HasPrefix(c, prefix) {
			n++
		}
	}
	return n
}

func (w *world) watch(ctx context.Context) (<-chan struct{}, error) {
	out := make(chan struct{})
	w.watches.Add(1)
	go func() {
		<-ctx.Done()
		w.watches.Add(-1)
		close(out)
	}()
	return out, nil
}

type worldServer struct{ *world }

func (s worldServer) Start(context.Context, server.Config) error {
	err := s.call("start")
	s.set(func() {
		if err == nil {
			s.done = make(chan struct{})
		}
	})
	return err
}
func (s worldServer) Restart(_ context.Context, c server.Config) error {
	return s.call("restart %v", c.Addresses)
}
func (s worldServer) Stop() error {
	s.mu.Lock()
	takes := s.ending
	s.mu.Unlock()
	pass(takes)
	s.die()
	return s.call("stop")
}
func (s worldServer) Pause()  { _ = s.call("pause") }
func (s worldServer) Resume() { _ = s.call("resume") }
func (s worldServer) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

type worldLink struct{ *world }

func (l worldLink) Ensure(_ string, addrs []netip.Addr) (string, error) {
	l.set(func() { l.kept = addrs })
	return "", l.call("link %v", addrs)
}
func (l worldLink) Watch(ctx context.Context) (<-chan struct{}, error) { return l.watch(ctx) }

type worldRules struct{ *world }

func (r worldRules) Unexempt(addrs ...netip.Addr) error { return r.call("unexempt %v", addrs) }

func (r worldRules) Repair(next steer.Host) ([]string, error) {
	var drift []string
	r.set(func() {
		if r.moves && !reflect.DeepEqual(r.host, next) {
			r.drift = []string{"table inet neardns differs"}
		}
		r.host, drift, r.drift = next, r.drift, nil
	})
	return drift, r.call("rules")
}

func (r worldRules) Watch(ctx context.Context) (<-chan struct{}, error) {
	out := make(chan struct{})
	r.watches.Add(1)
	go func() {
		defer close(out)
		defer r.watches.Add(-1)
		for {
			select {
			case <-ctx.Done():
				return
			case <-r.ticks:
			}
			select {
			case <-ctx.Done():
			case out <- struct{}{}:
			}
		}
	}()
	return out, nil
}

func (w *world) ensureFirewall(_ []netip.Addr, legacy bool) (string, error) {
	return "", w.call("firewall legacy=%t", legacy)
}

type worldLease struct{ *world }

func (l worldLease) Renew(a netip.Addr, p steer.Protocol) error { return l.call("renew %s/%s", a, p) }
func (l worldLease) Withdraw(a netip.Addr, p steer.Protocol) error {
	return l.call("withdraw %s/%s", a, p)
}

type worldProber struct{ *world }

func (p worldProber) Reconfigure(rs []steer.Redirect, _ []netip.Addr) error {
	return p.call("reconfigure %v", rs)
}
func (p worldProber) Repair() (string, error) { return "", p.call("prober") }
func (p worldProber) Probe(ctx context.Context, target netip.Addr, proto steer.Protocol) prober.Result {
	p.mu.Lock()
	answer := p.answer
	p.mu.Unlock()
	r := answer(target, proto)
	if r.Failure == prober.Timeout {
		<-ctx.Done()
	}
	return r
}
func (p worldProber) CheckFallback(context.Context, netip.Addr, string) error {
	p.mu.Lock()
	prove := p.prove
	p.mu.Unlock()
	return prove()
}
func (p worldProber) Close() error { return p.call("close-prober") }

type worldPods struct{ *world }

func (p worldPods) Watch(ctx context.Context) <-chan struct{} {
	ticks, _ := p.watch(ctx)
	return ticks
}
func (worldPods) FallbackOnly([]steer.Redirect) []steer.Redirect       { return nil }
func (worldPods) Locals([]steer.Local, []steer.Redirect) []steer.Local { return nil }
func (worldPods) HostInterfaces() []string                             { return nil }
func (p worldPods) OptedOut() (out []netip.Addr) {
	p.set(func() { out = slices.Clone(p.optedOut) })
	return out
}
func (p worldPods) Reconcile(_ context.Context, fallback func(netip.Addr) pods.Fallback, deep bool) (map[string]int, error) {
	time.Sleep(p.tending)
	now := fallback(vip)
	if now.Lost != "" {
		return map[string]int{}, p.call("give back: %s", now.Lost)
	}
	return map[string]int{}, p.call("tend proven=%t deep=%t", now.Verified, deep)
}
func (worldPods) DueTrials(pods.Lease, func(netip.Addr) pods.Fallback) pods.Due { return pods.Due{} }
func (worldPods) RunTrial(context.Context, pods.Trial, pods.Lease, time.Duration, func(netip.Addr) pods.Fallback) {
}

func (w *world) fallbackLost(context.Context, netip.Addr, string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

func (p worldPods) QueryKubeDNS(context.Context, netip.Addr, string) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fromPod == nil {
		return false, nil
	}
	return true, p.fromPod()
}

type worldUpstreams struct{ *world }

func (a worldUpstreams) Check(ctx context.Context, _ string, _ bool) error {
	a.mu.Lock()
	asked := a.asked
	a.mu.Unlock()
	err := asked()
	if err != nil {
		<-ctx.Done()
	}
	return err
}
func (a worldUpstreams) LastAnswer(string) (time.Duration, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Since(a.heard), !a.heard.IsZero()
}
func (a worldUpstreams) Trouble() <-chan struct{} { return a.trouble }
func (worldUpstreams) Status() []forward.Status   { return nil }
func (worldUpstreams) Faults() []string           { return nil }

type worldProofs struct{ *world }

func (p worldProofs) Read() ([]netip.Addr, error) {
	_ = p.call("read-proof")
	return p.record(), nil
}
func (p worldProofs) Write(proven []netip.Addr) error {
	p.set(func() { p.proofs = proven })
	return p.call("write-proof")
}

type worldRecorder struct{ *world }

func (worldRecorder) Lease(netip.Addr, steer.Protocol, bool) {}
func (worldRecorder) Probe(string)                           {}
func (r worldRecorder) LeaseLost(reason string)              { _ = r.call("count-lost %s", reason) }
func (r worldRecorder) Repair(kind string)                   { _ = r.call("count-repair %s", kind) }
func (r worldRecorder) Reload(ok bool)                       { _ = r.call("count-reload %t", ok) }
func (worldRecorder) FallbackVerified(netip.Addr, bool)      {}
func (worldRecorder) Pods(map[string]int)                    {}
func (worldRecorder) CanQuery(bool)                          {}

func (w *world) partChecked(part string, err error) {
	w.set(func() { w.checked[part] = err })
}

func (r worldRecorder) FallbackGone(addr netip.Addr) {
	r.set(func() { r.gone = append(r.gone, "fallback "+addr.String()) })
}

func (r worldRecorder) LeaseGone(addr netip.Addr, p steer.Protocol) {
	r.set(func() { r.gone = append(r.gone, fmt.Sprintf("lease %s/%s", addr, p)) })
}

var (
	vip    = netip.MustParseAddr("10.96.0.10")
	steer1 = netip.MustParseAddr("169.254.20.11")
	steer2 = netip.MustParseAddr("169.254.20.12")
)

// taken is an argument of Set for a configuration that differs, or does not, in fields that no plan has.
func taken(changed bool) func() bool { return func() bool { return changed } }

func plainPlan() plan.Plan {
	s := plan.Plan{Arrangement: plan.Steered, Redirects: []steer.Redirect{{ClusterDNS: vip, Steering: steer1}}, ClusterDomain: "cluster.local",
		Steers: true,
		Link:   plan.Link{Name: "neardns0"}, Firewall: true, Terms: plan.Terms{Renew: 150 * time.Millisecond, Lifetime: 800 * time.Millisecond}}
	s.Server.Addresses = s.Addresses()
	return s
}

// begin runs a node over w in the calling bubble. w.end ends it, at the end of the test at the latest.
func begin(t *testing.T, w *world, s plan.Plan, before ...func(*Node)) *Node {
	t.Helper()
	n := New(self, s, Parts{
		Log: slog.New(slog.DiscardHandler), Server: worldServer{w}, Link: worldLink{w}, Rules: worldRules{w}, Firewall: w.ensureFirewall,
		Lease: worldLease{w}, Prober: worldProber{w}, Pods: worldPods{w}, Verified: worldProofs{w}, FallbackLost: w.fallbackLost,
		Uplinks: func(...string) ([]string, error) { return []string{"eth0"}, nil }, Recorder: worldRecorder{w},
		PartChecked: w.partChecked,
	})
	if w.asked != nil {
		n.Upstreams = worldUpstreams{w}
	}
	for _, f := range before {
		f(n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	w.end = sync.OnceFunc(func() {
		t.Helper()
		cancel()
		testutil.Check(t, <-done, "run")
		testutil.Equal(t, "watches after the node's end", 0, w.watches.Load())
		synctest.Wait()
	})
	t.Cleanup(w.end)
	return n
}

// answers has every probe end with r from here on.
func (w *world) answers(r prober.Result) {
	w.set(func() { w.answer = func(netip.Addr, steer.Protocol) prober.Result { return r } })
}

func wantReady(t *testing.T, n *Node, when string) {
	t.Helper()
	if ready, why := n.Ready(); !ready {
		t.Errorf("%s: not ready: %s", when, why)
	}
}

// pass lets virtual time go by; in a synctest bubble that is the condition to wait for.
func pass(d time.Duration) { <-time.After(d) }
