package telemetry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"go.uber.org/goleak"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// everything records each kind of event, so that every series exists.
func everything() *Metrics {
	m := New("v0.1.0")
	addr := netip.MustParseAddr("169.254.20.11")
	m.Lease(addr, steer.UDP, false)
	m.Lease(addr, steer.UDP, true)
	m.LeaseLost("slow")
	m.LeaseLost("made-up")
	m.Lease(addr, steer.UDP, true) // no change
	m.Lease(addr, steer.UDP, false)
	m.Lease(netip.MustParseAddr("fd00:90de:d95::b"), steer.TCP, true)
	m.Probe("")
	m.Probe("timeout")
	m.Probe("something new")
	m.Repair("rules")
	m.Repair("something new")
	m.Reload(true)
	m.Handover("given")
	m.Handover("no such result")
	m.Reload(false)
	m.FallbackVerified(netip.MustParseAddr("10.96.0.10"), true)
	m.FallbackVerified(netip.MustParseAddr("fd00:10:96::a"), false)
	gone := netip.MustParseAddr("10.96.0.99")
	m.Lease(gone, steer.UDP, true)
	m.LeaseGone(gone, steer.UDP)
	m.FallbackVerified(gone, false)
	m.FallbackGone(gone)
	m.Pods(map[string]int{"steered": 3, "left-alone": 1})
	m.CanQuery(true)
	m.CollectSwitch(func() (map[string]steer.Counter, error) {
		return map[string]steer.Counter{steer.CounterDeliveredUDP: {Packets: 7}, steer.CounterFallbackTCP: {Packets: 2}}, nil
	})
	m.CollectSnapshot(func() time.Time { return time.Unix(1793275200, 5e8) })
	m.CollectWatch(func() (nodestate.Watch, bool, error) {
		return nodestate.Watch{OK: true, Fighting: false, Repairs: 2, Restored: 1, Looked: time.Unix(1793275260, 0)}, true, nil
	})
	m.CollectKernelHits(func() (KernelHits, bool) {
		return KernelHits{OK: true, Pods: 2, Refused: 1, Entries: 9, Series: []KernelSeries{{"A", "NOERROR", 40}},
			Copies: map[string]uint64{"first": 5, "fetched": 4, "pending": 3, "dropped": 0, "limited": 1, "full": 2}}, true
	})
	return m
}

// TestKernelHitsAuto: in mode auto, no series reports that kernel hits are missing, so no alert fires.
func TestKernelHitsAuto(t *testing.T) {
	for _, k := range []KernelHits{{Auto: true}, {Auto: true, OK: true}, {}} {
		m := New("v0.1.0")
		m.CollectKernelHits(func() (KernelHits, bool) { return k, true })
		families, err := m.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range families {
			found = found || f.GetName() == "neardns_kernel_ok"
		}
		if want := k.OK || !k.Auto; found != want {
			t.Errorf("%+v: neardns_kernel_ok is there: %t", k, found)
		}
	}
}

// Without a watch, its series do not exist.
func TestNoWatch(t *testing.T) {
	m := New("v0.1.0")
	m.CollectWatch(func() (nodestate.Watch, bool, error) { return nodestate.Watch{}, false, nil })
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "neardns_conflist") {
			t.Errorf("%s is exported", f.GetName())
		}
	}
}

