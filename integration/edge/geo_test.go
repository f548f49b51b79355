package edge_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/mmdb"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// TestStartsWithoutGeoDatabase: a download that failed costs the places, not the server. As soon as the database is there, a client gets the
// cluster of its own place; TestOracle (fleet/edge/geo) compares places with those of MaxMind's own program.
func TestStartsWithoutGeoDatabase(t *testing.T) {
	t.Parallel()
	ns := node(t, "192.0.2.53/32", edgeAt+"/32")
	file := filepath.Join(t.TempDir(), "geo.mmdb")
	p := primary(t, ns, zoneserver.BIND)
	for i, geo := range []string{"de", "ie"} {
		publish(t, p, publication{host: "app", cluster: fmt.Sprintf("cluster%02d", i), strategy: "loadbalanced", geo: geo, addresses: []string{fmt.Sprintf("203.0.113.%d", i+1)}})
	}
	e := start(t, ns, edgeAt, p, "rate: {answers: 0}\ngeo: {database: "+file+"}\n")
	answered := func() string {
		t.Helper()
		got, err := e.addresses("app." + p.Zone())
		testutil.Must(t, err)
		return strings.Join(got, " ")
	}
	e.shows("neardns_edge_config_ok 0")
	if got := answered(); !slices.Contains([]string{"203.0.113.1", "203.0.113.2"}, got) {
		t.Errorf("without a database: %q", got)
	}
	testutil.Eventually(t, func() error {
		return testutil.ErrorIf(!strings.Contains(e.Output(), "geo.database"), "the log has no reason\n%s", e.Output())
	})
	w := mmdb.New(t)
	w.Insert(netip.MustParsePrefix(edgeAt+"/32"), mmdb.Map{"country": mmdb.Map{"iso_code": "IE"}}) // on one node, it is also the client's address
	testutil.WriteFile(t, file, string(w.Bytes("GeoLite2-Country")))
	e.shows("neardns_edge_config_ok 1")
	e.shows(`neardns_edge_reloads_total{result="taken"} 1`)
	for range 20 { // before, either cluster was chosen
		if got := answered(); got != "203.0.113.2" {
			t.Fatalf("a client in Ireland got %q", got)
		}
	}
}
