package edge_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/mmdb"
	"github.com/neardns/neardns/pkg/testutil/torgeo"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// plainZone is what a zone has without its hosts.
const plainZone = `@ 30 IN SOA ns h 1 60 60 3600 60
@ 30 IN NS ns
ns 30 IN A 192.0.2.53
`

// countries are those that the sample is of, and each gets an address of its own; all others get that of the default geo.
var countries = []string{"US", "DE", "GB", "FR", "JP", "BR", "IN", "ZA", "AU", "IE"}

func addressOf(country string) string {
	return fmt.Sprintf("203.0.113.%d", slices.Index(countries, country)+2) // the default: 1
}

// database makes a MaxMind DB of Debian's IPv4 ranges by country (tor-geoipdb), every 40th, and returns addresses of the sample and around.
func database(t *testing.T, file string) (sample []netip.Addr) {
	t.Helper()
	w := mmdb.New(t)
	rng := rand.New(rand.NewPCG(15, 14))
	torgeo.Ranges(t, 40, func(from, to netip.Addr, country string) {
		if !from.Is4() {
			return
		}
		w.InsertRange(from, to, mmdb.Map{"country": mmdb.Map{"iso_code": country}})
		if rng.IntN(12) == 0 {
			sample = append(sample, from, to, to.Next())
		}
	})
	testutil.Must(t, os.WriteFile(file, w.Bytes("GeoLite2-Country"), 0o644))
	rng.Shuffle(len(sample), func(i, j int) { sample[i], sample[j] = sample[j], sample[i] })
	return sample[:150]
}

// TestSameAsBIND queries an edge and BIND, with views by its geoip ACL, from the same addresses and with the same database.
func TestSameAsBIND(t *testing.T) {
	t.Parallel()
	const bindAt = "192.0.2.60"
	ns := node(t, "192.0.2.53/32", edgeAt+"/32", bindAt+"/32")
	folder := t.TempDir()
	sample := database(t, filepath.Join(folder, "GeoLite2-Country.mmdb"))
	p := primary(t, ns, zoneserver.BIND)
	e := start(t, ns, edgeAt, p, "rate: {answers: 0}\ngeo: {database: "+folder+"/GeoLite2-Country.mmdb}\n")
	publish(t, p, publication{host: "app", cluster: "default00", strategy: "loadbalanced", geo: "zz", more: []string{"default=1"}, addresses: []string{addressOf("")}})

	// BIND's side, as its manual has it.
	conf := fmt.Sprintf("options { directory %q; pid-file none; session-keyfile %q; recursion no; listen-on { %s; }; listen-on-v6 { none; }; geoip-directory %[1]q; };\ncontrols { };\n",
		folder, filepath.Join(folder, "session.key"), bindAt)
	for i, country := range append(slices.Clone(countries), "") {
		who := "any;"
		if country != "" {
			publish(t, p, publication{host: "app", cluster: fmt.Sprintf("cluster%02d", i), strategy: "loadbalanced", geo: strings.ToLower(country), addresses: []string{addressOf(country)}})
			who = "geoip country " + country + ";"
		}
		zone := filepath.Join(folder, "zone"+country)
		testutil.Must(t, os.WriteFile(zone, []byte(plainZone+"app 30 IN A "+addressOf(country)+"\n"), 0o644))
		conf += fmt.Sprintf("view \"v%s\" { match-clients { %s }; zone \"shared.example\" { type primary; file %q; }; };\n", country, who, zone)
	}
	testutil.Must(t, os.WriteFile(filepath.Join(folder, "named.conf"), []byte(conf), 0o644))
	named := ns.StartCmd(exec.CommandContext(t.Context(), "/usr/sbin/named", "-g", "-c", filepath.Join(folder, "named.conf")))
	bind := &edge{t: t, ns: ns, at: bindAt, Process: named}
	host := "app." + p.Zone()
	testutil.Eventually(t, func() error {
		if _, err := bind.addresses(host); err != nil {
			return fmt.Errorf("%w\n%s", err, named.Output())
		}
		last, err := e.ask(new(dns.Msg).SetQuestion(fmt.Sprintf("app.cluster%02d._neardns.%s", len(countries)-1, p.Zone()), dns.TypeTXT))
		if err == nil && len(last.Answer) == 0 {
			err = fmt.Errorf("the last cluster is not at the edge: %v", last)
		}
		return err
	})
	met := map[string]int{}
	for _, from := range sample {
		ns.Run("ip", "addr", "add", from.String()+"/32", "dev", "lo")
		var said [2]string
		for i, server := range []string{edgeAt, bindAt} {
			var err error
			ns.Do(func() {
				d := net.Dialer{LocalAddr: &net.UDPAddr{IP: from.AsSlice()}, Timeout: testutil.Attempt}
				var conn net.Conn
				if conn, err = d.DialContext(t.Context(), "udp", net.JoinHostPort(server, "53")); err != nil {
					return
				}
				defer conn.Close()
				var m *dns.Msg
				if m, _, err = (&dns.Client{Timeout: testutil.Attempt}).ExchangeWithConn(new(dns.Msg).SetQuestion(host, dns.TypeA), &dns.Conn{Conn: conn}); err != nil {
					return
				}
				for _, rr := range m.Answer {
					said[i] += strings.TrimPrefix(rr.String(), rr.Header().String())
				}
			})
			if err != nil {
				t.Fatalf("%s from %s: %v", server, from, err)
			}
		}
		if said[0] != said[1] || said[0] == "" {
			t.Errorf("%s: the edge says %q, BIND %q", from, said[0], said[1])
		}
		met[said[0]]++
		ns.Run("ip", "addr", "del", from.String()+"/32", "dev", "lo")
	}
	t.Logf("%d addresses, %v", len(sample), met)
	if len(met) < 5 {
		t.Errorf("only %d different answers: %v", len(met), met)
	}
}

// TestStartsWithoutGeoDatabase: a download that failed costs the places, not the server. The database is used as soon as it is there.
func TestStartsWithoutGeoDatabase(t *testing.T) {
	t.Parallel()
	ns := node(t, "192.0.2.53/32", edgeAt+"/32")
	file := filepath.Join(t.TempDir(), "geo.mmdb")
	p := primary(t, ns, zoneserver.BIND)
	publish(t, p, publication{host: "app", cluster: "cluster00", strategy: "simple", addresses: []string{"203.0.113.1"}})
	e := start(t, ns, edgeAt, p, "geo: {database: "+file+"}\n")
	shows := func(line string) {
		t.Helper()
		testutil.Eventually(t, func() error {
			if _, text := e.get("9253/metrics"); !strings.Contains(text, line+"\n") {
				return fmt.Errorf("%s is not shown\n%s", line, e.Output())
			}
			return nil
		})
	}
	shows("neardns_edge_config_ok 0")
	testutil.Eventually(t, func() error {
		got, err := e.addresses("app." + p.Zone())
		if err == nil && !slices.Equal(got, []string{"203.0.113.1"}) {
			err = fmt.Errorf("answered %v", got)
		}
		return err
	})
	if !strings.Contains(e.Output(), "geo.database") {
		t.Errorf("the log has no reason\n%s", e.Output())
	}
	database(t, file+".new")
	testutil.Must(t, os.Rename(file+".new", file))
	shows("neardns_edge_config_ok 1")
	shows(`neardns_edge_reloads_total{result="taken"} 1`)
}