// If a faulty file becomes what it was before, that is no reload, and config_ok is 1 again.
func TestConfigOK(t *testing.T) {
	m := New("v0.1.0")
	for i, step := range []struct {
		do   func()
		want float64
	}{{func() {}, 1}, {func() { m.Read(false) }, 0}, {func() { m.Read(true) }, 1}, {func() { m.Reload(false) }, 0}, {func() { m.Reload(true) }, 1}} {
		step.do()
		if got := promtest.ToFloat64(m.config); got != step.want {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
	if got := m.Totals("neardns_reloads_total"); got[0] != 3 {
		t.Errorf("%v reloads, want 3", got[0])
	}
}

// TestLeaseGone checks that a removed lease has no series, and that its counts start at zero when it is wanted again.
func TestLeaseGone(t *testing.T) {
	m := New("v0.1.0")
	addr := netip.MustParseAddr("169.254.20.11")
	for range 2 {
		m.Lease(addr, steer.UDP, true)
		if got := promtest.ToFloat64(m.changes); got != 1 {
			t.Errorf("%v changes, want 1", got)
		}
		m.LeaseGone(addr, steer.UDP)
		if got := promtest.CollectAndCount(m.lease) + promtest.CollectAndCount(m.changes); got != 0 {
			t.Errorf("%d series of a lease that is not wanted", got)
		}
	}
}

func TestMetrics(t *testing.T) {
	m := everything()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("promlint: %s: %s", p.Metric, p.Text)
	}
	want := `
# HELP neardns_cache_snapshot_timestamp_seconds When the cache's snapshot file last matched the cache; at first, when the agent began to keep it.
# TYPE neardns_cache_snapshot_timestamp_seconds gauge
neardns_cache_snapshot_timestamp_seconds 1.7932752005e+09
# HELP neardns_can_ask Whether the agent's own last query for the cluster's names was answered (1), or not, or none was sent yet (0).
# TYPE neardns_can_ask gauge
neardns_can_ask 1
# HELP neardns_config_ok Whether the agent serves by the configuration as it is now (1), or refused it and serves by the one before (0).
# TYPE neardns_config_ok gauge
neardns_config_ok 0
# HELP neardns_conflist_fighting Whether another program keeps removing the conflist entry, so that repairs are less frequent (1).
# TYPE neardns_conflist_fighting gauge
neardns_conflist_fighting 0
# HELP neardns_conflist_looked_timestamp_seconds When the watch last looked at the network's configuration.
# TYPE neardns_conflist_looked_timestamp_seconds gauge
neardns_conflist_looked_timestamp_seconds 1.79327526e+09
# HELP neardns_conflist_ok Whether the watch found plugin and conflist entry on the node, or put them there, when it last looked (1), or could not (0).
# TYPE neardns_conflist_ok gauge
neardns_conflist_ok 1
# HELP neardns_conflist_repairs_total How often the watch had to put an unchanged conflist entry back since it began.
# TYPE neardns_conflist_repairs_total counter
neardns_conflist_repairs_total 2
# HELP neardns_fallback_proven Whether the fallback to kube-dns is verified for a cluster DNS address (1); if not (0), it is steered for no further pod.
# TYPE neardns_fallback_proven gauge
neardns_fallback_proven{cluster_dns="10.96.0.10"} 1
neardns_fallback_proven{cluster_dns="fd00:10:96::a"} 0
# HELP neardns_handovers_total Handovers of the node from one agent to the next: taken by this one, given by it, refused by it, or failed.
# TYPE neardns_handovers_total counter
neardns_handovers_total{result="failed"} 0
neardns_handovers_total{result="given"} 1
neardns_handovers_total{result="refused"} 0
neardns_handovers_total{result="taken"} 0
# HELP neardns_kernel_copies_total Queries that the kernel passed on because it had no answer, by what became of the copy for this agent.
# TYPE neardns_kernel_copies_total counter
neardns_kernel_copies_total{result="dropped"} 0
neardns_kernel_copies_total{result="fetched"} 4
neardns_kernel_copies_total{result="first"} 5
neardns_kernel_copies_total{result="full"} 2
neardns_kernel_copies_total{result="limited"} 1
neardns_kernel_copies_total{result="pending"} 3
# HELP neardns_kernel_entries Answers that the kernel has.
# TYPE neardns_kernel_entries gauge
neardns_kernel_entries 9
# HELP neardns_kernel_hits_total Queries that the kernel answered, which coredns_* do not count.
# TYPE neardns_kernel_hits_total counter
neardns_kernel_hits_total{rcode="NOERROR",type="A"} 40
# HELP neardns_kernel_ok Whether hits are answered in the kernel where that is wanted; else the agent answers them, or kube-dns with arrangement transparent.
# TYPE neardns_kernel_ok gauge
neardns_kernel_ok 1
# HELP neardns_kernel_pods Pods whose hits are wanted in the kernel, by state: answered there, or refused.
# TYPE neardns_kernel_pods gauge
neardns_kernel_pods{state="answered"} 2
neardns_kernel_pods{state="refused"} 1
# HELP neardns_lease_changes_total How often the lease for an address and protocol began or ended.
# TYPE neardns_lease_changes_total counter
neardns_lease_changes_total{address="169.254.20.11",protocol="udp"} 2
neardns_lease_changes_total{address="fd00:90de:d95::b",protocol="tcp"} 1
# HELP neardns_lease_held Whether the lease lets queries to an address and protocol reach the agent (1) or not (0).
# TYPE neardns_lease_held gauge
neardns_lease_held{address="169.254.20.11",protocol="udp"} 0
neardns_lease_held{address="fd00:90de:d95::b",protocol="tcp"} 1
# HELP neardns_lease_lost_total Leases that were lost, by the failure of the last probe, or upstream: no upstream answered.
# TYPE neardns_lease_lost_total counter
neardns_lease_lost_total{reason="network"} 0
neardns_lease_lost_total{reason="other"} 1
neardns_lease_lost_total{reason="refused"} 0
neardns_lease_lost_total{reason="slow"} 1
neardns_lease_lost_total{reason="timeout"} 0
neardns_lease_lost_total{reason="upstream"} 0
neardns_lease_lost_total{reason="wrong-answer"} 0
# HELP neardns_pods Interfaces of this node's pods, by whether their queries are steered to the cache.
# TYPE neardns_pods gauge
neardns_pods{state="given-back"} 0
neardns_pods{state="gone"} 0
neardns_pods{state="left-alone"} 1
neardns_pods{state="pending"} 0
neardns_pods{state="steered"} 3
# HELP neardns_probes_total Probes, by result.
# TYPE neardns_probes_total counter
neardns_probes_total{result="canceled"} 0
neardns_probes_total{result="network"} 0
neardns_probes_total{result="ok"} 1
neardns_probes_total{result="other"} 1
neardns_probes_total{result="refused"} 0
neardns_probes_total{result="slow"} 0
neardns_probes_total{result="timeout"} 1
neardns_probes_total{result="wrong-answer"} 0
# HELP neardns_reloads_total Changed configurations, taken over or refused.
# TYPE neardns_reloads_total counter
neardns_reloads_total{result="refused"} 1
neardns_reloads_total{result="taken"} 1
# HELP neardns_repairs_total Repairs of things on the node that were not as they should be, by kind.
# TYPE neardns_repairs_total counter
neardns_repairs_total{kind="firewall"} 0
neardns_repairs_total{kind="link"} 0
neardns_repairs_total{kind="other"} 1
neardns_repairs_total{kind="prober"} 0
neardns_repairs_total{kind="rules"} 1
# HELP neardns_switch_packets_total Queries that passed the switch, by way: packets over UDP, connections over TCP. The ways uplink and stranger count every packet over TCP. The way fallback includes the agent's own fallback checks, a few a minute.
# TYPE neardns_switch_packets_total counter
neardns_switch_packets_total{protocol="tcp",way="fallback"} 2
neardns_switch_packets_total{protocol="udp",way="delivered"} 7
# HELP neardns_switch_restored_total How often the watch restored the host's rules because no agent did, since it began.
# TYPE neardns_switch_restored_total counter
neardns_switch_restored_total 1
`
	var got strings.Builder
	for _, f := range families {
		if f.GetName() == "neardns_build_info" {
			continue
		}
		if _, err := expfmt.MetricFamilyToText(&got, f); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), got.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestGathersTogether checks that one page has our metrics and those of the default registry, where CoreDNS's are, and
// that the other metrics are exported even if the switch's counters cannot be read.
func TestGathersTogether(t *testing.T) {
	foreign := prometheus.NewCounter(prometheus.CounterOpts{Name: "coredns_test_total", Help: "Stands for CoreDNS's."})
	prometheus.MustRegister(foreign)
	defer prometheus.Unregister(foreign)
	m := New("v0.1.0")
	m.CollectSwitch(func() (map[string]steer.Counter, error) { return nil, errors.New("no table") })
	handler := m.MetricsHandler(map[string]func() any{"/v1/status": func() any { return []string{"x"} }})
	rec := httptest.NewRecorder()
	handler.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/v1/status", nil))
	if rec.Body.String() != "[\n  \"x\"\n]\n" || rec.Header().Get("Content-Type") != "application/json" {
		t.Errorf("the overview: %s %v", rec.Body, rec.Header())
	}
	rec = httptest.NewRecorder()
	handler.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	body := rec.Body.String()
	for _, want := range []string{`neardns_build_info{goversion="go`, `version="v0.1.0"`, "coredns_test_total 0", "go_goroutines", "process_open_fds"} {
		if !strings.Contains(body, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if rec.Code != http.StatusOK {
		t.Errorf("status %d", rec.Code)
	}
	if strings.Contains(body, "neardns_switch") {
		t.Error("a switch that cannot be read has numbers")
	}
}

func TestHealth(t *testing.T) {
	ready := false
	h := Health{
		Ready:  func() (bool, string) { return ready, "no lease for 169.254.20.11/udp" },
		Status: func() any { return map[string]any{"ready": ready} },
	}
	get := func(path string) (int, string) {
		rec := httptest.NewRecorder()
		h.SocketHandler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		return rec.Code, rec.Body.String()
	}
	for _, tc := range []struct {
		ready bool
		path  string
		code  int
		body  string
	}{
		{false, "/healthz", 200, "alive\n"},
		{false, "/readyz", 503, "not ready: no lease for 169.254.20.11/udp\n"},
		{false, "/status", 200, "{\n  \"ready\": false\n}\n"},
		{true, "/healthz", 200, "alive\n"},
		{true, "/readyz", 200, "ready\n"},
		{true, "/other", 404, "404 page not found\n"},
	} {
		ready = tc.ready
		if code, body := get(tc.path); code != tc.code || body != tc.body {
			t.Errorf("%s, ready %v: %d %q, want %d %q", tc.path, tc.ready, code, body, tc.code, tc.body)
		}
	}
	for path, want := range map[string]int{"/healthz": 200, "/status": 404, "/pods": 404, "/config": 404} {
		rec := httptest.NewRecorder()
		h.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
		if rec.Code != want {
			t.Errorf("%s over TCP: %d, want %d: what names pods is for the socket alone", path, rec.Code, want)
		}
	}
}

// waitFor yields the processor until ok holds. Only the test binary's own timeout bounds it; the stack trace shows the line that waits.
func waitFor(t *testing.T, _ string, ok func() bool) {
	t.Helper()
	for !ok() {
		runtime.Gosched()
	}
}

// TestServeWaitsForItsAddress occupies the port first. The endpoint logs the failure once, and serves when the port is free.
func TestServeWaitsForItsAddress(t *testing.T) {
	held, pc := testutil.ListenBoth(t) // a port that no connection gets by chance
	pc.Close()
	addr := netip.MustParseAddrPort(held.Addr().String())
	out := new(testutil.Output)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		ServeTCP(ctx, NewLogger(out, slog.LevelInfo, false), "health", addr, Health{}.Handler())
	})
	waitFor(t, "the warning", func() bool { return strings.Contains(out.String(), "cannot serve the HTTP endpoint") })
	held.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	waitFor(t, "the endpoint", func() bool {
		r, err := client.Get("http://" + addr.String() + "/healthz")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		body, _ := io.ReadAll(r.Body)
		return string(body) == "alive\n"
	})
	cancel()
	wg.Wait()
	if n := strings.Count(out.String(), "level=WARN"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, out)
	}
	again, err := net.Listen("tcp", addr.String())
	if err != nil {
		t.Fatalf("the port is not free after the end: %v", err)
	}
	again.Close()
}

func TestServeOff(t *testing.T) {
	ServeTCP(context.Background(), slog.New(slog.DiscardHandler), "metrics", netip.AddrPort{}, nil) // returns
}

// TestServeSocket checks that the endpoint replaces a dead agent's socket, and that only root can connect.
func TestServeSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		ServeSocket(ctx, slog.New(slog.DiscardHandler), path, Health{Status: func() any { return "as it is" }}.SocketHandler())
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}}
	waitFor(t, "the status", func() bool {
		r, err := client.Get("http://agent/status")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		body, _ := io.ReadAll(r.Body)
		return string(body) == "\"as it is\"\n"
	})
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	cancel()
	wg.Wait()
}

func TestLogger(t *testing.T) {
	level := new(slog.LevelVar)
	for _, tc := range []struct {
		asJSON bool
		want   string
	}{{false, "level=INFO msg=hello addr=10.0.0.1"}, {true, `"level":"INFO","msg":"hello","addr":"10.0.0.1"`}} {
		out := new(bytes.Buffer)
		log := NewLogger(out, level, tc.asJSON)
		log.Debug("not yet")
		log.Info("hello", "addr", netip.MustParseAddr("10.0.0.1"))
		if !strings.Contains(out.String(), tc.want) || strings.Contains(out.String(), "not yet") {
			t.Errorf("json %v: %s", tc.asJSON, out)
		}
		level.Set(slog.LevelDebug)
		log.Debug("now")
		if !strings.Contains(out.String(), "now") {
			t.Errorf("a new level has no effect")
		}
		level.Set(slog.LevelInfo)
	}
}

func TestTotals(t *testing.T) {
	m := New("v1")
	m.Probe("")
	m.Probe("timeout")
	m.Repair("link")
	if got := m.Totals("neardns_repairs_total", "neardns_none_total", "neardns_probes_total"); got[0] != 1 || got[1] != 0 || got[2] != 2 {
		t.Errorf("totals: %v", got)
	}
}
