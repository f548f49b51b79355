package steering

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/neardns/neardns/pkg/testutil"
)

// TestMetricsUnderAttack: one pod opens 300 connections to the metrics and sends 950 KB of a header that never ends on each. The
// agent's memory grows by less than half, no lease is lost, and another pod scrapes meanwhile; what it reads names no namespace.
func TestMetricsUnderAttack(t *testing.T) {
	n := newNode(t, setup{families: testutil.IPv4, config: "listen: {metrics: \"0.0.0.0:9253\"}\n"})
	greedy, other := n.addPod(nil), n.addPod(nil)
	n.startAgent()
	n.wantSteered(other.client(), "before", n.all()...)
	at := netip.AddrPortFrom(n.HostAddrs()[0], 9253).String()
	scrape := func() (string, error) {
		var text []byte
		var err error
		other.NetNS.Do(func() {
			var c net.Conn
			if c, err = net.DialTimeout("tcp", at, testutil.Patience()); err != nil {
				return
			}
			client := http.Client{Timeout: testutil.Patience(), Transport: &http.Transport{
				DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }, DisableKeepAlives: true}}
			var resp *http.Response
			if resp, err = client.Get("http://" + at + "/metrics"); err != nil {
				return
			}
			text, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		})
		return string(text), err
	}
	first, err := scrape()
	if err != nil {
		t.Fatal(err)
	}
	before := memory(t, n.agent.PID(), "VmHWM")
	fill := bytes.Repeat([]byte{'a'}, 950<<10)
	var wg sync.WaitGroup
	var conns []net.Conn
	greedy.NetNS.Do(func() {
		for range 300 {
			c, err := net.DialTimeout("tcp", at, testutil.Patience())
			if err != nil {
				continue // refused is as good
			}
			conns = append(conns, c)
		}
	})
	if len(conns) < 100 {
		t.Fatalf("only %d connections were made", len(conns))
	}
	for _, c := range conns {
		wg.Go(func() {
			_ = c.SetDeadline(time.Now().Add(testutil.Patience()))
			_, _ = io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\nX: ")
			_, _ = c.Write(fill)
			_, _ = io.Copy(io.Discard, c)
		})
	}
	for range 3 {
		if _, err := scrape(); err != nil {
			t.Errorf("another pod's scrape: %v", err)
		}
	}
	n.wantSteered(other.client(), "meanwhile", n.all()...)
	wg.Wait()
	for _, c := range conns {
		_ = c.Close()
	}
	if most := memory(t, n.agent.PID(), "VmHWM"); most > before*3/2 {
		t.Errorf("the agent took %d MiB, and %d before", most>>20, before>>20)
	}
	last, err := scrape()
	if err != nil {
		t.Fatal(err)
	}
	lost := func(text string) (out []string) {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "neardns_lease_lost_total{") && !strings.HasSuffix(strings.TrimSpace(line), " 0") {
				out = append(out, strings.TrimSpace(line))
			}
		}
		return out
	}
	if was, is := lost(first), lost(last); strings.Join(was, "") != strings.Join(is, "") {
		t.Errorf("leases lost: %v, before %v", is, was)
	}
	if !strings.Contains(last, "neardns_lease_held{") || strings.Contains(last, "neardns_namespace_") {
		t.Error("the metrics are not whole, or tell whose pods are here")
	}
	if os.Getenv("NEARDNS_SAY") != "" {
		t.Logf("at most %d KiB, then %d KiB", before>>10, memory(t, n.agent.PID(), "VmHWM")>>10)
	}
}
