package edge_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
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
	write := func(text string) {
		t.Helper()
		testutil.Must(t, os.WriteFile(file+".new", []byte(text), 0o600))
		testutil.Must(t, os.Rename(file+".new", file))
	}
	answers := func(name, want string) error {
		got, err := e.addresses(name)
		if err == nil && !slices.Equal(got, []string{want}) {
			err = fmt.Errorf("%s: %v, want %s", name, got, want)
		}
		return err
	}
	await := func(ask func() error) {
		t.Helper()
		testutil.Eventually(t, ask)
	}
	pid := e.PID()
	for _, geo := range []string{"IE", "DE"} { // the edge's own region, and the client's
		write(first + "geo: {region: [" + geo + "]}\n")
		want := map[string]string{"IE": "203.0.113.1", "DE": "203.0.113.2"}[geo]
		await(func() error { // 20 in a row: before, any cluster was chosen
			for range 20 {
				if err := answers(host, want); err != nil {
					return err
				}
			}
			return nil
		})
	}
	refused := func(n int) func() error {
		return func() error {
			if _, text := e.get("9253/metrics"); !strings.Contains(text, fmt.Sprintf("neardns_edge_reloads_total{result=\"refused\"} %d\n", n)) {
				return fmt.Errorf("not refused %d times\n%s", n, e.Output())
			}
			return nil
		}
	}
	for i, text := range []string{first + "geo: {region: [IRELAND]}\n", "zones: []\n", "", strings.Replace(first, "9254", "9255", 1),
		first + "geo: {region: [IE], database: /nowhere.mmdb}\n"} {
		write(text)
		await(refused(i + 1))
		for range 20 {
			if err := answers(host, "203.0.113.2"); err != nil {
				t.Fatalf("after a configuration that was refused: %v", err)
			}
		}
	}
	if !strings.Contains(e.Output(), "listen.health: takes effect only when the edge starts") {
		t.Errorf("no remedy for what only a start takes over\n%s", e.Output())
	}

	// A second zone comes, and the first one goes.
	keys := filepath.Join(e.folder, "keys")
	testutil.Must(t, os.Mkdir(keys, 0o700))
	for name, text := range map[string]string{"name": other.Edge().Name, "secret": other.Edge().Secret} {
		testutil.Must(t, os.WriteFile(filepath.Join(keys, name), []byte(text), 0o600))
	}
	second := fmt.Sprintf("- {name: other.example, primary: %q, key: %s}\n", other.Addr(), keys)
	write(strings.Replace(first, "zones:\n", "zones:\n"+second, 1))
	await(func() error { return answers("app.other.example.", "203.0.113.9") })
	head, _, _ := strings.Cut(first, "zones:\n")
	_, tail, _ := strings.Cut(first, "stateDir:")
	write(head + "zones:\n" + second + "stateDir:" + tail)
	await(func() error {
		m, err := e.ask(new(dns.Msg).SetQuestion(host, dns.TypeA))
		if err == nil && m.Rcode != dns.RcodeRefused {
			err = fmt.Errorf("%s is still served: %v", host, m)
		}
		return err
	})
	if _, text := e.get("9253/metrics"); strings.Contains(text, p.Zone()) {
		t.Error("metrics still tell of a zone that is gone")
	}
	if err := answers("app.other.example.", "203.0.113.9"); err != nil {
		t.Error(err)
	}
	if e.PID() != pid {
		t.Error("the edge was started anew")
	}
}
