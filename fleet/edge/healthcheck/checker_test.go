package healthcheck_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/neardns/neardns/fleet/edge/healthcheck"
	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { testutil.NoLeaks(m) }

// The images have no certificates, so the program brings the authorities: a second set of them is refused.
func TestRootsWithoutFiles(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("HTTPS checks trust no authority where the system has none")
		}
	}()
	x509.SetFallbackRoots(x509.NewCertPool())
}

var (
	quiet   = slog.New(slog.DiscardHandler)
	ranges  = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}
	address = netip.MustParseAddr("192.0.2.1")
)

// by returns checks as those of one cluster.
func by(checks ...healthcheck.Check) map[string][]healthcheck.Check {
	return map[string][]healthcheck.Check{"cluster1": checks}
}

// checker ends with the test.
func checker(t *testing.T, log *slog.Logger, o healthcheck.Options) *healthcheck.Checker {
	t.Helper()
	c := healthcheck.New(t.Context(), log, o)
	t.Cleanup(c.Wait)
	return c
}

// TestPermit has what a peer may write into a zone to have an edge connect elsewhere.
func TestPermit(t *testing.T) {
	everywhere := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	tcp := func(a string) healthcheck.Check {
		return healthcheck.Check{Address: netip.MustParseAddr(a), Protocol: healthcheck.TCP, Port: 443}
	}
	web := func(p healthcheck.Protocol, path, host string) healthcheck.Check {
		return healthcheck.Check{Address: address, Protocol: p, Port: 80, Path: path, Host: host}
	}
	for name, row := range map[string]struct {
		check  healthcheck.Check
		ranges []netip.Prefix
		want   string // of the error; "": permitted
	}{
		"in range":              {tcp("192.0.2.1"), ranges, ""},
		"in range, IPv6":        {tcp("2001:db8::1"), ranges, ""},
		"out of range":          {tcp("198.51.100.1"), ranges, "in none of the zone's target ranges"},
		"no ranges":             {tcp("192.0.2.1"), nil, "in none of the zone's target ranges"},
		"loopback":              {tcp("127.0.0.1"), everywhere, "loopback"},
		"loopback, another":     {tcp("127.1.2.3"), everywhere, "loopback"},
		"loopback, IPv6":        {tcp("::1"), everywhere, "loopback"},
		"loopback, mapped":      {tcp("::ffff:127.0.0.1"), everywhere, "an IPv4 mapping"},
		"metadata services":     {tcp("169.254.169.254"), everywhere, "link-local"},
		"link-local, IPv6":      {tcp("fe80::1"), everywhere, "link-local"},
		"link-local with scope": {tcp("fe80::1%eth0"), everywhere, "with a zone"},
		"unspecified":           {tcp("0.0.0.0"), everywhere, "unspecified"},
		"unspecified, IPv6":     {tcp("::"), everywhere, "unspecified"},
		"multicast":             {tcp("224.0.0.1"), everywhere, "multicast"},
		"multicast, IPv6":       {tcp("ff02::1"), everywhere, "multicast"},
		"broadcast":             {tcp("255.255.255.255"), everywhere, "loopback"},
		"no address":            {healthcheck.Check{Protocol: healthcheck.TCP, Port: 1}, everywhere, "not an address"},
		"port 0":                {healthcheck.Check{Address: address, Protocol: healthcheck.TCP}, ranges, "port 0"},
		"another protocol":      {healthcheck.Check{Address: address, Protocol: "ICMP", Port: 1}, ranges, "is not known"},
		"web":                   {web(healthcheck.HTTP, "/healthz?deep=1", "shop.example"), ranges, ""},
		"web without a path":    {web(healthcheck.HTTPS, "", "shop.example"), ranges, ""},
		"web without a host":    {web(healthcheck.HTTP, "/", ""), ranges, "not a name"},
		"a host with a port":    {web(healthcheck.HTTP, "/", "shop.example:22"), ranges, "not a name"},
		"a host with a user":    {web(healthcheck.HTTP, "/", "a@shop.example"), ranges, "not a name"},
		"a host with a newline": {web(healthcheck.HTTP, "/", "shop\r\nX: y"), ranges, "not a name"},
		"a long host":           {web(healthcheck.HTTP, "/", strings.Repeat("a.", 127)), ranges, "not a name"},
		"a path with a newline": {web(healthcheck.HTTP, "/ HTTP/1.1\r\nX: y", "shop.example"), ranges, "no part of a URL"},
		"a path without slash":  {web(healthcheck.HTTP, "http://127.0.0.1/", "shop.example"), ranges, "begins with /"},
		"a path to a host":      {web(healthcheck.HTTP, "//127.0.0.1/", "shop.example"), ranges, ""},
		"a long path":           {web(healthcheck.HTTP, "/"+strings.Repeat("a", 1024), "shop.example"), ranges, "1024 bytes"},
	} {
		err := healthcheck.Permit(row.check, row.ranges)
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
}

// FuzzPermit: what is permitted by text of a peer is checked at the address that was named, and nowhere else.
func FuzzPermit(f *testing.F) {
	f.Add("/healthz", "shop.example", []byte{192, 0, 2, 1})
	f.Add("//evil/", "shop.example", []byte{127, 0, 0, 1})
	f.Fuzz(func(t *testing.T, path, host string, raw []byte) {
		a, _ := netip.AddrFromSlice(raw)
		c := healthcheck.Check{Address: a, Protocol: healthcheck.HTTP, Port: 80, Path: path, Host: host}
		if healthcheck.Permit(c, ranges) != nil {
			return
		}
		dialed := ""
		o := healthcheck.Options{Dial: func(_ context.Context, _, at string) (net.Conn, error) {
			dialed = at
			return nil, errors.New("no")
		}}
		_ = healthcheck.Probe(t.Context(), c, o)
		if dialed != netip.AddrPortFrom(a, 80).String() {
			t.Fatalf("%q, %q: %q was dialed", path, host, dialed)
		}
	})
}

// TestTimes: a target that dies is sick after three probes, 35 s at the latest, whether it refuses or is silent; one answer heals it.
func TestTimes(t *testing.T) {
	for name, silent := range map[string]bool{"refuses": false, "is silent": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var dead atomic.Bool
				var probes atomic.Int64
				c := checker(t, quiet, healthcheck.Options{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
					probes.Add(1)
					switch {
					case !dead.Load():
						here, _ := net.Pipe()
						return here, nil
					case silent:
						<-ctx.Done()
					}
					return nil, errors.New("no")
				}})
				check := healthcheck.Check{Address: address, Protocol: healthcheck.TCP, Port: 443}
				target := c.Set("z.", by(check), ranges)[check]
				for range 100 {
					time.Sleep(10 * time.Second)
					if !target.Well() {
						t.Fatal("a target that answers is sick")
					}
				}
				if n := probes.Load(); n < 98 || n > 127 { // 1,000 s
					t.Errorf("%d probes in 1,000 s", n)
				}
				for range 20 {
					dead.Store(true)
					died := time.Now()
					for target.Well() && time.Since(died) < time.Minute {
						time.Sleep(100 * time.Millisecond)
					}
					if after := time.Since(died); after < 15*time.Second || after > 35*time.Second {
						t.Errorf("sick after %s, want 16 to 35 s", after)
					}
					dead.Store(false)
					healed := time.Now()
					for !target.Well() && time.Since(healed) < time.Minute {
						time.Sleep(100 * time.Millisecond)
					}
					if after := time.Since(healed); after > 11*time.Second {
						t.Errorf("well after %s, want 10 s at most", after)
					}
				}
			})
		})
	}
}

