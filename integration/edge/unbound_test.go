package edge_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

// unboundConf is a resolver that shows its clients' networks to the edge, and keeps answers by them.
const unboundConf = `server:
  chroot: ""
  username: ""
  directory: "FOLDER"
  pidfile: ""
  use-syslog: no
  interface: 192.0.2.70
  access-control: 0.0.0.0/0 allow
  do-not-query-localhost: no
  module-config: "subnetcache iterator"
  send-client-subnet: 192.0.2.10
  max-client-subnet-ipv4: 24
stub-zone:
  name: shared.example
  stub-addr: 192.0.2.10
`

// TestThroughUnbound: clients behind one resolver that caches by client subnet get their own regions' clusters, also from its cache: an
// answer's scope has no client of another region.
func TestThroughUnbound(t *testing.T) {
	t.Parallel()
	unbound, err := exec.LookPath("unbound")
	if err != nil {
		testutil.Skip(t, "needs Debian's package unbound")
	}
	clients := map[string]string{"10.1.0.1": "203.0.113.1", "10.1.77.1": "203.0.113.1", "10.1.128.1": "203.0.113.2", "10.1.200.1": "203.0.113.2", "10.2.0.1": "203.0.113.3",
		"10.3.0.1": "203.0.113.1"}
	addresses := []string{"192.0.2.53/32", edgeAt + "/32", "192.0.2.70/32"}
	for from := range clients {
		addresses = append(addresses, from+"/32")
	}
	ns := node(t, addresses...)
	p := primary(t, ns, zoneserver.Knot)
	e := start(t, ns, edgeAt, p, `rate: {answers: 0}
geo:
  region: [IE]
  resolvers: [192.0.2.70, 192.0.2.10]
  ranges: [{network: 10.1.0.0/16, codes: [IE]}, {network: 10.1.128.0/17, codes: [DE]}, {network: 10.2.0.0/16, codes: [US]}]
`)
	for i, geo := range []string{"ie", "de", "us"} {
		publish(t, p, publication{host: "app", cluster: fmt.Sprintf("cluster%02d", i), strategy: "loadbalanced", geo: geo, addresses: []string{fmt.Sprintf("203.0.113.%d", i+1)}})
	}
	host := "app." + p.Zone()
	testutil.Eventually(t, func() error {
		last, err := e.ask(new(dns.Msg).SetQuestion("app.cluster02._neardns."+p.Zone(), dns.TypeTXT))
		if err == nil && len(last.Answer) == 0 {
			err = fmt.Errorf("the last cluster is not at the edge: %v", last)
		}
		return err
	})
	folder := t.TempDir()
	conf := filepath.Join(folder, "unbound.conf")
	testutil.Must(t, os.WriteFile(conf, []byte(strings.ReplaceAll(unboundConf, "FOLDER", folder)), 0o644))
	process := ns.StartCmd(exec.CommandContext(t.Context(), unbound, "-d", "-c", conf))
	ask := func(from string) (string, error) {
		var m *dns.Msg
		var err error
		ns.Do(func() {
			d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}, Timeout: testutil.Attempt}
			var conn net.Conn
			if conn, err = d.DialContext(t.Context(), "udp", "192.0.2.70:53"); err != nil {
				return
			}
			defer conn.Close()
			m, _, err = (&dns.Client{Timeout: testutil.Attempt}).ExchangeWithConn(new(dns.Msg).SetQuestion(host, dns.TypeA), &dns.Conn{Conn: conn})
		})
		if err != nil {
			return "", err
		}
		for _, rr := range m.Answer {
			if a, ok := rr.(*dns.A); ok {
				return a.A.String(), nil
			}
		}
		return "", fmt.Errorf("%v", m)
	}
	testutil.Eventually(t, func() error {
		_, err := ask("10.2.0.1")
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, process.Output())
		}
		return err
	})
	for range 3 { // from the second time on out of unbound's cache
		for from, want := range clients {
			if got, err := ask(from); got != want || err != nil {
				t.Errorf("%s got %s, want %s (%v)", from, got, want, err)
			}
		}
	}
}
