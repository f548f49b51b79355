package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/neardns/neardns/pkg/nodestate"
	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/golden"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

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

// exports reports whether a series with this prefix is exported.
func exports(t *testing.T, m *Metrics, prefix string) bool {
	t.Helper()
	families, err := m.registry.Gather()
	testutil.Must(t, err)
	return slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return strings.HasPrefix(f.GetName(), prefix) })
}

// TestKernelHitsAuto: in mode auto, no series reports that kernel hits are missing, so no alert fires.
func TestKernelHitsAuto(t *testing.T) {
	for _, k := range []KernelHits{{Auto: true}, {Auto: true, OK: true}, {}} {
		m := New("v0.1.0")
		m.CollectKernelHits(func() (KernelHits, bool) { return k, true })
		testutil.Equal(t, fmt.Sprintf("neardns_kernel_ok of %+v", k), k.OK || !k.Auto, exports(t, m, "neardns_kernel_ok"))
	}
}

// Without a watch, its series do not exist.
func TestNoWatch(t *testing.T) {
	m := New("v0.1.0")
	m.CollectWatch(func() (nodestate.Watch, bool, error) { return nodestate.Watch{}, false, nil })
	if exports(t, m, "neardns_conflist") {
		t.Error("the watch's series are exported")
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
		testutil.Equal(t, fmt.Sprint("config_ok after step ", i), step.want, promtest.ToFloat64(m.config))
	}
	if got := m.Totals("neardns_none_total", "neardns_reloads_total"); got[0] != 0 || got[1] != 3 {
		t.Errorf("totals %v, want no others and 3 reloads", got)
	}
}

// TestLeaseGone checks that a removed lease has no series, and that its counts start at zero when it is wanted again.
func TestLeaseGone(t *testing.T) {
	m := New("v0.1.0")
	addr := netip.MustParseAddr("169.254.20.11")
	for range 2 {
		m.Lease(addr, steer.UDP, true)
		testutil.Equal(t, "changes", 1, promtest.ToFloat64(m.changes))
		m.LeaseGone(addr, steer.UDP)
		testutil.Equal(t, "series of a lease that is not wanted", 0, promtest.CollectAndCount(m.lease)+promtest.CollectAndCount(m.changes))
	}
}

func TestMetrics(t *testing.T) {
	m := everything()
	families, err := m.registry.Gather()
	testutil.Must(t, err)
	if problems, err := promtest.GatherAndLint(m.registry); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	var got strings.Builder
	for _, f := range families {
		if f.GetName() == "neardns_build_info" {
			continue
		}
		_, err := expfmt.MetricFamilyToText(&got, f)
		testutil.Must(t, err)
	}
	golden.Check(t, "metrics.txt", got.String())
}

// get returns a handler's answer.
func get(h http.Handler, path string) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
	return rec
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
	rec := get(handler, "/v1/status")
	if rec.Body.String() != "[\n  \"x\"\n]\n" || rec.Header().Get("Content-Type") != "application/json" {
		t.Errorf("the overview: %s %v", rec.Body, rec.Header())
	}
	rec = get(handler, "/metrics")
	body := rec.Body.String()
	for _, want := range []string{`neardns_build_info{goversion="go`, `version="v0.1.0"`, "coredns_test_total 0", "go_goroutines", "process_open_fds"} {
		if !strings.Contains(body, want) {
			t.Errorf("%q is missing", want)
		}
	}
	testutil.Equal(t, "status", http.StatusOK, rec.Code)
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
		if rec := get(h.SocketHandler(), tc.path); rec.Code != tc.code || rec.Body.String() != tc.body {
			t.Errorf("%s, ready %v: %d %q, want %d %q", tc.path, tc.ready, rec.Code, rec.Body, tc.code, tc.body)
		}
	}
	for path, want := range map[string]int{"/healthz": 200, "/status": 404, "/pods": 404, "/config": 404} {
		if code := get(h.Handler(), path).Code; code != want {
			t.Errorf("%s over TCP: %d, want %d: what names pods is for the socket alone", path, code, want)
		}
	}
}

// body returns what is served at a URL, or the error.
func body(client *http.Client, url string) string {
	r, err := client.Get(url)
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	return string(text)
}

// TestServeWaitsForItsAddress occupies the port first. The endpoint logs the failure once, and serves when the port is free.
func TestServeWaitsForItsAddress(t *testing.T) {
	testutil.RequireRoot(t)            // the endpoint waits before it tries again
	held, pc := testutil.ListenBoth(t) // a port that no connection gets by chance
	pc.Close()
	addr := netip.MustParseAddrPort(held.Addr().String())
	out := new(testutil.Output)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		ServeTCP(ctx, NewLogger(out, slog.LevelInfo, false), "health", addr, Health{}.Handler())
	})
	testutil.WaitFor("the warning", func() bool { return strings.Contains(out.String(), "cannot serve the HTTP endpoint") })
	held.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	testutil.WaitFor("the endpoint", func() bool { return body(client, "http://"+addr.String()+"/healthz") == "alive\n" })
	cancel()
	wg.Wait()
	testutil.Equal(t, "warnings", 1, strings.Count(out.String(), "level=WARN"))
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
	testutil.Must(t, os.WriteFile(path, nil, 0o644))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		ServeSocket(ctx, slog.New(slog.DiscardHandler), path, Health{Status: func() any { return "as it is" }}.SocketHandler())
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}}
	testutil.WaitFor("the status", func() bool { return body(client, "http://agent/status") == "\"as it is\"\n" })
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	cancel()
	wg.Wait()
}

func TestLogger(t *testing.T) {
	for asJSON, want := range map[bool]string{false: "level=INFO msg=hello addr=10.0.0.1",
		true: `"level":"INFO","msg":"hello","addr":"10.0.0.1"`} {
		out := new(bytes.Buffer)
		var level slog.LevelVar
		log := NewLogger(out, &level, asJSON)
		log.Debug("not yet")
		log.Info("hello", "addr", netip.MustParseAddr("10.0.0.1"))
		level.Set(slog.LevelDebug) // at a reload
		log.Debug("now")
		if text := out.String(); !strings.Contains(text, want) || strings.Contains(text, "not yet") || !strings.Contains(text, "now") {
			t.Errorf("json %v: %s", asJSON, text)
		}
	}
}