// TestSet: zones share targets, what stays keeps its state, what no zone wants is checked no more.
func TestSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		c := checker(t, quiet, healthcheck.Options{Most: 2, Dial: func(context.Context, string, string) (net.Conn, error) {
			asked.Add(1)
			return nil, errors.New("no")
		}})
		one := healthcheck.Check{Address: address, Protocol: healthcheck.TCP, Port: 1}
		two := healthcheck.Check{Address: address, Protocol: healthcheck.TCP, Port: 2}
		three := healthcheck.Check{Address: address, Protocol: healthcheck.TCP, Port: 3}
		away := healthcheck.Check{Address: netip.MustParseAddr("198.51.100.1"), Protocol: healthcheck.TCP, Port: 4}
		a := c.Set("a.", by(one, two, away), ranges)
		if len(a) != 2 || a[one] == nil || a[two] == nil {
			t.Fatalf("%v", a)
		}
		time.Sleep(time.Minute)
		if a[one].Well() || a[two].Well() {
			t.Error("targets that refuse for a minute are well")
		}
		b := c.Set("b.", by(one, three), ranges)
		if b[one] != a[one] {
			t.Error("zones do not share a target")
		}
		if !a[two].Well() { // one too many now
			t.Error("what is not probed is sick")
		}
		testutil.Equal(t, "counts", map[string]int{"well": 0, "sick": 1, "unknown": 1, "refused": 2}, c.Counts())
		c.Set("a.", nil, nil)
		if again := c.Set("b.", by(one, three), ranges); again[one] != a[one] || again[one].Well() || again[three] == nil {
			t.Error("a target that stays lost its state, or room that became free is not used")
		}
		c.Set("b.", nil, nil)
		before := asked.Load()
		time.Sleep(time.Minute)
		if n := asked.Load() - before; n > 0 {
			t.Errorf("%d probes of targets that nobody wants", n)
		}
	})
}

