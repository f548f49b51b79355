package edge_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/neardns/neardns/fleet/zones/rfc2136"
	"github.com/neardns/neardns/integration/programs"
	"github.com/neardns/neardns/pkg/testutil"
	"github.com/neardns/neardns/pkg/testutil/zoneserver"
)

var made = programs.Of("neardns-edge", "neardns-controller", "coredns") // coredns for TestBench

func TestMain(m *testing.M) { made.Main(m) }

// node is a namespace with addresses of the Internet's, of which none leads out.
func node(t *testing.T, addresses ...string) *testutil.NetNS {
	t.Helper()
	testutil.RequireRoot(t)
	ns := testutil.NewNS(t, "edge")
	for _, a := range addresses {
		ns.Run("ip", "addr", "add", a, "dev", "lo")
	}
	return ns
}

// edge is a running edge in a namespace.
type edge struct {
	t      *testing.T
	ns     *testutil.NetNS
	folder string
	at     string // its address
	*testutil.Process
}

// start runs an edge of the zone of a primary. more is the rest of its configuration.
func start(t *testing.T, ns *testutil.NetNS, at string, primary *zoneserver.Server, more string) *edge {
	t.Helper()
	e := configure(t, ns, at, primary, more)
	e.run()
	return e
}

// configure is an edge that does not run yet.
func configure(t *testing.T, ns *testutil.NetNS, at string, primary *zoneserver.Server, more string) *edge {
	t.Helper()
	key := primary.Edge()
	return configureOf(t, ns, at, source{primary.Zone(), primary.Addr(), key.Name, key.Secret}, more)
}

// source is a zone's primary, and the key that edges have there.
type source struct {
	zone      string
	at        netip.AddrPort
	key, word string
}

// configureOf is configure with a primary that is no zoneserver.
func configureOf(t *testing.T, ns *testutil.NetNS, at string, from source, more string) *edge {
	t.Helper()
	made.Make(t)
	e := &edge{t: t, ns: ns, folder: t.TempDir(), at: at}
	for name, text := range map[string]string{"name": from.key, "secret": from.word, "config.yaml": fmt.Sprintf(`apiVersion: neardns.io/v1alpha1
kind: EdgeConfig
listen: {dns: [%s], metrics: "%[1]s:9253", health: "%[1]s:9254"}
zones:
- name: %s
  primary: "%s"
  key: %s
  targets: [203.0.113.0/24]
  notify: [%[1]s] # in one namespace a server's own address is its source to this one
stateDir: %[4]s/state
%s`, at, from.zone, from.at, e.folder, more)} {
		testutil.Must(t, os.WriteFile(filepath.Join(e.folder, name), []byte(text), 0o600))
	}
	return e
}

// steady sends so many queries for a host's one address, a thousand a second at most and less often if a busy machine holds up many answers
// at once, for which sockets have no room. It fails unless each is answered with it.
func (e *edge) steady(host string, queries int) {
	t := e.t
	t.Helper()
	conn, err := e.dial(t.Context(), "udp", net.JoinHostPort(e.at, "53"))
	testutil.Must(t, err)
	defer conn.Close()
	got, done := new(atomic.Int64), make(chan struct{})
	go func() { // ends with conn
		defer close(done)
		b := make([]byte, 4096)
		for {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			m := new(dns.Msg)
			if m.Unpack(b[:n]) == nil && m.Rcode == dns.RcodeSuccess && len(m.Answer) == 1 {
				got.Add(1)
			}
		}
	}()
	question, err := new(dns.Msg).SetQuestion(host, dns.TypeA).Pack()
	testutil.Must(t, err)
	tick := time.NewTicker(time.Millisecond)
	for asked := 0; asked < queries; {
		<-tick.C
		if asked-int(got.Load()) < 100 {
			_, err := conn.Write(question)
			testutil.Must(t, err)
			asked++
		}
	}
	tick.Stop()
	testutil.Eventually(t, func() error {
		n := got.Load()
		return testutil.ErrorIf(int(n) != queries, "%d of %d queries answered", n, queries)
	})
	conn.Close()
	<-done
}

// run starts the program, again after its end, and waits until it answers.
func (e *edge) run() {
	e.t.Helper()
	e.Process = e.ns.StartCmd(exec.CommandContext(e.t.Context(), made.Path("neardns-edge"), "--config",
		filepath.Join(e.folder, "config.yaml")))
	testutil.Eventually(e.t, func() error {
		code, text := e.get("9254/readyz")
		return testutil.ErrorIf(code != http.StatusOK, "readyz: %d %s\n%s", code, text, e.Output())
	})
}

