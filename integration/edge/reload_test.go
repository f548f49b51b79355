package edge_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// TestReload: a changed EdgeConfig is taken over while the edge answers; one with a fault, or with a change that only a start takes over,
// changes nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	ns := node(t, "192.0.2.53/32", "192.0.2.54/32", edgeAt+"/32", "10.1.0.1/32")
	p := primary(t, ns, zoneserver.Knot)
	other := zoneserver.Start(t, zoneserver.Knot, zoneserver.Config{In: ns, Address: netip.MustParseAddr("192.0.2.54"), Zone: "other.example"})
	e := start(t, ns, edgeAt, p, "rate: {answers: 0}\n")
	host := "app." + p.Zone()
	for i, geo := range []string{"ie", "de"} {
		publish(t, p, publication{host: "app", cluster: fmt.Sprintf("cluster%02d", i), strategy: "loadbalanced", geo: geo, addresses: []string{fmt.Sprintf("203.0.113.%d", i+1)}})
	}
	publish(t, other, publication{host: "app", cluster: "cluster09", strategy: "simple", addresses: []string{"203.0.113.9"}})
	file := filepath.Join(e.folder, "config.yaml")
	first := testutil.ReadFile(t, file)
	twenty := func(want string) error { // in a row: before, any cluster was chosen
		for range 20 {
			if err := e.answers(host, want); err != nil {
				return err
			}
		}
		return nil
	}
	pid := e.PID()
	for _, geo := range []string{"IE", "DE"} { // the edge's own region, and the client's
		testutil.WriteFile(t, file, first+"geo: {region: ["+geo+"]}\n")
		want := map[string]string{"IE": "203.0.113.1", "DE": "203.0.113.2"}[geo]
		testutil.Eventually(t, func() error { return twenty(want) })
	}
	for i, text := range []string{first + "geo: {region: [IRELAND]}\n", "zones: []\n", "", strings.Replace(first, "9254", "9255", 1),
		first + "geo: {region: [IE], database: /nowhere.mmdb}\n"} {
		testutil.WriteFile(t, file, text)
		e.shows(fmt.Sprintf("neardns_edge_reloads_total{result=\"refused\"} %d", i+1))
		testutil.Check(t, twenty("203.0.113.2"), "after a configuration that was refused")
	}
	if !strings.Contains(e.Output(), "listen.health: takes effect only when the edge starts") {
		t.Errorf("no remedy for what only a start takes over\n%s", e.Output())
	}

	// A second zone comes, and the first one goes.
	keys := filepath.Join(e.folder, "keys")
	testutil.WriteFile(t, filepath.Join(keys, "name"), other.Edge().Name)
	testutil.WriteFile(t, filepath.Join(keys, "secret"), other.Edge().Secret)
	second := fmt.Sprintf("- {name: other.example, primary: %q, key: %s}\n", other.Addr(), keys)
	testutil.WriteFile(t, file, strings.Replace(first, "zones:\n", "zones:\n"+second, 1))
	e.await("app.other.example.", "203.0.113.9")
	head, _, _ := strings.Cut(first, "zones:\n")
	_, tail, _ := strings.Cut(first, "stateDir:")
	testutil.WriteFile(t, file, head+"zones:\n"+second+"stateDir:"+tail)
	testutil.Eventually(t, func() error {
		m, err := e.ask(new(dns.Msg).SetQuestion(host, dns.TypeA))
		return testutil.ErrorIf(err != nil || m.Rcode != dns.RcodeRefused, "%s is still served: %v, %v", host, m, err)
	})
	if _, text := e.get("9253/metrics"); strings.Contains(text, p.Zone()) {
		t.Error("metrics still tell of a zone that is gone")
	}
	testutil.Check(t, e.answers("app.other.example.", "203.0.113.9"))
	if e.PID() != pid {
		t.Error("the edge was started anew")
	}
}