// TestRefusedIsSaid: checks that are refused, and those above the limit, are logged if there are some and their number has changed, and not
// at each Set of their zone.
func TestRefusedIsSaid(t *testing.T) {
	var log bytes.Buffer
	c := checker(t, slog.New(slog.NewTextHandler(&log, nil)), healthcheck.Options{Most: 1})
	outside := func(hosts ...string) (out []healthcheck.Check) {
		for _, h := range hosts {
			out = append(out, healthcheck.Check{Address: address, Protocol: healthcheck.HTTP, Port: 80, Host: h})
		}
		return out
	}
	for i, step := range []struct {
		checks []healthcheck.Check
		logged int
	}{{outside("a"), 1}, {outside("a"), 1}, {outside("a", "b"), 2}, {nil, 2}, {outside("a"), 3}} {
		c.Set("z.", map[string][]healthcheck.Check{"c": step.checks}, nil)
		if n := strings.Count(log.String(), "some addresses get no probe"); n != step.logged {
			t.Errorf("step %d: logged %d times, want %d:\n%s", i, n, step.logged, &log)
		}
	}
	for i, step := range []struct{ checks, logged int }{{2, 1}, {2, 1}, {3, 2}, {1, 2}, {3, 3}, {0, 3}, {3, 4}} {
		c.Set("z.", map[string][]healthcheck.Check{"c": many(1, step.checks)}, ten)
		if n := strings.Count(log.String(), "too many health checks"); n != step.logged {
			t.Errorf("step %d: logged %d times that there are too many, want %d:\n%s", i, n, step.logged, &log)
		}
	}
}

