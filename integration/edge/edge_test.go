package edge_test

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

const edgeAt = "192.0.2.10"

// TestFollows: each change comes to an edge, with NOTIFY and without, from each of the three servers. TestTimingFollows has the time.
func TestFollows(t *testing.T) {
	onPrimaries(t, func(t *testing.T, kind zoneserver.Kind, notify bool) {
		t.Parallel()
		follow(t, kind, notify, 3, func(wait func()) { wait() })
	})
}

func onPrimaries(t *testing.T, f func(t *testing.T, kind zoneserver.Kind, notify bool)) {
	for _, kind := range zoneserver.Kinds() {
		for _, notify := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, NOTIFY %t", kind, notify), func(t *testing.T) { f(t, kind, notify) })
		}
	}
}

// follow publishes changes at a primary one after the other. Each time it calls await, with what waits until the edge has the change.
func follow(t *testing.T, kind zoneserver.Kind, notify bool, changes int, await func(wait func())) {
	t.Helper()
	ns := node(t, "192.0.2.53/32", edgeAt+"/32")
	var notified []netip.AddrPort
	if notify {
		notified = []netip.AddrPort{netip.MustParseAddrPort(edgeAt + ":53")}
	}
	p := primary(t, ns, kind, notified...)
	e := start(t, ns, edgeAt, p, "")
	for i := range changes {
		name := fmt.Sprintf("h%d", i)
		publish(t, p, publication{host: name, cluster: "cluster01", strategy: "simple", addresses: []string{"203.0.113.1"}})
		await(func() { e.await(name+"."+p.Zone(), "203.0.113.1") })
	}
	// PowerDNS answers IXFR with the whole zone. On a busy machine a look that had no answer is followed by a whole transfer elsewhere, too.
	none := fmt.Sprintf("neardns_edge_zone_transfers_total{result=\"steps\",zone=%q} 0\n", p.Zone())
	if _, text := e.get("9253/metrics"); strings.Contains(text, none) != (kind == zoneserver.PowerDNS) {
		t.Errorf("no change came by steps: %t, want the contrary", kind != zoneserver.PowerDNS)
	}
}

// await waits until a host has just this address.
func (e *edge) await(host, address string) {
	e.t.Helper()
	testutil.Eventually(e.t, func() error { return e.answers(host, address) })
}

// answers returns an error unless a host has just this address.
func (e *edge) answers(host, address string) error {
	got, err := e.addresses(host)
	return testutil.ErrorIf(err != nil || !slices.Equal(got, []string{address}), "%s: %v, %v, want %s", host, got, err, address)
}

// shows waits until the metrics have a line.
func (e *edge) shows(line string) {
	e.t.Helper()
	testutil.Eventually(e.t, func() error {
		_, text := e.get("9253/metrics")
		return testutil.ErrorIf(!strings.Contains(text, line+"\n"), "%s is not shown\n%s", line, e.Output())
	})
}

// saved returns an error unless the disk has a record of a zone whose name begins with start.
func (e *edge) saved(zone, start string) error {
	text, err := os.ReadFile(filepath.Join(e.folder, "state", strings.TrimSuffix(zone, ".")+".zone"))
	return testutil.ErrorIf(err != nil || !strings.Contains(string(text), "\n"+start), "%s is not on the disk: %v", start, err)
}

// TestPrimaryAway: no query is lost while the primary is away, and over a restart of the edge the zone is there; when the primary is
// back, so are its changes.
func TestPrimaryAway(t *testing.T) {
	t.Parallel()
	ns := node(t, "192.0.2.53/32", edgeAt+"/32")
	p := primary(t, ns, zoneserver.BIND)
	e := start(t, ns, edgeAt, p, "rate: {answers: 0}\n")
	host := "app." + p.Zone()
	publish(t, p, publication{host: "app", cluster: "cluster01", strategy: "loadbalanced", addresses: []string{"203.0.113.1"}})
	e.await(host, "203.0.113.1")
	p.Kill()
	away, err := time.ParseDuration(os.Getenv("NEARDNS_EDGE_AWAY"))
	if err != nil {
		away = 5 * time.Second
	}
	e.steady(host, int(away/time.Millisecond))

	testutil.Eventually(t, func() error { return e.saved(p.Zone(), host) }) // a slow disk takes its time
	e.Kill()
	e.run() // ready without the primary: the zone is on disk
	testutil.Check(t, e.answers(host, "203.0.113.1"), "after a restart without the primary")
	testutil.Eventually(t, func() error {
		_, text := e.get("9253/metrics")
		return testutil.ErrorIf(!strings.Contains(text, "neardns_edge_zone_age_seconds"), "the zone's age is not shown")
	})
	p.Run()
	publish(t, p, publication{host: "new", cluster: "cluster02", strategy: "simple", addresses: []string{"203.0.113.2"}})
	e.await("new."+p.Zone(), "203.0.113.2")
}

// TestTargetDies: an address whose target dies leaves the answers, and is back after its target; the answer is never empty. The bounds of
// both are shown by the tests of health checks.
func TestTargetDies(t *testing.T) {
	t.Parallel()
	ns := node(t, "192.0.2.53/32", edgeAt+"/32", "203.0.113.1/32", "203.0.113.2/32")
	p := primary(t, ns, zoneserver.Knot)
	serve := func(at string) *http.Server {
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" || !strings.HasPrefix(r.Host, "app.") {
				w.WriteHeader(http.StatusNotFound)
			}
		}), ReadHeaderTimeout: time.Second}
		var l net.Listener
		var err error
		ns.Do(func() { l, err = net.Listen("tcp", at) })
		testutil.Must(t, err)
		go func() { _ = s.Serve(l) }() // ends with s
		t.Cleanup(func() { s.Close() })
		return s
	}
	serve("203.0.113.1:8080")
	dying := serve("203.0.113.2:8080")
	e := start(t, ns, edgeAt, p, "rate: {answers: 0}\n")
	host := "app." + p.Zone()
	publish(t, p, publication{host: "app", cluster: "cluster01", strategy: "simple", more: []string{"check=http:8080", "path=/healthz"},
		addresses: []string{"203.0.113.1", "203.0.113.2"}})
	known := false // at the edge
	wait := func(want int) {
		t.Helper()
		testutil.Eventually(t, func() error {
			got, err := e.addresses(host)
			if err == nil && known && len(got) == 0 {
				t.Error("an empty answer")
			}
			if err == nil && len(got) != want {
				err = fmt.Errorf("%v", got)
			}
			return err
		})
	}
	wait(2)
	known = true
	e.shows(`neardns_edge_targets{state="well"} 2`) // both were queried
	dying.Close()
	wait(1)
	serve("203.0.113.2:8080")
	wait(2)
}
