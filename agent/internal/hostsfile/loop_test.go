package hostsfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"

	"github.com/neardns/neardns/agent/internal/node/backoff"
	"github.com/neardns/neardns/integration/compat"
	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/testutil"
)

// kubeDNS is a server on the loopback that knows some Services.
type kubeDNS struct {
	at netip.AddrPort

	mu      sync.Mutex // guards the fields below
	records map[string]string
	ttl     int // in seconds
	queries int
	broken  func(network string, q, answer *dns.Msg) *dns.Msg // nil: it answers as it should; a nil answer: none
}

func newKubeDNS(t *testing.T) *kubeDNS {
	t.Helper()
	var pc net.PacketConn
	var l net.Listener
	testutil.Eventually(t, func() (err error) { // a port that is free for both
		if pc, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			return err
		}
		if l, err = net.Listen("tcp", pc.LocalAddr().String()); err != nil {
			err = errors.Join(err, pc.Close())
		}
		return err
	})
	k := &kubeDNS{at: netip.MustParseAddrPort(pc.LocalAddr().String()), ttl: 5, records: map[string]string{
		"kubernetes.default.svc.cluster.local. A": "10.96.0.1",
		"registry.shop.svc.cluster.local. A":      "10.96.0.5",
		"registry.shop.svc.cluster.local. AAAA":   "fd00:10:96::5",
	}}
	var wg sync.WaitGroup
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: k.handler("udp")}, {Listener: l, Handler: k.handler("tcp")}} {
		wg.Go(func() { _ = s.ActivateAndServe() })
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { _ = errors.Join(pc.Close(), l.Close()) })
	return k
}

func (k *kubeDNS) handler(network string) dns.Handler {
	return dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.queries++
		answer := new(dns.Msg).SetReply(q)
		answer.Authoritative = true
		kind := dns.TypeToString[q.Question[0].Qtype]
		name := q.Question[0].Name
		if a := k.records[name+" "+kind]; a != "" {
			rr, err := dns.NewRR(fmt.Sprintf("%s %d IN %s %s", name, k.ttl, kind, a))
			if err != nil {
				panic(err)
			}
			answer.Answer = append(answer.Answer, rr)
		} else if k.records[name+" A"] == "" {
			answer.Rcode = dns.RcodeNameError
		}
		if k.broken != nil {
			if answer = k.broken(network, q, answer); answer == nil {
				return
			}
		}
		_ = w.WriteMsg(answer)
	})
}

func (k *kubeDNS) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

func (k *kubeDNS) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.queries
}

// running is a role under test, its time running 150 times as fast: a round each 200 ms, three denials over 1.2 s.
type running struct {
	*Hosts
	path    string
	changed chan struct{}
	reload  chan Config
	stop    func()
}

const (
	fastEvery    = 200 * time.Millisecond
	fastPatience = 1200 * time.Millisecond
)

func start(t *testing.T, root, path string, conf Config) *running {
	t.Helper()
	r := &running{path: path, changed: make(chan struct{}, 1), reload: make(chan Config)}
	r.Hosts = newHosts(root, conf)
	r.pace.every, r.patience = fastEvery, fastPatience
	r.run(t)
	return r
}

func newHosts(root string, conf Config) *Hosts {
	return New(slog.New(slog.DiscardHandler), root, conf, func(nodestate.Hosts) error { return nil })
}

func (r *running) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { r.Run(ctx, r.changed, r.reload) })
	r.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(r.stop)
}

func (r *running) becomes(t *testing.T, want string) {
	t.Helper()
	testutil.Eventually(t, func() error {
		got, err := os.ReadFile(r.path)
		if err == nil && string(got) != want {
			err = fmt.Errorf("it holds\n%s\nwant\n%s", got, want)
		}
		return err
	})
}