// TestProbe probes real servers.
func TestProbe(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "/", http.StatusFound)
		case "/bad":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/host":
			// A proxy that routes by Host knows it as clients write it: without a port that is the protocol's own (RFC 9110, section 4.2.3).
			host := map[string]string{"HTTP 80": "example.com", "HTTP 8080": "example.com:8080", "HTTPS 443": "example.com", "HTTPS 80": "example.com:80"}
			if r.Host != host[r.URL.Query().Get("by")] || r.Method != http.MethodGet {
				w.WriteHeader(http.StatusBadRequest)
			}
		case "/long":
			w.Header().Set("X-Long", strings.Repeat("a", 64<<10))
		}
	})
	plain, secure := httptest.NewServer(answer), httptest.NewTLSServer(answer) // its certificate is for example.com
	defer plain.Close()
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	old := httptest.NewUnstartedServer(answer)
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS11} //nolint:gosec // what must be refused
	old.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure.Config.ErrorLog = old.Config.ErrorLog
	old.StartTLS()
	defer old.Close()
	shut := httptest.NewServer(answer)
	shut.Close()

	to := func(s *httptest.Server, r *x509.CertPool) healthcheck.Options {
		return healthcheck.Options{Roots: r, Dial: func(ctx context.Context, network, at string) (net.Conn, error) {
			if a, _, err := net.SplitHostPort(at); err != nil || a != "192.0.2.1" {
				t.Errorf("%s was dialed", at)
			}
			return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
		}}
	}
	for name, row := range map[string]struct {
		o     healthcheck.Options
		check healthcheck.Check
		want  string
	}{
		"TCP":                     {to(plain, nil), healthcheck.Check{Protocol: healthcheck.TCP}, ""},
		"TCP, nobody":             {to(shut, nil), healthcheck.Check{Protocol: healthcheck.TCP}, "refused"},
		"HTTP":                    {to(plain, nil), healthcheck.Check{Protocol: healthcheck.HTTP, Path: "/host?by=HTTP+80", Host: "example.com"}, ""},
		"HTTP, another port":      {to(plain, nil), healthcheck.Check{Protocol: healthcheck.HTTP, Port: 8080, Path: "/host?by=HTTP+8080", Host: "example.com"}, ""},
		"HTTP, no path":           {to(plain, nil), healthcheck.Check{Protocol: healthcheck.HTTP, Host: "example.com"}, ""},
		"HTTP, 503":               {to(plain, nil), healthcheck.Check{Protocol: healthcheck.HTTP, Path: "/bad", Host: "example.com"}, "answered 503"},
		"HTTP, redirect":          {to(plain, nil), healthcheck.Check{Protocol: healthcheck.HTTP, Path: "/redirect", Host: "example.com"}, "answered 302"},
		"HTTP, endless headers":   {to(plain, nil), healthcheck.Check{Protocol: healthcheck.HTTP, Path: "/long", Host: "example.com"}, "exceeded"},
		"HTTP to a TLS server":    {to(secure, nil), healthcheck.Check{Protocol: healthcheck.HTTP, Host: "example.com"}, "400"},
		"HTTPS":                   {to(secure, roots), healthcheck.Check{Protocol: healthcheck.HTTPS, Port: 443, Path: "/host?by=HTTPS+443", Host: "example.com"}, ""},
		"HTTPS, HTTP's port":      {to(secure, roots), healthcheck.Check{Protocol: healthcheck.HTTPS, Path: "/host?by=HTTPS+80", Host: "example.com"}, ""},
		"HTTPS, another name":     {to(secure, roots), healthcheck.Check{Protocol: healthcheck.HTTPS, Host: "evil.test"}, "certificate is valid for"},
		"HTTPS, unknown signer":   {to(secure, nil), healthcheck.Check{Protocol: healthcheck.HTTPS, Host: "example.com"}, "unknown authority"},
		"HTTPS, TLS 1.1":          {to(old, roots), healthcheck.Check{Protocol: healthcheck.HTTPS, Host: "example.com"}, "protocol version"},
		"HTTPS to a plain server": {to(plain, roots), healthcheck.Check{Protocol: healthcheck.HTTPS, Host: "example.com"}, "does not look like a TLS handshake"},
	} {
		if row.check.Address = address; row.check.Port == 0 {
			row.check.Port = 80
		}
		err := healthcheck.Probe(t.Context(), row.check, row.o)
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
}

// TestMetrics: names and labels are as Prometheus wants them.
func TestMetrics(t *testing.T) {
	c := checker(t, quiet, healthcheck.Options{})
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c.Collector())
	if problems, err := promtest.GatherAndLint(r); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