// get reads an HTTP endpoint of the edge.
func (e *edge) get(portAndPath string) (code int, text string) {
	client := http.Client{Timeout: testutil.Attempt, Transport: &http.Transport{DisableKeepAlives: true, DialContext: e.dial}}
	r, err := client.Get("http://" + e.at + ":" + portAndPath)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	body, _ := io.ReadAll(r.Body) // what came before an error is shown
	return r.StatusCode, string(body)
}

// dial connects from within the namespace.
func (e *edge) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	e.ns.Do(func() { conn, err = new(net.Dialer).DialContext(ctx, network, address) })
	return conn, err
}

// ask sends one query over UDP.
func (e *edge) ask(m *dns.Msg) (*dns.Msg, error) {
	conn, err := e.dial(e.t.Context(), "udp", net.JoinHostPort(e.at, "53"))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, _, err := (&dns.Client{Timeout: testutil.Attempt}).ExchangeWithConn(m, &dns.Conn{Conn: conn, UDPSize: 4096})
	return answer, err
}

// addresses looks up a host's addresses.
func (e *edge) addresses(host string) (out []string, err error) {
	m, err := e.ask(new(dns.Msg).SetQuestion(host, dns.TypeA))
	if err != nil {
		return nil, err
	}
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			out = append(out, a.A.String())
		}
	}
	return out, nil
}

// primary starts a zone server at 192.0.2.53 of a namespace.
func primary(t *testing.T, ns *testutil.NetNS, kind zoneserver.Kind, notify ...netip.AddrPort) *zoneserver.Server {
	t.Helper()
	zoneserver.Require(t, kind)
	var filler []string // BIND transfers a zone whole where that is shorter than its changes
	for i := range 100 {
		filler = append(filler, fmt.Sprintf("filler%d 30 IN TXT \"records that stay\"", i))
	}
	return zoneserver.Start(t, kind, zoneserver.Config{In: ns, Address: netip.MustParseAddr("192.0.2.53"), Notify: notify, Records: filler})
}

// publication is what one cluster publishes of one host.
type publication struct {
	host, cluster string // the host relative to the zone
	strategy      string // simple, loadbalanced
	geo           string
	more          []string // strings of the claim besides: a health check, a default geo
	addresses     []string
}

// records are a publication's, but for the bookkeeping that only writers read.
func (p publication) records(t *testing.T, origin string) (out []dns.RR) {
	t.Helper()
	claim := []string{"v=1", "gen=1", "inst=one", "weight=1"}
	if p.geo != "" {
		claim = append(claim, "geo="+p.geo)
	}
	claim = append(append(claim, p.more...), "addr="+strings.Join(p.addresses, ","))
	text := func(name string, strs ...string) string {
		return name + `. 30 IN TXT "` + strings.Join(strs, `" "`) + `"`
	}
	lines := []string{text(p.host+"."+p.cluster+"._neardns."+origin, claim...), text(p.host+".s._shared._neardns."+origin, "v=1", "strategy="+p.strategy, "ttl=30")}
	for _, a := range p.addresses {
		lines = append(lines, p.host+"."+origin+". 30 IN A "+a)
	}
	for _, line := range lines {
		rr, err := dns.NewRR(line)
		testutil.Must(t, err)
		out = append(out, rr)
	}
	return out
}

// publish writes a publication into a primary's zone, again where PowerDNS answers SERVFAIL: its database is locked while it writes itself,
// as after a NOTIFY.
func publish(t *testing.T, s *zoneserver.Server, p publication) {
	t.Helper()
	k := s.Operator()
	writer := rfc2136.Client{Zone: s.Zone(), Timeout: testutil.Attempt,
		Key: func() (rfc2136.Key, error) {
			return rfc2136.Key{Name: k.Name, Algorithm: dns.HmacSHA256, Secret: k.Secret}, nil
		},
		Dial: func(context.Context, string, string) (net.Conn, error) {
			conn, err := s.Dial()
			if err != nil {
				return nil, err
			}
			return conn.Conn, nil
		}}
	records := p.records(t, strings.TrimSuffix(s.Zone(), "."))
	testutil.Eventually(t, func() error { return writer.Update(t.Context(), nil, records) })
}