// stays lets some rounds of queries pass, and holds that the file is not written.
func (r *running) stays(t *testing.T, k *kubeDNS, rounds int) {
	t.Helper()
	before, errBefore := os.Stat(r.path)
	text, err := os.ReadFile(r.path)
	until := r.State().Looked.Add(time.Duration(rounds) * fastEvery)
	testutil.Eventually(t, func() error {
		looked := r.State().Looked
		return testutil.ErrorIf(looked.Before(until), "it last looked at %s, not after %s", looked, until)
	})
	now, errNow := os.ReadFile(r.path)
	after, errAfter := os.Stat(r.path)
	if err := errors.Join(err, errBefore, errNow, errAfter); err != nil || !bytes.Equal(text, now) || !os.SameFile(before, after) {
		t.Errorf("%v: it was written, and holds\n%s\nit held\n%s", err, now, text)
	}
}

// TestEarlyRounds has a node boot before its network: a Service without an answer is queried again long before the next round.
func TestEarlyRounds(t *testing.T) {
	testutil.RequireRoot(t)
	k := newKubeDNS(t)
	k.set(func() {
		k.broken = func(_ string, q, _ *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure) }
	})
	var rounds atomic.Int64
	root, path := newRoot(t, base)
	h := New(slog.New(slog.DiscardHandler), root, Config{Services: []string{"shop/registry"}, Domain: "cluster.local", Servers: []netip.AddrPort{k.at}},
		func(s nodestate.Hosts) error {
			if len(s.Services) > 0 && s.Services[0].Failed != "" && rounds.Add(1) == 3 {
				k.set(func() { k.broken = nil })
			}
			return nil
		})
	h.pace.every, h.early = time.Hour, 5*time.Millisecond
	r := &running{Hosts: h, path: path}
	r.run(t)
	r.becomes(t, with(base, lines("10.96.0.5", "fd00:10:96::5")))
}

// TestRun has a Service change, go and come, and every kind of trouble with kube-dns: only an answer that lasts changes the file.
func TestRun(t *testing.T) {
	testutil.RequireRoot(t)
	compat.Say(t, "hosts", "families", "both")
	compat.Say(t, "hosts", "a Service is deleted", "its lines go after three denials over three minutes")
	compat.Say(t, "hosts", "a wrong cluster domain, a kube-dns that denies everything", "the lines stay, since `kubernetes.default.svc` is denied, too")
	running := goleak.IgnoreCurrent()
	t.Cleanup(func() { testutil.Eventually(t, func() error { return goleak.Find(running) }) }) // runs after the server has ended
	k := newKubeDNS(t)
	conf := Config{Services: []string{"shop/registry"}, Domain: "cluster.local", Servers: []netip.AddrPort{k.at}}
	root, path := newRoot(t, base)
	r := start(t, root, path, conf)
	both := with(base, lines("10.96.0.5", "fd00:10:96::5"))
	r.becomes(t, both)

	// Its address changes.
	k.set(func() { k.records["registry.shop.svc.cluster.local. A"] = "10.96.0.7" })
	r.becomes(t, with(base, lines("10.96.0.7", "fd00:10:96::5")))
	k.set(func() { k.records["registry.shop.svc.cluster.local. A"] = "10.96.0.5" })
	r.becomes(t, both)

	// TestReadAnswer has the other answers that are of no use; these stay so for long.
	for name, trouble := range map[string]func(string, *dns.Msg, *dns.Msg) *dns.Msg{
		"silent":   func(string, *dns.Msg, *dns.Msg) *dns.Msg { return nil },
		"SERVFAIL": func(_ string, q, _ *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure) },
		// As of a kube-dns that has lost its API server's data, or of a clusterDomain that is not the cluster's.
		"denies everything": func(_ string, _, answer *dns.Msg) *dns.Msg {
			answer.Answer, answer.Rcode = nil, dns.RcodeNameError
			return answer
		},
	} {
		k.set(func() { k.broken = trouble })
		r.stays(t, k, 12) // of which nine would be enough for a denial
		// Silence takes the time of ten rounds until it is known for one.
		testutil.Eventually(t, func() error {
			s := r.State().Services[0]
			return testutil.ErrorIf(s.Failed == "" || len(s.Addresses) != 2, "%s: %+v", name, s)
		})
		// A restart amid it: the file is the memory.
		r.stop()
		if s := r.State(); !s.Ended {
			t.Errorf("%s: an orderly end is not recorded", name)
		}
		r = start(t, root, path, conf)
		r.becomes(t, both)
		r.stays(t, k, 4)
	}
	k.set(func() { k.broken = nil })
	testutil.Eventually(t, func() error {
		s := r.State().Services[0]
		return testutil.ErrorIf(s.Failed != "", "%s", s.Failed)
	})

	// One family goes, then all of it; then it comes back. When a denial is believed: TestMemory.
	k.set(func() { delete(k.records, "registry.shop.svc.cluster.local. AAAA") })
	r.becomes(t, with(base, lines("10.96.0.5")))
	k.set(func() { delete(k.records, "registry.shop.svc.cluster.local. A") })
	r.becomes(t, base)
	k.set(func() { k.records["registry.shop.svc.cluster.local. A"] = "10.96.0.9" })
	r.becomes(t, with(base, lines("10.96.0.9")))
}

