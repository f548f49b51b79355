package telemetry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/neardns/neardns/pkg/testutil"
)

// served starts an endpoint on loopback and returns its address.
func served(t *testing.T, h http.Handler) string {
	t.Helper()
	// Not a port that the kernel chooses for clients: before the endpoint listens, the dial below could connect to itself.
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), testutil.FreePort(t))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { ServeTCP(ctx, slog.New(slog.DiscardHandler), "test", at, h) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	testutil.WaitFor("the endpoint", func() bool {
		c, err := net.Dial("tcp", at.String())
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return at.String()
}

// from is a client with a source address of its own.
func from(source string) *http.Client {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	return &http.Client{Transport: &http.Transport{DialContext: d.DialContext, DisableKeepAlives: true}}
}

// One source with hundreds of connections and endless headers takes a few kilobytes for each of at most 64; another source gets answers
// meanwhile.
func TestEndpointIsBounded(t *testing.T) {
	at := served(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "well") }))
	const greedy = 300
	conns := make([]net.Conn, greedy)
	var wg sync.WaitGroup
	var cut atomic.Int64
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
	for i := range conns {
		c, err := d.Dial("tcp", at)
		testutil.Must(t, err)
		conns[i] = c
		wg.Go(func() {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nX: ")
			_, err := c.Write(bytes.Repeat([]byte{'a'}, 950<<10))
			if err == nil { // the kernel took it all; the answer, or the end, shows what the server did
				answer, _ := io.ReadAll(c)
				if len(answer) > 0 && !strings.HasPrefix(string(answer), "HTTP/1.1 431 ") {
					t.Errorf("answered by %.40q", answer)
				}
			}
			cut.Add(1)
		})
	}
	for range 3 {
		testutil.Equal(t, "the answer to another source", "well", body(from("127.0.0.2"), "http://"+at))
	}
	long, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at, nil)
	testutil.Must(t, err)
	long.Header.Set("X", strings.Repeat("a", 16<<10))
	if resp, err := from("127.0.0.2").Do(long); err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of 16 KiB: %+v, %v", resp, err)
	} else {
		_ = resp.Body.Close()
	}
	testutil.WaitFor("the end of headers that are too long", func() bool { return cut.Load() == greedy })
	for _, c := range conns {
		_ = c.Close()
	}
	wg.Wait()
}

// A client address with fewer connections than another one never loses one to it.
func TestConnectionsAreSharedBySource(t *testing.T) {
	l := &fairListener{max: 8}
	var gone []*countedConn
	enter := func(source string, n int) {
		for range n {
			if v := l.add(&countedConn{listener: l, source: netip.MustParseAddr(source)}); v != nil {
				gone = append(gone, v)
			}
		}
	}
	want := func(when string, closed int, by map[string]int) {
		t.Helper()
		got := map[string]int{}
		for _, c := range l.open {
			got[c.source.String()]++
		}
		if !maps.Equal(got, by) || len(gone) != closed {
			t.Errorf("%s: open %v, %d closed; want %v, %d", when, got, len(gone), by, closed)
		}
	}
	enter("10.0.0.1", 20)
	want("one alone has all", 12, map[string]int{"10.0.0.1": 8})
	enter("10.0.0.2", 5)
	want("a second one shares", 17, map[string]int{"10.0.0.1": 4, "10.0.0.2": 4})
	enter("10.0.0.3", 1)
	enter("10.0.0.4", 1)
	want("the source with most makes room", 19, map[string]int{"10.0.0.1": 3, "10.0.0.2": 3, "10.0.0.3": 1, "10.0.0.4": 1})
	for range 20 {
		enter("10.0.0.1", 1)
	}
	want("a flood closes its own", 39, map[string]int{"10.0.0.1": 3, "10.0.0.2": 3, "10.0.0.3": 1, "10.0.0.4": 1})
	for _, c := range gone {
		l.remove(c) // closed already
	}
	want("closed once", 39, map[string]int{"10.0.0.1": 3, "10.0.0.2": 3, "10.0.0.3": 1, "10.0.0.4": 1})
}

// At most two requests run at the same time, others wait, and a client that does not read blocks no other.
func TestScrapesTakeTurns(t *testing.T) {
	var now, most atomic.Int64
	release := make(chan struct{})
	large := bytes.Repeat([]byte("x"), 8<<20)
	at := served(t, limitScrapes(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			_, _ = w.Write(large)
			return
		}
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		now.Add(-1)
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "done")
	})))
	for range 2 * maxScrapes { // slow readers
		c, err := net.Dial("tcp", at)
		testutil.Must(t, err)
		defer c.Close()
		_, _ = io.WriteString(c, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
		_, err = io.ReadFull(c, make([]byte, 16))
		testutil.Must(t, err)
	}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			resp, err := from("127.0.0.2").Get("http://" + at)
			if err == nil {
				if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusTeapot || string(body) != "done" {
					err = errors.New(resp.Status)
				}
				_ = resp.Body.Close()
			}
			testutil.Check(t, err)
		})
	}
	testutil.WaitFor("work", func() bool { return now.Load() == maxScrapes })
	close(release)
	wg.Wait()
	testutil.Equal(t, "scrapes at a time", maxScrapes, most.Load())
}
