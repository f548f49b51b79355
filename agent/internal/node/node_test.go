package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/neardns/neardns/agent/internal/dns"
	"github.com/neardns/neardns/agent/internal/prober"
	"github.com/neardns/neardns/pkg/steer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const self = "this-agent"

// world is every part of a node at once: it records what the loop asks of it, in order, and answers as the test says.
type world struct {
	mu     sync.Mutex
	log    []string
	fails  map[string]error // by call
	answer func(target netip.Addr, p steer.Protocol) prober.Result
	prove  func() error
	drift  []string
	proofs []netip.Addr
	next   Settings
	loadNo error
	ticks  chan struct{}
	config chan struct{}
	kept   []netip.Addr // last addresses of the link
	host   steer.Host   // last host table
	done   chan struct{}
	ending time.Duration // what the server's stop takes
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
	return &world{fails: map[string]error{}, ticks: make(chan struct{}, 1), config: make(chan struct{}, 1),
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

// calls returns what was asked, each only where it differs from the one before.
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
	go func() { <-ctx.Done(); close(out) }()
	return out, nil
}

type worldServer struct{ *world }

func (s worldServer) Start(context.Context, dns.Config) error {
	err := s.call("start")
	s.set(func() {
		if err == nil {
			s.done = make(chan struct{})
		}
	})
	return err
}
func (s worldServer) Restart(_ context.Context, c dns.Config) error {
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

func (r worldRules) Repair(rs steer.Ruleset) ([]string, error) {
	var drift []string
	r.set(func() { r.host, drift, r.drift = rs.(steer.Host), r.drift, nil })
	return drift, r.call("rules")
}
func (r worldRules) Watch(context.Context) (<-chan struct{}, error) { return r.ticks, nil }

type worldFirewall struct{ *world }

func (f worldFirewall) Ensure(_ []netip.Addr, legacy bool) (string, error) {
	return "", f.call("firewall legacy=%t", legacy)
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
func (p worldProber) Prove(context.Context, netip.Addr, string) error {
	p.mu.Lock()
	prove := p.prove
	p.mu.Unlock()
	return prove()
}
func (p worldProber) Close() error { return p.call("close-prober") }

type worldPods struct{ *world }

func (p worldPods) Watch(ctx context.Context) (<-chan struct{}, error) { return p.watch(ctx) }
func (worldPods) FallbackOnly([]steer.Redirect) []steer.Redirect       { return nil }
func (worldPods) HostInterfaces() []string                             { return nil }
func (worldPods) OptedOut() []netip.Addr                               { return nil }
func (p worldPods) Tend(_ context.Context, proven func(netip.Addr) bool, deep bool) (map[string]int, error) {
	return map[string]int{}, p.call("tend proven=%t deep=%t", proven(vip), deep)
}

type worldProofs struct{ *world }

func (p worldProofs) Read() ([]netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.proofs), nil
}
func (p worldProofs) Write(proven []netip.Addr) error {
	p.set(func() { p.proofs = proven })
	return nil
}

type worldRecorder struct{ *world }

func (worldRecorder) Lease(netip.Addr, steer.Protocol, bool) {}
func (worldRecorder) Probe(prober.Failure)                   {}
func (r worldRecorder) Lost(reason prober.Failure)           { _ = r.call("count-lost %s", reason) }
func (r worldRecorder) Repair(kind string)                   { _ = r.call("count-repair %s", kind) }
func (r worldRecorder) Reload(ok bool)                       { _ = r.call("count-reload %t", ok) }
func (worldRecorder) Proven(netip.Addr, bool)                {}
func (worldRecorder) Pods(map[string]int)                    {}

var (
	vip    = netip.MustParseAddr("10.96.0.10")
	steer1 = netip.MustParseAddr("169.254.20.11")
	steer2 = netip.MustParseAddr("169.254.20.12")
)

func plainSettings() Settings {
	s := Settings{Redirects: []steer.Redirect{{ClusterDNS: vip, Steering: steer1}}, ClusterDomain: "cluster.local", Steers: true,
		Link: "neardns0", Renew: 150 * time.Millisecond, Lifetime: 800 * time.Millisecond}
	s.DNS.Addresses = s.Addresses()
	return s
}

// begin runs a node over w in the calling bubble and returns it with a function that ends it.
func begin(t *testing.T, w *world, s Settings, before ...func(*Node)) (*Node, func()) {
	t.Helper()
	w.next = s
	n := New(self, s, Parts{
		Log: slog.New(slog.DiscardHandler), Changed: w.config, Server: worldServer{w}, Link: worldLink{w}, Rules: worldRules{w}, Firewall: worldFirewall{w},
		Load: func() (Settings, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.next, w.loadNo
		},
		Lease: worldLease{w}, Prober: worldProber{w}, Pods: worldPods{w}, Proofs: worldProofs{w},
		Uplinks: func(...string) ([]string, error) { return []string{"eth0"}, nil }, Recorder: worldRecorder{w},
	})
	for _, f := range before {
		f(n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	return n, func() {
		t.Helper()
		cancel()
		// The rules' watch is the world's own channel; it ends with the node.
		w.set(func() {
			if w.ticks != nil {
				close(w.ticks)
				w.ticks = nil
			}
		})
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		synctest.Wait()
	}
}

// pass lets virtual time go by; in a synctest bubble that is the condition to wait for.
func pass(d time.Duration) { <-time.After(d) }

func TestOrderOfStartAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainSettings())
		pass(time.Second)
		if ready, why := n.Ready(); !ready {
			t.Errorf("not ready after a second: %s", why)
		}
		first := map[string]int{}
		for i, c := range w.calls() {
			if word := strings.Fields(c)[0]; first[word] == 0 {
				first[word] = i + 1
			}
		}
		if first["link"] >= first["start"] || first["rules"] >= first["start"] || first["start"] >= first["renew"] {
			t.Errorf("wrong order of start: %v", w.calls())
		}
		w.forget()
		end()
		want := []string{"withdraw 169.254.20.11/tcp", "withdraw 169.254.20.11/udp", "stop", "close-prober"}
		got := w.calls()
		slices.Sort(got[:2])
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("order of stop (-want +got):\n%s", diff)
		}
	})
}

func TestNoLeaseWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.fails["start"] = errors.New("listen on udp 169.254.20.11:53: address in use: held by dnsmasq")
		n, end := begin(t, w, plainSettings())
		pass(time.Minute)
		if w.count("renew") > 0 {
			t.Error("a lease was renewed without a server")
		}
		// Tried again with a bounded back-off: about 250 ms, 500 ms, … 10 s.
		if tries := w.count("start"); tries < 6 || tries > 20 {
			t.Errorf("%d tries in a minute", tries)
		}
		if ready, why := n.Ready(); ready || !strings.Contains(why, "held by dnsmasq") {
			t.Errorf("ready %t, why %q", ready, why)
		}
		w.set(func() { delete(w.fails, "start") })
		pass(12 * time.Second)
		if ready, why := n.Ready(); !ready {
			t.Errorf("not ready after the port came free: %s", why)
		}
		end()
	})
}

// A table that was made anew holds no lease, so that every target is proven at once and not at its turn.
func TestRepairedRulesAreProvenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := plainSettings()
		_, end := begin(t, w, s)
		pass(time.Second)
		now := time.Duration(time.Now().UnixNano()) % s.Renew
		pass(s.Renew - now + s.Renew/10) // just after a turn
		w.forget()
		w.set(func() { w.drift = []string{"the table is missing"} })
		w.ticks <- struct{}{}
		pass(time.Millisecond)
		synctest.Wait()
		if w.count("rules") != 1 || w.count("renew") != 2 {
			t.Errorf("after a repair: %v", w.calls())
		}
		w.forget()
		w.ticks <- struct{}{} // nothing to mend
		pass(leastGap + time.Millisecond)
		if w.count("rules") != 1 || w.count("renew") != 0 {
			t.Errorf("after a look: %v", w.calls())
		}
		end()
	})
}

func TestDeadServerIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainSettings())
		pass(time.Second)
		w.forget()
		w.die()
		pass(time.Second)
		if ready, why := n.Ready(); !ready || w.count("start") != 1 {
			t.Errorf("ready %t (%s) after %d starts", ready, why, w.count("start"))
		}
		end()
	})
}

func TestExplicitFailuresCountThreeOfFive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainSettings())
		pass(time.Second)
		refuse := prober.Result{Failure: prober.Refused, Err: errors.New("nobody listens")}
		var failed int
		w.set(func() {
			w.answer = func(_ netip.Addr, p steer.Protocol) prober.Result {
				if p == steer.TCP && failed < 2 {
					failed++
					return refuse
				}
				return prober.Result{Instance: self}
			}
		})
		pass(time.Second)
		if ready, why := n.Ready(); !ready || w.count("withdraw") > 0 {
			t.Errorf("two failures took the lease: %s", why)
		}
		w.set(func() {
			w.answer = func(_ netip.Addr, p steer.Protocol) prober.Result {
				if p == steer.TCP {
					return refuse
				}
				return prober.Result{Instance: self}
			}
		})
		pass(500 * time.Millisecond)
		if w.count("withdraw 169.254.20.11/tcp") != 1 || w.count("withdraw 169.254.20.11/udp") != 0 {
			t.Errorf("want one withdrawal, of tcp: %v", w.calls())
		}
		if _, why := n.Ready(); !strings.Contains(why, "over tcp: nobody listens") {
			t.Errorf("reason: %q", why)
		}
		end()
	})
}

func TestSilenceIsNotCountedButLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainSettings())
		pass(time.Second)
		w.set(func() {
			w.answer = func(netip.Addr, steer.Protocol) prober.Result {
				return prober.Result{Failure: prober.Timeout, Err: errors.New("no answer")}
			}
		})
		w.forget()
		pass(3 * time.Second)
		if w.count("withdraw") > 0 {
			t.Error("silence was answered by a withdrawal: the kernel's timeout does that")
		}
		if ready, _ := n.Ready(); ready {
			t.Error("ready without an answer for longer than the lease's lifetime")
		}
		end()
	})
}

func TestSomebodyElsesAnswerIsNoProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.answer = func(netip.Addr, steer.Protocol) prober.Result { return prober.Result{Instance: "another"} }
		n, end := begin(t, w, plainSettings())
		pass(5 * time.Second)
		if w.count("renew") > 0 {
			t.Error("renewed on another agent's answer")
		}
		if _, why := n.Ready(); !strings.Contains(why, "another agent (another) answered") {
			t.Errorf("reason: %q", why)
		}
		end()
	})
}

func TestMissingSwitchIsMendedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainSettings())
		pass(time.Second)
		w.forget()
		w.set(func() {
			w.fails["renew"] = steer.ErrNoSwitch
			w.drift = []string{"table inet neardns is missing or empty"}
		})
		pass(300 * time.Millisecond)
		if w.count("rules") == 0 || w.count("count-repair rules") != 1 {
			t.Errorf("no repair: %v", w.calls())
		}
		w.set(func() { delete(w.fails, "renew") })
		pass(time.Second)
		if ready, why := n.Ready(); !ready {
			t.Errorf("not ready again: %s", why)
		}
		end()
	})
}

func TestReloadMovesAddressesBeforeTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n, end := begin(t, w, plainSettings())
		pass(time.Second)
		next := plainSettings()
		next.Redirects[0].Steering = steer2
		next.DNS.Addresses = next.Addresses()
		w.forget()
		w.set(func() { w.next = next })
		w.config <- struct{}{}
		pass(time.Second)
		var order []string
		for _, c := range w.calls() {
			if word := strings.Fields(c)[0]; slices.Contains([]string{"withdraw", "link", "restart", "reconfigure"}, word) {
				order = append(order, c)
			}
		}
		want := []string{"withdraw 169.254.20.11/udp", "withdraw 169.254.20.11/tcp", "link [169.254.20.12 169.254.20.11]", "restart [169.254.20.12]"}
		if len(order) < 5 || cmp.Diff(want, order[:4]) != "" || !strings.HasPrefix(order[4], "reconfigure") {
			t.Errorf("order of reload: %v", order)
		}
		w.set(func() {
			if !slices.Equal(w.kept, []netip.Addr{steer2}) {
				t.Errorf("the link holds %v afterwards", w.kept)
			}
		})
		if ready, why := n.Ready(); !ready {
			t.Errorf("not ready after the reload: %s", why)
		}
		if w.count("count-reload true") != 1 {
			t.Error("reload not counted")
		}
		end()
	})
}

func TestBadReloadKeepsTheOld(t *testing.T) {
	for name, bad := range map[string]func(*world){
		"file": func(w *world) { w.loadNo = errors.New("neardns.yaml:3:1: unknown field") },
		"server": func(w *world) {
			w.next.Redirects = []steer.Redirect{{ClusterDNS: vip, Steering: steer2}}
			w.next.DNS.Addresses = w.next.Addresses()
			w.fails["restart"] = errors.New("listen on udp 169.254.20.12:53: in use")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				n, end := begin(t, w, plainSettings())
				pass(time.Second)
				w.set(func() { bad(w) })
				w.config <- struct{}{}
				pass(2 * time.Second)
				if ready, why := n.Ready(); !ready {
					t.Errorf("not ready after a refused reload: %s", why)
				}
				if s := n.Status(); s.Redirects[0].Steering != steer1 || len(s.Leases) != 2 {
					t.Errorf("the old configuration is gone: %+v", s)
				}
				if w.count("count-reload false") != 1 {
					t.Error("refusal not counted")
				}
				end()
			})
		})
	}
}

func TestFallbackIsProvenWatchedAndTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		no := errors.New("no answer")
		w.prove = func() error { return no }
		_, end := begin(t, w, plainSettings())
		pass(10 * time.Second)
		if len(w.record()) > 0 || w.count("tend proven=true") > 0 {
			t.Error("proven without proof")
		}
		w.set(func() { w.prove = func() error { return nil } })
		pass(5 * time.Second)
		if !slices.Equal(w.record(), []netip.Addr{vip}) || w.count("tend proven=true") == 0 {
			t.Errorf("record %v; pods were not tended", w.record())
		}
		// Two failures in a row are a restart of kube-dns, three are the end of it.
		var failures int
		w.set(func() {
			w.prove = func() error {
				if failures++; failures <= 2 {
					return no
				}
				return nil
			}
		})
		pass(40 * time.Second)
		if len(w.record()) != 1 {
			t.Error("two failures took the proof")
		}
		w.set(func() { w.prove = func() error { return no } })
		pass(60 * time.Second)
		if len(w.record()) != 0 {
			t.Error("the proof outlives the fallback")
		}
		end()
	})
}

func TestProofFromBeforeARebootCountsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.proofs = []netip.Addr{vip}
		w.prove = func() error { return errors.New("kube-dns is not up yet") }
		_, end := begin(t, w, plainSettings())
		pass(100 * time.Millisecond)
		if w.count("tend proven=true") == 0 {
			t.Error("the earlier proof was not used")
		}
		end()
	})
}

func TestNothingIsSteeredWithoutTranslation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.proofs = []netip.Addr{vip}
		s := plainSettings()
		s.Steers = false
		_, end := begin(t, w, s)
		pass(10 * time.Second)
		if len(w.record()) > 0 || w.count("tend proven=true") > 0 {
			t.Error("kubeProxyMode none, but the proof stands")
		}
		end()
	})
}

func TestAnswerWithoutSwitchProvesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.fails["rules"] = errors.New("apply rules: operation not permitted")
		_, end := begin(t, w, plainSettings())
		pass(10 * time.Second)
		if len(w.record()) > 0 {
			t.Error("proven while the host table could not be installed")
		}
		end()
	})
}