// Garbage over UDP, and TCP instead; the second server instead of a dead one.
func TestOtherServersAndTCP(t *testing.T) {
	testutil.RequireRoot(t)
	k := newKubeDNS(t)
	k.set(func() {
		k.broken = func(network string, _, answer *dns.Msg) *dns.Msg {
			if network == "udp" {
				answer.Answer, answer.Truncated = nil, true
			}
			return answer
		}
	})
	pc, err := net.ListenPacket("udp", "127.0.0.1:0") // whatever it hears it answers with garbage
	testutil.Must(t, err)
	defer pc.Close()
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(append(b[:2:2], bytes.Repeat([]byte{0xff}, n)...), from)
		}
	}()
	a := &resolver{domain: "cluster.local", servers: []netip.AddrPort{netip.MustParseAddrPort(pc.LocalAddr().String()), k.at}}
	for range 2 {
		testutil.Eventually(t, func() error { // a busy machine may answer later than a query waits
			r := a.query(t.Context(), "registry.shop.svc.cluster.local", dns.TypeA)
			return testutil.ErrorIf(r.err != nil || len(r.addrs) != 1 || r.server != 1, "%+v", r)
		})
	}
	testutil.Equal(t, "the server that gets the next query first", 1, a.best.Load())
}

// Another program replaces the file for the tenth time, which makes it a conflict, and again: our lines come back without another round of
// queries, also in a conflict, and no text is lost. How long repairs wait in a conflict: package backoff.
func TestAnotherProgram(t *testing.T) {
	testutil.RequireRoot(t)
	k := newKubeDNS(t)
	conf := Config{Services: []string{"shop/registry"}, Domain: "cluster.local", Servers: []netip.AddrPort{k.at}}
	root, path := newRoot(t, base)
	k.set(func() { k.ttl = 3600 }) // no query between the rounds
	logged := new(testutil.Output)
	r := &running{path: path, changed: make(chan struct{}, 1), reload: make(chan Config)}
	r.Hosts = New(slog.New(slog.NewTextHandler(logged, nil)), root, conf, func(nodestate.Hosts) error { return nil })
	r.pace.every = time.Hour // only the change of the file wakes the role
	for range backoff.Limit - 1 {
		r.conflict.Repaired(time.Now().Add(time.Hour)) // in the window however slow the machine is
	}
	r.run(t)
	r.becomes(t, with(base, lines("10.96.0.5", "fd00:10:96::5")))
	replace := func(text string) {
		t.Helper()
		testutil.Must(t, errors.Join(os.WriteFile(path+".theirs", []byte(text), 0o644), os.Rename(path+".theirs", path)))
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
	testutil.Equal(t, "a conflict before the last", false, r.State().Fighting)
	text := base + "192.0.2.1\tprinter\n"
	replace(text)
	r.becomes(t, with(text, lines("10.96.0.5", "fd00:10:96::5")))
	// From here on it is a conflict: the next repair waits.
	testutil.Eventually(t, func() error {
		s := r.State()
		return testutil.ErrorIf(!s.Fighting || s.Repairs != 1, "%+v", s)
	})
	replace(base)
	r.becomes(t, with(base, lines("10.96.0.5", "fd00:10:96::5")))
	testutil.Equal(t, "times that it is logged:\n"+logged.String(), 1, strings.Count(logged.String(), "another program keeps changing"))
}

// A foreign line wins; a changed list is taken over at once; a Service that left the list leaves the file.
func TestListAndForeignLines(t *testing.T) {
	testutil.RequireRoot(t)
	compat.Say(t, "hosts", "names", "a list of at most 20")
	k := newKubeDNS(t)
	k.set(func() { k.records["proxy.shop.svc.cluster.local. A"] = "10.96.0.8" })
	conf := Config{Services: []string{"shop/registry", "shop/none"}, Domain: "cluster.local", Servers: []netip.AddrPort{k.at}}
	theirs := base + "192.0.2.9\tregistry.shop.svc\n"
	root, path := newRoot(t, theirs)
	r := start(t, root, path, conf)
	r.becomes(t, with(theirs, lines("10.96.0.5", "fd00:10:96::5")))
	testutil.Eventually(t, func() error {
		s := r.State().Services
		reached := len(s) == 2 && fmt.Sprint(s[0].Left) == "[registry.shop.svc]" && len(s[0].Addresses) == 2 && len(s[1].Addresses) == 0
		return testutil.ErrorIf(!reached, "%+v", s)
	})
	next := conf
	next.Services = []string{"shop/proxy"}
	r.reload <- next
	r.becomes(t, theirs+"10.96.0.8\tproxy.shop.svc proxy.shop.svc.cluster.local # by neardns-agent hosts\n")
	next.Services = nil
	r.reload <- next
	r.becomes(t, theirs)
	testutil.Eventually(t, func() error { // the report comes after the write
		ok, why := r.Alive()
		return testutil.ErrorIf(!ok, "%s", why)
	})
}

// One name that fails costs no other its line, nor its own.
func TestOneOfTwoFails(t *testing.T) {
	testutil.RequireRoot(t)
	compat.Say(t, "hosts", "one of several names fails", "its last line stays, and so do the others")
	k := newKubeDNS(t)
	k.set(func() { k.records["proxy.shop.svc.cluster.local. A"] = "10.96.0.8" })
	root, path := newRoot(t, base)
	r := start(t, root, path, Config{Services: []string{"shop/registry", "shop/proxy"}, Domain: "cluster.local", Servers: []netip.AddrPort{k.at}})
	proxy := func(addr string) string {
		return addr + "\tproxy.shop.svc proxy.shop.svc.cluster.local # by neardns-agent hosts\n"
	}
	registry := with(base, lines("10.96.0.5", "fd00:10:96::5"))
	r.becomes(t, registry+proxy("10.96.0.8"))
	k.set(func() {
		k.records["proxy.shop.svc.cluster.local. A"] = "10.96.0.9"
		k.broken = func(_ string, q, answer *dns.Msg) *dns.Msg {
			if strings.HasPrefix(q.Question[0].Name, "registry.") {
				return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
			}
			return answer
		}
	})
	r.becomes(t, registry+proxy("10.96.0.9"))
	r.stays(t, k, 12)
}

func TestMetrics(t *testing.T) {
	testutil.RequireRoot(t)
	k := newKubeDNS(t)
	root, path := newRoot(t, base)
	r := start(t, root, path, Config{Services: []string{"shop/registry", "shop/none"}, Domain: "cluster.local", Servers: []netip.AddrPort{k.at}})
	r.becomes(t, with(base, lines("10.96.0.5", "fd00:10:96::5")))
	testutil.Eventually(t, func() error { // the file is first
		s := r.State().Services
		return testutil.ErrorIf(len(s[0].Addresses) != 2, "%+v", s)
	})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r.Collectors()...)
	families, err := registry.Gather()
	testutil.Must(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{"neardns_hosts_services current": 1, "neardns_hosts_services missing": 1, "neardns_hosts_services stale": 0,
		"neardns_hosts_services foreign": 0, "neardns_hosts_file_ok": 1, "neardns_hosts_fighting": 0, "neardns_hosts_writes_total ok": 1,
		"neardns_hosts_repairs_total": 0} {
		if got, ok := values[name]; !ok || got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if values["neardns_hosts_questions_total answered"] < 2 || values["neardns_hosts_questions_total denied"] < 2 {
		t.Errorf("questions: %v", values)
	}
}
